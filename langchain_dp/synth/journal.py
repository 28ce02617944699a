"""Journal of a synthesis: no released text is lost, and no round is drawn or paid for twice.

A token is noted before its draw. Without a stored outcome it is not drawn again, since its value may be the reason. A
begun round continues over the same records only: the number of texts must not reveal a change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from langchain_dp.ensemble.runs import TRIES, RunJournal
from langchain_dp.errors import PlanError
from langchain_dp.ports import Token

Ended = Literal["end", "length", "lost"]


@dataclasses.dataclass(frozen=True)
class WrittenText:
    """One released text. ``ended`` is "length" at the token limit, "lost" if given up."""

    number: int
    label: str
    text: str
    ended: Ended


@dataclasses.dataclass(frozen=True)
class PartialText:
    """The text being written. ``tries`` counts resumptions since its last token."""

    number: int
    label: str
    tokens: tuple[Token, ...] = ()
    drawing: bool = False
    tries: int = 0

    @property
    def blank(self) -> bool:
        """Whether nothing was drawn."""
        return not (self.tokens or self.drawing)


@dataclasses.dataclass(repr=False, kw_only=True)
class SynthesisJournal(RunJournal):
    """Public constants, released texts, and the text that is not whole."""

    VERSION: ClassVar[int] = 5

    design: Mapping[str, Any]
    written: list[WrittenText] = dataclasses.field(default_factory=list)
    under_way: PartialText | None = None

    def __repr__(self) -> str:
        return f"SynthesisJournal({len(self.written)} texts)"

    def state(self) -> dict[str, Any]:
        return {
            "design": dict(self.design),
            "written": [dataclasses.astuple(text) for text in self.written],
            "under_way": None if self.under_way is None else dataclasses.astuple(self.under_way),
        }

    @classmethod
    def from_state(cls, fields: Mapping[str, Any], common: Mapping[str, Any]) -> Self:
        journal = cls(**common, design=fields["design"], written=[WrittenText(*text) for text in fields["written"]])
        if fields["under_way"] is not None:
            number, label, tokens, drawing, tries = fields["under_way"]
            journal.under_way = PartialText(number, label, tuple(tokens), drawing, tries)
        if not journal._is_sound():
            raise ValueError
        return journal

    def _is_sound(self) -> bool:
        partial = self.under_way
        places = [(text.number, text.label) for text in self.written]
        places += [] if partial is None else [(partial.number, partial.label)]
        return (
            all(isinstance(text.text, str) for text in self.written)
            and all(number in range(self.design["rounds"]) and label in self.labels for number, label in places)
            and len(set(places)) == len(places)
            and (partial is None or all(isinstance(token, (int, str)) for token in partial.tokens))
            and (partial is None or (isinstance(partial.drawing, bool) and isinstance(partial.tries, int)))
        )

    def there(self) -> set[tuple[int, str]]:
        return {(text.number, text.label) for text in self.written}

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.settings["labels"])

    def _missing(self) -> list[str]:
        last = [text.label for text in self.written if text.number == self.written[-1].number]
        return [label for label in self.labels if label not in last] if last else []

    def has_begun(self) -> bool:
        return bool((self.under_way is not None and not self.under_way.blank) or self._missing())

    def drawn(self, number: int, label: str) -> tuple[Token, ...]:
        text = self.under_way
        return text.tokens if text is not None and (text.number, text.label) == (number, label) else ()

    def take_up(self, number: int, label: str) -> bool:
        """Store that a text resumes. False if too often."""
        text = self.under_way
        if text is not None and text.tries == TRIES:
            return False
        again = PartialText(number, label) if text is None else dataclasses.replace(text, tries=text.tries + 1)
        self.update(under_way=again)
        return True

    def draw(self, number: int, label: str) -> None:
        text = self.under_way or PartialText(number, label)
        if (text.number, text.label) != (number, label):
            raise PlanError("Another text of this run is under way. Invoke again to go on with it.")
        self.update(under_way=dataclasses.replace(text, drawing=True))

    def add(self, token: Token) -> None:
        assert self.under_way is not None  # draw()
        tokens = (*self.under_way.tokens, token)
        self.update(under_way=dataclasses.replace(self.under_way, tokens=tokens, drawing=False, tries=0))

    def keep(self, text: WrittenText) -> None:
        """Store a text. Only stored texts may leave."""
        self.update(written=[*self.written, text], under_way=None)

    def give_up(self) -> None:
        if self.under_way is not None:
            self.keep(WrittenText(self.under_way.number, self.under_way.label, "", "lost"))

    def give_up_round(self) -> None:
        self.give_up()
        for label in self._missing():
            self.keep(WrittenText(self.written[-1].number, label, "", "lost"))

    def follows(self, older: SynthesisJournal) -> bool:
        then, now = older.under_way, self.under_way
        if self.written[: len(older.written)] != older.written:
            return False
        if then is None or then.blank or len(self.written) > len(older.written):
            return True
        if now is None or (now.number, now.label) != (then.number, then.label):
            return False
        more = len(now.tokens) > len(then.tokens) or now.drawing >= then.drawing
        return more and now.tokens[: len(then.tokens)] == then.tokens
