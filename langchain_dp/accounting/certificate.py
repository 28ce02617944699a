"""Certificates of answers and texts."""

from __future__ import annotations

import dataclasses
import html
import importlib.metadata
import json
import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.accounting.budget import neighbors_from, weak_promise_reasons
from langchain_dp.accounting.events import Neighbors, count_is_public
from langchain_dp.accounting.provenance import ReleaseCost, check_neighbors, merged, sources_of
from langchain_dp.accounting.signing import code_digest, signed_text
from langchain_dp.errors import InvalidParameter

PUBLIC_COUNT = "the number of records is public"

USERS = "the promise holds for all records of one user"

INCLUDING = "released text went into this: its cost counts as reserved, and added up"

ROUNDED = "spent is rounded up"

_RELATIONS = {
    Neighbors.REPLACE_ONE: "replace one record",
    Neighbors.ADD_OR_REMOVE_ONE: "add or remove one record",
    Neighbors.REPLACE_SPECIAL: "zero-out: one record replaced by a ghost that abstains (weaker than add or remove)",
}

KIND = "metric privacy"
"""Mark of numbers that are no (epsilon, delta)."""

WHOLE_TEXTS = "whole-texts"
"""Metric in which any two texts are 1 apart, so eta is a local epsilon."""


def library_version() -> str:
    try:
        return importlib.metadata.version("langchain-dp")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class BaseCertificate:
    """Common base of certificates."""

    mechanism: str
    private: bool
    reason: str
    notes: tuple[str, ...]
    library_version: str
    parameters: Mapping[str, float | int | str]
    _marks: ClassVar[Mapping[str, str]] = {}  # further plain values beside the fields

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with "inf" for infinity."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {**self._marks, **fields, "notes": list(self.notes), "parameters": dict(self.parameters)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the certificate that ``to_dict`` wrote, or raise InvalidParameter."""
        named = dataclasses.fields(cls)  # type: ignore[arg-type]  # every certificate is one
        names = sorted([*cls._marks, *(field.name for field in named)])
        try:
            if sorted(fields) != names or any(fields[name] != mark for name, mark in cls._marks.items()):
                kind = "".join(f" of {mark}" for mark in cls._marks.values())
                raise InvalidParameter(f"Expected fields={sorted(fields)} to be {names}: this is no certificate{kind}.")
            values = {name: value for name, value in fields.items() if name not in cls._marks}
            return cls(**cls._read(values))
        except (TypeError, AttributeError) as error:
            wrong = type(error).__name__
        raise InvalidParameter(f"Expected the fields of a certificate, but one is of another type ({wrong}).")

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _check_reason(self, name: str, loss: float) -> None:
        if not isinstance(self.private, bool) or self.private == bool(self.reason):
            raise InvalidParameter(
                f"Expected private={self.private!r} to go with reason={self.reason!r}. "
                "Give a reason if not private, and only then."
            )
        if self.private and math.isinf(loss):
            raise InvalidParameter(f"Expected {name}=inf only with private=False. Give private=False and the reason.")

    def _store(self, **values: Any) -> None:
        parameters = {name: public(name, value) for name, value in self.parameters.items()}
        for name, value in {**values, "parameters": MappingProxyType(parameters)}.items():
            object.__setattr__(self, name, value)  # frozen: the only way

    def _rows(self) -> list[tuple[str, str]]:
        rows = [] if self.private else [("NOT PRIVATE", self.reason)]
        rows += self._own_rows()
        rows += [(f"parameter {name}", shown(value)) for name, value in self.parameters.items()]
        rows += [("note", note) for note in self.notes]
        rows.append(("library", f"langchain-dp {self.library_version}"))
        return [(one_line(name), one_line(value)) for name, value in rows]

    def _own_rows(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def _summary(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        if self.private:
            return f"{type(self).__name__}({self._summary()})"
        return f"{type(self).__name__}(NOT PRIVATE: {one_line(self.reason)}; {one_line(self.mechanism)})"

    def to_json(self) -> str:
        """Return strict JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the certificate of :meth:`to_json`, or raise InvalidParameter."""
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidParameter(f"Expected a certificate as JSON: {error}.") from None
        if not isinstance(fields, dict):
            raise InvalidParameter("Expected a certificate as a JSON object.")
        return cls.from_dict(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_dict, (self.to_dict(),))  # a mapping proxy does not pickle by itself

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(["Privacy certificate" if self.private else "NOT PRIVATE: no privacy certificate"]
                         + [f"  {name:<{width}}  {value}" for name, value in rows])  # fmt: skip

    def _repr_html_(self) -> str:
        title = "Privacy certificate" if self.private else "NOT PRIVATE"
        cell = "padding:2px 10px;text-align:left;border-top:1px solid currentColor;color:inherit;background:transparent"
        body = "".join(
            f'<tr><th scope="row" style="{cell}">{html.escape(name)}</th>'
            f'<td style="{cell}">{html.escape(value)}</td></tr>'
            for name, value in self._rows()
        )
        return (
            '<table style="border-collapse:collapse;color:inherit;background:transparent">'
            f'<caption style="text-align:left;font-weight:bold;color:inherit">{title}</caption>{body}</table>'
        )


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class PrivacyCertificate(BaseCertificate):
    """The privacy of a release, in public terms.

    ``epsilon`` and ``delta`` are *reserved* for everything the plan may release. ``spent`` is the cost so far.

    Args:
        mechanism: Name of the mechanism.
        epsilon: Reserved epsilon, in nats. Infinite only if not private.
        delta: Reserved delta.
        neighbors: Neighboring relation.
        spent: (epsilon, delta) so far.
        remaining: Number of releases left, or None.
        model: Name of the model.
        library_version: Version of this package.
        private: False for seeded and non-private methods.
        reason: Why it is not private.
        notes: Further notes. Replace-one and zero-out add that the number of records is public.
        parameters: Public parameters, e.g. ``{"sigma": 1.3}``.
        sources: Reservations that ``epsilon`` and ``delta`` add up: the one charged, then those of released input text
            (:meth:`including`).

    Examples:
        >>> certificate = ledger.certificate(NoisyMaxEvent(10.0), mechanism="report noisy max")
        >>> PrivacyCertificate.from_json(certificate.to_json()) == certificate
        True
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
        epsilon, delta = _loss_pair("epsilon", "delta", self.epsilon, self.delta)
        spent = _loss_pair("spent[0]", "spent[1]", *self.spent)
        if self.remaining is not None:
            validate.integer("remaining", self.remaining, at_least=0)
        self._check_reason("epsilon", max(self.epsilon, self.spent[0]))
        self._store(epsilon=epsilon, delta=delta, neighbors=neighbors, spent=spent, notes=notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with "inf" for infinity."""
        return super().to_dict() | {
            "epsilon": loss_out(self.epsilon),
            "neighbors": self.neighbors.name.lower(),
            "spent": [loss_out(self.spent[0]), self.spent[1]],
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

    def sign(self, key: str | os.PathLike[str]) -> str:
        """Return text signed with ``key``, a PEM file of an Ed25519 private key, for ``SignedCertificate.read``.

        It holds this certificate, the ledger's id, and the version and a hash of this package's code.
        """
        ledger = self.sources[0].ledger if self.sources else ""
        fields = {"certificate": self.to_dict(), "code": code_digest(), "ledger": ledger, "version": library_version()}
        return signed_text(fields, key)

    def as_sources(self) -> tuple[ReleaseCost, ...]:
        """Return the costs of its releases."""
        return self.sources or sources_of(self.to_dict())

    def including(self, costs: Sequence[ReleaseCost]) -> PrivacyCertificate:
        """Return the certificate of results made with released text: its ``costs`` add up (basic composition).

        A reservation counts once. Costs under other neighbors raise InvalidParameter.
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
        relation = _RELATIONS[self.neighbors]
        if USERS in self.notes:
            relation = relation.replace("one record", "all records of one user")
        rows = [
            ("mechanism", self.mechanism),
            ("reserved", f"epsilon = {bound(self.epsilon)}, delta = {bound(self.delta, 3)}"),
            ("spent so far", f"epsilon = {bound(self.spent[0])}, delta = {bound(self.spent[1], 3)}"),
            ("neighbors", f"{relation} [{self.neighbors.name}]"),
        ]
        for source in self.sources if len(self.sources) > 1 else ():
            cost = f"epsilon = {bound(source.epsilon)}, delta = {bound(source.delta, 3)}"
            rows.append(("of which", f"{cost}: plan {source.plan!r} of the ledger {source.ledger[:8]}"))
        if self.remaining is not None:
            rows.append(("releases left", f"{self.remaining:,}"))
        if self.model:
            rows.append(("model", self.model))
        return rows

    def _summary(self) -> str:
        left = "" if self.remaining is None else f", remaining={self.remaining}"
        return (
            f"{one_line(self.mechanism)}, epsilon={bound(self.epsilon)}, delta={bound(self.delta, 3)}, "
            f"{self.neighbors.name}, spent={bound(self.spent[0])}{left}"
        )


def _loss_pair(name: str, slack: str, epsilon: float, delta: float) -> tuple[float, float]:
    if not (isinstance(epsilon, float) and epsilon == math.inf):
        epsilon = validate.number(name, epsilon, at_least=0.0)
    return epsilon, validate.number(slack, delta, at_least=0.0, at_most=1.0)


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class MetricCertificate(BaseCertificate):
    """The promise that covers sanitized text, in public terms.

    Args:
        mechanism: Name of the mechanism.
        eta: Loss of one release, in nats per unit of distance in ``table``. Infinite only if not private.
        table: Public table of word vectors.
        neighbor_distance: Distance of a typical word to its nearest neighbor.
        replaced: Probability that a word changes.
        user_spent: Largest sum of one user's releases, in the unit of eta.
        document_spent: The same for a document.
        user_limit: Limit per user.
        document_limit: Limit per document.
        releases: Number of charged releases.
        library_version: Version of this package.
        private: False for seeded and non-formal modes.
        reason: Why it is not private.
        notes: Parts that pass in clear, and further notes.
        parameters: Public parameters.

    Examples:
        >>> certificate = MetricCertificate(mechanism="exponential", eta=4.0, table="glove", neighbor_distance=2.5)
        >>> certificate.word_loss
        10.0
    """

    _marks: ClassVar[Mapping[str, str]] = {"kind": KIND}

    mechanism: str
    eta: float
    table: str
    neighbor_distance: float | None = None
    replaced: float | None = None
    user_spent: float | None = None
    document_spent: float | None = None
    user_limit: float | None = None
    document_limit: float | None = None
    releases: int = 0
    library_version: str = dataclasses.field(default_factory=library_version)
    private: bool = True
    reason: str = ""
    notes: tuple[str, ...] = ()
    parameters: Mapping[str, float | int | str] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.eta != math.inf:
            validate.number("eta", self.eta, above=0.0)
        for name in ("neighbor_distance", "user_spent", "document_spent", "user_limit", "document_limit"):
            if getattr(self, name) is not None:
                validate.number(name, getattr(self, name), at_least=0.0)
        if self.replaced is not None:
            validate.number("replaced", self.replaced, at_least=0.0, at_most=1.0)
        validate.integer("releases", self.releases, at_least=0)
        self._check_reason("eta", self.eta)
        self._store(notes=tuple(self.notes))

    @property
    def word_loss(self) -> float | None:
        """Nats between texts that differ in one word, by its nearest neighbor."""
        return None if self.neighbor_distance is None else self.eta * self.neighbor_distance

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with "inf" for infinity."""
        return super().to_dict() | {"eta": loss_out(self.eta)}

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "eta": loss_in(values["eta"])}

    def _own_rows(self) -> list[tuple[str, str]]:
        rows = [("mechanism", self.mechanism)]
        if not math.isinf(self.eta):
            rows.append(("eta", f"{bound(self.eta)} nats {per(self.table)}, for each release"))
        if self.private:
            rows += self._plain_words()
        if self.replaced is not None:
            rows.append(("words replaced", f"with probability {self.replaced:.3g}"))
        if not math.isinf(self.eta):
            whole = "a local epsilon of one text, never to be added to the epsilon of a data set"
            unit = whole if self.table == WHOLE_TEXTS else "not an epsilon, and never to be added to one"
            rows.append(("unit", f"{KIND}: {unit}"))
            rows.append(("releases", f"{self.releases:,}"))
            rows += _spent("document", self.document_spent, self.document_limit)
            rows += _spent("user", self.user_spent, self.user_limit)
        return rows

    def _plain_words(self) -> list[tuple[str, str]]:
        whole = self.table == WHOLE_TEXTS
        unit = "one text: any other text could have been the original. Releases of one text add up."
        pair = "Two texts differ."
        if not whole:
            unit = (
                "one word: a similar word could have been the original. The losses of all words of a text add up, and "
                "so do releases. So a whole text is protected far less than a word."
            )
            pair = "Two texts differ in one word: the second has the nearest neighbor of that word."
        readers = "readers of released text, such as the operator of a model. This process reads the original."
        rows = [("protected from", readers), ("protected unit", unit)]
        loss = self.eta if whole else self.word_loss
        if loss is not None:
            factor = f"at most {math.ceil(math.exp(loss)):,}" if loss < 20 else "more than 400 million"
            odds = f"After one release the odds are {factor} to 1: exp({bound(loss, 3)})."
            rows.append(("example", f"{pair} To a reader both are equally likely. {odds}"))
        if not whole:
            rare = "rare words, such as names: their neighbors are often farther, and the odds grow with the distance."
            if self.neighbor_distance is not None:
                rare += f" The example takes the average distance of ordinary English, {self.neighbor_distance:.3g}."
            rows.append(("less protected", rare))
        return [*rows, ("not protected", "all that the notes below name.")]

    def _summary(self) -> str:
        table = one_line(self.table)
        return f"{one_line(self.mechanism)}, eta={bound(self.eta)} per distance in {table}, releases={self.releases}"


def per(table: str) -> str:
    return "between any two texts" if table == WHOLE_TEXTS else f"per unit of distance in {table}"


def _spent(whose: str, spent: float | None, limit: float | None) -> list[tuple[str, str]]:
    if spent is None:
        return []
    of = "no limit" if limit is None else f"limit {bound(limit)}"
    return [(f"most by one {whose}", f"eta = {bound(spent)} so far ({of})")]


def public(name: str, value: object) -> float | int | str:
    if isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
        return value
    raise InvalidParameter(f"Expected parameters[{name!r}]={value!r} to be a finite number or a string.")


def loss_out(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


def loss_in(value: object) -> Any:
    return math.inf if value == "inf" else value


def shown(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def one_line(text: str) -> str:
    """Escape line breaks, so that no name forges a line."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
