"""How many threads compute: as many as the machine gives a core to just now."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

_JUDGED = 0.2
"""Seconds of computing after which it is judged whether the threads got their cores."""
_GIVEN = 0.85
"""Share of their time that threads are computing for at least where nobody else wants the cores.

Two threads on two cores: .96 to .99 of it quiet, .55 to .75 beside one other busy process.
"""
_CALM = 20
"""Judgements in a row after which one step up is tried."""


def steps_below(most: int) -> list[int]:
    """Numbers of threads to go down to from ``most``: one fewer, then quarters of it, down to one."""
    return sorted({1, *(most * quarters // 4 for quarters in (1, 2, 3)), most - 1} - {0, most})


class Threads:
    """The number of threads of a context, at most the one that it was given.

    A thread that another process keeps off its core keeps all others waiting, several times in every layer: beside one
    busy process two threads on two cores take twice as long as one. Where threads do not get their time, fewer compute,
    and now and then more are tried.
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
        """Take ``most`` threads from here on, or one of the smaller numbers ``fewer`` where others want the cores."""
        self._allowed = [*sorted(fewer), most]
        self._move(len(self._allowed) - 1)

    def _move(self, at: int) -> None:
        self._at, self._calm = at, 0
        self._computed = self._passed = 0.0
        self._apply(self._allowed[at])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Around a computation: whether its threads got their time decides on the next."""
        computed, passed = time.process_time(), time.perf_counter()
        yield
        self._computed += time.process_time() - computed
        self._passed += time.perf_counter() - passed
        if len(self._allowed) > 1 and self._passed >= _JUDGED:
            self._judge(self._computed / (self._passed * self._allowed[self._at]))
            self._computed = self._passed = 0.0

    def _judge(self, given: float) -> None:
        self._calm = self._calm + 1 if given >= _GIVEN else 0
        if self._calm == 0 and self._at > 0:
            self._move(self._at - 1)
        elif self._calm >= _CALM and self._at < len(self._allowed) - 1:
            self._move(self._at + 1)
