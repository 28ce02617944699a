"""Tables 10 and 11 of the DP-OPT paper: the prompts themselves, as our writers wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import reproduce_opt
from made import so_far
from reproduce_rows import Results

_FILES = ("opt_smollm2.jsonl", "opt_qwen.jsonl")
_METHODS = {
    "0-shot": "initial",
    "dln-1": "DLN-1",
    "opt": "OPT",
    "dp-opt 8": "DP-OPT, votes, epsilon 8",
}
_MARKS = {letter: f"&#{ord(letter)};" for letter in "&<>|`*_[]\\#~"}
"""Letters that a page would read as marks."""
_HEAD = """## Prompts that were written

What was handed over, and what the model that wrote it answers of the test questions under it, in percent: as in the
tables above, and of Qwen2.5-Coder-1.5B by the labels' probabilities without calibration. The paper prints its own in
its Tables 10 and 11. Line breaks are shown as ⏎; words of a training row are left out.

| task | writer | method | seed | accuracy | prompt |
|---|---|---|---|---|---|
"""


def prompts(results: Results) -> str:
    """The section of the page."""
    rows = [row for name in _FILES for row in so_far(results.folder / name)]
    lines = sorted(line for row in rows for line in _line(row))
    return _HEAD + "".join(f"| {' | '.join(line[1:])} |\n" for line in lines) if lines else ""


def _line(row: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    writer, _, task, seed, arm = row["key"]
    if arm not in _METHODS or (arm == "0-shot" and seed != 1):
        return
    said = "".join(_MARKS.get(letter, letter) for letter in row["instruction"].replace("\n", " ⏎ "))
    place = f"{[*reproduce_opt.NAMES].index(writer)}{task}{[*_METHODS].index(arm)}{seed}"
    name = next(name for name, of in reproduce_opt.TASKS.items() if of == task)
    share = row["scored"]["source"]["plain"] if "scored" in row else row["source_accuracy"]
    yield place, name, reproduce_opt.NAMES[writer], _METHODS[arm], str(seed), f"{100 * share:.1f}", said
