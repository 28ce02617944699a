"""What pseudonyms hid, beside a ledger: they have no epsilon, and no ledger counts them."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.audit.report.names import label
from langchain_dp.audit.report.results import rows_of
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:  # a report of a ledger alone loads none of it
    from langchain_dp.rapt.pseudonyms import PseudonymReport

_FIELDS = {
    "private", "counts", "looked_for", "not_looked_for", "unknown", "then", "system_in_clear", "left_in_addresses"
}  # fmt: skip
_MOST = 2**53
_CLEAR = "passed in clear"
_SYSTEM = "; system messages passed in clear"


@dataclasses.dataclass(frozen=True)
class ReportedPseudonyms:
    """What was hidden in all conversations with the same recognizers and the same rule for all other words.

    Args:
        conversations: How many.
        counts: Different entities that became placeholders, by kind, summed over the conversations.
        looked_for: Names of the recognizers.
        not_looked_for: Usual kinds that none of them looks for.
        unknown: Whether one of them does not say what it looks for.
        rest: What happened to all other words.
        left_in_addresses: Placeholders that were not put back, because they stood in web addresses.
        private: False. Pseudonyms are no formal privacy and have no epsilon.

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
        """What nobody looked for, in words."""
        if self.unknown:
            return "not known: a recognizer does not say what it looks for"
        return ", ".join(self.not_looked_for) or "none of the usual kinds"

    @property
    def hidden(self) -> str:
        """What was hidden, in words."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items())) or "nothing"


def told(reports: PseudonymReport | Iterable[PseudonymReport]) -> tuple[ReportedPseudonyms, ...]:
    """One report, or those of many conversations: those of equal settings together.

    Raises:
        InvalidParameter: One is no report of pseudonyms.
    """
    given = list(reports) if isinstance(reports, Iterable) else [reports]
    for place, one in enumerate(given):
        if not hasattr(one, "looked_for"):
            raise InvalidParameter(
                f"Expected pseudonyms[{place}] of type {type(one).__name__} to be what report() of a Pseudonymizer or "
                "of a PseudonymMiddleware returns. Give one of these, or a list."
            )
    return _together(one.to_dict() for one in given)


def read_pseudonyms(path: str | os.PathLike[str]) -> tuple[ReportedPseudonyms, ...]:
    """The same of a JSON file: a list of what ``PseudonymReport.to_dict()`` gives, or one.

    Raises:
        InvalidParameter: The file is no such list. The message gives the position, never the content.
        OSError: It cannot be read.
    """
    return _together(rows_of(path, "pseudonyms"))


def _together(rows: Iterable[Any]) -> tuple[ReportedPseudonyms, ...]:
    counts: defaultdict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    conversations: Counter[tuple[Any, ...]] = Counter()
    left: Counter[tuple[Any, ...]] = Counter()
    for place, row in enumerate(rows):
        hidden, settings = _checked(row, f"pseudonyms[{place}]")
        counts[settings].update(hidden)
        conversations[settings] += 1
        left[settings] += validate.integer(
            f"left_in_addresses of pseudonyms[{place}]", row["left_in_addresses"], at_least=0, at_most=_MOST
        )
    return tuple(
        ReportedPseudonyms(
            conversations[key],
            dict(sorted(counts[key].items())),
            *(looked_for, missed, unknown, rest),
            left_in_addresses=left[key],
        )
        for key in counts
        for looked_for, missed, unknown, rest in [key]
    )


def _checked(row: Any, where: str) -> tuple[dict[str, int], tuple[str, tuple[str, ...], bool, str]]:
    """What was hidden, and under which settings; every text in it as a label."""
    if not isinstance(row, dict) or set(row) != _FIELDS:
        raise InvalidParameter(f"Expected {where} to be an object with {', '.join(sorted(_FIELDS))}, and nothing else.")
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
        hidden[label(kind)] += validate.integer(f"a count of {where}", count, at_least=0, at_most=_MOST)
    names = re.sub(r"[^;,()\s][^;,()]*", lambda name: label(name[0]), row["looked_for"])
    return hidden, (
        names,
        tuple(map(label, missed)),
        row["unknown"],
        _rest(row["then"], where) + _SYSTEM * row["system_in_clear"],
    )


def _rest(then: Any, where: str) -> str:
    """What the certificate of the other words promises, in few words."""
    if then is None:
        return _CLEAR
    if (
        not isinstance(then, dict)
        or not isinstance(then.get("table"), str)
        or not isinstance(then.get("private"), bool)
    ):
        raise InvalidParameter(
            f"Expected then of {where} to be null or a certificate. Write it with PseudonymReport.to_dict()."
        )
    if not then["private"]:
        return "were sanitized, NOT PRIVATE"
    eta = validate.number(f"eta of {where}", then.get("eta", 0), above=0.0)
    return f"metric privacy, eta {bound(eta, 4)} nats per unit of distance in {label(then['table'])}"
