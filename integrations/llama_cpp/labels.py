"""Scores of label words for groups of members."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_dp.ports import MemberPrompt

from .._engine import Part, label_tokens, tail_tokens
from .._store import Calibration
from .context import LlamaContext
from .evaluate import JointEvaluator, MemberState
from .members import MemberStates, Opening, StateStore


class CachedLabelScores:
    """Scores label words, ``together`` members at a time.

    Args:
        context: The model.
        evaluator: Its arithmetic.
        members: States of heads and bodies.
        store: Where states are kept.
        max_tokens: Longest head + body + tail + label of one member, in tokens.
        together: Members in one batch.
    """

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
        """One row a prompt, one column a word; None where a member is too long or fails.

        Raises:
            InvalidParameter: Words are not distinct or empty, or a tail is empty or too long.
            ModelUnavailable: The public head cannot be evaluated.
        """
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
        """State of a member from the store or evaluated now; None if it is too long or cannot be evaluated."""
        # One cell more than the label, for the row that keeps a batch from having a single one.
        room = self._max_tokens - self._max_tokens // 2 - most - 1
        return self._members.state(Opening(prompt.head), prompt, room)

    def tail(self, text: str) -> Part:
        """Tokens of a question."""
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
