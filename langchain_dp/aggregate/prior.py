"""Label scores of a language model without examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from langchain_dp._util import validate
from langchain_dp.aggregate.features import Floats
from langchain_dp.aggregate.readers import scorer_of
from langchain_dp.ensemble.engine_calls import asked_publicly
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.parsing import parse_label
from langchain_dp.ports import CONTENT_FREE, LabelScorer, MemberPrompt
from langchain_dp.records import label_words

_NAMED = 0.8
"""Probability of a named label."""
# Of six prompts this one was right most often on five public tasks, by a model of 135 million parameters.
_SCORER_PROMPT = "Categories: {names}.\n\nText: {text}\nCategory:"
_CHAT_PROMPT = "Which of these fits the text: {names}?\n\nText: {text}\nAnswer with one of them only."


class LabelPrior:
    """Weighted log-probabilities of labels.

    An engine's scores are divided by those of empty texts (Zhao et al. 2021).
    """

    def __init__(
        self, model: Any, labels: Sequence[str], names: Mapping[str, str], prompt: str | None, weight: float
    ) -> None:
        self._scorer = scorer_of(model)
        self.model: Any = model
        if not isinstance(names, Mapping):
            raise InvalidParameter(f"Expected names of type {type(names).__name__} to be a mapping from label to name.")
        self._words = label_words(names, labels)
        if prompt is None:
            prompt = _CHAT_PROMPT if self._scorer is None else _SCORER_PROMPT
        if not isinstance(prompt, str) or prompt.count("{text}") != 1:
            raise InvalidParameter(
                f"Expected prompt={prompt!r} to hold {{text}} once. {{names}} stands for the names of the labels."
            )
        before, self._after = (part.replace("{names}", ", ".join(self._words)) for part in prompt.split("{text}"))
        start = before.rfind("\n") + 1  # engines keep the head, so it ends where no token spans it
        self._head, self._before = before[:start], before[start:]
        self._weight = validate.number("weight", weight, at_least=0.0)

    def log_scores(self, texts: Sequence[str]) -> Floats:
        """Return texts by labels."""
        scorer = self._scorer
        rows = np.array([self._name(text) if scorer is None else self._score(scorer, text) for text in texts])
        rows -= rows.max(axis=1, keepdims=True)
        return np.asarray(self._weight * (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))))

    def _score(self, scorer: LabelScorer, text: str) -> list[float]:
        words = [f" {word}" for word in self._words]
        prompt = MemberPrompt(self._head, "", self._tail(text), member="prior")
        free = [self._tail(blank) for blank in CONTENT_FREE]
        [row] = asked_publicly(lambda: scorer.score_labels([prompt], words, content_free=free))
        if row is None:
            raise ModelUnavailable("The model failed on the query. Check the model, or shorten the text.")
        return list(row)

    def _name(self, text: str) -> list[float]:
        answer = self.model.invoke(self._head + self._tail(text))
        place = parse_label(answer, self._words)
        others = (1 - _NAMED) / (len(self._words) - 1)
        return [
            0.0 if place is None else math.log(_NAMED if index == place else others)
            for index in range(len(self._words))
        ]

    def _tail(self, text: str) -> str:
        return self._before + text + self._after
