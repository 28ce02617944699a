"""Decision models whose every move is known. Needs langchain-core 1.8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from langchain_core.decisions import BaseDecisionModel, ChoiceAnswer, ClassifierResponse
from langsmith import traceable
from pydantic import Field

from fakes.models import log_and_warn
from fakes.voters import VotingChat

TOKENS = 987_654
"""Tokens that each call reports."""


class VotingDecision(BaseDecisionModel):
    """Chooses as :class:`VotingChat` votes. Traces, logs and warns of its state, and reports token usage. Sync only.

    Fields: ``chat`` votes; ``probability`` returns the probability of its vote, by the shots of the prompt.
    """

    keeps_no_prompts: ClassVar[bool] = True
    model: str = "voting-decision-1"
    chat: VotingChat = Field(default_factory=VotingChat)
    probability: Callable[[str], float] = lambda prompt: 0.75
    questions: list[Any] = Field(default_factory=list)

    @property
    def _provider(self) -> str:
        return "fake"

    def _classify(self, state: Any, questions: dict[str, Any]) -> ClassifierResponse:
        self.questions.append(questions)
        log_and_warn(str(state))
        traceable(lambda text: text, name="decision")(str(state))
        choice, share = self.chat.vote(state), self.probability(str(state))
        [(name, question)] = questions.items()
        probabilities = {label: share if label == choice else 0.25 for label in question.criteria}
        answer = ChoiceAnswer(type="choice", choice=choice, probabilities=probabilities, confidence=0.75)
        usage: Any = {"input_tokens": TOKENS, "output_tokens": 1}
        return ClassifierResponse(model=self.model, answers={name: answer}, usage=usage)


class AsyncVotingDecision(VotingDecision):
    """The same with an async method."""

    keeps_no_prompts: ClassVar[bool] = True

    async def _aclassify(self, state: Any, questions: dict[str, Any]) -> ClassifierResponse:
        return self._classify(state, questions)


class Undeclared(VotingDecision):
    """A class of the user's own, for which its base cannot speak."""
