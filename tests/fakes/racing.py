"""Threads of forked processes that all leave one starting line, and how often each thing happened to them."""

from __future__ import annotations

import collections
import json
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_dp.errors import BudgetExceeded

Attempt = Callable[[int], Iterable[str]]
"""What one thread does, by its number: what happened, try by try."""


def outcome(work: Callable[..., object], *given: Any, done: str = "done", **named: Any) -> str:
    """One try."""
    try:
        work(*given, **named)
    except BudgetExceeded:
        return "refused"
    except Exception as error:
        return repr(error)
    return done


def race_threads(threads: int, attempt: Attempt) -> dict[str, int]:
    """Let threads of this process race."""
    line = threading.Barrier(threads)

    def run(number: int) -> list[str]:
        line.wait(60)
        return list(attempt(number))

    with ThreadPoolExecutor(threads) as pool:
        return dict(collections.Counter(said for each in pool.map(run, range(threads)) for said in each))


def race(processes: int, threads: int, enter: Callable[[int], Attempt]) -> dict[str, int]:
    """Let threads of forked processes race; each process first enters, by its number."""
    gate_read, gate_write = os.pipe()
    made = []
    for number in range(processes):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                attempt = enter(number)
                os.write(write, b"ready\n")
                os.read(gate_read, 1)
                os.write(write, json.dumps(race_threads(threads, attempt)).encode())
            finally:
                os._exit(0)
        os.close(write)
        made.append((pid, os.fdopen(read)))
    for _, pipe in made:
        assert pipe.readline() == "ready\n"
    os.write(gate_write, b"." * processes)
    together: collections.Counter[str] = collections.Counter()
    for pid, pipe in made:
        with pipe:
            together.update(json.load(pipe))
        os.waitpid(pid, 0)
    os.close(gate_read)
    os.close(gate_write)
    return dict(together)
