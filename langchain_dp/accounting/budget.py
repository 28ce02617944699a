"""Privacy budgets."""

from __future__ import annotations

import dataclasses
from typing import Any

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.rounding import bound
from langchain_dp.accounting.events import Neighbors
from langchain_dp.errors import InvalidParameter, MostlyNoiseWarning, WeakPromiseWarning

USUAL = 10.0
_MOST = 500.0  # nats. A budget beyond promises nothing, and the accountant's exponentials stay finite
_NAMES = {member.name.lower(): member for member in Neighbors}


def neighbors_from(value: Neighbors | str) -> Neighbors:
    name = value.strip().lower().replace("-", "_") if isinstance(value, str) else getattr(value, "name", "").lower()
    relation = _NAMES.get(name)
    if relation is None or not (isinstance(value, str) or value is relation):
        raise InvalidParameter(
            f"Expected neighbors={value!r} to be one of {sorted(_NAMES)}. "
            "Give a member of Neighbors, or its name as a string."
        )
    return relation


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """The most (epsilon, delta) that all releases of one ledger may cost.

    Args:
        epsilon: Privacy loss in nats, in (0, 500].
        delta: Probability that the bound may fail, in (0, 1). Under add/remove, never derive it from the data.
        neighbors: Neighboring relation, or its name.

    Examples:
        >>> budget = PrivacyBudget(3.0, delta=1e-6, neighbors="add_or_remove_one")
        >>> print(budget)
        epsilon=3, delta=1e-06, neighbors=add_or_remove_one
    """

    epsilon: float
    delta: float = 1e-5
    neighbors: Neighbors = Neighbors.REPLACE_ONE

    def __post_init__(self) -> None:
        remedy = "Usual budgets are 1 to 10."
        epsilon = validate.number("epsilon", self.epsilon, above=0.0, at_most=_MOST, remedy=remedy)
        delta = validate.number("delta", self.delta, above=0.0, below=1.0, remedy="A usual choice is 1e-5.")
        # Frozen. Converted, so that PrivacyBudget(3) equals PrivacyBudget(3.0).
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "neighbors", neighbors_from(self.neighbors))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"epsilon": self.epsilon, "delta": self.delta, "neighbors": self.neighbors.name.lower()}

    def __str__(self) -> str:
        return f"epsilon={bound(self.epsilon)}, delta={bound(self.delta)}, neighbors={self.neighbors.name.lower()}"


def weak_promise_reasons(
    epsilon: float, delta: float, count: int | None = None, of: str = "records"
) -> tuple[str, ...]:
    """Return why (epsilon, delta) promises little. Without a public ``count``, delta is not judged."""
    points = []
    if epsilon > USUAL:
        points.append(
            f"epsilon={epsilon:g} is above {USUAL:g}: a release may make a guess about a record e^{epsilon:g} "
            "times as likely, which promises hardly anything"
        )
    if count and delta >= 1 / count:
        points.append(
            f"delta={delta:g} is not below one over the number of {of}: to publish every record with that "
            "chance would keep such a promise"
        )
    return tuple(points)


LEAST_CLIP = 0.3
"""Clip in nats below which only a third of the records' signal is left."""

LABELS_FROM_DATA = "the labels were read off the private records: the epsilon does not count that"


def warn_mostly_noise(point: str) -> None:
    if point:
        warn_caller(f"Mostly noise: {point}. More records, fewer releases or a larger budget help.", MostlyNoiseWarning)


def warn_small_clip(clip: float) -> None:
    if clip < LEAST_CLIP:
        warn_mostly_noise(
            f"a clip of {clip:.2g} nats lets the records hardly move the public model, which writes "
            "as well without a budget"
        )


def warn_weak_promise(points: tuple[str, ...]) -> None:
    for point in points:
        warn_caller(
            f"The promise is weak: {point}. Usual are epsilon of 1 to 10 and delta far below one over the records.",
            WeakPromiseWarning,
        )
