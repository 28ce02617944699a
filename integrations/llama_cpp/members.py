"""Heads and members as states, and scores of label words."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence

from langchain_dp.errors import LangChainDPError, ModelUnavailable
from langchain_dp.ports import MemberPrompt

from .._engine import Part, body_digest, check_public, label_tokens, tail_tokens
from .._store import BoundedStore, Calibration
from .context import DecodeError, LlamaContext
from .evaluate import JointEvaluator, MemberState

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


class CachedLabelScores:
    """Scores label words, ``together`` members at a time."""

    def __init__(
        self,
        context: LlamaContext,
        evaluator: JointEvaluator,
        members: MemberStates,
        store: StateStore,
        *,
        max_tokens: int,
        together: int,
    ) -> None:
        self._context = context
        self._evaluator = evaluator
        self._members = members
        self._store = store
        self._max_tokens = max_tokens
        self._together = together

    def scores(
        self, prompts: Sequence[MemberPrompt], tail: str, words: Sequence[str], content_free: Sequence[str]
    ) -> list[list[float] | None]:
        labels = label_tokens(words, self._context.public)
        question = self.tail(tail)
        free = [self.tail(text) for text in content_free]
        key = (tuple(words), tuple(content_free))
        rows: list[list[float] | None] = []
        for at in range(0, len(prompts), self._together):
            group = prompts[at : at + self._together]
            try:
                members = [self.member(prompt, max(map(len, labels))) for prompt in group]
                rows += self._rows(members, question, free, labels, key)
            finally:
                self._store.wipe_put_out()
        return rows

    def member(self, prompt: MemberPrompt, most: int = 1) -> MemberState | None:
        # One more cell pads a batch of a single row.
        room = self._max_tokens - self._max_tokens // 2 - most - 1
        return self._members.state(Opening(prompt.head), prompt, room)

    def tail(self, text: str) -> Part:
        return tail_tokens(self._context.public(text), self._max_tokens)

    def _rows(
        self,
        members: Sequence[MemberState | None],
        question: Part,
        free: Sequence[Part],
        labels: Sequence[Part],
        key: Calibration,
    ) -> list[list[float] | None]:
        calibrate = [m for m in members if m is not None and free and key not in m.calibrations]
        for member, mean in zip(calibrate, self._evaluator.mean_log(calibrate, free, labels), strict=True):
            if mean is not None:
                member.calibrations[key] = mean
        usable = [m for m in members if m is not None and (not free or key in m.calibrations)]
        answers = iter(self._evaluator.answers(usable, question, labels))
        rows: list[list[float] | None] = []
        for asked in members:
            if asked is None or (free and key not in asked.calibrations):
                rows.append(None)
                continue
            answer = next(answers)
            if answer is not None and free:
                answer = answer - asked.calibrations[key]
            rows.append(None if answer is None else [float(score) for score in answer])
        return rows
