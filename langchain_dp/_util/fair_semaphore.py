"""Places that threads and event loops share, first come, first served: how many calls may be under way at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from langchain_dp._util import forks


def in_event_loop() -> bool:
    """A blocking call made on an event loop's own thread must not wait for a task of that loop: it would hang."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_entered: contextvars.ContextVar[frozenset[FairSemaphore]] = contextvars.ContextVar(
    "langchain_dp_places", default=frozenset()
)


class FairSemaphore(forks.ForkSafe):
    """So many places, handed out in the order they were asked for. Thread-safe, over any number of event loops.

    Args:
        count: Number of places, at least 1.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = count
        self._waiting: deque[concurrent.futures.Future[None]] = deque()
        # Reentrant: a call that nobody drives any more is closed by the garbage collector, in any line of any thread.
        self._lock = threading.RLock()
        self._watch()

    def _alone(self) -> None:
        self._free = self.count
        self._waiting = deque()

    def take(self, patience: float | None = None) -> Callable[[], None] | None:
        """Wait for a place; returns what gives it back, once, however often it is called.

        Args:
            patience: Seconds to wait; None waits for ever.

        Returns:
            None if there was no place in time.
        """
        waiter = self._line_up()
        if waiter is not None:
            try:
                waiter.result(patience)
            except concurrent.futures.TimeoutError:
                if waiter.cancel():
                    return None
            except BaseException:  # Ctrl-C
                self._step_out(waiter)
                raise
        return self._taken()

    async def atake(self) -> Callable[[], None]:
        """Async twin of :meth:`take`."""
        waiter = self._line_up()
        if waiter is not None:
            try:
                await asyncio.wrap_future(waiter)
            except BaseException:  # cancelled
                self._step_out(waiter)
                raise
        return self._taken()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold a place for the block. None is waited for inside a block that holds one, nor on a loop's own thread."""
        leave = None if self.would_hang() else self.take()
        try:
            with self.entered():
                yield
        finally:
            if leave is not None:
                leave()

    @contextlib.asynccontextmanager
    async def aheld(self) -> AsyncIterator[None]:
        """Async twin of :meth:`held`."""
        leave = None if self in _entered.get() else await self.atake()
        try:
            with self.entered():
                yield
        finally:
            if leave is not None:
                leave()

    def would_hang(self) -> bool:
        """Whether who blocks here for a place may be waiting for himself: see :func:`in_event_loop`."""
        return in_event_loop() or self in _entered.get()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Mark the block as one that has a place: what is asked inside it goes on without another."""
        before = _entered.get()
        _entered.set(before | {self})
        try:
            yield
        finally:
            _entered.set(before)

    def _line_up(self) -> concurrent.futures.Future[None] | None:
        # Made before the lock is taken: whoever is closed meanwhile must not give back a place between look and wait.
        waiter: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            self._waiting.append(waiter)
            return waiter

    def _step_out(self, waiter: concurrent.futures.Future[None]) -> None:
        if not waiter.cancel():  # it was given a place at the same moment
            self._leave()

    def _taken(self) -> Callable[[], None]:
        once = [self._leave]

        def leave() -> None:
            with contextlib.suppress(IndexError):
                once.pop()()

        return leave

    def _leave(self) -> None:
        """Hand the place to the first who still waits; nobody overtakes."""
        with self._lock:
            while self._waiting:
                waiter = self._waiting.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
                    return
            self._free = min(self._free + 1, self.count)  # a child forked inside a call gives back what it never took
