"""Where pictures begin: one place that asks for matplotlib."""

from __future__ import annotations

import importlib
from typing import Any

from langchain_dp.errors import MissingExtra


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of its own, in inches, known to no global state, with its axes.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtra(
            "Expected the package matplotlib to draw a picture. Install it with: pip install 'langchain-dp[plot]'."
        ) from None
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()
