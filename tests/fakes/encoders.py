"""Encoders of few dimensions that count words, and small classifiers over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from langchain_core.embeddings import Embeddings

from langchain_dp import DPLabelNamer, DPPrototypeClassifier, PrivacyBudget
from langchain_dp.aggregate import LabelNames

TOPICS = ("parcel", "invoice", "password", "nurse", "weather", "football", "bread", "music")
WORDS = {"delivery": "a parcel is late", "billing": "an invoice", "account": "a password", "clinic": "a nurse"}


class WordEncoder(Embeddings):
    """One dimension per topic: how often its word occurs, plus what the length of the text adds to every one.

    Args:
        before: Called with each text before it is encoded; it may raise.
        spoil: Replaces the rows of one call.
        dimensions: Length of the vectors.
    """

    keeps_no_prompts: ClassVar[bool] = True

    def __init__(
        self,
        before: Callable[[str], object] = lambda text: None,
        spoil: Callable[[list[str], list[Any]], Any] = lambda texts, rows: rows,
        dimensions: int = len(TOPICS),
    ) -> None:
        self.before, self.spoil, self.dimensions = before, spoil, dimensions
        self.calls: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of several texts."""
        self.calls.append(list(texts))
        rows = []
        for text in texts:
            self.before(text)
            base = len(text) % 7 / 100
            rows.append([base + text.count(word) for word in TOPICS[: self.dimensions]])
        found: list[list[float]] = self.spoil(texts, rows)
        return found

    def embed_query(self, text: str) -> list[float]:
        """Vector of one text."""
        return self.embed_documents([text])[0]


class TogetherEncoder(WordEncoder):
    """The same, and a batch changes no row."""

    keeps_no_prompts: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = True


def failing_after(word: str) -> WordEncoder:
    """An encoder that fails on public texts once it has seen a text with this word."""
    encoder = WordEncoder()

    def before(text: str) -> None:
        if word not in text and any(word in call[0] for call in encoder.calls):
            raise ConnectionError(text)

    encoder.before = before
    return encoder


def rows(count: int = 200, note: str = "") -> list[dict[str, Any]]:
    """Rows of two labels, told apart by a word, of customers with two rows each."""
    return [
        {"text": f"my {TOPICS[i % 2]} {note} {i}", "label": ("A", "B")[i % 2], "customer": f"c{i // 2}"}
        for i in range(count)
    ]


PUBLIC = [f"{word} {other} {'x' * place}" for place, word in enumerate(TOPICS) for other in TOPICS]
"""Public texts that speak of every topic."""


def fitted(examples: Any = None, **changes: Any) -> DPPrototypeClassifier[Any]:
    """A small classifier, right on words but for a chance below 1e-6."""
    settings: dict[str, Any] = {"labels": ["A", "B"], "encoder": WordEncoder(), "texts": PUBLIC} | changes
    if "ledger" not in settings:
        settings = {"budget": PrivacyBudget(8.0)} | settings
    return DPPrototypeClassifier.fit(rows() if examples is None else examples, **settings)


def named(examples: Any = None, words: Mapping[str, str] | None = None, **changes: Any) -> LabelNames:
    """Names of two labels, right but for a chance below 1e-9."""
    settings: dict[str, Any] = {"labels": ["A", "B"]} | changes
    if "ledger" not in settings:
        settings = {"budget": PrivacyBudget(3.0)} | settings
    namer = DPLabelNamer(WORDS if words is None else words, encoder=settings.pop("encoder", None) or WordEncoder())
    return namer.fit(rows() if examples is None else examples, **settings)
