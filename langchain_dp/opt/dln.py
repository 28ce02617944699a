"""DLN-1 (Sordoni et al. 2023), the baseline that leaks: whole prompts sampled from single backward prompts.

Algorithm 3 of Hong et al. 2024. NOT private: a prompt may repeat a record word for word.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from langchain_dp._util import validate
from langchain_dp.ensemble.asking import ask_together
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.plan import count_votes
from langchain_dp.opt.templates import CUE, Demonstration, OptPrompts
from langchain_dp.opt.text import Text
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token, VotesNextToken


@dataclasses.dataclass(frozen=True)
class DLNSettings:
    """Settings of DLN-1; the defaults are those of Hong et al. 2024.

    Args:
        steps: Rounds of improvement.
        prompts_per_step: Candidates sampled in each.
        demonstrations: Records shown in one backward prompt.
        temperature: Of the sampled candidates.
        max_new_tokens: Longest candidate.

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> compared = DPPromptOptimizer(
        ...     model=engine, labels=LABELS, instruction="Praise or complaint?", method="dln-1", dln=DLNSettings(2)
        ... )
        >>> compared.optimize(rows).certificate.private
        False
    """

    steps: int = 20
    prompts_per_step: int = 20
    demonstrations: int = 20
    temperature: float = 0.7
    max_new_tokens: int = 100

    def __post_init__(self) -> None:
        for name in ("steps", "prompts_per_step", "demonstrations", "max_new_tokens"):
            validate.integer(name, getattr(self, name), at_least=1)
        validate.number("temperature", self.temperature, at_least=0.0)


class DLN1:
    """One run of DLN-1.

    Args:
        engine: The local model.
        forward: Forward pass on the same model.
        prompts: Templates.
        labels: Public labels.
        settings: Numbers of the run.
        text: Instruction that written tokens spell, and how the next one is taken, at the settings' temperature.
        rng: Source of samples.

    Attributes:
        sampled: Every prompt that was sampled so far. Any of them could have been the best.
    """

    def __init__(
        self,
        engine: VotesNextToken,
        forward: Forward,
        *,
        prompts: OptPrompts,
        labels: Sequence[str],
        settings: DLNSettings,
        text: Text,
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._forward = forward
        self._prompts = prompts
        self._labels = list(labels)
        self._settings = settings
        self._text = text
        self._rng = rng
        self.sampled: list[str] = []

    def run(
        self,
        instruction: str,
        training: Sequence[Mapping[str, Any]],
        validation: Sequence[Mapping[str, Any]],
        *,
        advance: Callable[[], object],
    ) -> str:
        """The best instruction found; the current one stays in the race at every step.

        Args:
            instruction: Initial instruction.
            training: Rows to show.
            validation: Rows to score by: mean log-probability of the right label.
            advance: Told after each step.
        """
        scores: dict[str, float] = {}
        for step in range(self._settings.steps):
            shown = self._rng.sample(list(training), min(self._settings.demonstrations, len(training)))
            candidates = [instruction, *self._candidates(instruction, shown, step)]
            for candidate in candidates:
                if candidate not in scores:
                    scores[candidate] = self._log_probability(candidate, validation)
            instruction = max(candidates, key=scores.__getitem__)
            advance()
        return instruction

    def _candidates(self, instruction: str, rows: Sequence[Mapping[str, Any]], step: int) -> list[str]:
        texts = [self._prompts.render(row) for row in rows]
        answers = self._forward.predict(instruction, texts)
        words = [self._prompts.word(label) for label in self._labels]
        body = self._prompts.backward_body(
            [
                Demonstration(text, self._prompts.word(str(row["label"])), None if answer is None else words[answer])
                for row, text, answer in zip(rows, texts, answers, strict=True)
            ]
        )
        member = (id(self), step)
        try:
            found = [self._written(instruction, body, member) for _ in range(self._settings.prompts_per_step)]
        finally:
            self._engine.forget(member)
        texts = [text for text in map(self._text.instruction, found) if text]
        self.sampled += texts
        return texts

    def _written(self, instruction: str, body: str, member: tuple[int, int]) -> list[Token]:
        message = self._rng.randrange(len(self._prompts.messages))
        head = self._prompts.backward_head(instruction)
        tail = self._prompts.backward_tail(message, instruction)
        prompt = MemberPrompt(head, body, tail, member, begins=CUE)
        written: list[Token] = []
        while len(written) < self._settings.max_new_tokens and not self._text.stops(written):
            asked = Continuation(prompt, tuple(written), self._rng.random())
            token = self._next(asked, self._text.decoding(written))
            if token is None or token in self._engine.end_tokens:
                break
            written.append(token)
        return written

    def _next(self, asked: Continuation, decoding: Decoding) -> Token | None:
        answer = count_votes(ask_together(lambda some: self._engine.next_tokens(some, decoding), [asked]))
        return next(iter(answer), None)

    def _log_probability(self, instruction: str, rows: Sequence[Mapping[str, Any]]) -> float:
        texts = [self._prompts.render(row) for row in rows]
        found = self._forward.log_probabilities(instruction, texts)
        floor = -100.0  # a row that cannot be asked
        return float(
            np.mean(
                [
                    floor if row is None else row[self._labels.index(str(truth["label"]))]
                    for row, truth in zip(found, rows, strict=True)
                ]
            )
        )
