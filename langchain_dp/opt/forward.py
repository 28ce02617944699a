"""The local model's label scores for each record under an instruction."""

from __future__ import annotations

import functools
import secrets
import textwrap
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from langchain_dp.ensemble.engine_calls import (
    LEAST,
    PromptBudget,
    ask_together,
    count_publicly,
    forget_members,
    is_remote,
    row_of,
)
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import OptPrompts
from langchain_dp.ports import CONTENT_FREE, LabelScorer, MemberPrompt, NextTokenVoter

_TOGETHER = 64

Row = npt.NDArray[np.float64]


class Forward:
    """Scores one record by that record and public text alone."""

    def __init__(self, engine: LabelScorer, prompts: OptPrompts, words: Sequence[str], *, calibrate: bool) -> None:
        self._engine = engine
        self._prompts = prompts
        self._shown = tuple(words)
        self._calibrate = calibrate
        self._room = PromptBudget(engine)
        self._priors: dict[tuple[str, tuple[str, ...]], Row] = {}

    @classmethod
    def of(cls, engine: NextTokenVoter, settings: Settings) -> Forward:
        assert isinstance(engine, LabelScorer)  # check_model
        words = [settings.prompts.word(label) for label in settings.labels]
        return cls(engine, settings.prompts, words, calibrate=settings.calibrate)

    def check(self, instruction: str, words: Sequence[str] = ()) -> None:
        """Score public texts to find a failing model or a too long instruction."""
        shown = tuple(words) or self._shown
        room = self._left(self._prompts.forward_head(instruction, shown), [f" {word}" for word in shown])
        least = LEAST + count_publicly(self._engine, self._prompts.forward_body(""))
        if room < least:
            raise InvalidParameter(
                f"Expected the instruction {textwrap.shorten(instruction, 60)!r} to leave {least} tokens for a record, "
                f"but it leaves {max(room, 0)}. Shorten it, or raise the engine's max_tokens=."
            )
        if self._prior(instruction, words) is None:
            raise ModelUnavailable(
                "The model could not score the labels after a public text without content, under the instruction "
                f"{textwrap.shorten(instruction, 60)!r}. Check the model."
            )

    def watch(self, instruction: str) -> None:
        """A server may have died while members abstained."""
        if is_remote(self._engine) and self._scores(instruction, CONTENT_FREE[:1])[0] is None:
            raise ModelUnavailable(
                "The engine's server did not answer a public text that it was asked after the private ones. Without "
                "answers only noise would be left. Check the server, and invoke this optimizer again to go on with the "
                "run."
            )

    def predict(self, instruction: str, texts: Sequence[str], words: Sequence[str] = ()) -> list[int | None]:
        """Return each answer's index. None for a failed call."""
        prior = self._prior(instruction, words) if self._calibrate else np.zeros(len(words or self._shown))
        if prior is None:  # the instruction alone is too much for the model, whatever the texts
            return [None] * len(texts)
        rows = self.log_probabilities(instruction, texts, words)
        return [None if row is None else int(np.argmax(row - prior)) for row in rows]

    def log_probabilities(self, instruction: str, texts: Sequence[str], words: Sequence[str] = ()) -> list[Row | None]:
        """Return uncalibrated scores. None for a failed call."""
        parts = (texts[at : at + _TOGETHER] for at in range(0, len(texts), _TOGETHER))
        return [row for part in parts for row in self._scores(instruction, part, words)]

    def _scores(self, instruction: str, texts: Sequence[str], words: Sequence[str] = ()) -> list[Row | None]:
        shown = tuple(words) or self._shown
        nonce = secrets.token_hex(8)  # a record's cache must not be found again
        prompts, answers = self._prompts, [f" {word}" for word in shown]
        head = prompts.forward_head(instruction, shown)
        most = self._left(head, answers)
        fit = functools.partial(self._room.truncate, whole=lambda texts: prompts.forward_body(*texts))
        members = [
            MemberPrompt(head, prompts.forward_body(*fit([text], tokens=most)), prompts.forward_tail, (nonce, i))
            for i, text in enumerate(texts)
        ]
        try:
            rows = ask_together(lambda some: self._engine.score_labels(some, answers), members)
        finally:
            keys: list[Hashable] = [member.member for member in members]
            forget_members(self._engine, *keys)
        scores = [row_of(row, len(shown)) for row in rows]
        return [row if row is not None and np.isfinite(row).all() else None for row in scores]

    def _left(self, head: str, answers: Sequence[str]) -> int:
        return self._room.remaining(self._engine.max_tail_tokens, head, max(answers, key=len))

    def _prior(self, instruction: str, words: Sequence[str] = ()) -> Row | None:
        key = instruction, tuple(words) or self._shown
        if key not in self._priors:
            rows = [row for row in self._scores(instruction, CONTENT_FREE, words) if row is not None]
            if len(rows) < len(CONTENT_FREE):
                return None
            self._priors[key] = np.logaddexp.reduce(np.stack(rows))
        return self._priors[key]
