"""What DP-ICL refuses before anything is reserved or spent. No message holds a word of an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.accounting import Neighbors
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.records import AUTOMATIC, encodable


def label_words(prompt: ICLPrompt, labels: Sequence[str]) -> list[str]:
    """Words that stand for the labels; they differ in more than case and blanks."""
    words = [prompt.word(label) for label in labels]
    if len({" ".join(word.casefold().split()) for word in words}) < len(words):
        raise InvalidParameter(
            f"Expected the labels' words {words} to differ in more than case and blanks. Rename a label."
        )
    return words


def check_example(example: object, where: str, prompt: ICLPrompt, labels: Sequence[str]) -> None:
    """A mapping with a known label and the prompt's keys; ``where`` names it in messages."""
    if not isinstance(example, Mapping):
        raise InvalidParameter(f"Expected {where} to be a mapping with text and label, not {type(example).__name__}.")
    if example.get("label") not in labels:
        raise InvalidParameter(
            f"Expected the label of {where} to be one of labels={list(labels)}. Add it, or repair the example."
        )
    missing = [name for name in prompt.variables if name not in example]
    if missing:
        raise InvalidParameter(f"Expected {where} to have the prompt's keys, but {missing} are missing. Add them.")


def check_forgettable(record_id: str, neighbors: Neighbors) -> None:
    """Under add/remove a place is no name: it shifts when another record joins or leaves."""
    if not isinstance(record_id, str):
        raise InvalidParameter(
            f"Expected record_id={record_id!r} to be a str, as add() returns it. Give str(record_id)."
        )
    if record_id.startswith(AUTOMATIC) and neighbors is Neighbors.ADD_OR_REMOVE_ONE:
        raise InvalidParameter(
            f"Expected record_id={record_id!r} to be a given id under add/remove neighbours, where places shift when a "
            "record joins or leaves. Give every example an 'id'."
        )


def render_question(question: str | Mapping[str, Any], prompt: ICLPrompt) -> str:
    """The question as it stands in the prompt, up to the cue."""
    fields = {prompt.variables[0]: question} if isinstance(question, str) else question
    if not isinstance(fields, Mapping):
        raise InvalidParameter(f"Expected the question to be a str or a mapping, not {type(question).__name__}.")
    text = prompt.ask(fields)
    if not any(str(fields[name]).strip() for name in prompt.variables):
        raise InvalidParameter("Expected the question to be a non-empty text, but it is blank. Nothing was spent.")
    if not encodable(text):
        raise InvalidParameter("Expected the question to be valid Unicode: it has a lone surrogate. Nothing was spent.")
    return text
