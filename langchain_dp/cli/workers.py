"""Batches of lines through workers and back in their order: this process, others of this machine, or Ray's."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, TypeVar

from langchain_dp.errors import LangChainDPError, LedgerUnwritable

if TYPE_CHECKING:
    from langchain_dp.rapt import SanitizeBatches
    from langchain_dp.rapt.release import Unit

T = TypeVar("T")
Released = Sequence[tuple[str, ...]]
Start = Callable[["Sequence[Unit]"], Callable[[], Released]]
"""Hands a batch to a worker; what is returned waits for what was released of it."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_AHEAD = 2  # batches that a worker has: one under way, one that waits


def in_order(items: Iterable[tuple[T, Sequence[Unit]]], start: Start, ahead: int) -> Iterator[tuple[T, Released]]:
    """Yield the result of each batch, in order; at most ``ahead`` batches are under way (0: one after the other).

    An empty batch is handed to no worker.
    """
    pending: deque[tuple[T, Callable[[], Released]]] = deque()
    source, stop = iter(items), None
    while stop is None or pending:
        try:
            while stop is None and len(pending) <= ahead:
                one, units = next(source)
                pending.append((one, start(units) if units else list))
        except (StopIteration, LangChainDPError) as error:  # a line that cannot be read: those before it leave first
            stop = error
        if pending:
            first, wait = pending.popleft()
            yield first, wait()
    if isinstance(stop, LangChainDPError):
        raise stop


@contextlib.contextmanager
def processes(sanitize: SanitizeBatches, workers: int) -> Iterator[tuple[Start, int]]:
    """So many processes of this machine, and how many batches to hand out."""
    context = multiprocessing.get_context("spawn")  # threads and connections of this process are not for them
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, context, initializer=_open, initargs=(pickle.dumps(sanitize),)
    )

    def start(units: Sequence[Unit]) -> Callable[[], Released]:
        waiting = pool.submit(_work, units)

        def wait() -> Released:
            try:
                return waiting.result()
            except BrokenProcessPool:
                raise LedgerUnwritable(
                    "Expected the workers to live, but one of them was killed, as happens where memory runs short. The "
                    "same command again goes on from what is in the ledger; lower --workers if it happens again."
                ) from None

        return wait

    try:
        yield start, _AHEAD * workers
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def on_ray(sanitize: SanitizeBatches, workers: int) -> Iterator[tuple[Start, int]]:
    """So many workers of Ray, and how many batches to hand out."""
    from langchain_dp.integrations.ray import ray_workers

    with ray_workers(sanitize.release, workers) as start:
        yield start, _AHEAD * workers


_sanitize: SanitizeBatches | None = None
"""Of a worker's process."""


def _open(pickled: bytes) -> None:
    global _sanitize  # what a pool's initializer leaves for its tasks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is told to all of a terminal: the first process ends the rest
    for threads in _THREADS:  # before numpy is imported: as many threads in every worker as there are cores are slower
        os.environ.setdefault(threads, "1")
    _sanitize = pickle.loads(pickled)  # noqa: S301  # made by the process that started this one


def _work(units: Sequence[Unit]) -> Released:
    assert _sanitize is not None
    return _sanitize.release(units)
