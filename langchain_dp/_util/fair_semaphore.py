"""A fair semaphore for threads and event loops."""

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
    """Return whether a blocking call would hang this thread's loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_entered: contextvars.ContextVar[frozenset[FairSemaphore]] = contextvars.ContextVar(
    "langchain_dp_places", default=frozenset()
)


class FairSemaphore(forks.ForkSafe):
    """Limits concurrent calls. Without ``watched`` its owner handles forks."""

    def __init__(self, count: int, *, watched: bool = True) -> None:
        self.count = count
        self._free = count
        self._waiting: deque[concurrent.futures.Future[None]] = deque()
        # Reentrant: garbage collection may close abandoned calls anywhere.
        self._lock = threading.RLock()
        if watched:
            self._watch()

    def _alone(self) -> None:
        self._free = self.count
        self._waiting = deque()

    def take(self, patience: float | None = None) -> Callable[[], None] | None:
        """Return a function that releases once, or None after a timeout."""
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
        """Do not wait inside another such block or event loop."""
        leave = None if self.would_hang() else self.take()
        try:
            with self.entered():
                yield
        finally:
            if leave is not None:
                leave()

    @contextlib.asynccontextmanager
    async def aheld(self) -> AsyncIterator[None]:
        leave = None if self in _entered.get() else await self.atake()
        try:
            with self.entered():
                yield
        finally:
            if leave is not None:
                leave()

    def would_hang(self) -> bool:
        return in_event_loop() or self in _entered.get()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Calls inside the block do not wait again."""
        before = _entered.get()
        _entered.set(before | {self})
        try:
            yield
        finally:
            _entered.set(before)

    def _line_up(self) -> concurrent.futures.Future[None] | None:
        # Created before the lock: a closed call must not release between check and wait.
        waiter: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            self._waiting.append(waiter)
            return waiter

    def _step_out(self, waiter: concurrent.futures.Future[None]) -> None:
        if not waiter.cancel():  # it acquired at the same moment
            self._taken()()

    def _taken(self) -> Callable[[], None]:
        once = [True]

        def leave() -> None:
            with self._lock:
                if not once:
                    return
                once.pop()
                while self._waiting:
                    waiter = self._waiting.popleft()
                    if waiter.set_running_or_notify_cancel():
                        waiter.set_result(None)
                        return
                self._free = min(self._free + 1, self.count)  # a forked child may release without acquiring

        return leave
