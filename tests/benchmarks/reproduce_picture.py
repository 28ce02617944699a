"""The picture of accuracy against epsilon, from the result files alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import reproduce_icl
import reproduce_opt
from matplotlib.figure import Figure
from reproduce_rows import Cell, Results

Panel = tuple[str, Mapping[float, Cell | None], Mapping[str, Cell | None]]
"""Heading, the private arm at each epsilon, and what it is compared with."""

IN_A_ROW = 3
"""More panels than these stand in two rows."""
STYLES = {"no example": ":", "no noise": "--", "the first instruction": ":", "no noise (OPT)": "--"}


def panels() -> Iterator[Panel]:
    """One for every system and task."""
    for task, name in reproduce_icl.NAMES.items():
        yield (
            f"DP-ICL, {name}",
            {value: reproduce_icl.cell(task, f"dp-icl {value:g}") for value in (1.0, 3.0, 8.0)},
            {"no noise": reproduce_icl.cell(task, "vote"), "no example": reproduce_icl.cell(task, "zero-shot")},
        )
    for task in ("sst2", "trec"):
        cells = {arm: reproduce_opt.cell("smollm2", task, arm, "source") for arm in ("opt", "0-shot")}
        yield (
            f"DP-OPT, {reproduce_icl.NAMES[task]}",
            {
                value: reproduce_opt.cell("smollm2", task, f"dp-opt {value:g}", "source")
                for value in (1.0, 2.0, 4.0, 8.0)
            },
            {"no noise (OPT)": cells["opt"], "the first instruction": cells["0-shot"]},
        )


def points(results: Results) -> list[dict[str, Any]]:
    """What is drawn: panels that have rows, with means and standard errors in percent."""
    drawn = []
    for title, private, beside in panels():
        found = {value: shown for value, cell in private.items() if (shown := _percent(results, cell))}
        if found:
            lines = {label: shown for label, cell in beside.items() if (shown := _percent(results, cell))}
            drawn.append({"title": title, "private": {f"{value:g}": pair for value, pair in found.items()}} | lines)
    return drawn


def _percent(results: Results, cell: Cell | None) -> list[float] | None:
    """Mean, and the larger one of the standard errors over seeds and over the test rows of one seed."""
    found = None if cell is None else results.found(cell)
    if found is None:
        return None
    over_rows = math.sqrt(found.mean * (1 - found.mean) / found.rows) if found.rows else 0.0
    return [round(100 * value, 2) for value in (found.mean, max(found.error or 0.0, over_rows))]


def draw(results: Results, path: Path) -> bool:
    """Write the picture; the figures in it stand in its description too. Nothing is written where nothing is known."""
    drawn = points(results)
    if not drawn:
        return False
    with matplotlib.rc_context({"svg.hashsalt": "accuracy", "font.size": 9}):
        rows = 1 if len(drawn) <= IN_A_ROW else 2
        columns = math.ceil(len(drawn) / rows)
        figure = Figure(figsize=(2.6 * columns + 0.6, 2.9 * rows), layout="constrained")
        for number, panel in enumerate(drawn):
            _panel(figure.add_subplot(rows, columns, number + 1), panel, first=number % columns == 0)
        figure.savefig(path, metadata={"Date": None, "Description": json.dumps(drawn)})
    return True


def _panel(axes: Any, panel: dict[str, Any], *, first: bool) -> None:
    values: Sequence[float] = [float(value) for value in panel["private"]]
    means, errors = zip(*panel["private"].values(), strict=True)
    axes.errorbar(values, means, yerr=errors, marker="o", capsize=3, color="#1f6f8b", label="private")
    for label, style in STYLES.items():
        if label in panel:
            axes.axhline(panel[label][0], color="#555555", linestyle=style, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set(title=panel["title"], xlabel="epsilon", ylim=(0, 100), ylabel="accuracy, %" if first else None)
    axes.legend(frameon=False, fontsize=7, loc="lower right")
