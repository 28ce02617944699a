"""Members in the model's memory, which leave no trace for others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from langchain_dp.errors import LangChainDPError
from langchain_dp.ports import MemberPrompt

from .batches import BatchRule
from .context import LlamaContext
from .evaluate import JointEvaluator, MemberState, Step
from .members import MemberStates, Opening, StateStore

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
        self._evaluator = evaluator
        self._members = members
        self._store = store
        self.count = count
        self.batches = evaluator.batches
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
                source = self._evaluator.extended(start, source, one.digest, sequence=sequence)
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
