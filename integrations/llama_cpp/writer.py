"""Writes the next token of many members, each as if alone.

Tokens are cut into fixed *steps*, each always one evaluation. So bits do not depend on earlier calls.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from langchain_dp.errors import LangChainDPError
from langchain_dp.ports import Continuation, MemberPrompt

from .._engine import T, Take, body_digest, is_token
from .context import LlamaContext
from .evaluate import BatchRule, JointEvaluator, MemberState, MemberStates, Opening, StateStore, Step

Key = tuple[Opening, Hashable]


@dataclasses.dataclass(repr=False)
class Resident:
    """The occupant of a sequence: head and body, then ``steps``."""

    key: Key
    digest: bytes
    tokens: int
    steps: list[Step]

    @property
    def cells(self) -> int:
        return self.tokens + sum(map(len, self.steps))


@dataclasses.dataclass(repr=False)
class Asked:
    """One member of a call."""

    place: int
    prompt: MemberPrompt
    key: Key
    digest: bytes
    steps: tuple[Step, ...]
    written: tuple[int, ...]
    draw: float


class Slots:
    """Sequences 0 to ``count`` - 1. A slot is overwritten before a new occupant."""

    def __init__(
        self, context: LlamaContext, evaluator: JointEvaluator, members: MemberStates, store: StateStore, count: int
    ) -> None:
        self._context = context
        self.evaluator = evaluator
        self._members = members
        self._store = store
        self.count = count
        self.residents: dict[int, Resident] = {}
        self._generation = -1
        self._places: OrderedDict[Key, int] = OrderedDict()  # asked longest ago first
        self._dirty: set[int] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def wake(self) -> None:
        if self._generation != self._context.generation:
            self._places.clear()
            self.residents.clear()
            self._empty()

    def lose(self) -> None:
        self._generation = -1

    def put_away(self) -> None:
        sure = self._generation == self._context.generation
        self.lose()  # first, in case of an interruption
        for sequence in list(self.residents) if sure else ():
            self._leave(sequence)
        self._store.wipe_put_out()

    def forget(self, members: Sequence[Hashable]) -> None:
        for sequence, resident in list(self.residents.items()):
            if resident.key[1] in members:
                self.drop(sequence)

    def load(self, now: Sequence[Asked], limit: int) -> dict[int, Asked]:
        """Leave out members that are too long or fail."""
        loaded: dict[int, Asked] = {}
        arriving: list[tuple[Asked, MemberState | list[int]]] = []
        for one in now:
            rows = sum(map(len, one.steps))
            sequence = self._places.get(one.key)
            if sequence is not None and self.residents[sequence].digest != one.digest:
                self.drop(sequence)
                sequence = None
            if sequence is not None:
                self._places.move_to_end(one.key)
                if self.residents[sequence].tokens + rows <= limit:
                    loaded[sequence] = one
                continue
            source = self._source(one, limit - rows)
            if source is not None:
                arriving.append((one, source))
        free = self._free(len(arriving), keep={one.key for one in now})
        for (one, source), sequence in zip(arriving, free, strict=True):
            if self._arrive(sequence, one, source, limit):
                loaded[sequence] = one
        return dict(sorted(loaded.items()))

    def _source(self, one: Asked, room: int) -> MemberState | list[int] | None:
        try:
            entry = self._store.get(*one.key, one.digest)
            if entry is not None:
                return entry if entry.tokens <= room else None
            body = self._context.tokenize(one.prompt.body)
            return body if len(self._members.opening_tokens(one.key[0])) + len(body) <= room else None
        except Exception:  # a member that cannot be read abstains, and stops nobody
            return None

    def _free(self, count: int, keep: set[Key]) -> list[int]:
        """Return sequences without a trace of a former occupant."""
        if not count:
            return []
        free = [sequence for sequence in range(self.count) if sequence not in self.residents]
        for key in [key for key in self._places if key not in keep][: max(0, count - len(free))]:
            free.append(self._places[key])
            self._leave(free[-1])
        chosen = sorted(sorted(free, key=lambda sequence: sequence in self._dirty)[:count])
        dirty = [sequence for sequence in chosen if sequence in self._dirty]
        if dirty and not self.residents:
            self._empty()
        elif dirty:
            self._context.scrub(dirty, source=self._context.sequences - 1)
            self._dirty.difference_update(dirty)
        return chosen

    def _arrive(self, sequence: int, one: Asked, source: MemberState | list[int], limit: int) -> bool:
        opening, member = one.key
        try:
            if isinstance(source, MemberState):
                if source.state.size:
                    self._context.restore(source.state, sequence)
                steps = list(source.steps)
            else:
                start = self._members.opening(opening, limit, sequence=sequence)
                source = self.evaluator.extended(start, source, one.digest, sequence=sequence)
                self._store.put(opening, member, source)
                steps = []
        except LangChainDPError:  # of the opening, which is public
            raise
        except Exception:  # a member that cannot be read abstains, and stops nobody
            self._dirty.add(sequence)
            self.drop(sequence)
            return False
        self.residents[sequence] = Resident(one.key, one.digest, source.tokens, steps)
        self._places[one.key] = sequence
        return True

    def _leave(self, sequence: int) -> None:
        resident = self.residents[sequence]
        with contextlib.suppress(Exception):  # then it is evaluated anew when it is asked again
            kept = self._store.get(*resident.key, resident.digest)
            if resident.cells and (kept is None or list(kept.steps) != resident.steps):
                entry = MemberState(
                    self._context.save(sequence), resident.tokens, resident.digest, tuple(resident.steps)
                )
                if kept is not None:
                    entry.calibrations.update(kept.calibrations)
                self._store.put(*resident.key, entry)
        self.drop(sequence)

    def drop(self, sequence: int) -> None:
        resident = self.residents.pop(sequence, None)
        if resident is not None:
            del self._places[resident.key]
        self._dirty.add(sequence)
        self._context.truncate(sequence, 0)  # llama.cpp never refuses a whole sequence

    def cut(self, sequence: int, keep: int) -> bool:
        """Keep the first ``keep`` steps, or drop the resident."""
        resident = self.residents[sequence]
        if keep < len(resident.steps):
            del resident.steps[keep:]
            if not self.undo(sequence):
                self.drop(sequence)
                return False
        return True

    def undo(self, sequence: int) -> bool:
        try:
            self._context.truncate(sequence, self.residents[sequence].cells)
        except Exception:  # a member that cannot be read abstains, and stops nobody
            return False
        return True

    def _empty(self) -> None:
        self._dirty.clear()
        self._context.clear()
        self._generation = self._context.generation


def steps_of(ending: Sequence[int], written: Sequence[int], rule: BatchRule) -> tuple[Step, ...]:
    """The rule alone cuts the tokens."""
    steps: list[Step] = []
    at = 0
    for count in rule.pieces(len(ending) - 1):
        steps.append(tuple(ending[at : at + count]))
        at += count
    return (*steps, tuple(ending[-1:]), *((token,) for token in written))


def common(steps: Sequence[Step], others: Sequence[Step]) -> int:
    count = 0
    for one, other in zip(steps, others, strict=False):
        if one != other:
            break
        count += 1
    return count


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
            steps = steps_of(ending, tokens, self._slots.evaluator.rule)
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
        width = self._slots.evaluator.rule.sequences(run[-1] - run[0] + 1, rows)
        return max(run[-1] + 1, run[0] + width - 1)

    def _advance(self, run: list[int], steps: Mapping[int, Step], group: _Group, *, last: bool) -> None:
        wanted = [sequence for sequence in run if last and sequence in group.loaded]
        try:
            residents = self._slots.residents
            found = self._slots.evaluator.evaluate(
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
