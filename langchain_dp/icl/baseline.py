"""Non-private baselines of DP-ICL."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_dp._util import validate
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp.accounting import Neighbors, PrivacyCertificate
from langchain_dp.ensemble.questions import Question
from langchain_dp.errors import PrivateDataError
from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.icl.release import DPAnswer
from langchain_dp.icl.subset_prompts import SubsetPrompt, SubsetPrompts, count_votes
from langchain_dp.icl.voters import Voter
from langchain_dp.isolation.run import check_environment
from langchain_dp.redact import PrivateArgs, run_redacted

BaselineMethod = Literal["zero-shot", "few-shot", "vote"]

_REASONS = {
    "zero-shot": "no noise: but no private example was used either",
    "few-shot": "no noise: one prompt with private examples of all labels answers directly",
    "vote": "no noise: the raw majority is released",
}


class NonPrivateICL(Runnable[Question, Any]):
    """A non-private twin of a ``DPICLClassifier``, from its ``baseline`` method.

    Without a readable answer the first label wins.

    Examples:
        >>> compared = chain.baseline("few-shot", private=False)
        >>> compared.invoke("Nobody called me back.")
        'complaint'
        >>> compared.certificate().private
        False
    """

    def __init__(
        self,
        method: BaselineMethod,
        *,
        labels: Sequence[Any],
        prompt: ICLPrompt,
        voter: Voter,
        subset_prompts: SubsetPrompts,
        check: Callable[[Any], str],
        neighbors: Neighbors,
    ) -> None:
        self.method = validate.one_of("method", method, tuple(_REASONS))
        self.name = f"not-private-{method}"
        self._labels = tuple(labels)
        self._prompt = prompt
        self._voter = voter
        self._ask = functools.partial(voter.ask, even_empty=True)
        self._subset_prompts = subset_prompts
        self._check = check
        self._neighbors = neighbors

    def invoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002  # Runnable's name
        """Answer without any privacy."""
        reject_extra_kwargs(kwargs)
        return self._call_with_config(self._answer, input, config)

    def invoke_with_certificate(self, question: Question, config: RunnableConfig | None = None) -> DPAnswer[Any]:
        """Answer with a certificate that promises nothing."""
        return DPAnswer(self.invoke(question, config), self.certificate())

    def certificate(self) -> PrivacyCertificate:
        """Return a certificate that promises nothing, with the reason."""
        spent = 0.0 if self.method == "zero-shot" else math.inf
        return PrivacyCertificate(
            mechanism=f"non-private {self.method}",
            epsilon=spent,
            delta=0.0,
            neighbors=self._neighbors,
            spent=(spent, 0.0),
            model=self._voter.name,
            private=False,
            reason=_REASONS[self.method],
        )

    def _draw(self, question: Question) -> list[SubsetPrompt]:
        text = self._check(question)
        check_environment()
        if self.method == "vote":
            return self._subset_prompts.draw(text)
        if self.method == "zero-shot":
            return [SubsetPrompt(None, (), text)]
        return self._subset_prompts.balanced(text, secrets.SystemRandom())

    def _answer(self, question: Question) -> Any:
        subset_prompts = self._draw(question)
        try:
            votes = run_redacted(self._ask, PrivateArgs(subset_prompts), "while a model was asked")
        finally:
            if any(one.member is None for one in subset_prompts):
                self._voter.forget(None)  # their records may be forgotten
        if self.method == "zero-shot":
            return self._labels[votes[0] or 0]
        counts = count_votes(subset_prompts, votes, len(self._labels))
        return self._labels[max(range(len(counts)), key=lambda index: (counts[index], -index))]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("NonPrivateICL holds private examples and cannot be pickled, copied or serialized.")
