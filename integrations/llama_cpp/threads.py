"""Adapts the number of threads to free cores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

_JUDGED = 0.2
_GIVEN = 0.85
"""Least share of time that threads compute (measured: .96 on free cores, .75 beside a process)."""
_CALM = 20
"""Good judgments in a row before a step up."""


def steps_below(most: int) -> list[int]:
    """Return one fewer, then quarters, down to one."""
    return sorted({1, *(most * quarters // 4 for quarters in (1, 2, 3)), most - 1} - {0, most})


class Threads:
    """The number of threads. All wait for one that lost its core."""

    def __init__(self, apply: Callable[[int], None]) -> None:
        self._apply = apply
        self._allowed: list[int] = [1]
        self._at = 0
        self._calm = 0
        self._computed = self._passed = 0.0

    @property
    def most(self) -> int:
        return self._allowed[-1]

    def use(self, most: int, fewer: Sequence[int] = ()) -> None:
        self._allowed = [*sorted(fewer), most]
        self._move(len(self._allowed) - 1)

    def _move(self, at: int) -> None:
        self._at, self._calm = at, 0
        self._computed = self._passed = 0.0
        self._apply(self._allowed[at])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        computed, passed = time.process_time(), time.perf_counter()
        yield
        self._computed += time.process_time() - computed
        self._passed += time.perf_counter() - passed
        if len(self._allowed) > 1 and self._passed >= _JUDGED:
            given = self._computed / (self._passed * self._allowed[self._at])
            self._calm = self._calm + 1 if given >= _GIVEN else 0
            if self._calm == 0 and self._at > 0:
                self._move(self._at - 1)
            elif self._calm >= _CALM and self._at < len(self._allowed) - 1:
                self._move(self._at + 1)
            self._computed = self._passed = 0.0
