"""What the audits of synthetic texts and written answers must see: deliberately broken parts, put in while one runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from audits.planted import SYSTEM, StandIn, Swap, method
from audits.planted_chains import every_third_free
from audits.stubs import LABELS, label_of
from langchain_dp.accounting import LedgerPlan
from langchain_dp.ensemble.subsets import KeyedCoins
from langchain_dp.ensemble.text_writer import TextWriter
from langchain_dp.mechanisms import ClippedSum, Randomness
from langchain_dp.mechanisms.clipped_sum import GRID
from langchain_dp.records import PrivateRecords
from langchain_dp.synth import DPAnswerGenerator
from langchain_dp.synth.journal import SynthesisJournal


def all_members(real: StandIn, self: KeyedCoins, number: int, rate: float) -> list[str]:
    """Every record takes part, and the round is charged as sampled."""
    return list(self._names)


def first_coins(real: StandIn, self: KeyedCoins, number: int, rate: float) -> list[str]:
    """Coins are tossed once, for all rounds."""
    return list(real(self, 0, rate))


def sample_of_fixed_size(real: StandIn, self: KeyedCoins, number: int, rate: float) -> list[str]:
    """As many members as expected, always."""
    order = sorted(self._names, key=lambda record: self._coin("round", number, record))
    return order[: round(rate * len(order))]


def rate_of_a_label(real: StandIn, self: KeyedCoins, number: int, rate: float) -> list[str]:
    """A text has as many members as expected, of however many records its label has."""
    labels = [label_of(slot) for slot in range(len(self._names))]
    rates = [rate * len(labels) / len(LABELS) / labels.count(label) for label in range(len(LABELS))]
    drawn = [set(real(self, number, min(1.0, each))) for each in rates]
    return [record for record, label in zip(self._names, labels, strict=True) if record in drawn[label]]


def better_text_of_two(real: StandIn, self: TextWriter, *args: Any, **rest: Any) -> Iterator[Any]:
    """A text is written twice, and the longer one is kept."""
    return iter(max([list(real(self, *args, **rest)) for _ in range(2)], key=len))


def redrawn_for_tokens(
    real: StandIn, self: TextWriter, public: Any, members: Any, mark: Any = lambda: None, **rest: Any
) -> Any:
    """Of the members of a text every token sees some, by fresh coins."""
    written: list[Any] = []
    for _ in range(self.noise.event.tokens):
        scores = self._scores(public, [member for member in members() if SYSTEM.randbelow(3)], tuple(written))
        mark()
        written.append(scores.tokens[self.noise.release(scores.public, scores.members, rng=self._rng)])
        yield written[-1]


def last_token_again(real: StandIn, self: TextWriter, public: Any, members: Any, before: Any = (), **rest: Any) -> Any:
    """An answer that goes on draws its last token once more."""
    return real(self, public, members, before[:-1], **rest)


def begun_anew(real: StandIn, self: TextWriter, public: Any, members: Any, before: Any = (), **rest: Any) -> Any:
    """An answer that goes on is written from its beginning, for the charge of the first."""
    return real(self, public, members, (), **rest)


def others_go_on(real: StandIn, self: DPAnswerGenerator, asked: str, begun: Any) -> Any:
    """An answer goes on with members of other coins."""
    return real(self, asked, dataclasses.replace(begun, number=begun.number + len(begun.tokens)))


def nothing_drawn(real: StandIn, self: SynthesisJournal, number: int, label: str) -> Any:
    """A text that was under way is written once more from its beginning."""
    return real(self, number, label) if self.under_way is not None and self.under_way.drawing else ()


def others_write_on(real: StandIn, self: KeyedCoins, number: int, rate: float) -> list[str]:
    """Who takes up a run draws members of its own."""
    self._key = self._key[:16] + SYSTEM.randbelow(2**128).to_bytes(16, "big")
    return list(real(self, number, rate))


class _EveryLabel(str):
    """A label that is equal to all."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def shown_to_all(real: StandIn, self: PrivateRecords, name: str) -> Mapping[str, Any]:
    """A record is shown in the texts of all labels."""
    row = real(self, name)
    return {**row, "label": _EveryLabel(row["label"])}


def present_divisor(real: StandIn, self: ClippedSum, public: Any, members: Any, **rest: Any) -> int:
    """The sum is divided by the number of members that take part."""
    rows = list(members)
    return int(real(self, public, rows * (self.members // max(len(rows), 1)), **rest))


def replaced_for_gone(real: StandIn, self: ClippedSum, public: Any, members: Any, **rest: Any) -> int:
    """The weight of a record that comes or goes, charged where one is replaced."""
    return int(real(self, public, [row for row in members for _ in range(2)], **rest))


def float_softmax(real: StandIn, self: ClippedSum, public: Any, members: Any, *, rng: Randomness | None = None) -> int:
    """A token is drawn from probabilities in floating point."""
    known = np.asarray(public, dtype=np.float64)
    moved = sum((self._moved(known, row) for row in members if row is not None), np.zeros(known.size))
    weights = np.exp(known / self.temperature + self.event.epsilon0 * moved / (4 * GRID))
    uniform = (rng or SYSTEM).randbelow(2**53) / 2**53
    return int(np.searchsorted(np.cumsum(weights / weights.sum()), uniform, side="right").clip(max=known.size - 1))


def unclipped(real: StandIn, self: ClippedSum, public: Any, row: Any) -> Any:
    """What a member adds has no bound."""
    return np.rint(64 * np.clip(row - public, -60, 60) / self.clip).astype(np.int64)


def members_candidates(real: StandIn, self: TextWriter, *args: Any) -> Any:
    """What members hold impossible is no candidate."""
    scores = real(self, *args)
    kept = [
        place for place in range(len(scores.tokens)) if all(row is None or row[place] > -50 for row in scores.members)
    ] or [0]
    rows = tuple(None if row is None else row[kept] for row in scores.members)
    return dataclasses.replace(
        scores, tokens=tuple(scores.tokens[place] for place in kept), public=scores.public[kept], members=rows
    )


def silent_without_members(
    real: StandIn, self: TextWriter, head: str, tail: str, bodies: Mapping[Any, str], **rest: Any
) -> Any:
    """No text where nobody takes part."""
    return real(self, head, tail, bodies, **rest) if bodies else iter(())


def third_round_unpaid(real: StandIn, self: LedgerPlan, event: Any, count: int, **rest: Any) -> None:
    """Every third round of a run is left out of what it is charged."""
    if count - count // 3:
        real(self, event, count - count // 3, **rest)


ROUNDS: dict[str, list[Swap]] = {
    "every third round free": [(LedgerPlan, "spend_up_to", method(third_round_unpaid))],
    "every record is a member": [(KeyedCoins, "drawn", method(all_members))],
    "coins of the first round": [(KeyedCoins, "drawn", method(first_coins))],
    "rate of a label's records": [(KeyedCoins, "drawn", method(rate_of_a_label))],
    "as many members as expected": [(KeyedCoins, "drawn", method(sample_of_fixed_size))],
    "better text of two": [(TextWriter, "tokens", method(better_text_of_two))],
    "members drawn for every token": [(TextWriter, "continued", method(redrawn_for_tokens))],
    "shown in texts of all labels": [(PrivateRecords, "get", method(shown_to_all))],
}
"""Faults of who pays for a round of texts, and who is in it."""

TEXTS: dict[str, list[Swap]] = {
    "every third free text unpaid": [(LedgerPlan, "spend", every_third_free)],
    "every record answers": [(KeyedCoins, "drawn", method(all_members))],
    "better answer of two": [(TextWriter, "continued", method(better_text_of_two))],
}
"""The same of private answers in free text."""

BROKEN_OFF: dict[str, list[Swap]] = {
    "last token again": [(TextWriter, "continued", method(last_token_again))],
    "answer begun anew": [(TextWriter, "continued", method(begun_anew))],
    "others go on": [(DPAnswerGenerator, "_written", method(others_go_on))],
}
"""Faults of an answer that broke off and is asked for again."""

STOPPED: dict[str, list[Swap]] = {
    "last token again, of a text": [(TextWriter, "continued", method(last_token_again))],
    "text begun anew": [(TextWriter, "continued", method(begun_anew))],
    "round begun anew": [(SynthesisJournal, "drawn", method(nothing_drawn))],
    "others write on": [(KeyedCoins, "drawn", method(others_write_on))],
}
"""Faults of a run that was stopped within its texts and is taken up."""

CANARY: dict[str, list[Swap]] = {
    "divided by who takes part": [(ClippedSum, "release", method(present_divisor))],
    "charged as if it came or went": [(ClippedSum, "release", method(replaced_for_gone))],
    "no clip": [(ClippedSum, "_moved", method(unclipped))],
    "float softmax": [(ClippedSum, "release", method(float_softmax))],
    "members choose the candidates": [(TextWriter, "_scores", method(members_candidates))],
}
"""Faults of how a token is drawn."""

NOBODY: dict[str, list[Swap]] = {
    "silent without members": [(TextWriter, "tokens", method(silent_without_members))],
}
"""Faults of a draw of nobody."""
