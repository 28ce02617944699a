"""Commands as a shell sees them, on files of rows and models of a few words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.next_token import ClosingEngine, agreeing
from fakes.scorer import ClosingScorer
from langchain_dp.cli import main

ENGINE = "langchain_dp.integrations.llama_cpp.LlamaCppEnsemble"


def exit_code(words: Sequence[str]) -> int:
    """What the shell is told, also where the words cannot be read."""
    try:
        return main(words)
    except SystemExit as stopped:
        return int(stopped.code or 0)


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of JSON lines."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Path(path)


def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of a few words in place of the embedded one."""
    monkeypatch.setattr(
        ENGINE, lambda **settings: ClosingScorer() if "slots" in settings else ClosingEngine(agreeing(" Say yes."))
    )


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads a model fails: what should be refused must not start a run of minutes."""

    def loaded(**_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(ENGINE, loaded)
