"""Costs of released text, carried into everything made with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, KeysView, Mapping, Sequence, ValuesView
from typing import Any, Protocol, Self, TypeAlias

from langchain_dp._util import validate
from langchain_dp.accounting.budget import neighbors_from
from langchain_dp.accounting.events import Neighbors
from langchain_dp.errors import InvalidParameter

_DEEPEST = 8  # levels of containers that are looked through


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseCost:
    """The most that all releases of one reservation may cost.

    Args:
        ledger: Id of the ledger, or digest of a certificate without one.
        plan: Name of the reservation.
        epsilon: Reserved epsilon. Infinite only with ``reason``.
        delta: Reserved delta.
        neighbors: Neighboring relation.
        reason: Why it is not private.

    Examples:
        >>> cost = ReleaseCost(ledger="3f", plan="names", epsilon=5.0, delta=5e-6, neighbors=Neighbors.REPLACE_ONE)
        >>> cost.plan
        'names'
    """

    ledger: str
    plan: str
    epsilon: float
    delta: float
    neighbors: Neighbors
    reason: str = ""

    def __post_init__(self) -> None:
        if self.epsilon != float("inf") or not self.reason:
            validate.number("epsilon", self.epsilon, at_least=0.0)
        validate.number("delta", self.delta, at_least=0.0, at_most=1.0)
        object.__setattr__(self, "neighbors", neighbors_from(self.neighbors))


class HasSources(Protocol):
    """A certificate that names its costs."""

    def as_sources(self) -> tuple[ReleaseCost, ...]: ...


MadeWith: TypeAlias = HasSources | Sequence[HasSources] | None


class ReleasedText(str):
    """A str that knows its costs, and keeps them in copies, ``strip()``, ``+`` and pickles, but not in ``str(text)``.

    Examples:
        >>> cost = ReleaseCost(ledger="3f", plan="names", epsilon=5.0, delta=5e-6, neighbors=Neighbors.REPLACE_ONE)
        >>> text = ReleasedText(" late parcels", [cost])
        >>> text.strip().costs[0].epsilon
        5.0
    """

    costs: tuple[ReleaseCost, ...]

    def __new__(cls, text: str, costs: Iterable[ReleaseCost] = ()) -> Self:
        released = super().__new__(cls, text)
        released.costs = merged((*getattr(text, "costs", ()), *costs))
        return released

    def __getnewargs__(self) -> tuple[str, tuple[ReleaseCost, ...]]:  # type: ignore[override]
        return str(self), self.costs

    def strip(self, chars: str | None = None, /) -> ReleasedText:
        return ReleasedText(super().strip(chars), self.costs)

    def __add__(self, other: str, /) -> ReleasedText:
        return ReleasedText(super().__add__(other), (*self.costs, *getattr(other, "costs", ())))

    def __radd__(self, other: str, /) -> ReleasedText:
        return ReleasedText(other + str(self), self.costs)


def released(texts: Mapping[str, str], costs: Iterable[ReleaseCost]) -> dict[str, str]:
    return {name: ReleasedText(text, costs) for name, text in texts.items()}


def merged(costs: Iterable[ReleaseCost]) -> tuple[ReleaseCost, ...]:
    """Return each reservation once, because its claim covers all its releases."""
    return tuple({(cost.ledger, cost.plan): cost for cost in costs}.values())


def costs_in(*values: Any) -> tuple[ReleaseCost, ...]:
    """Return the costs in texts, certificates and templates, also inside containers and dataclasses."""
    return merged(cost for value in values for cost in _costs(value, _DEEPEST))


def _costs(value: Any, depth: int) -> Iterable[ReleaseCost]:
    if isinstance(value, ReleasedText):
        return value.costs
    if value is None or isinstance(value, (str, bytes, int, float)) or depth == 0:
        return ()
    if hasattr(value, "as_sources"):
        found: tuple[ReleaseCost, ...] = value.as_sources()
        return found
    metadata = getattr(value, "metadata", None)
    if isinstance(metadata, Mapping) and isinstance(metadata.get("dp"), Mapping):
        return sources_of(metadata["dp"])
    if hasattr(getattr(value, "certificate", None), "as_sources"):
        return _costs(value.certificate, depth - 1)
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = [*value, *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, KeysView, ValuesView)):
        inner = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [cost for each in inner for cost in _costs(each, depth - 1)]


def sources_of(certificate: Mapping[str, Any]) -> tuple[ReleaseCost, ...]:
    try:
        if certificate["sources"]:
            return tuple(ReleaseCost(**{**each, "epsilon": float(each["epsilon"])}) for each in certificate["sources"])
        epsilon, delta = float(certificate["epsilon"]), float(certificate["delta"])
        if epsilon == delta == 0.0:
            return ()
        digest = hashlib.sha256(json.dumps(certificate, sort_keys=True).encode()).hexdigest()[:32]
        neighbors, reason = certificate["neighbors"], certificate["reason"]
        return (
            ReleaseCost(
                ledger=digest, plan=certificate["mechanism"], epsilon=epsilon, delta=delta, neighbors=neighbors,
                reason=reason,
            ),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        wrong = type(error).__name__
    raise InvalidParameter(f'Expected metadata["dp"] of a template to be a certificate ({wrong}). Leave it out.')


def costs_of_inputs(*values: Any, made_with: MadeWith, budget: Any, ledger: Any) -> tuple[ReleaseCost, ...]:
    """Return the costs of public inputs. Refuse other neighbors than the chain's."""
    costs = merged((*costs_in(*values), *declared(made_with)))
    neighbors = getattr(getattr(ledger, "budget", None) if budget is None else budget, "neighbors", None)
    if neighbors is not None:
        check_neighbors(costs, neighbors)
    return costs


def check_neighbors(costs: Iterable[ReleaseCost], neighbors: Neighbors) -> None:
    if other := next((cost for cost in costs if cost.neighbors is not neighbors), None):
        raise InvalidParameter(
            f"Expected text that the plan {other.plan!r} released for neighbors {other.neighbors.name} to be released "
            f"for {neighbors.name}, as what is made with it: the two promises do not add up. Make both under one "
            "relation, or leave the text out."
        )


def declared(made_with: MadeWith) -> tuple[ReleaseCost, ...]:
    certificates = made_with if isinstance(made_with, (list, tuple)) else () if made_with is None else (made_with,)
    for one in certificates:
        if not any(hasattr(each, "as_sources") for each in (one, getattr(one, "certificate", None))):
            raise InvalidParameter(
                f"Expected made_with of type {type(one).__name__} to be a PrivacyCertificate, or a list of them. Give "
                "the certificate of the run that released the text, for example load_prompt(path).certificate."
            )
    return costs_in(list(certificates))
