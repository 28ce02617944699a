"""Which candidate is handed over: by correct answers on the validation records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_dp.opt.candidates import PromptChoice
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.templates import OptPrompts


def correct_answers(
    forward: Forward,
    choices: Sequence[PromptChoice],
    rows: Sequence[Mapping[str, Any]],
    *,
    prompts: OptPrompts,
    labels: Sequence[str],
    advance: Callable[[], object] = lambda: None,
) -> list[int]:
    """Number of rows that the local model answers right under each choice. Private.

    Equal choices are evaluated once. A row that cannot be asked counts as wrong, so one record adds at most one
    to any count and takes from none: the counts are monotone (Hong et al. 2024, Definition A.4).
    """
    texts = [prompts.render(row) for row in rows]
    truth = [labels.index(str(row["label"])) for row in rows]
    counts: dict[PromptChoice, int] = {}
    for choice in choices:
        if choice not in counts:
            answers = forward.predict(choice.instruction, texts, choice.words)
            counts[choice] = sum(answer == right for answer, right in zip(answers, truth, strict=True))
            advance()
    return [counts[choice] for choice in choices]
