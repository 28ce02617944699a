"""Results of attacks and pseudonyms, without text of a record."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.audit.report.names import label
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:  # a report of a ledger alone loads none of it
    from langchain_dp.rapt.pseudonyms import PseudonymReport

_FIELDS = ("name", "rate", "low", "high", "baseline", "n", "settings")
_MOST_ROWS = 2**53  # whole numbers up to this are what they are as floats, too
_MOST = 64 * 2**20  # bytes: a result is a line, so a larger file is another one


@dataclasses.dataclass(frozen=True)
class ReportedAttack:
    """The success rate of an attack."""

    name: str
    rate: float  # success rate, or area under the curve, in [0, 1]
    low: float  # ends of its interval
    high: float
    baseline: float  # what guessing reaches
    n: int  # attempts
    settings: Mapping[str, float | int | str | bool | None] = dataclasses.field(default_factory=dict)  # public

    @property
    def better(self) -> bool:
        return self.low > self.baseline

    @property
    def bound(self) -> float | None:
        bound = self.settings.get("bound")
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 <= bound <= 1:
            return None
        return float(bound)

    @property
    def contradicts(self) -> bool:
        return self.bound is not None and self.low > self.bound


def reported_attacks(results: Iterable[Any]) -> tuple[ReportedAttack, ...]:
    return tuple(
        one if isinstance(one, ReportedAttack) else _result(one.to_dict() if hasattr(one, "to_dict") else one, place)
        for place, one in enumerate(results)
    )


def rows_of(path: str | os.PathLike[str], what: str) -> list[Any]:
    if os.path.getsize(path) > _MOST:
        raise InvalidParameter(f"Expected the file of {what} to have at most {_MOST} bytes: results are short.")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError):
        raise InvalidParameter(f"Expected {os.path.basename(path)} to be JSON, but it is not.") from None
    return content if isinstance(content, list) else [content]


def _result(row: Any, place: int) -> ReportedAttack:
    where = f"attack {place}"
    if not isinstance(row, dict) or not set(_FIELDS[:-1]) <= set(row) or not set(row) <= set(_FIELDS):
        raise InvalidParameter(
            f"Expected {where} to be an object with {', '.join(_FIELDS[:-1])}, and settings if any, and nothing else."
        )
    numbers = {name: _number(f"{name} of {where}", row[name]) for name in ("rate", "low", "high", "baseline")}
    if not numbers["low"] <= numbers["rate"] <= numbers["high"]:
        raise InvalidParameter(f"Expected low <= rate <= high of {where}. Give the ends of the rate's interval.")
    if not isinstance(row["name"], str) or not row["name"]:
        raise InvalidParameter(f"Expected the name of {where} to be a non-empty string.")
    settings = row.get("settings") or {}
    if not isinstance(settings, dict):
        raise InvalidParameter(f"Expected the settings of {where} to be an object.")
    n = validate.integer(f"n of {where}", row["n"], at_least=0, at_most=_MOST_ROWS)
    if settings.get("bound") is not None:
        _number(f"the bound of {where}", settings["bound"])
    return ReportedAttack(label(row["name"]), n=n, settings=_settings(settings), **numbers)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameter(f"Expected {name} to be a number in [0, 1].")
    return validate.number(name, value, at_least=0.0, at_most=1.0)


def _settings(given: Mapping[str, Any]) -> dict[str, float | int | str | bool | None]:
    settings: dict[str, float | int | str | bool | None] = {}
    for name, value in given.items():
        if isinstance(value, str):
            value = label(value)
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        elif not isinstance(value, (int, float, type(None))) or (isinstance(value, int) and abs(value) > _MOST_ROWS):
            value = "(not shown)"
        settings[label(name)] = value
    return settings


_REPORT_FIELDS = {
    "private", "counts", "looked_for", "not_looked_for", "unknown", "remaining_text_sanitizer", "system_in_clear",
    "left_in_addresses",
}  # fmt: skip
_CLEAR = "passed in clear"
_SYSTEM = "; system messages passed in clear"


@dataclasses.dataclass(frozen=True)
class ReportedPseudonyms:
    """Hidden entities of all conversations with equal settings.

    Args:
        conversations: Number of conversations.
        counts: Different entities that became placeholders, by kind.
        looked_for: Names of the recognizers.
        not_looked_for: Usual kinds without a recognizer.
        unknown: True if a recognizer does not declare its kinds.
        rest: Treatment of all other words.
        left_in_addresses: Placeholders that stayed in web addresses.
        private: False, because pseudonyms have no epsilon.

    Examples:
        >>> [(one.conversations, one.counts) for one in report("privacy.ledger", pseudonyms=told).pseudonyms]
        [(2, {'EMAIL': 2, 'PERSON': 1})]
    """

    conversations: int
    counts: Mapping[str, int]
    looked_for: str
    not_looked_for: tuple[str, ...]
    unknown: bool
    rest: str
    left_in_addresses: int = 0
    private: bool = False

    @property
    def missed(self) -> str:
        """The kinds without a recognizer, in words."""
        if self.unknown:
            return "not known: a recognizer does not say what it looks for"
        return ", ".join(self.not_looked_for) or "none of the usual kinds"

    @property
    def hidden(self) -> str:
        """Hidden entities, in words."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items())) or "nothing"


def reported_pseudonyms(reports: PseudonymReport | Iterable[PseudonymReport]) -> tuple[ReportedPseudonyms, ...]:
    each = list(reports) if isinstance(reports, Iterable) else [reports]
    for place, one in enumerate(each):
        if not hasattr(one, "looked_for"):
            raise InvalidParameter(
                f"Expected pseudonyms[{place}] of type {type(one).__name__} to be what report() of a Pseudonymizer or "
                "of a PseudonymMiddleware returns. Give one of these, or a list."
            )
    return summed_pseudonyms(one.to_dict() for one in each)


def summed_pseudonyms(rows: Iterable[Any]) -> tuple[ReportedPseudonyms, ...]:
    counts: defaultdict[Any, Counter[str]] = defaultdict(Counter)
    conversations: Counter[tuple[Any, ...]] = Counter()
    left: Counter[tuple[Any, ...]] = Counter()
    for place, row in enumerate(rows):
        hidden, settings = _checked(row, f"pseudonyms[{place}]")
        counts[settings].update(hidden)
        conversations[settings] += 1
        left[settings] += validate.integer(
            f"left_in_addresses of pseudonyms[{place}]", row["left_in_addresses"], at_least=0, at_most=_MOST_ROWS
        )
    return tuple(
        ReportedPseudonyms(conversations[key], dict(sorted(hidden.items())), *key, left_in_addresses=left[key])  # type: ignore[misc]  # a key has four values
        for key, hidden in counts.items()
    )


def _checked(row: Any, where: str) -> tuple[dict[str, int], tuple[str, tuple[str, ...], bool, str]]:
    if not isinstance(row, dict) or set(row) != _REPORT_FIELDS:
        raise InvalidParameter(
            f"Expected {where} to be an object with {', '.join(sorted(_REPORT_FIELDS))}, and nothing else."
        )
    missed = row["not_looked_for"]
    if not (
        row["private"] is False
        and isinstance(row["unknown"], bool)
        and isinstance(row["system_in_clear"], bool)
        and isinstance(row["looked_for"], str)
        and isinstance(row["counts"], dict)
        and isinstance(missed, (list, tuple))
        and all(isinstance(kind, str) for kind in missed)
    ):
        raise InvalidParameter(
            f"Expected {where} to have private false, unknown and system_in_clear true or false, looked_for a text, "
            "counts an object, and not_looked_for a list of texts. Write it with PseudonymReport.to_dict()."
        )
    hidden: Counter[str] = Counter()
    for kind, count in row["counts"].items():
        hidden[label(kind)] += validate.integer(f"a count of {where}", count, at_least=0, at_most=_MOST_ROWS)
    names = re.sub(r"[^;,()\s][^;,()]*", lambda name: label(name[0]), row["looked_for"])
    return hidden, (
        names,
        tuple(map(label, missed)),
        row["unknown"],
        _rest(row["remaining_text_sanitizer"], where) + _SYSTEM * row["system_in_clear"],
    )


def _rest(certificate: Any, where: str) -> str:
    if certificate is None:
        return _CLEAR
    if (
        not isinstance(certificate, dict)
        or not isinstance(certificate.get("table"), str)
        or not isinstance(certificate.get("private"), bool)
    ):
        raise InvalidParameter(
            f"Expected remaining_text_sanitizer of {where} to be null or a certificate. Write it with "
            "PseudonymReport.to_dict()."
        )
    if not certificate["private"]:
        return "were sanitized, NOT PRIVATE"
    eta = validate.number(f"eta of {where}", certificate.get("eta", 0), above=0.0)
    return f"metric privacy, eta {bound(eta, 4)} nats per unit of distance in {label(certificate['table'])}"
