"""A small data set written for this project: invented feedback to an invented clinic, praise or complaint."""

from __future__ import annotations

from importlib import resources
from typing import Any

from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.records import read_jsonl

PROMPT = ICLPrompt(
    instruction="Is each message to the clinic praise or a complaint?",
    question="Message: {text}",
    answer="Feedback:",
)
LABELS = ("praise", "complaint")


def load() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (private training rows, test rows), each a list of {text, label}.

    Examples:
        >>> rows, test_rows = load()
        >>> len(rows), len(test_rows), rows[0]["label"]
        (640, 80, 'praise')
    """
    folder = resources.files(__name__)
    with (
        resources.as_file(folder / "messages.jsonl") as train,
        resources.as_file(folder / "messages_test.jsonl") as test,
    ):
        return read_jsonl(train), read_jsonl(test)
