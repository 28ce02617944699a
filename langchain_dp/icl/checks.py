"""What DP-ICL refuses before anything is reserved or spent. No message holds a word of an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp._util.validate import shown
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.questions import question_texts
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.prompts import ICLPrompt
from langchain_dp.records import AUTOMATIC, row_fault, unknown_id


def check_example(row: Mapping[str, Any], prompt: ICLPrompt, labels: Sequence[str]) -> None:
    """One more record, as it would be kept, has a known label and the prompt's keys."""
    if fault := row_fault(row, labels, prompt.variables, whose="prompt", plain=True):
        raise InvalidParameter(fault.replace("{where}", "the example"))


def check_forgettable(record_id: str, neighbors: Neighbors) -> None:
    """Under add/remove a place is no name: it shifts when another record joins or leaves."""
    if not isinstance(record_id, str):
        raise unknown_id(record_id)
    if record_id.startswith(AUTOMATIC) and not count_is_public(neighbors):
        raise InvalidParameter(
            f"Expected record_id{shown(record_id)} to be a given id under add/remove neighbours, where places shift "
            "when a record joins or leaves. Give every example an 'id'."
        )


def render_question(question: object, prompt: ICLPrompt, *, text_key: str = "text") -> str:
    """The question as it stands in the prompt, up to the cue."""
    return prompt.ask(question_texts(question, prompt.variables, text_key=text_key))
