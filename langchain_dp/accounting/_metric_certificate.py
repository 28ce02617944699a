"""The paper that travels with sanitized text: metric privacy, in its own unit and never as an (epsilon, delta)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.accounting._certificate_faces import CertificateFaces, loss_in, loss_out, one_line, public
from langchain_dp.accounting.certificate import library_version
from langchain_dp.errors import InvalidParameter

KIND = "metric privacy"
"""What ``to_dict`` says, so that no reader takes the numbers for an (epsilon, delta)."""

WHOLE_TEXTS = "whole-texts"
"""The metric in which any two texts are 1 apart: under it eta is a pure, local epsilon of a text."""


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class MetricCertificate(CertificateFaces):
    """The promise under which text was sanitized, in public terms only.

    Args:
        mechanism: What drew the words, e.g. "exponential".
        eta: Loss of one release, in nats per unit of distance in ``table``; infinite only if not private.
        table: Name of the public table of word vectors whose distances are meant.
        neighbor_distance: Distance of a typical word to its nearest neighbour in the table, or None.
        replaced: Probability that a word comes out as another word, or None if it is not known.
        user_spent: The most that the releases of any one user add up to, in the unit of eta; None: no user was named.
        document_spent: The most that the releases of any one document add up to; None if nothing was released.
        user_limit: What one user's releases may add up to at most; None for no limit.
        document_limit: What one document's releases may add up to at most; None for no limit.
        releases: How many releases were charged.
        library_version: Version of this package.
        private: False for seeded and non-formal modes.
        reason: Why it is not private; empty if it is.
        notes: What passes in clear, and what else a reader must know.
        parameters: Further public parameters.

    Raises:
        InvalidParameter: A value lies outside its bound, or ``private`` contradicts ``reason`` or ``eta``.

    Examples:
        >>> certificate = MetricCertificate(mechanism="exponential", eta=4.0, table="glove", neighbor_distance=2.5)
        >>> certificate
        MetricCertificate(exponential, eta=4 per distance in glove, releases=0)
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
        self._check_reason()
        if self.private and math.isinf(self.eta):
            raise InvalidParameter("Expected eta=inf only with private=False. Give private=False and the reason.")
        parameters = {name: public(name, value) for name, value in self.parameters.items()}
        object.__setattr__(self, "notes", tuple(self.notes))  # frozen: the only way to store what was converted
        object.__setattr__(self, "parameters", MappingProxyType(parameters))

    @property
    def word_loss(self) -> float | None:
        """Nats between two texts that differ in one word, by its nearest neighbour: eta x distance."""
        return None if self.neighbor_distance is None else self.eta * self.neighbor_distance

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold: infinity is the string "inf"."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            "kind": KIND,
            **fields,
            "eta": loss_out(self.eta),
            "notes": list(self.notes),
            "parameters": dict(self.parameters),
        }

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "eta": loss_in(values["eta"])}

    def _own_rows(self) -> list[tuple[str, str]]:
        rows = [("mechanism", self.mechanism)]
        if not math.isinf(self.eta):
            rows.append(("eta", f"{bound(self.eta)} nats {per(self.table)}, for each release"))
        if self.word_loss is not None:
            rows.append(
                (
                    "in plain words",
                    "a text and the same text with one word exchanged for its nearest neighbour: "
                    f"{bound(self.word_loss, 3)} nats apart on average over ordinary English (mean distance "
                    f"{self.neighbor_distance:.3g}); rarer words, names among them, are often farther from theirs",
                )
            )
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

    def __repr__(self) -> str:
        if not self.private:
            return f"MetricCertificate(NOT PRIVATE: {one_line(self.reason)}; {one_line(self.mechanism)})"
        return (
            f"MetricCertificate({one_line(self.mechanism)}, eta={bound(self.eta)} per distance in "
            f"{one_line(self.table)}, releases={self.releases})"
        )


def per(table: str) -> str:
    """What an eta is counted by, under the name of a metric."""
    return "between any two texts" if table == WHOLE_TEXTS else f"per unit of distance in {table}"


def _spent(whose: str, spent: float | None, limit: float | None) -> list[tuple[str, str]]:
    if spent is None:
        return []
    of = "no limit" if limit is None else f"limit {bound(limit)}"
    return [(f"most by one {whose}", f"eta = {bound(spent)} so far ({of})")]
