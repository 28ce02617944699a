"""The journal of a prompt's run. A crash loses the current call only.

A lost token is charged and drawn again. A lost selection is not: a copied ledger would give many winners for one
charge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, get_args

from langchain_dp.ensemble.runs import RunJournal
from langchain_dp.opt.plan import Ended, Written


@dataclasses.dataclass(repr=False, kw_only=True)
class Journal(RunJournal):
    """State of one run. ``winner`` is an index of the choices. ``records`` is set if public."""

    VERSION: ClassVar[int] = 5

    groups: int
    sampling_probability: float
    written: list[Written] = dataclasses.field(default_factory=list)
    winner: int | None = None
    records: int | None = None
    handed: tuple[str, tuple[str, ...]] | None = None

    def __repr__(self) -> str:
        return f"Journal({len(self.written)} candidates, winner={self.winner})"

    @property
    def calls(self) -> int:
        return sum(candidate.calls for candidate in self.written)

    def complete(self, winner: int, data: str, handed: tuple[str, tuple[str, ...]]) -> None:
        """Only a stored selection is released."""
        self.update(winner=winner, data=data, handed=handed)

    def state(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "sampling_probability": self.sampling_probability,
            "written": [vars(candidate) for candidate in self.written],
            "winner": self.winner,
            "records": self.records,
            **({} if self.handed is None else {"handed": self.handed}),
        }

    @classmethod
    def from_state(cls, fields: Mapping[str, Any], common: Mapping[str, Any]) -> Self:
        journal = cls(
            **common, groups=fields["groups"], sampling_probability=fields["sampling_probability"],
            written=[Written(**candidate) for candidate in fields["written"]], winner=fields["winner"],
            records=fields["records"], handed=_handed(fields.get("handed")),
        )  # fmt: skip
        choices = len(journal.written) + 1 + len(journal.settings.get("alternatives", ()))
        sound = (
            isinstance(journal.groups, int)
            and journal.groups > 0
            and (journal.records is None or isinstance(journal.records, int))
            and 0 < journal.sampling_probability <= 1
            and all(_is_sound(candidate, journal.settings["templates"]["messages"]) for candidate in journal.written)
            and (journal.winner is None or journal.winner in range(choices))
        )
        if not sound:
            raise ValueError
        return journal


def _handed(fields: Any) -> tuple[str, tuple[str, ...]] | None:
    if fields is None:
        return None
    instruction, words = fields
    if not isinstance(instruction, str) or not all(isinstance(word, str) for word in words):
        raise ValueError
    return instruction, tuple(words)


def _is_sound(candidate: Written, messages: Sequence[str]) -> bool:
    numbers = (candidate.message, candidate.calls, candidate.bottoms, candidate.retries)
    return (
        all(isinstance(number, int) and number >= 0 for number in numbers)
        and candidate.message < len(messages)
        and isinstance(candidate.tokens, list)
        and all(isinstance(token, (int, str)) for token in candidate.tokens)
        and len(candidate.tokens) + candidate.bottoms <= candidate.calls
        and isinstance(candidate.pending, bool)
        and candidate.ended in get_args(Ended)
    )
