"""Two invented data sets, written for this project: feedback to a clinic, and support tickets of an online shop."""

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
    return _read("messages"), _read("messages_test")


def load_tickets() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (private training rows, test rows) of support tickets, each a list of {text, label, customer}.

    Six queues. Some customers wrote several tickets. None of the test rows is by a customer of the training rows.

    Examples:
        >>> rows, test_rows = load_tickets()
        >>> sorted({row["label"] for row in rows})
        ['account', 'billing', 'cancellation', 'delivery', 'returns', 'technical']
    """
    return _read("tickets"), _read("tickets_test")


def _read(name: str) -> list[dict[str, Any]]:
    with resources.as_file(resources.files(__name__) / f"{name}.jsonl") as path:
        return read_jsonl(path)
