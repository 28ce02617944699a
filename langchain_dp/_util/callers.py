"""Warnings that point at the caller's line."""

from __future__ import annotations

import inspect
import warnings

_OURS = ("langchain_dp", "langchain_core")


def warn_caller(text: str, category: type[Warning]) -> None:
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
