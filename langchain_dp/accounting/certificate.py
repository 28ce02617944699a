"""What was released, under which promise: the paper that travels with an answer."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.accounting._certificate_faces import CertificateFaces, loss_in, loss_out, one_line, public
from langchain_dp.accounting.budget import neighbors_from, weak_promise_reasons
from langchain_dp.accounting.events import Neighbors, count_is_public
from langchain_dp.accounting.provenance import ReleaseCost, check_neighbors, merged, sources_of
from langchain_dp.errors import InvalidParameter

PUBLIC_COUNT = "the number of records is public"
"""Note of every certificate whose neighbours hold equally many records."""

INCLUDING = "released text went into this: what it cost is counted as reserved, and added up"
"""Note of a certificate with more than one source by :meth:`PrivacyCertificate.including`."""

_RELATIONS = {
    Neighbors.REPLACE_ONE: "replace one record",
    Neighbors.ADD_OR_REMOVE_ONE: "add or remove one record",
    Neighbors.REPLACE_SPECIAL: "zero-out: one record replaced by a ghost that abstains (weaker than add or remove)",
}


def library_version() -> str:
    """Return the installed version of this package, or "unknown" when it runs without being installed."""
    try:
        return importlib.metadata.version("langchain-dp")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class PrivacyCertificate(CertificateFaces):
    """The privacy of a release, in public terms only.

    Two claims stand side by side and are never mixed: ``epsilon`` and ``delta`` are *reserved* (what holds for
    everything the plan may ever release), ``spent`` is what the releases so far cost.

    Args:
        mechanism: What drew the answer, e.g. "report noisy max".
        epsilon: Reserved epsilon, in nats; infinite only if not private.
        delta: Reserved delta, in [0, 1].
        neighbors: Which two data sets must look alike.
        spent: (epsilon, delta) of the releases so far.
        remaining: How many more such releases the plan covers; None if that is no one number.
        model: Name of the model that was asked.
        library_version: Version of this package.
        private: False for seeded and non-private methods.
        reason: Why it is not private; empty if it is.
        notes: What else a reader must know. The note that the number of records is public is added under
            replace-one and zero-out, where it always holds.
        parameters: Public parameters of the mechanism, e.g. ``{"sigma": 1.3}``.
        sources: The reservations that ``epsilon`` and ``delta`` add up: the one that the releases are charged to first,
            then those that paid for released text which was made use of (:meth:`including`).

    Raises:
        InvalidParameter: A value lies outside its bound, or ``private`` contradicts ``reason`` or ``epsilon``.

    Examples:
        >>> certificate = ledger.certificate(NoisyMaxEvent(10.0), mechanism="report noisy max")
        >>> PrivacyCertificate.from_json(certificate.to_json()) == certificate
        True
        >>> certificate.remaining
        25
    """

    mechanism: str
    epsilon: float
    delta: float
    neighbors: Neighbors
    spent: tuple[float, float] = (0.0, 0.0)
    remaining: int | None = None
    model: str = ""
    library_version: str = dataclasses.field(default_factory=library_version)
    private: bool = True
    reason: str = ""
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, float | int | str] = dataclasses.field(default_factory=dict, hash=False)
    sources: tuple[ReleaseCost, ...] = ()

    def __post_init__(self) -> None:
        neighbors = neighbors_from(self.neighbors)
        notes = tuple(self.notes)
        if count_is_public(neighbors) and PUBLIC_COUNT not in notes:
            notes = (PUBLIC_COUNT, *notes)
        if len(self.spent) != 2:
            raise InvalidParameter(f"Expected spent={self.spent!r} to be a pair (epsilon, delta).")
        values = {
            "epsilon": _loss("epsilon", self.epsilon),
            "delta": validate.number("delta", self.delta, at_least=0.0, at_most=1.0),
            "neighbors": neighbors,
            "spent": (
                _loss("spent[0]", self.spent[0]),
                validate.number("spent[1]", self.spent[1], at_least=0.0, at_most=1.0),
            ),
            "notes": notes,
            "parameters": MappingProxyType({name: public(name, value) for name, value in self.parameters.items()}),
        }
        if self.remaining is not None:
            validate.integer("remaining", self.remaining, at_least=0)
        self._check_reason()
        if self.private and math.isinf(max(self.epsilon, self.spent[0])):
            raise InvalidParameter("Expected epsilon=inf only with private=False. Give private=False and the reason.")
        for name, value in values.items():
            object.__setattr__(self, name, value)  # frozen: the only way to store what was converted

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold: infinity is the string "inf", neighbours their name."""
        return {
            "mechanism": self.mechanism,
            "epsilon": loss_out(self.epsilon),
            "delta": self.delta,
            "neighbors": self.neighbors.name.lower(),
            "spent": [loss_out(self.spent[0]), self.spent[1]],
            "remaining": self.remaining,
            "model": self.model,
            "library_version": self.library_version,
            "private": self.private,
            "reason": self.reason,
            "notes": list(self.notes),
            "parameters": dict(self.parameters),
            "sources": [
                dataclasses.asdict(source)
                | {"epsilon": loss_out(source.epsilon), "neighbors": source.neighbors.name.lower()}
                for source in self.sources
            ],
        }

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        spent = tuple(loss_in(value) for value in values["spent"])
        sources = tuple(ReleaseCost(**{**each, "epsilon": loss_in(each["epsilon"])}) for each in values["sources"])
        return {**values, "epsilon": loss_in(values["epsilon"]), "spent": spent, "sources": sources}

    def as_sources(self) -> tuple[ReleaseCost, ...]:
        """What was released under this certificate costs whoever makes something of it: nothing, if it cost nothing."""
        return self.sources or sources_of(self.to_dict())

    def including(self, costs: Sequence[ReleaseCost]) -> PrivacyCertificate:
        """The certificate of what was made with released text: the promise of both.

        Epsilons and deltas add up, within one ledger and over several (basic composition, which holds however the
        later run was chosen). A reservation that is named twice counts once: its claim covers all of its releases.

        Args:
            costs: Of the released text; ``spent`` counts them as reserved.

        Raises:
            InvalidParameter: The text was released for other neighbors, so that the promises do not add up.
        """
        own = self.as_sources()
        known = {(source.ledger, source.plan) for source in own}
        new = [cost for cost in merged(costs) if (cost.ledger, cost.plan) not in known]
        if not new:
            return self
        neighbors = self.neighbors if own else new[0].neighbors  # what costs nothing promises it for all
        check_neighbors(new, neighbors)
        epsilon, delta = math.fsum(cost.epsilon for cost in new), math.fsum(cost.delta for cost in new)
        reasons = [f"made with text that is not private: {cost.reason}" for cost in new if cost.reason]
        total = self.epsilon + epsilon, min(1.0, self.delta + delta)
        weak = [] if reasons or not self.private else weak_promise_reasons(*total)
        return dataclasses.replace(
            self,
            epsilon=total[0],
            delta=total[1],
            neighbors=neighbors,
            spent=(self.spent[0] + epsilon, min(1.0, self.spent[1] + delta)),
            private=self.private and not reasons,
            reason="; ".join(filter(None, (self.reason, *reasons))),
            notes=(*self.notes, INCLUDING, *(point for point in weak if point not in self.notes)),
            sources=(*own, *new),
        )

    def _own_rows(self) -> list[tuple[str, str]]:
        rows = [
            ("mechanism", self.mechanism),
            ("reserved", f"epsilon = {bound(self.epsilon)}, delta = {bound(self.delta, 3)}"),
            ("spent so far", f"epsilon = {bound(self.spent[0])}, delta = {bound(self.spent[1], 3)}"),
            ("neighbours", f"{_RELATIONS[self.neighbors]} [{self.neighbors.name}]"),
        ]
        for source in self.sources if len(self.sources) > 1 else ():
            cost = f"epsilon = {bound(source.epsilon)}, delta = {bound(source.delta, 3)}"
            rows.append(("of which", f"{cost}: plan {source.plan!r} of the ledger {source.ledger[:8]}"))
        if self.remaining is not None:
            rows.append(("releases left", f"{self.remaining:,}"))
        if self.model:
            rows.append(("model", self.model))
        return rows

    def __repr__(self) -> str:
        if not self.private:
            return f"PrivacyCertificate(NOT PRIVATE: {one_line(self.reason)}; {one_line(self.mechanism)})"
        left = "" if self.remaining is None else f", remaining={self.remaining}"
        return (
            f"PrivacyCertificate({one_line(self.mechanism)}, epsilon={bound(self.epsilon)}, "
            f"delta={bound(self.delta, 3)}, {self.neighbors.name}, spent={bound(self.spent[0])}{left})"
        )


def _loss(name: str, value: float) -> float:
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return validate.number(name, value, at_least=0.0)
