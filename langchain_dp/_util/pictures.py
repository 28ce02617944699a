"""Plots with matplotlib, which is imported here only."""

from __future__ import annotations

import importlib
from os import PathLike
from pathlib import Path
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure in inches and its axes."""
    with needs("plot", "matplotlib", why=" to draw a picture"):
        figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def save_picture(figure: Any, path: str | PathLike[str]) -> None:
    ending = Path(path).suffix[1:].lower()
    known = figure.canvas.get_supported_filetypes()
    if ending and ending not in known:
        raise InvalidParameter(
            f"Expected the ending of path, {ending!r}, to be one of {sorted(known)}. Write to a file such as "
            "attacks.png."
        )
    figure.savefig(path)
