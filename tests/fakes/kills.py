"""Processes that work for ever and say so each time, until they are killed with no chance to clean up."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def workers(
    opened: Callable[[], Callable[[], object]], count: int = 1, threads: int = 1
) -> Iterator[list[tuple[int, int]]]:
    """Forked processes, each of which opens a worker and calls it without a pause, in so many threads.

    Yields:
        The id of each, and a pipe that gets a byte each time its worker has returned.
    """
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    _work(opened(), write, threads)
                finally:
                    os._exit(1)
            os.close(write)
            made.append((pid, read))
        yield made
    finally:
        for pid, read in made:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            os.close(read)


def _work(work: Callable[[], object], told: int, threads: int) -> None:
    def run() -> None:
        try:
            while True:
                work()
                os.write(told, b".")  # only now does anything leave the process
        finally:
            os._exit(1)

    for _ in range(threads - 1):
        threading.Thread(target=run).start()
    run()


def told_before_kill(opened: Callable[[], Callable[[], object]], *, after: int, threads: int = 1) -> int:
    """Start a worker and kill it once it has told ``after`` times; how often it told, also just before the kill."""
    with workers(opened, threads=threads) as [(pid, read)]:
        told = 0
        while told < after and (more := os.read(read, 1)):
            told += len(more)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(read, 65536):
            told += len(more)
        return told


def killed_often(
    opened: Callable[[], Callable[[], object]],
    used: Callable[[], int],
    times: int,
    dice: random.Random,
    threads: int = 1,
) -> tuple[int, int]:
    """Kill workers at random moments: each use that one told of must be there. How many were told, and are there."""
    before = told_of = 0
    for _ in range(times):
        told = told_before_kill(opened, after=dice.randrange(8 * threads), threads=threads)
        after = used()
        # One of each thread may have been on disk and not yet told: budget lost, nothing leaked.
        assert before + told <= after <= before + told + threads
        told_of, before = told_of + told, after
    assert before > 0
    return told_of, before
