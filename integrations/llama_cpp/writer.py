"""Writes the next token of many members, each as if alone.

Tokens are cut into fixed *steps*, each always one evaluation. So bits do not depend on earlier calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_dp.ports import Continuation

from .._choice import is_token
from .._engine import T, Take, body_digest
from .context import LlamaContext
from .evaluate import Step
from .members import Opening, StateStore
from .slots import Asked, Key, Slots, common, steps_of


@dataclasses.dataclass(repr=False)
class _Group:
    """Members answered together. A failed one leaves."""

    loaded: dict[int, Asked]
    limit: int
    take: Take[Any]
    answers: list[Any]


class Writer:
    """Advances the members in the slots."""

    def __init__(self, context: LlamaContext, slots: Slots, store: StateStore) -> None:
        self._context = context
        self._slots = slots
        self._store = store

    def next_tokens(
        self, opening: Opening, asked: Sequence[Continuation], ending: Sequence[int], limit: int, take: Take[T]
    ) -> list[T | None]:
        """``ending`` are tokens before the written ones. ``take`` gets a temporary view."""
        answers: list[T | None] = [None] * len(asked)
        waiting = [one for one in (self._asked(i, opening, each, ending) for i, each in enumerate(asked)) if one]
        try:
            self._slots.wake()
            while waiting:
                now = self._now(waiting)
                waiting = [one for one in waiting if one not in now]
                try:
                    self._answer(_Group(self._slots.load(now, limit), limit, take, answers))
                finally:
                    self._store.wipe_put_out()
        except BaseException:
            self._slots.lose()
            raise
        return answers

    def _asked(self, place: int, opening: Opening, one: Continuation, ending: Sequence[int]) -> Asked | None:
        try:
            written = [token for token in one.written if is_token(token, self._context.vocabulary)]
            if len(written) < len(one.written):
                return None
            tokens = tuple(int(token) for token in written)
            key = (opening, one.prompt.member)
            hash(key)
            steps = steps_of(ending, tokens, self._slots.batches.rule)
            return Asked(place, one.prompt, key, body_digest(one.prompt), steps, tokens, float(one.draw))
        except Exception:  # of this member's own content: it abstains
            return None

    def _now(self, waiting: Sequence[Asked]) -> list[Asked]:
        """At most one member per slot, residents first."""
        chosen: dict[Key, Asked] = {}
        for one in sorted(waiting, key=lambda one: one.key not in self._slots):
            if one.key not in chosen and len(chosen) < self._slots.count:
                chosen[one.key] = one
        return list(chosen.values())

    def _answer(self, group: _Group) -> None:
        residents = self._slots.residents
        for sequence, one in list(group.loaded.items()):
            # The last step is always evaluated, for its logits.
            keep = min(common(residents[sequence].steps, one.steps), len(one.steps) - 1)
            if not self._slots.cut(sequence, keep):
                del group.loaded[sequence]
        missing = {at: len(one.steps) - len(residents[at].steps) for at, one in group.loaded.items()}
        for left in range(max(missing.values(), default=0), 0, -1):  # all arrive at their last step together
            due = {at: one.steps[-left] for at, one in group.loaded.items() if missing[at] >= left}
            due |= self._company(group, left)
            for rows in sorted({len(step) for step in due.values()}):
                alike = {at: step for at, step in due.items() if len(step) == rows}
                for run in self._runs(alike):
                    self._advance(run, alike, group, last=left == 1)

    def _company(self, group: _Group, left: int) -> dict[int, Step]:
        """Fill gaps with residents, which also hides the number of members."""
        plans = {one.steps for one in group.loaded.values()}
        if self._slots.count == 1 or len(plans) != 1:
            return {}
        (plan,), (opening,) = plans, {one.key[0] for one in group.loaded.values()}
        index = len(plan) - left
        if len(plan[index]) > 1:
            return {}
        cells = sum(map(len, plan[: index + 1]))
        return {
            at: plan[index]
            for at, resident in list(self._slots.residents.items())
            if at not in group.loaded
            and resident.key[0] == opening
            and resident.tokens + cells <= group.limit
            and common(resident.steps, plan) == index
            and self._slots.cut(at, index)
        }

    def _runs(self, steps: Mapping[int, Step]) -> Iterator[list[int]]:
        run: list[int] = []
        for sequence in sorted(steps):
            rows = len(steps[sequence])
            full = run and (sequence - run[0] + 1) * rows > self._context.micro_batch
            if run and (full or sequence > self._reach(run, rows)):
                yield run
                run = []
            run.append(sequence)
        if run:
            yield run

    def _reach(self, run: Sequence[int], rows: int) -> int:
        width = self._slots.batches.rule.sequences(run[-1] - run[0] + 1, rows)
        return max(run[-1] + 1, run[0] + width - 1)

    def _advance(self, run: list[int], steps: Mapping[int, Step], group: _Group, *, last: bool) -> None:
        wanted = [sequence for sequence in run if last and sequence in group.loaded]
        try:
            residents = self._slots.residents
            found = self._slots.batches.evaluate(
                {at: steps[at] for at in run},
                {at: resident.cells for at, resident in residents.items()},
                {(at, len(steps[at]) - 1) for at in wanted},
                undo=self._undo,
            )
            outputs = {at: row for (at, _), row in found.items()}
        except Exception:  # any kind: a member's failure is private
            self._advance_alone(run, steps, group, last=last)
            return
        for sequence in run:
            self._slots.residents[sequence].steps.append(steps[sequence])
        for sequence in wanted:
            one = group.loaded[sequence]
            group.answers[one.place] = group.take(outputs[sequence], one.written, one.draw)

    def _advance_alone(self, run: list[int], steps: Mapping[int, Step], group: _Group, *, last: bool) -> None:
        """After a failure, members continue alone."""
        for sequence in run:
            if len(run) == 1 or not self._slots.undo(sequence):
                self._slots.drop(sequence)
                group.loaded.pop(sequence, None)
        for sequence in run:
            if sequence in group.loaded:
                self._advance([sequence], steps, group, last=last)

    def _undo(self, sequence: int) -> None:
        if sequence not in self._slots.residents:
            self._context.truncate(sequence, 0)
        elif not self._slots.undo(sequence):
            self._slots.drop(sequence)
