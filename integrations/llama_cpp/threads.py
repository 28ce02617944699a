"""Adapts the number of threads to the cores that are free."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

_JUDGED = 0.2
"""Seconds of computing per judgement."""
_GIVEN = 0.85
"""Least share of their time that threads compute on free cores: two on two cores .96, beside a busy process .75."""
_CALM = 20
"""Good judgements in a row before a step up."""


def steps_below(most: int) -> list[int]:
    """Numbers of threads to go down to from ``most``: one fewer, then quarters of it, down to one."""
    return sorted({1, *(most * quarters // 4 for quarters in (1, 2, 3)), most - 1} - {0, most})


class Threads:
    """The number of threads of a context.

    All threads wait several times in every layer for one that lost its core: beside one busy process two threads on two
    cores take twice as long as one. So threads without their time become fewer, and sometimes more are tried.
    """

    def __init__(self, apply: Callable[[int], None]) -> None:
        self._apply = apply
        self._allowed: list[int] = [1]
        self._at = 0
        self._calm = 0
        self._computed = self._passed = 0.0

    @property
    def most(self) -> int:
        """The largest number that may be used."""
        return self._allowed[-1]

    def use(self, most: int, fewer: Sequence[int] = ()) -> None:
        """Use ``most`` threads, or one of the smaller numbers ``fewer`` while cores are busy."""
        self._allowed = [*sorted(fewer), most]
        self._move(len(self._allowed) - 1)

    def _move(self, at: int) -> None:
        self._at, self._calm = at, 0
        self._computed = self._passed = 0.0
        self._apply(self._allowed[at])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Measure the threads of a computation, and adapt their number."""
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
