"""Calls of an engine in a worker thread: only the caller's own signals interrupt the caller.

An engine's SystemExit may depend on a record, which a charged release must not reveal.
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
    """The private result of an engine call."""

    answer: Answer | None = None  # None if the call failed
    failure: str = ""  # type name of the exception
    error: LangChainDPError | None = None  # the exception, if it is an error of this package


def call_engine(work: Callable[[], Answer]) -> EngineResult[Answer]:
    """Call an engine in this thread's worker, in a sealed context."""
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
    """A daemon thread that ends with this object."""

    def __init__(self) -> None:
        self.process = forks.process()
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        weakref.finalize(self, self.tasks.put, None).atexit = False
        threading.Thread(target=_work, args=(self.tasks,), name="langchain_dp-engine", daemon=True).start()


def _work(tasks: queue.SimpleQueue[Callable[[], Any] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds private text


_of_thread = threading.local()
