"""The picture of accuracy against epsilon of DP-ICL, from the result files alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import reproduce_icl
from matplotlib.figure import Figure
from reproduce_rows import Results

EPSILONS = (1, 3, 8)
BESIDE = {"no noise": ("vote", "--"), "no example": ("zero-shot", ":")}
"""Line without privacy -> its method and its style."""


def points(results: Results) -> list[dict[str, Any]]:
    """Panels that have rows, with means and errors in percent."""
    drawn = []
    for task, name in reproduce_icl.NAMES.items():
        private = {f"{e}": pair for e in EPSILONS if (pair := _percent(results, task, f"dp-icl {e}"))}
        beside = {label: pair for label, (method, _) in BESIDE.items() if (pair := _percent(results, task, method))}
        drawn += [{"title": f"DP-ICL, {name}", "private": private} | beside] if private else []
    return drawn


def _percent(results: Results, task: str, method: str) -> list[float] | None:
    """Mean, and the larger of the standard errors over seeds and over the test rows of one seed."""
    found = results.found(reproduce_icl.cell(task, method))
    if found is None:
        return None
    over_rows = math.sqrt(found.mean * (1 - found.mean) / found.rows) if found.rows else 0.0
    return [round(100 * value, 2) for value in (found.mean, max(found.error or 0.0, over_rows))]


def draw(results: Results, path: Path) -> bool:
    """Write the picture, with its figures in the description too. Without rows nothing is written."""
    drawn = points(results)
    if not drawn:
        return False
    with matplotlib.rc_context({"svg.hashsalt": "accuracy", "font.size": 9}):
        figure = Figure(figsize=(2.6 * len(drawn) + 0.6, 2.9), layout="constrained")
        for number, panel in enumerate(drawn):
            _panel(figure.add_subplot(1, len(drawn), number + 1), panel, first=number == 0)
        figure.savefig(path, metadata={"Date": None, "Description": json.dumps(drawn)})
    return True


def _panel(axes: Any, panel: dict[str, Any], *, first: bool) -> None:
    values = [float(value) for value in panel["private"]]
    means, errors = zip(*panel["private"].values(), strict=True)
    axes.errorbar(values, means, yerr=errors, marker="o", capsize=3, color="#1f6f8b", label="private")
    for label, (_, style) in BESIDE.items():
        if label in panel:
            axes.axhline(panel[label][0], color="#555555", linestyle=style, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set(title=panel["title"], xlabel="epsilon", ylim=(0, 100), ylabel="accuracy, %" if first else None)
    axes.legend(frameon=False, fontsize=7, loc="lower right")
