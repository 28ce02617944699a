"""Synthetic examples chosen for an input without embeddings: a balanced few, or those with the rarest common words.

With embeddings LangChain's own selector and vector store do it: see ``SyntheticExamples``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.example_selectors import BaseExampleSelector, SemanticSimilarityExampleSelector
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from langchain_dp._util import validate
from langchain_dp._util.words import words_of
from langchain_dp.errors import InvalidParameter


class SimilarExampleSelector(SemanticSimilarityExampleSelector):
    """LangChain's, whose input may have another name than the ``text`` of an example.

    Args:
        variable: Variable of the prompt that holds the input.

    Examples:
        >>> made.as_example_selector(embeddings, variable="question").select_examples({"question": "Where is it?"})
    """

    variable: str = "text"

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """The most similar examples."""
        return super().select_examples({"text": self._input(input_variables)})

    async def aselect_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Async twin of :meth:`select_examples`."""
        return await super().aselect_examples({"text": self._input(input_variables)})

    def _input(self, variables: Mapping[str, str]) -> str:
        if self.variable not in variables:
            raise InvalidParameter(
                f"Expected the prompt to have the variable {self.variable!r}, got {sorted(variables)}. Name that "
                "with the input: as_example_selector(..., variable=...)."
            )
        return variables[self.variable]


class BalancedExampleSelector(BaseExampleSelector):
    """Gives the same few examples for every input, the labels in turn.

    Args:
        examples: Mappings with ``text`` and ``label``, the labels in turn.
        k: How many are given.

    Examples:
        >>> made.as_example_selector(k=8).select_examples({"text": "Where is my parcel?"})
    """

    def __init__(self, examples: list[dict[str, str]], k: int) -> None:
        self.examples = examples
        self.k = k

    def add_example(self, example: dict[str, str]) -> None:
        """Put an example of one's own first. It is public from here on, as the others are."""
        if not {"text", "label"} <= set(example):
            raise InvalidParameter(f"Expected an example with text and label, but this one has {list(example)}.")
        self.examples.insert(0, dict(example))

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, str]]:  # LangChain's
        """The first ``k`` examples, whatever the input."""
        return self.examples[: self.k]


class WordRetriever(BaseRetriever):
    """Retrieves documents by the words that they share with a question, rare ones first.

    What it searches is released already: a retrieval costs nothing.

    Args:
        documents: What is searched.
        k: Documents that are returned at most.

    Examples:
        >>> made.as_retriever(k=2).invoke("Where is my parcel?")
    """

    documents: list[Document]
    k: int = Field(default=4, ge=1)

    @functools.cached_property
    def _words(self) -> list[frozenset[str]]:
        return [_words(document.page_content) for document in self.documents]

    @functools.cached_property
    def _rarity(self) -> Mapping[str, float]:
        found = self._words
        everything = frozenset[str]().union(*found)
        return {word: math.log(1 + len(found) / sum(word in some for some in found)) for word in everything}

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # LangChain's
        k: int | None = None,
    ) -> list[Document]:
        if not isinstance(query, str):
            raise InvalidParameter(f"Expected the question to be a str, not {type(query).__name__}.")
        most = self.k if k is None else validate.integer("k", k, at_least=1)
        asked = _words(query)

        def score(at: int) -> float:
            words = self._words[at]
            return sum(self._rarity[word] for word in asked & words) / math.sqrt(1 + len(words))

        order = sorted(range(len(self.documents)), key=lambda at: (-score(at), at))
        return [self.documents[at] for at in order[:most]]


def _words(text: str) -> frozenset[str]:
    return frozenset(words_of(text.casefold()))
