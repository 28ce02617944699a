"""A table on disk for workers, and workers that are killed at a chosen step, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fakes.rapt import TABLE
from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.accounting.store.releases import ReleasedTexts

STEPS = ("before the charge", "after the charge", "after the store")


def table_folder(folder: Path) -> Path:
    """The small table as files."""
    folder.mkdir()
    np.save(folder / "vectors.npy", TABLE.vectors)
    (folder / "words.txt").write_text("\n".join(TABLE.words), encoding="utf-8")
    return folder


class KilledOnce:
    """Batches go through ``sanitize``; the first worker that reaches ``step`` kills itself there.

    Args:
        sanitize: Does the work.
        step: One of ``STEPS``.
        mark: File that says that it happened.
    """

    def __init__(self, sanitize: Callable[[Any], Any], step: str, mark: Path) -> None:
        self._sanitize, self._step, self._mark = sanitize, step, mark

    def __call__(self, batch: Any) -> Any:
        spend, put = MetricLedger.spend, ReleasedTexts.put

        def spent(*args: Any, **options: Any) -> None:
            self._die_at("before the charge")
            spend(*args, **options)
            self._die_at("after the charge")

        def stored(*args: Any) -> Any:
            kept = put(*args)
            self._die_at("after the store")
            return kept

        MetricLedger.spend, ReleasedTexts.put = spent, stored  # type: ignore[method-assign]
        try:
            return self._sanitize(batch)
        finally:
            MetricLedger.spend, ReleasedTexts.put = spend, put  # type: ignore[method-assign]

    def _die_at(self, step: str) -> None:
        if step == self._step:
            try:
                os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


class KilledAlways(KilledOnce):
    """Every worker that reaches ``step`` kills itself there."""

    def _die_at(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)
