"""Evaluates members: alone, then in batches that change no bit. Keeps their states."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from langchain_dp.errors import LangChainDPError, ModelUnavailable
from langchain_dp.ports import MemberPrompt

from .._engine import (
    BoundedStore,
    Calibration,
    Logits,
    Scores,
    body_digest,
    check_public,
    log_softmax,
)
from .batches import Batches, BatchRule
from .context import DecodeError, LlamaContext, State

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
    """The arithmetic on one context. Sequence i is member i."""

    def __init__(self, context: LlamaContext, rule: BatchRule) -> None:
        self._context = context
        self.batches = Batches(context, rule)
        self.rooms = 1
        self._used = 0
        self._generation = -1

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
        for count in self.batches.rule.pieces(len(tokens)):
            part = tokens[at : at + count]
            last = at + count == len(tokens)
            keep = range(count) if every else range(count - 1, count) if last else ()
            rows = self.batches.evaluate(
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
