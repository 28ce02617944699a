"""Tables 1 to 3 and Figures 4 and 6 of the DP-OPT paper, beside ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from reproduce_rows import Cell, Line, Paper, Run, Table

NAMES = {"smollm2": "SmolLM2-135M", "gemma": "Gemma-3-270M", "qwen": "Qwen2.5-Coder-1.5B"}
OTHER = {"smollm2": "gemma", "qwen": "smollm2"}
"""Each model that writes, and the first target of its prompts."""
TASKS = {"SST-2": "sst2", "Trec": "trec", "Mpqa": "mpqa", "Disaster": "disaster"}
"""Name in the paper -> name of bench_opt's task."""
SIZES: dict[str, dict[str, Any]] = {
    "smollm2": {"rows": 1000, "judges": 40, "subsets": 60, "tokens": 25, "prompts": 2, "test_rows": 200},
    "qwen": {"rows": 1000, "judges": 40, "subsets": 30, "tokens": 25, "prompts": 2, "test_rows": 100},
}
REST = {"shots": 3, "temperature": 0.0}
ARMS = {
    "0-shot": "0-shot",
    "ICL, five balanced rows": "icl",
    "DLN-1": "dln-1",
    "OPT": "opt",
    "DP-OPT, epsilon 8": "dp-opt 8",
}
"""Name in our tables -> name of bench_opt's arm."""


def options(source: str, **changed: Any) -> tuple[str, ...]:
    """Options that say which model writes, from how many rows."""
    size = {**SIZES[source], **changed}
    models = ("--gemma",) if source == "smollm2" else ("--model", "qwen1.5b-q4_k_m.gguf")
    sized = (part for name, value in size.items() for part in (f"--{name.replace('_', '-')}", str(value)))
    return (*models, "--sources", source, *sized)


WRITING = {
    "smollm2": Run(
        "bench_opt.py",
        "opt_smollm2.jsonl",
        (*options("smollm2"), "--target-rows", "0", "--tasks", *TASKS.values(), "--arms", *ARMS.values()),
        240,
    ),
    "qwen": Run(
        "bench_opt.py",
        "opt_qwen.jsonl",
        (
            *options("qwen"),
            "--target-rows",
            "100",
            "--tasks",
            *TASKS.values(),
            "--arms",
            *ARMS.values(),
        ),
        560,
    ),
}
"""All arms of the tables; no chat model answers under SmolLM2's prompts yet."""
HANDED_OVER = {
    name: Run(
        "bench_targets.py",
        "opt_targets.jsonl",
        ("--prompts", "opt_smollm2.jsonl", "--name", name, "--target-rows", "200"),
        minutes,
    )
    for name, minutes in (("gemma", 120), ("qwen", 240))
}
"""The prompts of SmolLM2, handed over to a chat model once they are written: one that several arms share, once."""


def cell(source: str, task: str, arm: str, on: str) -> Cell | None:
    """What an arm's prompt is worth.

    Args:
        source: The model that wrote it.
        task: Name of bench_opt's task.
        arm: Name of bench_opt's arm.
        on: Who is asked: "source" and "scored" are the model that wrote it and the first target, both by the
            probabilities of the labels; "gain" is the second minus the first. "target" and "second" are the first and
            the second target as chat models. None where there is no run for it: of what the larger model writes
            there is one target.
    """
    if source == "qwen" and on == "second":
        return None
    target = "qwen" if on == "second" else OTHER[source]
    where = {**SIZES[source], **REST, "source": source, "target": target, "task": task, "arm": arm}
    run, value, minus = WRITING[source], f"{on}_accuracy", ""
    if on in ("scored", "gain"):
        value, minus = "target_scored", "source_accuracy" if on == "gain" else ""
    elif on == "second" or (on, source) == ("target", "smollm2"):
        run, value = HANDED_OVER[target], "target_accuracy"
    where["target_rows"] = 200 if run is not WRITING[source] else 0 if source == "smollm2" else 100
    seeds = (1,) if arm == "0-shot" else (1, 2, 3)  # the initial instruction is the same under every seed
    return Cell(run, where, value, minus=minus, seeds=seeds)


PAPER = Paper(
    "DP-OPT",
    "Hong, Wang, Zhang, Li, Li, Wang. DP-OPT: Make Large Language Model Your Privacy-Preserving Prompt Engineer. ICLR "
    "2024",
    (
        "Models: SmolLM2-135M-Instruct writes on this machine and hands over to Gemma-3-270M (base) and "
        "Qwen2.5-Coder-1.5B-Instruct; that one writes too, and hands over to SmolLM2. The paper writes with Vicuna-7b "
        "and hands over to Vicuna-33b, Llama-2-13b, Llama-2-70b and DaVinci-003.",
        "A prompt is scored by the probabilities of the labels on the model that wrote it and on the first target; "
        "they are calibrated on Trec (divided by what questions without content get), and as they are on the other "
        "tasks. Where a column says chat, a model answers behind an OpenAI-compatible server on loopback, held to the "
        "label words by a grammar.",
        "Private rows: 1,000 drawn by the seed, of which 40 select; the paper uses 4,430 to 66,674. Test rows: 200 for "
        "what SmolLM2 writes and 100 for what Qwen writes, always the same; the paper uses the whole test sets.",
        "Prompts: both write 2 of at most 25 tokens, SmolLM2 with 60 subsets of 3 and Qwen with 30; the paper writes "
        "tokens up to 50 with 205 subsets of 5 (SST-2) or 102 of 3, at temperature 1.1 (here 0).",
        "Decoding here: a line break ends a prompt, no token repeats the request, and the old instruction stands after "
        "the examples. In the paper a prompt may have several lines, nothing stops a repetition, and the old "
        "instruction stands before the examples.",
        "Neighbors replace one record here and subsets are fixed. In the paper neighbors add or remove one record, and "
        "subsets are drawn by Poisson sampling.",
        "delta = 1e-5 here, one over the training size in the paper. DLN-1 takes 2 steps of 4 prompts with 10 "
        "demonstrations here.",
        "In brackets the paper gives standard deviations; ours after ± are standard errors over seeds.",
    ),
)
WITHHELD = (
    "A prompt of DLN-1 that holds a run of words of a training row was published without them, and could not be handed "
    "to the second target."
)
SHOWN = (
    "ICL shows five training rows, in clear, to the model that answers, whoever writes elsewhere; the rows are the "
    "seed's first of every label (on Trec of five of the six). To a chat model of the first writer every prompt goes "
    "without the line that names the labels. As one human message the five rows leave the 1.5B model near chance, but "
    "help it by its labels' probabilities: what it would have said without the grammar was not looked at."
)

_TABLE_1 = {
    "SST-2": ("92.8 (0.2)", "93.3 (1.8)", "0.5", "92.7 (0.3)", "-0.1"),
    "Trec": ("59.9 (5.7)", "65.2 (7.5)", "5.3", "70.7 (3.9)", "11.2"),
    "Mpqa": ("75.8 (6.2)", "78.0 (2.3)", "2.2", "81.4 (1.6)", "5.6"),
    "Disaster": ("61.7 (3.2)", "73.1 (1.6)", "11.4", "77.0 (1.9)", "15.3"),
}


TABLE_1 = Table(
    paper=PAPER,
    name="dp-opt-1",
    title="Table 1: prompts of DLN-1 on another model",
    source="Table 1, section 4.1",
    measure="Accuracy in percent of prompts by DLN-1 (not private), and what is gained by handing them over.",
    columns=("source", "first target", "gain", "second target", "gain", "first target, chat", "second target, chat"),
    lines=tuple(
        line
        for name, printed in _TABLE_1.items()
        for line in (
            Line(f"{name}: Vicuna-7b, Llama-2-70b, DaVinci-003", "paper", (*printed, "", "")),
            Line(
                f"{name}: {', '.join(NAMES.values())}",
                "here",
                (
                    *(cell("smollm2", TASKS[name], "dln-1", on) for on in ("source", "scored", "gain")),
                    "",
                    "",
                    *(cell("smollm2", TASKS[name], "dln-1", on) for on in ("target", "second")),
                ),
            ),
        )
    ),
    differences=(
        "Our second target was asked as a chat model only: a gain would be a difference of two ways to score.",
        WITHHELD,
    ),
)

_TABLE_2 = {
    "DLN-1": ("92.7 (0.3)", "70.7 (3.9)", "81.4 (1.6)", "77.0 (1.9)"),
    "ICL, five balanced rows": ("94.7 (0.4)", "79.1 (0.5)", "88.8 (0.1)", "69.0 (5.9)"),
    "OPT": ("92.4 (0.5)", "71.5 (0.8)", "85.8 (1.2)", "79.0 (0.9)"),
    "0-shot": ("92.4 (0.0)", "51.8 (0.2)", "84.5 (0.1)", "76.4 (0.2)"),
    "DP-OPT, epsilon 8": ("92.2 (0.8)", "68.7 (6.5)", "85.8 (0.7)", "78.9 (0.3)"),
}
TABLE_2 = Table(
    paper=PAPER,
    name="dp-opt-2",
    title="Table 2: the prompt handed over",
    source="Table 2, section 5.1",
    measure="Accuracy in percent on the target, a chat model: DaVinci-003 for prompts of Vicuna-7b in the paper, "
    "Gemma-3-270M and Qwen2.5-Coder-1.5B for prompts of SmolLM2-135M here.",
    columns=tuple(TASKS),
    lines=tuple(
        line
        for name in ARMS
        for line in (
            *([Line(name, "paper", _TABLE_2[name])] if name in _TABLE_2 else []),
            *(
                Line(
                    f"{name}: {NAMES[model]}",
                    "here",
                    tuple(cell("smollm2", task, ARMS[name], on) for task in TASKS.values()),
                )
                for on, model in (("target", "gemma"), ("second", "qwen"))
            ),
        )
    ),
    differences=(
        WITHHELD,
        SHOWN,
        "Averages over tasks are left out. Soft prompts have a table of their own.",
    ),
)

_SOFT = Run(
    "bench_comparators.py",
    "comparators.jsonl",
    ("--kinds", "soft", "--tasks", *TASKS.values(), "--epsilons", "inf", "8", "--seeds", "1"),
    150,
)


def soft(task: str, epsilon: str, value: str = "accuracy") -> Cell:
    """What a soft prompt is worth on the model that learned it; "before": the instruction that it began with."""
    return Cell(_SOFT, {"task": task, "arm": f"soft {epsilon}", "directions": None}, value, seeds=(1,))


SOFT = Table(
    paper=PAPER,
    name="dp-opt-soft",
    title="Table 2: soft prompts, on the model that learned them",
    source="Table 2, section 5.1",
    measure="Accuracy in percent of vectors in the place of the instruction's tokens. No other model can read them.",
    columns=tuple(TASKS),
    lines=(
        Line("PromptSGD, not private: Vicuna-7b", "paper", ("93.7 (1.1)", "56.1 (6.7)", "88.1 (0.8)", "79.4 (1.2)")),
        Line(f"PromptSGD: {NAMES['smollm2']}", "here", tuple(soft(task, "inf") for task in TASKS.values())),
        Line("PromptDPSGD, epsilon 8: Vicuna-7b", "paper", ("90.4 (1.7)", "32.3 (3.1)", "84.2 (4.0)", "78.5 (0.4)")),
        Line(f"PromptDPSGD, epsilon 8: {NAMES['smollm2']}", "here", tuple(soft(task, "8") for task in TASKS.values())),
        Line("what both began with", "here", tuple(soft(task, "inf", "before") for task in TASKS.values())),
    ),
    differences=(
        "400 private rows, 200 test rows; 40 steps of Adam, each over a tenth of the rows (Poisson); every row's "
        "gradient is clipped at 1, and noised by the accountant of dp-accounting. No setting was tuned on a task.",
        "Scored by the labels' first tokens as they are: on Trec the tables above are calibrated.",
    ),
)

_COLUMNS = ("Vicuna-7b", "Vicuna-33b", "Llama-2-13b", "Llama-2-70b", "DaVinci-003")
_TABLE_3 = {
    "SST-2": {
        "ICL, five balanced rows": ("90.1 (1.5)", "94.2 (0.1)", "94.9 (0.4)", "95.5 (0.6)", "94.7 (0.4)"),
        "DLN-1": ("92.8 (0.2)", "92.5 (2.2)", "93.5 (1.0)", "93.3 (1.8)", "92.7 (0.3)"),
        "OPT": ("89.7 (2.7)", "91.8 (1.7)", "92.1 (0.9)", "94.2 (1.3)", "92.4 (0.5)"),
        "DP-OPT, epsilon 8": ("89.5 (2.6)", "92.5 (0.3)", "92.7 (1.5)", "93.0 (1.6)", "92.2 (0.8)"),
    },
    "Trec": {
        "ICL, five balanced rows": ("49.8 (18.9)", "66.9 (3.9)", "77.8 (7.8)", "72.7 (8.7)", "79.1 (5.1)"),
        "DLN-1": ("59.9 (5.7)", "55.2 (8.2)", "38.6 (0.5)", "65.2 (7.5)", "70.7 (3.9)"),
        "OPT": ("62.1 (1.2)", "72.5 (10.2)", "53.7 (14.1)", "52.3 (1.6)", "70.4 (2.7)"),
        "DP-OPT, epsilon 8": ("65.3 (4.3)", "69.7 (15.1)", "61.9 (2.2)", "53.6 (3.8)", "68.7 (6.5)"),
    },
    "Mpqa": {
        "ICL, five balanced rows": ("85.4 (2.0)", "85.6 (0.9)", "86.0 (0.9)", "87.8 (0.2)", "88.8 (0.1)"),
        "DLN-1": ("75.8 (6.2)", "64.8 (8.7)", "66.3 (10.3)", "78.0 (2.3)", "81.4 (1.6)"),
        "OPT": ("80.8 (1.2)", "75.6 (1.6)", "69.5 (9.8)", "84.5 (1.1)", "85.8 (1.2)"),
        "DP-OPT, epsilon 8": ("80.7 (3.3)", "67.8 (6.7)", "82.8 (1.6)", "81.7 (3.1)", "85.8 (0.7)"),
    },
    "Disaster": {
        "ICL, five balanced rows": ("58.9 (1.3)", "52.0 (4.2)", "61.2 (3.4)", "69.6 (4.5)", "69.0 (5.9)"),
        "DLN-1": ("61.7 (3.2)", "62.4 (4.3)", "66.3 (8.3)", "73.1 (1.6)", "77.0 (1.9)"),
        "OPT": ("67.4 (5.1)", "60.6 (9.1)", "57.8 (10.0)", "49.1 (12.0)", "79.0 (0.9)"),
        "DP-OPT, epsilon 8": ("65.6 (0.3)", "53.7 (0.0)", "67.9 (1.5)", "42.9 (0.3)", "78.9 (0.3)"),
    },
}


ANSWERS = (
    *(("smollm2", on) for on in ("source", "scored", "target", "second")),
    *(("qwen", on) for on in ("source", "scored", "target")),
)
"""Who writes and who answers, a column each."""


def _answering(writer: str, on: str) -> str:
    asked = NAMES[{"source": writer, "second": "qwen"}.get(on, OTHER[writer])]
    return f"{asked} answers as chat" if on in ("target", "second") else f"{asked} is scored"


def _on_all(task: str, arm: str) -> tuple[Cell | None, ...]:
    return tuple(cell(writer, task, arm, on) for writer, on in ANSWERS)


TABLE_3 = Table(
    paper=PAPER,
    name="dp-opt-3",
    title="Table 3: several targets",
    source="Table 3, section 5.1",
    measure="Accuracy in percent. The paper's prompts are by Vicuna-7b; ours by the model that is named first in the "
    "heading of the column.",
    columns=(
        *(f"paper: {name}" for name in _COLUMNS),
        *(f"here: {NAMES[writer]} writes, {_answering(writer, on)}" for writer, on in ANSWERS),
    ),
    lines=tuple(
        line
        for task, printed in _TABLE_3.items()
        for line in (
            Line(
                f"{task}: {name}",
                "both" if name in printed else "here",
                (*printed.get(name, ("",) * len(_COLUMNS)), *_on_all(TASKS[task], arm)),
            )
            for name, arm in ARMS.items()
        )
    ),
    differences=(
        WITHHELD,
        SHOWN,
        "Averages over models are left out.",
    ),
)


def _more(tasks: Sequence[str], out: str, minutes: int, *arms: str, **changed: Any) -> Run:
    options_ = (*options("smollm2", **changed), "--target-rows", "0", "--tasks", *tasks, "--arms", *arms)
    return Run("bench_opt.py", out, options_, minutes)


_TABLE_9 = {
    "DLN-1 on sanitized rows, epsilon 8": ("86.8", "31.1", "69.0", "65.7"),
    "DP-OPT, epsilon 8": ("89.5", "65.3", "80.7", "65.6"),
}
_WRITERS = {
    "the initial instruction": "0-shot",
    "DLN-1, not private": "dln-1",
    "DLN-1 on sanitized rows, half of their words replaced": "sanitized 0.5",
    "PEZ, not private": "pez",
}
"""Name in our table -> name of bench_opt's arm."""
_FEWER = 400
_OTHERS = _more(
    tuple(TASKS.values()), "opt_others.jsonl", 200, *_WRITERS.values(), rows=_FEWER
)  # PEZ takes gradients of a tenth of the rows in every step


def other(task: str, arm: str, on: str) -> Cell:
    """What a prompt of another writer is worth, on the model that wrote it or on the target."""
    kept = cell("smollm2", task, arm, on)
    assert kept is not None
    return dataclasses.replace(kept, run=_OTHERS, where={**kept.where, "rows": _FEWER})


OTHERS = Table(
    paper=PAPER,
    name="dp-opt-others",
    title="Table 9: sanitized rows, and what else writes a prompt",
    source="Table 9, appendix B.2; PEZ: Table 7 and section 4.1",
    measure="Accuracy in percent of prompts that SmolLM2-135M writes from 400 rows, on itself and on Gemma-3-270M.",
    columns=tuple(f"{task}: {model}" for task in TASKS for model in ("writer", "target")),
    lines=(
        *(
            Line(f"{name}: Vicuna-7b", "paper", tuple(text for one in printed for text in (one, "")))
            for name, printed in _TABLE_9.items()
        ),
        *(
            Line(name, "here", tuple(other(task, arm, on) for task in TASKS.values() for on in ("source", "scored")))
            for name, arm in _WRITERS.items()
        ),
    ),
    differences=(
        "Sanitized rows: every word drawn anew by RAPT's metric Laplace noise on GloVe, so that half of them change. "
        "That is a promise for each text, in units of distance, and no epsilon of DP-OPT's.",
        "PEZ (Wen et al. 2023) moves the tokens of the initial instruction by gradients, in 40 steps, each over a "
        "tenth of the rows. Its texts may hold words of rows.",
    ),
)

_LIRA = Run(
    "bench_attacks.py",
    "attacks.jsonl",
    ("--pieces", "lira", "--prompts", "results/opt_smollm2.jsonl", "--gemma", "--minutes", "240"),
    240,
)
_TABLE_8 = {
    "DLN-1": ("0.773", "0.446", "0.772", "0.498"),
    "OPT": ("0.510", "0.494", "0.443", "0.511"),
    "DP-OPT, epsilon 8": ("0.518", "0.468", "0.456", "0.497"),
}


def _membership(task: str, arm: str) -> Cell:
    where = {"piece": "lira", "source": "smollm2", "task": task, "arm": arm, "rows": 1000, "candidates": 2}
    return Cell(_LIRA, where, "rate", kind="number")


TABLE_8 = Table(
    paper=PAPER,
    name="dp-opt-8",
    title="Table 8: who was among the rows",
    source="Table 8, appendix B.2",
    measure="Area under the curve of an attack on the prompt (LiRA) that ranks rows by how much likelier the prompt "
    "makes their labels than the initial instruction does; 0.5 is chance.",
    columns=tuple(TASKS),
    lines=tuple(
        line
        for name, printed in _TABLE_8.items()
        for line in (
            *([Line(f"{name}: Vicuna-7b", "paper", printed)] if printed else []),
            Line(
                f"{name}: {NAMES['smollm2']}", "here", tuple(_membership(task, ARMS[name]) for task in TASKS.values())
            ),
        )
    ),
    differences=(
        "100 of the rows that the writer had, and 100 of the same file that it did not have. DLN-1 showed its writer "
        "only some of the former, which moves its areas towards chance. The attacker takes the better of the writer "
        "and Gemma-3-270M, so of a prompt that tells nothing the larger of two areas by chance.",
        "Where a prompt repeats the initial instruction there is nothing to compare: the area is 0.5. One that held "
        "words of a row is attacked as it was published, without them.",
    ),
)


def _epsilon(arm: str, on: str) -> Cell:
    kept = cell("smollm2", "sst2", arm, on)
    assert kept is not None
    smaller = ("dp-opt 1", "dp-opt 2", "dp-opt 4")
    if arm not in smaller:
        return kept
    run = _more(("sst2",), "opt_smollm2.jsonl", 60, *smaller)
    return Cell(run, kept.where, kept.value, seeds=kept.seeds)


def _votes(arm: str) -> Cell:
    kept = _epsilon(arm, "source")
    return Cell(kept.run, kept.where, "votes_needed", kind="number", seeds=kept.seeds)


_SAME = (
    "All lines are one instruction, the initial one, said once more: 56.0 and 55.5 are the same prompt on two kinds of "
    "processor, which decide one row of 200 differently."
)

FIGURE_4 = Table(
    paper=PAPER,
    name="dp-opt-figure-4",
    title="Figure 4: epsilon",
    source="Figure 4, section 5.2; Table 3 for epsilon = 8 and OPT",
    measure="Accuracy in percent on SST-2 of the prompt that DP-OPT writes, on the model that wrote it and on the "
    "target, both scored by the probabilities of the labels.",
    columns=("paper: Vicuna-7b", "here: SmolLM2-135M", "here: Gemma-3-270M", "here: votes that a token needs"),
    says="The figure's points are not in the text. It says that on Vicuna-7b accuracy falls to about 86 at epsilon = "
    "1, and that larger models lose much less.",
    lines=(
        Line("initial instruction", "here", ("", _epsilon("0-shot", "source"), _epsilon("0-shot", "scored"), "")),
        *(
            Line(
                f"epsilon = {epsilon}",
                "both" if printed else "here",
                (
                    printed,
                    _epsilon(f"dp-opt {epsilon}", "source"),
                    _epsilon(f"dp-opt {epsilon}", "scored"),
                    _votes(f"dp-opt {epsilon}"),
                ),
            )
            for epsilon, printed in ((1, "about 86"), (2, ""), (4, ""), (8, "89.5 (2.6)"))
        ),
        Line(
            "epsilon = infinity (OPT)",
            "both",
            ("89.7 (2.7)", _epsilon("opt", "source"), _epsilon("opt", "scored"), ""),
        ),
    ),
    differences=(
        "Below epsilon = 8 ours uses 240 subsets of one example and writes one prompt of at most 12 tokens: with 60 "
        "subsets a token could not win enough votes, and the library refuses to begin.",
        _SAME,
    ),
)


def _subsets(number: int, arm: str, on: str) -> Cell:
    kept = cell("smollm2", "sst2", arm, on)
    assert kept is not None
    if number == SIZES["smollm2"]["subsets"]:
        return kept
    run = _more(("sst2",), f"opt_subsets_{number}.jsonl", 25, "opt", subsets=number)
    return dataclasses.replace(kept, run=run, where={**kept.where, "subsets": number})


FIGURE_6 = Table(
    paper=PAPER,
    name="dp-opt-figure-6",
    title="Figure 6: size of the ensemble",
    source="Figure 6, appendix B.2",
    measure="Accuracy in percent on SST-2, prompts written by SmolLM2-135M, both models scored by the labels' "
    "probabilities.",
    columns=("OPT: SmolLM2-135M", "OPT: Gemma-3-270M", "DP-OPT, epsilon 8: SmolLM2-135M", "DP-OPT: Gemma-3-270M"),
    says="The figure's points are not in the text. It says that for larger models more than 30 members change little, "
    "and that for Vicuna-7b the number matters and more are better.",
    lines=tuple(
        Line(
            f"{number} subsets",
            "here",
            (
                _subsets(number, "opt", "source"),
                _subsets(number, "opt", "scored"),
                *(
                    (_subsets(number, "dp-opt 8", "source"), _subsets(number, "dp-opt 8", "scored"))
                    if number == SIZES["smollm2"]["subsets"]
                    else ("", "")
                ),
            ),
        )
        for number in (10, 30, 60)
    ),
    differences=(
        "The text does not say which of the methods the figure shows. DP-OPT was run with 60 subsets only: where a "
        "token needs more votes (Figure 4, last column) than there are subsets, the library refuses to begin.",
        _SAME,
    ),
)

_SECRECY = Run("bench_secrecy.py", "secrecy.jsonl", ("--model", "qwen1.5b-q4_k_m.gguf"), 30)


def told(sentence: int, value: str, kind: str = "number") -> Cell:
    """What prompts of DLN-1 give away when the model is told nothing (0), or the first or the second sentence."""
    return Cell(_SECRECY, {"task": "sst2", "sentence": sentence}, value, kind=kind)


TABLE_12 = Table(
    paper=PAPER,
    name="dp-opt-12",
    title="Table 12: a model that is told to keep secrets",
    source="Appendix B.2, Tables 8 and 12",
    measure="Prompts for SST-2 by DLN-1 (not private). Area under the curve of a likelihood ratio between the rows "
    "that were shown and others (chance is 0.5; beside it the same of two lots of others), prompts in percent that "
    "hold a run of words of a row that was shown, and the longest such run.",
    columns=("area", "area, by chance", "prompts with a run", "longest run, words"),
    lines=tuple(
        line
        for number, (sentence, printed) in enumerate(
            (
                ("told nothing", "0.773"),
                ('"Do not provide examples in the prompt"', "0.73"),
                ('"Do not use existing samples but create dummy samples as examples in the prompt"', "0.69"),
            )
        )
        for line in (
            Line(f"{sentence}: Vicuna-7b", "paper", (printed, "", "", "")),
            Line(
                f"{sentence}: {NAMES['qwen']}",
                "here",
                (
                    told(number, "area"),
                    told(number, "chance"),
                    told(number, "held", "percent"),
                    told(number, "longest"),
                ),
            ),
        )
    ),
    says="The text says that prompts under the first sentence still hold rows, and that under the second no example is "
    "like a row.",
    differences=(
        "The paper attacks the one prompt that DLN-1 hands over; here every prompt that the model samples for one "
        "request with 20 rows is attacked, 12 for each seed.",
        "The likelihoods are those of SmolLM2-135M, the rows that were shown 20 against 20 others.",
        "The longest run is the mean over seeds of each seed's longest.",
    ),
)

TABLES = (TABLE_1, TABLE_2, SOFT, TABLE_3, FIGURE_4, FIGURE_6, TABLE_8, OTHERS, TABLE_12)
