"""Labels that mean nothing to a model, as categories of tickets do: three data sets with their labels behind codes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_dp.opt import OptTask
from langchain_dp.records import read_jsonl


@dataclass(frozen=True)
class Coded:
    """A data set under codes: two public instructions, the second one for names, and what the codes stand for.

    Of a data set with long texts those of more words are left out: four must fit in a prompt.
    """

    instruction: str
    labels: tuple[str, ...]
    asked_for: str
    most_words: int = 1000

    @property
    def codes(self) -> dict[str, str]:
        """The code of each label, "team A" for the first."""
        return {label: f"team {letter}" for label, letter in zip(self.labels, "ABCDEF", strict=False)}

    @property
    def task(self) -> OptTask:
        """As a prompt optimizer has it."""
        return OptTask(tuple(self.codes.values()), self.instruction, shots=3, subsets=102)

    def rows(self, path: Path) -> list[dict[str, str]]:
        """The rows of a file, with codes for their labels and texts in one line."""
        return [{"text": " ".join(row["text"].split()), "label": self.codes[row["label"]]} for row in self.read(path)]

    def read(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a file as they stand."""
        return [row for row in read_jsonl(path) if len(row["text"].split()) <= self.most_words]


_TOPIC = "Say what the topic of the text is."
CODED = {
    "agnews": Coded("Choose the team that the article goes to.", ("World", "Sports", "Business", "Technology"), _TOPIC),
    "trec": Coded(
        "Choose the team that answers the question.",
        ("expression", "description", "entity", "human", "location", "number"),
        "Say of what kind the answer to the question is.",
    ),
    "trustpilot": Coded("Choose the team that the review goes to.", ("female", "male"), _TOPIC, most_words=80),
}


def not_long(task: str, path: Path) -> list[dict[str, Any]]:
    """The rows of a file of any data set."""
    return CODED[task].read(path) if task in CODED else read_jsonl(path)


def regression(examples: Sequence[dict[str, Any]], test: Sequence[dict[str, Any]]) -> float | None:
    """Share of test rows that logistic regression on TF-IDF gets right, trained on the examples alone."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    if len({one["label"] for one in examples}) < 2:
        return None
    model = make_pipeline(TfidfVectorizer(stop_words="english", sublinear_tf=True), LogisticRegression(C=10.0))
    model.fit([one["text"] for one in examples], [one["label"] for one in examples])
    return round(statistics.mean(model.predict([row["text"]])[0] == row["label"] for row in test), 4)
