"""The picture of what labels that are codes cost, and what names for them are worth, from the result files alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib
from made import so_far
from matplotlib.figure import Figure

MODEL = "qwen1.5b-q4_k_m"
PRIVATE, PLAIN = "#1f6f8b", "#b9bec4"


def bars(results: Path) -> list[dict[str, Any]]:
    """What is drawn: what was asked, whether it promises something, and accuracy with its error over rows, in percent.

    Nothing where rows are missing.
    """
    codes = [row for row in so_far(results / "codes.jsonl") if row["key"][:2] == [MODEL, "agnews"]]
    accuracy = so_far(results / "accuracy.jsonl")
    votes: dict[str, list[Any]] = {}
    for row in accuracy:
        if row["key"]["model"] == f"{MODEL}.gguf":
            votes.setdefault(row["key"]["task"], []).append(row)

    def asked(arm: str, value: str) -> list[float]:
        rows = [row[value] for row in codes if row["key"][2:4] == [2000, arm]]
        mean = sum(row["accuracy"] for row in rows) / len(rows)
        return _percent(mean, rows[0]["asked"])

    def voted(task: str, method: str) -> list[float]:
        found = [line for row in votes[task] for line in row["methods"] if line["method"] == method]
        asked = sum(line["n"] for line in found)
        return _percent(sum(line["accuracy"] * line["n"] for line in found) / asked, asked)

    if not (codes and {"coded", "named"} <= votes.keys()):
        return []
    return [
        {"what": "codes alone", "private": False, "percent": asked("codes", "codes")},
        {"what": "private vote on codes, epsilon 3", "private": True, "percent": voted("coded", "dp-icl 3")},
        {"what": "the topics' true names (which nobody has)", "private": False, "percent": asked("true", "true")},
        {
            "what": "names at epsilon 1, private vote at 2",
            "private": True,
            "percent": voted("named", "dp-icl 2"),
        },
    ]


def _percent(mean: float, rows: int) -> list[float]:
    return [round(100 * value, 1) for value in (mean, math.sqrt(mean * (1 - mean) / rows))]


def draw(results: Path, path: Path) -> None:
    """Write the picture; the figures in it stand in its description too. Nothing is written where nothing is known."""
    drawn = bars(results)
    if not drawn:
        return
    with matplotlib.rc_context({"svg.hashsalt": "codes", "font.size": 9}):
        figure = Figure(figsize=(7.2, 2.7), layout="constrained")
        axes = figure.add_subplot()
        places = range(len(drawn), 0, -1)
        means, errors = zip(*(bar["percent"] for bar in drawn), strict=True)
        axes.barh(
            places, means, xerr=errors, capsize=2, height=0.65, error_kw={"linewidth": 0.8},
            color=[PRIVATE if bar["private"] else PLAIN for bar in drawn],
        )  # fmt: skip
        axes.set_yticks(places, [bar["what"] for bar in drawn])
        for place, mean, error in zip(places, means, errors, strict=True):
            axes.text(mean + error + 1.5, place, f"{mean:.0f}", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xlim=(0, 100), xlabel="articles sorted right, %")
        figure.savefig(path, metadata={"Date": None, "Description": json.dumps(drawn)})
