"""Hides entities from a tracer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_dp.redact import PrivateArgs, run_redacted

WITHHELD = "<withheld>"
_DEEPEST = 50


class TraceMask:
    """Hides entities in nested values. Where a recognizer fails, the text is withheld."""

    def __init__(self, sanitize: Callable[[str], str]) -> None:
        self._sanitize = sanitize

    def __call__(self, data: Any) -> Any:
        return run_redacted(self._masked, PrivateArgs(data, _DEEPEST))

    def _masked(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if depth == 0:
            return WITHHELD
        if isinstance(value, Mapping):
            return {self._masked(key, 1): self._masked(inner, depth - 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            masked = [self._masked(inner, depth - 1) for inner in value]
            return tuple(masked) if isinstance(value, tuple) else masked
        return self._text(str(value))

    def _text(self, text: str) -> str:
        try:
            return self._sanitize(text)
        except Exception:  # of a recognizer, whose text may be private
            return WITHHELD

    def __repr__(self) -> str:
        return "TraceMask(NOT PRIVATE: no epsilon)"


_SHOWN = ("name", "tags", "extra", "serialized")
"""Fields that LangSmith does not, or not wholly, anonymize."""


def masked_runs(mask: TraceMask, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    masked = []
    for run in runs:
        fields = {field: mask(run[field]) for field in _SHOWN if run.get(field)}
        events = [{**event, "kwargs": mask(event.get("kwargs"))} for event in run.get("events") or ()]
        masked.append({**run, **fields, **({"events": events} if events else {})})
    return masked
