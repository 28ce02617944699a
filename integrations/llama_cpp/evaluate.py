"""Evaluates members: alone, then in joint batches that change no bit. Keeps their states.

Batches are padded with public rows, because kernels depend on the number of rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from langchain_dp.errors import LangChainDPError, ModelUnavailable
from langchain_dp.ports import MemberPrompt

from .._engine import BoundedStore, Calibration, Logits, Scores, body_digest, check_public, log_softmax
from .context import DecodeError, LlamaContext, State

ROWS = 32
EIGHT = 8
_PUBLIC_TOKEN = 0


@dataclasses.dataclass(frozen=True)
class BatchRule:
    """Rows of a batch: a ``multiple``, at ``least`` so many, up to ``longest`` per member."""

    name: str
    multiple: int = 1
    least: int = 1
    longest: int = ROWS
    together: bool = True

    def pieces(self, count: int) -> list[int]:
        """The rest of ``count`` goes in single rows."""
        rest = count % self.longest
        even = rest - rest % self.multiple
        return [self.longest] * (count // self.longest) + [even] * (even > 0) + [1] * (rest - even)

    def sequences(self, members: int, rows: int) -> int:
        """Count public sequences, too."""
        unit = self.multiple // math.gcd(self.multiple, rows)
        return -(-max(members, -(-self.least // rows)) // unit) * unit

    def outputs(self, wanted: int) -> int:
        if wanted == 0 and self.longest > 1:
            return 0
        return -(-max(wanted, self.least) // self.multiple) * self.multiple


PAIRS = BatchRule("at least 2 rows", least=2)
EIGHTS = BatchRule("multiples of 8 rows", multiple=EIGHT, least=EIGHT)
ALONE = BatchRule("one member at a time", together=False)


def fixed_shape(sequences: int) -> BatchRule:
    return BatchRule(f"always {sequences} rows", multiple=sequences, least=sequences, longest=1)


def sequences_for(slots: int) -> int:
    """Add a public sequence, and pad to a multiple of 8."""
    return slots + 1 if slots == 1 else max(slots + 1, -(-slots // EIGHT) * EIGHT)


Step = tuple[int, ...]


@dataclasses.dataclass(repr=False)
class MemberState:
    """Saved cache of head and body (``tokens``) and later ``steps``."""

    state: State
    tokens: int
    digest: bytes
    steps: tuple[Step, ...] = ()
    calibrations: dict[Calibration, Scores] = dataclasses.field(default_factory=dict)

    @classmethod
    def nothing(cls) -> MemberState:
        return cls(np.empty(0, np.uint8), 0, b"")

    @property
    def nbytes(self) -> int:
        return self.state.nbytes

    def wipe(self) -> None:
        self.state.fill(0)
        self.calibrations.clear()


class JointEvaluator:
    """The arithmetic on one context, in batches padded by ``rule``. Sequence i is member i.

    A padding row is a public token, removed at once.
    """

    def __init__(self, context: LlamaContext, rule: BatchRule) -> None:
        self._context = context
        self.rule = rule
        self.rooms = 1
        self._used = 0
        self._generation = -1

    def evaluate(
        self,
        steps: Mapping[int, Sequence[int]],
        ends: Mapping[int, int],
        wanted: Collection[tuple[int, int]],
        *,
        undo: Callable[[int], object] | None = None,
    ) -> dict[tuple[int, int], Logits]:
        """Append ``steps`` to neighboring sequences of lengths ``ends``. Logits stay valid until the next batch."""
        count = len(next(iter(steps.values())))
        window = self._window(min(steps), max(steps), count, ends)
        padding = (_PUBLIC_TOKEN,) * count
        rows = [(at, i, token) for at in window for i, token in enumerate(steps.get(at, padding))]
        missing = self.rule.outputs(len(wanted)) - len(wanted)
        outputs = {*wanted, *[(at, i) for at, i, _ in rows if (at, i) not in wanted][:missing]}
        try:
            self._context.decode([(token, ends.get(at, 0) + i, at, (at, i) in outputs) for at, i, token in rows])
        finally:
            for at in window:
                if at not in steps:
                    self._context.truncate(at, ends.get(at, 0)) if undo is None else undo(at)
        if not wanted:
            return {}
        found = zip(sorted(outputs), self._context.outputs(len(outputs)), strict=True)
        return {place: row for place, row in found if place in wanted}

    def _window(self, first: int, last: int, count: int, ends: Mapping[int, int]) -> range:
        """llama.cpp splits a batch at a gap."""
        width = self.rule.sequences(last - first + 1, count)
        starts = range(max(0, last - width + 1), min(first, self._context.sequences - width) + 1)
        start = min(reversed(starts), key=lambda start: sum(at in ends for at in range(start, start + width)))
        return range(start, start + width)

    def extended(
        self, start: MemberState, tokens: Sequence[int], digest: bytes, *, sequence: int | None = None
    ) -> MemberState:
        """Evaluate and save ``start`` plus ``tokens`` alone."""
        at = self._fresh() if sequence is None else sequence
        if start.tokens:
            self._context.restore(start.state, at)
        self._context.prefill(tokens, first=start.tokens, sequence=at)
        count = start.tokens + len(tokens)
        saved = MemberState(self._context.save(at) if count else np.empty(0, np.uint8), count, digest)
        if sequence is None:
            self._context.truncate(at, 0)
        return saved

    def _fresh(self) -> int:
        """Return a sequence of zeros. All are overwritten together."""
        if self._generation != self._context.generation or self._used >= self.rooms:
            self._context.clear()
            self._generation, self._used = self._context.generation, 0
        self._used += 1
        return self._used - 1

    def load(self, member: MemberState, sequence: int) -> None:
        if member.tokens:
            self._context.restore(member.state, sequence)
            if member.steps:
                self._context.truncate(sequence, member.tokens)

    def mean_log(
        self, members: Sequence[MemberState], tails: Sequence[Step], labels: Sequence[Step]
    ) -> list[Scores | None]:
        if not members:
            return []
        columns = zip(*(self.answers(members, tail, labels) for tail in tails), strict=True)
        return [
            None if any(row is None for row in column) else np.logaddexp.reduce(np.stack(column)) - np.log(len(tails))
            for column in columns
        ]

    def answers(
        self, members: Sequence[MemberState], tail: Sequence[int], labels: Sequence[Step]
    ) -> list[Scores | None]:
        if not members:
            return []
        try:
            with np.errstate(invalid="ignore"):  # a member with NaN abstains below
                answers: list[Scores | None] = list(self._joint(members, tail, labels))
        except Exception:  # that some member failed is private
            if len(members) == 1:
                return [None]
            # One member's failure must not silence the others.
            return [self.answers([member], tail, labels)[0] for member in members]
        return [answer if answer is not None and np.isfinite(answer).all() else None for answer in answers]

    def _joint(self, members: Sequence[MemberState], tail: Sequence[int], labels: Sequence[Step]) -> list[Scores]:
        # Zeros everywhere: zero times a former infinity is not zero.
        self._context.clear()
        for sequence, member in enumerate(members):
            self.load(member, sequence)
        starts = [member.tokens for member in members]
        after_tail = self._advance(starts, tail)
        first = [log_softmax(rows[-1]) for rows in after_tail]
        scores = np.empty((len(members), len(labels)))
        for column, label in enumerate(labels):
            scores[:, column] = [row[label[0]] for row in first]
            if len(label) > 1:
                ends = [start + len(tail) for start in starts]
                for i, rows in enumerate(self._advance(ends, label[:-1], every=True)):
                    scores[i, column] += sum(
                        log_softmax(row)[token] for row, token in zip(rows, label[1:], strict=True)
                    )
                for sequence, end in enumerate(ends):
                    self._context.truncate(sequence, end)
        return [row - np.logaddexp.reduce(row) for row in scores]

    def _advance(self, starts: Sequence[int], tokens: Sequence[int], *, every: bool = False) -> list[list[Logits]]:
        found: list[list[Logits]] = [[] for _ in starts]
        at = 0
        for count in self.rule.pieces(len(tokens)):
            part = tokens[at : at + count]
            last = at + count == len(tokens)
            keep = range(count) if every else range(count - 1, count) if last else ()
            rows = self.evaluate(
                dict.fromkeys(range(len(starts)), part),
                {sequence: start + at for sequence, start in enumerate(starts)},
                {(sequence, i) for sequence in range(len(starts)) for i in keep},
            )
            for (sequence, _), row in rows.items():
                found[sequence].append(row.copy())
            at += count
        return found

    def vectors(self, members: Sequence[MemberState], tail: Sequence[int], *, every: bool = False) -> list[Logits]:
        self._context.clear()
        for sequence, member in enumerate(members):
            self.load(member, sequence)
        found = self._advance([member.tokens for member in members], tail, every=every)
        return [np.stack(rows) if every else rows[-1] for rows in found]


_OPENINGS = 4


@dataclasses.dataclass(frozen=True)
class Opening:
    """Public beginning of every prompt. Special tokens count in ``frame``."""

    head: str
    frame: str | None = None


StateStore = BoundedStore[MemberState]


class MemberStates:
    """Finds or evaluates members' heads and bodies, each alone."""

    def __init__(self, context: LlamaContext, evaluator: JointEvaluator, store: StateStore) -> None:
        self._context = context
        self._evaluator = evaluator
        self._store = store
        self._openings: OrderedDict[Opening, MemberState] = OrderedDict()

    def state(self, opening: Opening, prompt: MemberPrompt, room: int) -> MemberState | None:
        try:
            digest = body_digest(prompt)
            entry = self._store.get(opening, prompt.member, digest)
            if entry is None:
                start = self.opening(opening, room)
                body = self._context.tokenize(prompt.body)
                if start.tokens + len(body) > room:
                    return None
                entry = self._evaluator.extended(start, body, digest)
                self._store.put(opening, prompt.member, entry)
            return entry if entry.tokens <= room else None
        except LangChainDPError:  # of the head, which is public
            raise
        except Exception:  # of this member's own content: it abstains
            return None

    def opening(self, opening: Opening, room: int, *, sequence: int | None = None) -> MemberState:
        """``sequence`` is left empty."""
        tokens = self.opening_tokens(opening)
        check_public(len(tokens), room, "a head")
        if opening not in self._openings:
            nothing = MemberState.nothing()
            try:
                self._openings[opening] = self._evaluator.extended(nothing, tokens, b"", sequence=sequence)
                if sequence is not None:
                    self._context.truncate(sequence, 0)
            except DecodeError as problem:
                raise ModelUnavailable(f"llama.cpp could not evaluate the head (code {problem}).") from None
            while len(self._openings) > _OPENINGS:
                self._openings.popitem(last=False)
        self._openings.move_to_end(opening)
        return self._openings[opening]

    def opening_tokens(self, opening: Opening) -> list[int]:
        if opening.frame is None:
            return self._context.public(opening.head, start=True)
        # A template spells the token of beginning itself.
        return self._context.public(opening.frame, special=True) + self._context.public(opening.head)

    def clear(self) -> None:
        self._openings.clear()
