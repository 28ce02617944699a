"""What DP-ICL refuses before anything is reserved or spent. No message holds a word of an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp import _validate
from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.records import AUTOMATIC


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """At least two labels, each a non-empty string and once."""
    if isinstance(labels, str) or not all(isinstance(label, str) and label.strip() for label in labels):
        raise InvalidParameter(f"Expected labels={labels!r} to be a list of non-empty strings.")
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise InvalidParameter(f"Expected labels={list(labels)} to hold at least two labels, each once.")
    return tuple(labels)


def label_words(prompt: ICLPrompt, labels: Sequence[str]) -> list[str]:
    """Words that stand for the labels; they differ in more than case."""
    words = [prompt.word(label) for label in labels]
    if len({word.casefold() for word in words}) < len(words):
        raise InvalidParameter(f"Expected the labels' words {words} to differ in more than case. Rename a label.")
    return words


def check_promise(
    budget: PrivacyBudget | None, ledger: PrivacyLedger | None, max_queries: int, not_private_seed: int | None
) -> None:
    """A budget or a ledger to charge, and no seed beside a ledger."""
    if budget is None and ledger is None:
        raise InvalidParameter("Expected budget= or ledger= to be given, but both are None. Give PrivacyBudget(3.0).")
    if budget is not None and not isinstance(budget, PrivacyBudget):
        raise InvalidParameter(f"Expected budget={budget!r} to be a PrivacyBudget. Give PrivacyBudget(3.0).")
    _validate.integer("max_queries", max_queries, at_least=1)
    check_unseeded(ledger, not_private_seed)


def check_unseeded(ledger: PrivacyLedger | None, not_private_seed: int | None) -> None:
    """A ledger is charged for private releases only: its own certificate counts them as private."""
    if ledger is not None and not_private_seed is not None:
        raise InvalidParameter(
            f"Expected not_private_seed={not_private_seed} without a shared ledger, whose certificate would count "
            "releases that are not private. Give budget= alone."
        )


def check_calls(
    timeout: float | None, max_concurrency: int | None, max_question_chars: int, answer_seconds: float | None
) -> None:
    """Bounds of model calls and answer times."""
    if timeout is not None:
        _validate.number("timeout", timeout, above=0.0)
    if max_concurrency is not None:
        _validate.integer("max_concurrency", max_concurrency, at_least=1)
    _validate.integer("max_question_chars", max_question_chars, at_least=1)
    if answer_seconds is not None:
        _validate.number("answer_seconds", answer_seconds, above=0.0)


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
    return text


def check_no_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Typos are not swallowed."""
    if kwargs:
        raise InvalidParameter(f"Expected no further arguments, got {sorted(kwargs)}. Bind them to the inner model.")
