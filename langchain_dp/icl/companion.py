"""The public companion: the same question after invented examples, whose answer may be looked at and said aloud."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.icl.votes import SubsetPrompt

TEST_QUESTION = "This is a test."
INVENTED = (
    "Some text.", "Another text.", "A third text.", "One more text.", "Yet another text.", "A sixth text.",
    "A text of its own.", "A last text.",
)  # fmt: skip
"""PUBLIC texts that say nothing, so that a small model has nothing to repeat: it sees how to answer, and answers."""

_FEWEST_INVENTED = 4


def invented(prompt: ICLPrompt, words: Sequence[str], question: str) -> SubsetPrompt:
    """A PUBLIC subset prompt in the prompt's form: invented examples of the labels in turn, and the question."""
    texts = INVENTED[: max(_FEWEST_INVENTED, len(words))]
    shots = tuple((_rendered(prompt, text), word) for text, word in zip(texts, itertools.cycle(words), strict=False))
    return SubsetPrompt(("public", len(shots)), shots, question)


def companion_text(prompt: ICLPrompt, words: Sequence[str]) -> str:
    """The public companion's prompt before the question, for estimates."""
    return prompt.head() + prompt.body(invented(prompt, words, "").shots)


def public_question(prompt: ICLPrompt) -> str:
    """A PUBLIC question."""
    return _rendered(prompt, TEST_QUESTION)


def _rendered(prompt: ICLPrompt, text: str) -> str:
    return prompt.ask(dict.fromkeys(prompt.variables, text))
