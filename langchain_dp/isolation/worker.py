"""Calls of an engine in a worker thread, so that only the caller's own signals interrupt the caller.

An engine may raise anything, depending on one record: a ``CancelledError`` of its HTTP client, a ``SystemExit`` of its
library. In the caller's thread these look like the caller's own Ctrl-C or cancellation, which must pass. A release that
ends after its charge would then distinguish two neighboring data sets. A worker thread separates the two: Python
delivers Ctrl-C to the main thread alone, and asyncio cancels tasks, not threads.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from langchain_dp._util import forks
from langchain_dp.errors import LangChainDPError
from langchain_dp.isolation.context import sealed
from langchain_dp.isolation.filters import Level
from langchain_dp.ports import call_abandoned

Answer = TypeVar("Answer")
_PATIENCE = 0.1  # seconds


@dataclasses.dataclass(slots=True, repr=False)
class EngineResult(Generic[Answer]):
    """The result of an engine call. Private."""

    answer: Answer | None = None  # None if the call failed
    failure: str = ""  # type name of the exception
    error: LangChainDPError | None = None  # the exception, if it is an error of this package


def call_engine(work: Callable[[], Answer]) -> EngineResult[Answer]:
    """Do the work in a worker thread, in a sealed copy of this context: it is not traced, logged or cached.

    Each thread reuses one worker. A hop costs some ten microseconds, and an engine whose library keeps a team of
    threads per caller always sees the same caller.

    Raises:
        KeyboardInterrupt, SystemExit: The caller's own signals in this thread, and nothing else. The call continues in
            its worker, which finds :data:`langchain_dp.ports.call_abandoned` set.
    """
    worker = getattr(_of_thread, "worker", None)
    if worker is None or worker.process != forks.process():
        worker = _of_thread.worker = _EngineWorker()
    mark = threading.Event()
    results: queue.SimpleQueue[EngineResult[Answer]] = queue.SimpleQueue()
    context = contextvars.copy_context()
    context.run(call_abandoned.set, mark)
    try:
        worker.tasks.put(lambda: results.put(context.run(_result_of, work)))
        while True:
            with contextlib.suppress(queue.Empty):
                # A signal may come just before the wait, and on Windows it ends no wait.
                return results.get(timeout=_PATIENCE)
    except BaseException:
        mark.set()
        _of_thread.worker = None  # this one is busy
        raise


def _result_of(work: Callable[[], Answer]) -> EngineResult[Answer]:
    try:
        with sealed(Level.QUIET):
            return EngineResult(work())
    except BaseException as error:  # libraries may derive from it
        return EngineResult(failure=type(error).__name__, error=error if isinstance(error, LangChainDPError) else None)


class _EngineWorker:
    """A daemon thread that does one task after the other until nobody holds this object."""

    def __init__(self) -> None:
        self.process = forks.process()
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        weakref.finalize(self, self.tasks.put, None).atexit = False
        threading.Thread(target=_work, args=(self.tasks,), name="langchain_dp-engine", daemon=True).start()


def _work(tasks: queue.SimpleQueue[Callable[[], Any] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it would hold private text until the next one arrives


_of_thread = threading.local()
