"""What a run of the synthesizer has written: no released text is lost, and no round is drawn or paid for twice.

In this order: reserve the plan with its first journal; charge a round, durably; keep which text begins; before each
token mark that it is drawn, durably; draw it; keep it; keep the text when it is whole, and only then it may leave. Who
takes up a run goes on with the text that was under way, and with the members that it had. A token whose outcome was not
kept is not drawn again: it may be why it was not kept (a text too long for the disk), and drawn again until one stays
it would tell more than the round was charged for. So its text is given up. A round of which a token is drawn goes on
over the same records only: one that was changed could be in more of its texts than are charged, and if its rest were
given up instead, the number of texts would tell that something has changed. A text that was taken up again and again,
and got no further, is given up: one of its members may be what ends the process.
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
    """One released text.

    Args:
        number: Round that it was written in.
        label: Its label.
        text: What it says.
        ended: "end" if it came to its own end, "length" if it was cut at the largest number of tokens, "lost" if it
            was given up.
    """

    number: int
    label: str
    text: str
    ended: Ended


@dataclasses.dataclass(frozen=True)
class PartialText:
    """The text that is being written.

    Args:
        number: Its round.
        label: Its label.
        tokens: What is drawn of it. It has not left yet.
        drawing: Another token is being drawn, and its outcome not kept yet.
        tries: How often it was taken up since its last token.
    """

    number: int
    label: str
    tokens: tuple[Token, ...] = ()
    drawing: bool = False
    tries: int = 0

    @property
    def blank(self) -> bool:
        """Whether it has no token, nor one that may have been drawn."""
        return not (self.tokens or self.drawing)


@dataclasses.dataclass(repr=False, kw_only=True)
class SynthesisJournal(RunJournal):
    """State of one run.

    Args:
        design: Constants derived when the run was started, as plain values.
        written: Released texts, oldest first.
        under_way: The text that has begun, and is not whole.
    """

    VERSION: ClassVar[int] = 4

    design: Mapping[str, Any]
    written: list[WrittenText] = dataclasses.field(default_factory=list)
    under_way: PartialText | None = None

    def __repr__(self) -> str:
        return f"SynthesisJournal({len(self.written)} texts)"

    def state(self) -> dict[str, Any]:
        """What it adds to the common fields."""
        return {
            "design": dict(self.design),
            "written": [dataclasses.astuple(one) for one in self.written],
            "under_way": None if self.under_way is None else dataclasses.astuple(self.under_way),
        }

    @classmethod
    def from_state(cls, fields: Mapping[str, Any], common: Mapping[str, Any]) -> Self:
        """Read what :meth:`state` returned."""
        journal = cls(**common, design=fields["design"], written=[WrittenText(*one) for one in fields["written"]])
        if fields["under_way"] is not None:
            number, label, tokens, drawing, tries = fields["under_way"]
            journal.under_way = PartialText(number, label, tuple(tokens), drawing, tries)
        if not _is_sound(journal):
            raise ValueError
        return journal

    def there(self) -> set[tuple[int, str]]:
        """Round and label of every text that is written."""
        return {(one.number, one.label) for one in self.written}

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the run, in the order in which the texts of a round are written."""
        return tuple(self.settings["labels"])

    def has_begun(self) -> bool:
        """Whether the last round of which a token may have been drawn is not whole."""
        if self.under_way is not None and not self.under_way.blank:
            return True
        last = sum(one.number == self.written[-1].number for one in self.written)
        return 0 < last < len(self.labels)

    def drawn(self, number: int, label: str) -> tuple[Token, ...]:
        """What is drawn of a text."""
        text = self.under_way
        return text.tokens if text is not None and (text.number, text.label) == (number, label) else ()

    def take_up(self, number: int, label: str) -> bool:
        """Keep that a text is begun, or taken up; False if that was done often enough."""
        text = self.under_way
        if text is not None and text.tries == TRIES:
            return False
        again = PartialText(number, label) if text is None else dataclasses.replace(text, tries=text.tries + 1)
        self.update(under_way=again)
        return True

    def over(self, data: str) -> None:
        """Go on over other records: what is under way has no token of theirs."""
        self.update(data=data, under_way=None)

    def draw(self, number: int, label: str) -> None:
        """Mark that a token of a text is being drawn."""
        text = self.under_way or PartialText(number, label)
        if (text.number, text.label) != (number, label):
            raise PlanError("Another text of this run is under way. Invoke again to go on with it.")
        self.update(under_way=dataclasses.replace(text, drawing=True))

    def add(self, token: Token) -> None:
        """Keep the token that was being drawn."""
        assert self.under_way is not None  # it was marked
        tokens = (*self.under_way.tokens, token)
        self.update(under_way=dataclasses.replace(self.under_way, tokens=tokens, drawing=False, tries=0))

    def give_up(self) -> None:
        """Keep that the text under way is lost."""
        if self.under_way is not None:
            self.keep(WrittenText(self.under_way.number, self.under_way.label, "", "lost"))

    def give_up_round(self) -> None:
        """Keep that all is lost which is missing of the round that has begun."""
        self.give_up()
        there = [one.label for one in self.written if one.number == self.written[-1].number]
        for label in self.labels if self.has_begun() else ():
            if label not in there:
                self.keep(WrittenText(self.written[-1].number, label, "", "lost"))

    def follows(self, older: SynthesisJournal) -> bool:
        """Whether it is what may have become of an older state of it, and not a state before that."""
        then, now = older.under_way, self.under_way
        if self.written[: len(older.written)] != older.written:
            return False
        if then is None or then.blank or len(self.written) > len(older.written):
            return True
        if now is None or (now.number, now.label) != (then.number, then.label):
            return False
        more = len(now.tokens) > len(then.tokens) or now.drawing >= then.drawing
        return more and now.tokens[: len(then.tokens)] == then.tokens

    def keep(self, text: WrittenText) -> None:
        """Keep a text. Only what is kept may leave, also to whoever looks on from another thread."""
        self.update(written=[*self.written, text], under_way=None)


def _is_sound(journal: SynthesisJournal) -> bool:
    """Whether its texts are texts of the run, each once."""
    places = [(one.number, one.label) for one in journal.written]
    if journal.under_way is not None:
        places.append((journal.under_way.number, journal.under_way.label))
    rounds = range(journal.design["rounds"])
    now = journal.under_way or PartialText(0, "")
    return (
        all(isinstance(one.text, str) for one in journal.written)
        and all(number in rounds and label in journal.labels for number, label in places)
        and len(set(places)) == len(places)
        and all(isinstance(token, (int, str)) for token in now.tokens)
        and isinstance(now.drawing, bool)
        and isinstance(now.tries, int)
    )
