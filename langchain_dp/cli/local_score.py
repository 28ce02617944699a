"""How instructions do on the local model that wrote them: before a prompt is handed to another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_dp.errors import InvalidParameter
from langchain_dp.opt import PromptScore
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.settings import Settings
from langchain_dp.ports import VotesNextToken

_TOGETHER = 16
"""Rows between two steps of a progress bar."""


def score_instruction(
    engine: VotesNextToken,
    settings: Settings,
    instruction: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    words: Sequence[str] = (),
    advance: Callable[[int], object] | None = None,
) -> PromptScore:
    """Score one instruction by the forward pass of a run: its templates, label words and calibration.

    Args:
        engine: The local model, which scores labels too.
        settings: Settings of the run.
        instruction: Released, or public.
        rows: Test rows with ``label`` and the template's keys.
        words: What the labels are called; those of the task by default.
        advance: Told after each batch how many rows it held.

    Raises:
        InvalidParameter: There are no rows, or one lacks a key or a known label.
        ModelUnavailable: The instruction is too long for the model.
    """
    check_test(rows, settings)
    forward = Forward.of(engine, settings)
    forward.check(instruction)
    texts = [settings.prompts.render(row) for row in rows]
    answers: list[int | None] = []
    for at in range(0, len(texts), _TOGETHER):
        answers += forward.predict(instruction, texts[at : at + _TOGETHER], words)
        if advance is not None:
            advance(len(answers) - at)
    return PromptScore.of(answers, [row["label"] for row in rows], settings.labels)


def check_test(rows: Sequence[Mapping[str, Any]], settings: Settings) -> None:
    """Refuse rows that :func:`score_instruction` could not score, before a run is paid for."""
    if not rows:
        raise InvalidParameter("Expected at least one test row, but there is none. Give more rows.")
    for position, row in enumerate(rows):
        keys = (*settings.prompts.variables, "label")
        if any(key not in row for key in keys) or row["label"] not in settings.labels:
            raise InvalidParameter(
                f"Expected test row {position} to have {list(keys)}, its label one of {list(settings.labels)}. Repair "
                "or drop it."
            )
