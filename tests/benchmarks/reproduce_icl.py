"""DP-ICL: claims, Tables 1 and 2 and Figures 2 and 3 of the paper beside ours."""

# ruff: noqa: E501  # one line for each line of a table
from __future__ import annotations

from typing import Any

from reproduce_claims import Check, beats, claim, untested
from reproduce_page import Line, Paper, Table
from reproduce_rows import Cell, Run

SEEDS = ("--seeds", "1", "2", "3")
EVERY: dict[str, Any] = {"rows": 8000, "together": 10, "queries": 10_000, "delta": 1e-5, "model": None}
MORE = (100, 1_000, 100_000)
NAMES = {"sst2": "SST-2", "amazon": "Amazon", "agnews": "AGNews", "trec": "TREC"}
MOST_SUBSETS = {"sst2": (40, 50), "agnews": (40, 30)}
"""Most subsets a question, and questions a seed: AG News has texts three times as long."""
SUBSETS = (5, 10, 20, 40)
QUESTIONS = {"sst2": 100, "amazon": 30, "agnews": 100, "trec": 100, "coded": 100, "named": 60, "mpqa": 60}
"""Questions a seed. A text of Amazon takes seven times as long."""
MINUTES = {"sst2": 8, "amazon": 20, "agnews": 18, "trec": 5, "coded": 18, "named": 11, "mpqa": 1}
LARGER = "qwen1.5b-q4_k_m.gguf"
TOGETHER = {("named", None): 20, ("named", LARGER): 20, ("agnews", LARGER): 20}
"""Questions that share a draw, if not as many as elsewhere."""
FEW = 60
"""Questions a seed, where every vote is also counted without calibration."""


def run(
    task: str, *, shots: int = 4, subsets: int = 10, questions: int | None = None, model: str | None = None
) -> tuple[Run, dict[str, Any]]:
    """A call of bench_accuracy, and the keys of the rows it writes."""
    asked = questions or QUESTIONS[task]
    more = MORE if task in MOST_SUBSETS and (shots, subsets) == (4, 10) and model is None else ()
    thin = tuple(n for n in SUBSETS if n < subsets) if (subsets, questions) == MOST_SUBSETS.get(task) else ()
    together = TOGETHER.get((task, model), EVERY["together"])
    options = ["--tasks", task, *SEEDS, "--questions", str(asked), "--together", str(together)]
    options += ["--shots", str(shots), "--subsets", str(subsets)]
    options += ["--more-queries", *map(str, more)] if more else []
    options += ["--thin", *map(str, thin), "--cache-gib", "4"] if thin else []
    options += ["--model", model] if model else []
    minutes = max(1, round(MINUTES[task] * asked / QUESTIONS[task] * shots / 4 * subsets / 10)) * (10 if model else 1)
    where = {**EVERY, "model": model, "task": task, "shots": shots, "subsets": subsets, "questions": asked}
    where |= {"more_queries": list(more), "thin": list(thin), "together": together}
    return Run("bench_accuracy.py", "accuracy.jsonl", tuple(options), minutes), where


def cell(task: str, method: str, **arm: Any) -> Cell:
    """Accuracy of a method."""
    how, where = run(task, **arm)
    return Cell(how, {**where, "method": method}, "accuracy")


_LARGER = Run("bench_accuracy.py", "icl_15b.jsonl")
_THREE = {task: NAMES[task] for task in ("sst2", "agnews", "trec")}
_SET_UPS = {
    "135M, uncalibrated": _THREE,
    "135M, calibrated": NAMES,
    "1.5B, uncalibrated": _THREE,
    "1.5B, calibrated": _THREE,
}  # fmt: skip
"""Model and way to score, and the data sets it was run on. The paper does not calibrate."""


def arm(set_up: str, task: str, method: str) -> Cell:
    """Accuracy of a method in one of the set-ups."""
    plain = method + ("" if set_up.endswith(" calibrated") else ", uncalibrated")
    if set_up.startswith("1.5B"):
        return Cell(_LARGER, {"task": task, "method": plain}, "accuracy")
    return cell(task, plain) if plain == method else cell(task, plain, questions=FEW)


def _examples_help(task: str, set_up: str = "135M, calibrated") -> Check:
    return beats(arm(set_up, task, "vote"), arm(set_up, task, "zero-shot"))


def _sixteen(method: str) -> Cell:
    return cell("sst2", method, shots=16, questions=50)


def _of_subsets(task: str, subsets: int) -> Cell:
    most, questions = MOST_SUBSETS[task]
    method = "dp-icl 3" if subsets == most else f"dp-icl 3, {subsets} subsets"
    return cell(task, method, subsets=most, questions=questions)


def _of_queries(task: str, number: int) -> Cell:
    return cell(task, "dp-icl 3" if number == EVERY["queries"] else f"dp-icl 3, {number} queries")


COST = Run("bench_cost.py", "cost.jsonl", (), 1)
COMPARATORS = Run("bench_comparators.py", "comparators.jsonl", ("--kinds", "head", "vectors"), 25)


def cost(task: str, subsets: int) -> Cell:
    """Dollars for 100 questions, as the plan of a classifier says."""
    return Cell(COST, {"task": task, "subsets": subsets}, "dollars", kind="number", seeds=(1,))


def compared(task: str, arm: str, directions: int | None = None) -> Cell:
    """Accuracy of an arm of bench_comparators."""
    return Cell(COMPARATORS, {"task": task, "arm": arm, "directions": directions}, "accuracy")


_CHECK = "gain of the vote by examples"
_METHODS = ("zero-shot", "dp-icl 1", "dp-icl 3", "dp-icl 8", "vote")
_TABLE_1 = {
    "sst2": ("91.00", "95.06", "95.80", "95.92", "96.05"),
    "amazon": ("91.00", "93.83", "94.18", "94.25", "94.26"),
    "agnews": ("46.00", "73.16", "78.98", "79.77", "81.43"),
    "trec": ("20.00", "25.83", "26.75", "27.18", "28.42"),
}
_SUBSETS_OF = {NAMES[task]: _examples_help(task) for task in MOST_SUBSETS}

TABLES = (
    Table(
        "dp-icl-1", "Table 1: accuracy for several budgets",
        "Accuracy in percent, 4 shots, 10 subsets a question, noise for 10,000 questions.",
        ("no example", "epsilon 1", "epsilon 3", "epsilon 8", "vote without noise", "one prompt"),
        tuple(
            line
            for task, printed in _TABLE_1.items()
            for line in (
                Line(f"{NAMES[task]}: paper", (*printed, "")),
                *(Line(f"{NAMES[task]}: {set_up}", tuple(arm(set_up, task, method) for method in (*_METHODS, "single votes")))
                  for set_up, tasks in _SET_UPS.items() if task in tasks),
            )
        ),
        (f"{_CHECK} (135M, calibrated)", {name: _examples_help(task) for task, name in NAMES.items()}),
    ),
    Table(
        "dp-icl-2", "Table 2: 4 and 16 shots on SST-2", "Accuracy in percent on SST-2, 135M, calibrated, 10 subsets a question.",
        ("epsilon 3", "epsilon 8", "vote without noise"),
        (
            Line("4 shots: paper", ("95.80 (1.45)", "95.92 (1.43)", "96.05 (1.32)")),
            Line("4 shots", tuple(cell("sst2", method) for method in _METHODS[2:])),
            Line("16 shots: paper", ("91.64 (2.41)", "96.32 (1.08)", "96.13 (0.82)")),
            Line("16 shots", tuple(_sixteen(method) for method in _METHODS[2:])),
        ),
        (_CHECK, {"SST-2": _examples_help("sst2")}),
    ),
    Table(
        "dp-icl-figure-2", "Figure 2: number of questions, sampling rate", "Accuracy in percent at epsilon 3, 4 shots, 135M, calibrated.",
        tuple(NAMES[task] for task in MOST_SUBSETS),
        (
            *(Line(f"{number:,} questions", tuple(_of_queries(task, number) for task in MOST_SUBSETS)) for number in sorted((*MORE, 10_000))),
            *(Line(f"{number} subsets", tuple(_of_subsets(task, number) for task in MOST_SUBSETS)) for number in SUBSETS),
        ),
        (_CHECK, _SUBSETS_OF),
        "The lines of subsets are counted on 50 questions a seed (AGNews 30).",
    ),
    Table(
        "dp-icl-figure-3", "Figure 3: cost of 100 questions",
        "Dollars by `plan(price_per_million_tokens=0.5)` for examples of average length. The paper prints 0.0945 for SST-2 at a sampling rate of 0.005.",
        tuple(NAMES.values()),
        tuple(Line(f"{number} subsets", tuple(cost(task, number) for task in NAMES)) for number in (10, 40)),
    ),
    Table(
        "dp-icl-others", "other methods at the same budget",
        "Accuracy in percent of DP-ICL (135M, calibrated), and of a linear head trained by DP-SGD on sentence vectors of all-MiniLM-L6-v2.",
        tuple(f"{system}, epsilon {epsilon}" for epsilon in (1, 3) for system in ("DP-ICL", "head")),
        tuple(
            Line(name, tuple(one for e in (1, 3) for one in (cell(task, f"dp-icl {e}"), compared(task, f"head {e}"))))
            for task, name in NAMES.items()
        ),
        note="The paper compares with DP-SGD on a large model instead.",
    ),
)  # fmt: skip

CLAIMS = (
    *(
        claim("Table 1", f"epsilon 3 minus {against} is above {100 * least:.0f} ({set_up})", _CHECK, tasks,
              lambda task, s=set_up: _examples_help(task, s), lambda task, s=set_up: arm(s, task, "dp-icl 3"),
              lambda task, s=set_up, m=method: arm(s, task, m), least)
        for method, against, least in (("vote", "the vote without noise", -0.02), ("zero-shot", "no example", 0.0))
        for set_up, tasks in _SET_UPS.items()
    ),
    claim("Table 2", "4 minus 16 shots at epsilon 3 is above 0", _CHECK, {"sst2": "SST-2"}, _examples_help,
          lambda task: cell(task, "dp-icl 3"), lambda task: _sixteen("dp-icl 3")),
    untested("Table 2", "it beats private fine-tuning on SST-2", "no private tuning of a large model here"),
    claim("Figure 2", "10,000 minus 100 questions is above -2", _CHECK, {task: NAMES[task] for task in MOST_SUBSETS},
          _examples_help, lambda task: _of_queries(task, 10_000), lambda task: _of_queries(task, 100), -0.02),
    claim("Figure 2", "10 minus 40 subsets a question is above -2", _CHECK, {task: NAMES[task] for task in MOST_SUBSETS},
          _examples_help, lambda task: _of_subsets(task, 10), lambda task: _of_subsets(task, 40), -0.02),
)  # fmt: skip

PAPER = Paper("DP-ICL", CLAIMS, TABLES)
