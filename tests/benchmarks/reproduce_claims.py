"""What each paper's abstract claims, and whether it shows here: one line a claim, with figures from the results."""

from __future__ import annotations

import dataclasses
from typing import Literal

import reproduce_icl
import reproduce_opt
import reproduce_rapt
from reproduce_page import shown
from reproduce_rows import Cell, Results

Verdict = Literal["shown here", "shown in part", "not shown here", "not testable here"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim.

    Args:
        paper: Whose.
        says: The claim, in our words.
        verdict: What is to be said of it.
        why: The evidence, or what stands in the way. "{}" takes the cells in their order.
        cells: Figures that the evidence quotes.
    """

    paper: str
    says: str
    verdict: Verdict
    why: str
    cells: tuple[Cell | None, ...] = ()

    def line(self, results: Results) -> str:
        """As a line of a table."""
        figures = (shown(cell, results.found(cell)) for cell in self.cells if cell is not None)
        return f"| {self.paper} | {self.says} | {self.verdict} | {self.why.format(*figures)} |"


_OPT, _FIRST, _SECOND = reproduce_opt.cell, reproduce_opt.NAMES["gemma"], reproduce_opt.NAMES["qwen"]
_TASKS = tuple(reproduce_icl.NAMES)

CLAIMS = (
    Claim(
        "DP-ICL",
        "A noisy consensus loses less than 2 points against examples in the prompt without noise.",
        "shown here",
        "epsilon = 3 against the vote without noise: SST-2 {}, Amazon {}, AG News {}, TREC {} points.",
        tuple(reproduce_icl.cell(task, "dp-icl 3", minus="vote") for task in _TASKS),
    ),
    Claim(
        "DP-ICL",
        "Private examples adapt a model to a new task.",
        "shown in part",
        "epsilon = 3 against no examples: SST-2 {}, Amazon {}, AG News {}, TREC {} points. A model that knows the "
        "labels gains little; on TREC this one cannot use examples at all.",
        tuple(reproduce_icl.cell(task, "dp-icl 3", minus="zero-shot") for task in _TASKS),
    ),
    Claim(
        "DP-ICL",
        "It beats private fine-tuning on SST-2.",
        "not testable here",
        "Private fine-tuning of RoBERTa-large takes a GPU. A linear head that is trained privately on sentence vectors "
        "is a strong baseline where rows may be trained on: with epsilon = 3 it has on SST-2 {}, AG News {}, TREC {}, "
        "and on Amazon, where DP-ICL wins, {}.",
        tuple(reproduce_icl.compared(task, "head 3") for task in ("sst2", "agnews", "trec", "amazon")),
    ),
    Claim(
        "DP-OPT",
        "Prompts that a model writes can be handed to another one without much loss.",
        "not shown here",
        "Prompts of DLN-1 by SmolLM2-135M for SST-2 have {} on the writer, where the instruction they started from has "
        f"{{}}; on {_FIRST} {{}} and {{}}; on {_SECOND}, which answers as chat, {{}} and {{}}. The writer is weak: "
        "what it gains is gained on itself alone.",
        tuple(_OPT("smollm2", "sst2", arm, on) for on in ("source", "scored", "second") for arm in ("dln-1", "0-shot")),
    ),
    Claim(
        "DP-OPT",
        "A private ensemble of demonstrations writes prompts, and its cost can be bounded tightly.",
        "shown here",
        "The bound is audited by enumeration, by sampling and over whole chains (`make audit`). At epsilon = 8 nothing "
        "is lost against the same without noise: on the writer SST-2 {} against {}, TREC {} against {}. But both "
        "mostly say the initial instruction once more.",
        tuple(_OPT("smollm2", task, arm, "source") for task in ("sst2", "trec") for arm in ("dp-opt 8", "opt")),
    ),
    Claim(
        "DP-OPT",
        "Its prompts compete with non-private examples in the prompt of GPT-3.5, or with private tuning.",
        "not testable here",
        f"No such model can be had here. On {_SECOND} they are worth what the instruction is worth that they "
        "start from: SST-2 {} against {}, TREC {} against {}. Five rows in clear are worth more where the model can "
        f"use them: on {_FIRST} SST-2 {{}}, TREC {{}}, where DP-OPT's prompt has {{}} and {{}}. Private tuning of a "
        "small model on 400 rows moves it at epsilon = 8 on TREC from {} to {} and on MPQA from {} to {}, where "
        "without noise it reaches {} and {}.",
        (
            *(_OPT("smollm2", task, arm, "second") for task in ("sst2", "trec") for arm in ("dp-opt 8", "0-shot")),
            *(_OPT("smollm2", task, arm, "scored") for arm in ("icl", "dp-opt 8") for task in ("sst2", "trec")),
            *(reproduce_opt.soft(task, *which) for task in ("trec", "mpqa") for which in (("inf", "before"), ("8",))),
            *(reproduce_opt.soft(task, "inf") for task in ("trec", "mpqa")),
        ),
    ),
    Claim(
        "RAPT",
        "Prompt tuning on privatized texts alone performs poorly.",
        "shown in part",
        "At 0.15 of the words replaced a prompt reaches {} and a prefix {}, in clear {} and {}. There a trained head "
        "reads the tuned model, which never falls to chance. Under a frozen head, as in the paper, and with half of "
        "the words replaced a prompt of 150 vectors reaches {}, in clear {}; a prefix {}, but in clear no more than {} "
        "(untuned {}).",
        (
            reproduce_rapt.cell("prompt", "privatized", 0.15),
            reproduce_rapt.cell("prefix", "privatized", 0.15),
            reproduce_rapt.cell("prompt", "clear", 0.0),
            reproduce_rapt.cell("prefix", "clear", 0.0),
            *(reproduce_rapt.frozen(arm, "prompt") for arm in ("privatized", "clear")),
            *map(reproduce_rapt.frozen, ("privatized", "clear", "untuned in clear")),
        ),
    ),
    Claim(
        "RAPT",
        "Reconstruction of privatized tokens mends that.",
        "not shown here",
        "With reconstruction a prompt reaches {} and a prefix {}: there is nothing to mend in this set-up. Under a "
        "frozen head there is, and it does not: a prefix reaches {} with it and {} without, a prompt of 150 vectors {} "
        "and {}.",
        (
            reproduce_rapt.cell("prompt", "reconstruction", 0.15),
            reproduce_rapt.cell("prefix", "reconstruction", 0.15),
            *(
                reproduce_rapt.frozen(arm, method)
                for method in ("prefix", "prompt")
                for arm in ("reconstruction", "privatized")
            ),
        ),
    ),
    Claim(
        "RAPT",
        "Accuracy stays competitive while attackers are kept off.",
        "shown in part",
        "With 0.3, 0.15 and 0.1 of the words replaced a prefix keeps {}, {} and {} of {} in clear. But at 0.1 an "
        "attacker guesses nine words in ten ([attacks](benchmarks.md)): there is little loss because there is little "
        "protection. With half of them replaced the tuned model tells less of who wrote a text, reconstruction or not: "
        "a reviewer's gender is guessed {} percent of the time in clear, {} privatized and {} with reconstruction, "
        "where {} is chance.",
        (
            *(reproduce_rapt.cell("prefix", "privatized", share) for share in reproduce_rapt.REPLACEMENTS),
            reproduce_rapt.cell("prefix", "clear", 0.0),
            *(reproduce_rapt.told("prefix", arm, "gender") for arm in ("clear", "privatized", "reconstruction")),
            reproduce_rapt.told("prefix", "clear", "chance"),
        ),
    ),
)


def claims(results: Results) -> str:
    """The section of the page."""
    lines = ["| paper | claim of its abstract | verdict | evidence |", "|---|---|---|---|"]
    return "\n".join(["## What reproduces\n", *lines, *(claim.line(results) for claim in CLAIMS)]) + "\n"
