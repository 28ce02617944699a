"""DP-OPT: claims, Tables 1 to 3, 7 to 9 and 12 and Figures 4 and 6 of the paper beside ours."""

# ruff: noqa: E501  # one line for each line of a table
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from reproduce_claims import Check, beats, claim, moves, untested
from reproduce_page import Line, Paper, Table
from reproduce_rows import Cell, Run

TASKS = {"SST-2": "sst2", "Trec": "trec", "Mpqa": "mpqa", "Disaster": "disaster"}
"""Name in the paper -> name of bench_opt's task."""
SIZES: dict[str, dict[str, Any]] = {
    "smollm2": {"rows": 1000, "judges": 40, "subsets": 60, "tokens": 25, "prompts": 2, "test_rows": 200},
    "qwen": {"rows": 1000, "judges": 40, "subsets": 30, "tokens": 25, "prompts": 2, "test_rows": 100},
}
_MODELS = {
    "smollm2": ("--gemma", "--target-rows", "0"),
    "qwen": ("--model", "qwen1.5b-q4_k_m.gguf", "--target-rows", "100"),
}


def _write(source: str, tasks: Sequence[str], out: str, minutes: int, *arms: str, **changed: Any) -> Run:
    sized = (
        part
        for name, value in {**SIZES[source], **changed}.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    )
    return Run(
        "bench_opt.py",
        out,
        (*_MODELS[source], "--sources", source, *sized, "--tasks", *tasks, "--arms", *arms),
        minutes,
    )


WRITING = {
    "smollm2": _write("smollm2", tuple(TASKS.values()), "opt_smollm2.jsonl", 240, "0-shot", "dln-1", "opt"),
    "qwen": _write("qwen", tuple(TASKS.values()), "opt_qwen.jsonl", 560, "0-shot", "dln-1", "opt"),
}
HANDED_OVER = Run(
    "bench_targets.py",
    "opt_targets.jsonl",
    ("--prompts", "opt_smollm2.jsonl", "--target-rows", "200", "--name", "qwen"),
    240,
)
"""The prompts of SmolLM2, given to the 1.5B model as a chat model once they are written."""


def cell(source: str, task: str, arm: str, on: str) -> Cell:
    """Accuracy of a prompt in our first format.

    Args:
        source: The model that wrote it.
        task: Name of bench_opt's task.
        arm: Name of bench_opt's arm.
        on: The model that answers: "source", the writer, and "scored", Gemma, by label probabilities, or "second", the
            1.5B model as a chat model.
    """
    target = "qwen" if on == "second" else "gemma" if source == "smollm2" else "smollm2"
    run, value = (HANDED_OVER, "target_accuracy") if on == "second" else (WRITING[source], "source_accuracy")
    asked = 200 if on == "second" else 0 if source == "smollm2" else 100
    where = {
        **SIZES[source],
        "shots": 3,
        "temperature": 0.0,
        "source": source,
        "target": target,
        "task": task,
        "arm": arm,
    }
    seeds = (1,) if arm == "0-shot" else (1, 2, 3)  # the initial instruction is the same under every seed
    return Cell(run, {**where, "target_rows": asked}, "target_scored" if on == "scored" else value, seeds=seeds)


_PAPER_FORMAT = Run("bench_opt.py", "opt_paper.jsonl")
_PAPER_ARMS = {"0-shot": "0-shot", "OPT": "opt paper"} | {
    f"DP-OPT, epsilon {e}": f"dp-opt-paper {e}" for e in (1, 3, 8)
}
_WRITINGS = {
    f"{source} {task}": f"{name} {size}"
    for source, size in (("smollm2", "135M"), ("qwen", "1.5B"))
    for name, task in TASKS.items()
}
"""Writer and task -> name on the page."""


def paper_format(writing: str, arm: str) -> Cell:
    """Accuracy on its writer of a prompt that was written in the format of the paper."""
    source, task = writing.split()
    where = {"source": source, "task": task, "arm": _PAPER_ARMS[arm]}
    return Cell(_PAPER_FORMAT, where, "source_accuracy", seeds=(1,) if arm == "0-shot" else (1, 2, 3))


def _moves(writing: str) -> Check:
    source, task = writing.split()
    return moves(_PAPER_FORMAT, _PAPER_ARMS["OPT"], source=source, task=task)


def _first_moves(task: str) -> Check:
    return moves(WRITING["smollm2"], "opt", task=task)


def _learned(task: str) -> Check:
    return beats(cell("smollm2", task, "dln-1", "source"), cell("smollm2", task, "0-shot", "source"))


_SOFT = Run("bench_comparators.py", "comparators.jsonl",
            ("--kinds", "soft", "--tasks", *TASKS.values(), "--epsilons", "inf", "8", "--seeds", "1"), 150)  # fmt: skip


def soft(task: str, epsilon: str, value: str = "accuracy") -> Cell:
    """Accuracy of a soft prompt on the model that learned it. "before" is the instruction that it began with."""
    return Cell(_SOFT, {"task": task, "arm": f"soft {epsilon}", "directions": None}, value, seeds=(1,))


def _soft_learns(task: str) -> Check:
    return beats(soft(task, "inf"), soft(task, "inf", "before"))


def _subsets(number: int, on: str) -> Cell:
    kept = cell("smollm2", "sst2", "opt", on)
    if number == 60:
        return kept
    run = _write("smollm2", ("sst2",), f"opt_subsets_{number}.jsonl", 25, "opt", subsets=number)
    return dataclasses.replace(kept, run=run, where={**kept.where, "subsets": number})


_OTHERS = _write("smollm2", tuple(TASKS.values()), "opt_others.jsonl", 200, "0-shot", "pez", rows=400)


def other(task: str, arm: str, on: str) -> Cell:
    """Accuracy of a prompt of another writer, on the model that wrote it or on Gemma. Only seed 1 was run."""
    kept = cell("smollm2", task, arm, on)
    return dataclasses.replace(kept, run=_OTHERS, where={**kept.where, "rows": 400}, seeds=(1,))


def _pez_learned(task: str) -> Check:
    return beats(other(task, "pez", "source"), other(task, "0-shot", "source"))


_SECRECY = Run("bench_secrecy.py", "secrecy.jsonl", ("--model", "qwen1.5b-q4_k_m.gguf"), 30)


def told(sentence: int, value: str) -> Cell:
    """A figure of prompts by DLN-1 when the model is told nothing (0), or the first or the second sentence."""
    return Cell(_SECRECY, {"task": "sst2", "sentence": sentence}, value, kind="number")


def _leaks(sentence: str) -> Check:
    return beats(told(0, "area"), told(0, "chance"))


_BY_TASK = {task: name for name, task in TASKS.items()}
_MOVES, _GAIN = (
    "OPT differs from the initial instruction in half of the runs",
    "gain over the initial instruction on the writer",
)
_VICUNA = {  # Table 3, and Figure 4 at epsilon 1
    "SST-2": ("89.7 (2.7)", "about 86", "89.5 (2.6)"),
    "Trec": ("62.1 (1.2)", "", "65.3 (4.3)"),
    "Mpqa": ("80.8 (1.2)", "", "80.7 (3.3)"),
    "Disaster": ("67.4 (5.1)", "", "65.6 (0.3)"),
}
_TABLE_3 = {  # Vicuna-7b and DaVinci-003
    "SST-2": {"0-shot": ("", "92.4 (0.0)"), "dln-1": ("92.8 (0.2)", "92.7 (0.3)")},
    "Trec": {"0-shot": ("", "51.8 (0.2)"), "dln-1": ("59.9 (5.7)", "70.7 (3.9)")},
    "Mpqa": {"0-shot": ("", "84.5 (0.1)"), "dln-1": ("75.8 (6.2)", "81.4 (1.6)")},
    "Disaster": {"0-shot": ("", "76.4 (0.2)"), "dln-1": ("61.7 (3.2)", "77.0 (1.9)")},
}
_ANSWERS = (("smollm2", "source"), ("smollm2", "scored"), ("smollm2", "second"), ("qwen", "source"))
TABLES = (
    Table(
        "dp-opt-2", "Tables 2 and 3 and Figure 4: OPT and DP-OPT", "Accuracy in percent on the writer by label probabilities, in the paper's format.",
        tuple(_PAPER_ARMS),
        (
            *(Line(f"{name}: paper, Vicuna-7b", ("", opt, one, "", eight)) for name, (opt, one, eight) in _VICUNA.items()),
            *(Line(name, tuple(paper_format(writing, arm) for arm in _PAPER_ARMS)) for writing, name in _WRITINGS.items()),
        ),
        (_MOVES, {name: _moves(writing) for writing, name in _WRITINGS.items()}),
    ),
    Table(
        "dp-opt-1", "Tables 1 and 3: prompts of DLN-1 on another model",
        "Accuracy in percent of prompts by the 135M model, on itself, on Gemma-3-270M and on the 1.5B model as a chat model, then of prompts by the 1.5B model on itself.",
        ("paper: Vicuna-7b", "DaVinci-003", "135M", "Gemma", "1.5B, chat", "1.5B on itself"),
        tuple(
            Line(f"{name}: {arm.replace('dln', 'DLN')}", (*of_paper, *(cell(source, TASKS[name], arm, on) for source, on in _ANSWERS)))
            for name, printed in _TABLE_3.items()
            for arm, of_paper in printed.items()
        ),
        (f"DLN-1, {_GAIN}", {name: _learned(task) for name, task in TASKS.items()}),
    ),
    Table(
        "dp-opt-soft", "Table 2: soft prompts", "Accuracy in percent of learned vectors, on the model that learned them.", tuple(TASKS),
        (
            Line("PromptSGD: paper, Vicuna-7b", ("93.7 (1.1)", "56.1 (6.7)", "88.1 (0.8)", "79.4 (1.2)")),
            Line("PromptSGD: 135M", tuple(soft(task, "inf") for task in TASKS.values())),
            Line("PromptDPSGD, epsilon 8: paper", ("90.4 (1.7)", "32.3 (3.1)", "84.2 (4.0)", "78.5 (0.4)")),
            Line("PromptDPSGD, epsilon 8: 135M", tuple(soft(task, "8") for task in TASKS.values())),
            Line("start of both", tuple(soft(task, "inf", "before") for task in TASKS.values())),
        ),
        ("gain of PromptSGD over its start", {name: _soft_learns(task) for name, task in TASKS.items()}),
    ),
)  # fmt: skip

CLAIMS = (
    claim("Table 1", "prompts of DLN-1 gain on another model: Gemma minus writer is above 0", _GAIN, _BY_TASK, _learned,
          lambda task: cell("smollm2", task, "dln-1", "scored"), lambda task: cell("smollm2", task, "dln-1", "source")),
    *(
        claim(where, f"{more} minus {less} is above {100 * least:.0f} (paper's format)", _MOVES, _WRITINGS, _moves,
              lambda writing, m=more: paper_format(writing, m), lambda writing, m=less: paper_format(writing, m), least)
        for where, more, less, least in (
            ("Tables 2, 3", "OPT", "0-shot", 0.0),
            ("Tables 2, 3", "DP-OPT, epsilon 8", "0-shot", 0.0),
            ("Tables 2, 3", "DP-OPT, epsilon 8", "OPT", -0.02),
            ("Figure 4", "DP-OPT, epsilon 8", "DP-OPT, epsilon 1", 0.0),
        )
    ),
    claim("Tables 2, 3", "OPT minus 0-shot is above 0 (first format, 135M)", _MOVES, _BY_TASK, _first_moves,
          lambda task: cell("smollm2", task, "opt", "source"), lambda task: cell("smollm2", task, "0-shot", "source")),
    claim("Table 2", "privacy costs soft prompts accuracy: PromptSGD minus PromptDPSGD is above 0", "gain of PromptSGD over its start",
          _BY_TASK, _soft_learns, lambda task: soft(task, "inf"), lambda task: soft(task, "8")),
    claim("Figure 6", "a small writer gains by a larger ensemble: 60 minus 10 subsets is above 0", _MOVES, {"sst2": "SST-2"}, _first_moves,
          lambda _: _subsets(60, "source"), lambda _: _subsets(10, "source")),
    claim("Table 7", "prompts of PEZ lose on another model: writer minus Gemma is above 0", _GAIN, _BY_TASK,
          _pez_learned, lambda task: other(task, "pez", "source"), lambda task: other(task, "pez", "scored")),
    untested("Table 8", "prompts of DLN-1 reveal members, those of DP-OPT do not", "many members were never shown to the writer"),
    untested("Tables 2, 9", "DP-OPT competes with ICL on GPT-3.5, and beats DLN-1 on sanitized rows", "no such model, and no DP-OPT on the same rows"),
    claim("Table 12", "a model told to keep secrets still leaks: area minus that of others is above 0", "the same, told nothing",
          {"1": "sentence 1", "2": "sentence 2"}, _leaks, lambda number: told(int(number), "area"), lambda number: told(int(number), "chance")),
)  # fmt: skip

PAPER = Paper("DP-OPT", CLAIMS, TABLES)
