"""The picture of what tuning does to representations, from the result files alone."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from made import so_far
from matplotlib.figure import Figure

MAPS = {"clear": "texts in clear", "privatized": "privatized", "reconstruction": "with reconstruction"}
COLORS = {"female": "#b5483a", "male": "#1f6f8b"}


def distances(results: Path) -> dict[str, list[float]]:
    """How far apart the same texts lie in two models that were tuned by prefixes, layer by layer; the mean of seeds."""
    rows = [row for row in so_far(results / "layers.jsonl") if row["key"]["method"] == "prefix"]
    pairs = rows[0]["distances"] if rows else {}
    return {
        pair: [
            round(statistics.fmean(values), 4) for values in zip(*(row["distances"][pair] for row in rows), strict=True)
        ]
        for pair in pairs
    }


def draw(results: Path, path: Path) -> None:
    """Write the picture; the distances in it stand in its description too. Nothing is written where none are known."""
    drawn = distances(results)
    if not drawn:
        return
    maps = next(row["maps"] for row in so_far(results / "layers.jsonl") if row["maps"])
    with matplotlib.rc_context({"svg.hashsalt": "layers", "font.size": 9}):
        figure = Figure(figsize=(9.6, 2.6), layout="constrained")
        axes = figure.add_subplot(1, 4, 1)
        for pair, values in drawn.items():
            axes.plot(range(len(values)), values, marker="o", markersize=3, label=" and ".join(pair.split(", ")))
        axes.set(title="distance of the same texts", xlabel="layer", ylim=(0, None))
        axes.legend(frameon=False, fontsize=6)
        for number, (arm, title) in enumerate(MAPS.items(), start=2):
            _map(figure.add_subplot(1, 4, number), maps[arm], maps["gender"], title)
        figure.savefig(path, metadata={"Date": None, "Description": json.dumps(drawn)})


def _map(axes: Any, points: list[list[float]], genders: list[str], title: str) -> None:
    for gender, color in COLORS.items():
        some = [point for point, one in zip(points, genders, strict=True) if one == gender]
        axes.scatter(*zip(*some, strict=True), s=3, color=color, label=gender)
    axes.set(title=title, xticks=[], yticks=[])
    axes.legend(frameon=False, fontsize=6, markerscale=2)
