"""A fixed answer time, so that how long an answer took does not show how many subsets were asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Pace:
    """Holds answers back until ``seconds`` after the question.

    An answer that took longer goes out at once: choose a time that the slowest answer keeps.

    Args:
        seconds: Time from question to answer; None holds nothing back.
        clock, sleep, asleep: For tests.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        asleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._asleep = asleep

    def start(self) -> float:
        """Moment of the question."""
        return self._clock()

    def _left(self, started: float) -> float:
        return 0.0 if self._seconds is None else max(0.0, started + self._seconds - self._clock())

    def hold(self, started: float) -> None:
        """Wait until the answer is due."""
        if left := self._left(started):
            self._sleep(left)

    async def ahold(self, started: float) -> None:
        """Async twin of :meth:`hold`."""
        if left := self._left(started):
            await self._asleep(left)
