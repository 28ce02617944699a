"""A queue of the processes that use one ledger file: first come, first served.

SQLite has no queue: its writers retry, and the luckiest goes next, so a writer beside busy processes can wait for half
a minute. Here processes line up at a lock on an empty file beside the ledger, which the kernel hands over in order of
arrival. Only the first in line tries SQLite's own lock, and leaves the line as soon as it has it, so the next process
wakes up while the first one still writes.

The kernel wakes waiters in order, but a process that asks at that very moment can overtake the one that wakes up. Where
a commit takes less time than waking up, a writer may wait many times the median.

SQLite's own lock alone protects the ledger. A process without the queue still works, with longer waits: on a system or
file system without such locks, or in a folder that takes no file. The kernel frees the lock of a dead process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Thread

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".queue"
"""Ending of the queue's file beside the ledger. It is made when two processes meet, and stays."""

_FLAGS = os.O_RDONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def is_in_use(path: str) -> bool:
    """Return whether processes have met at the ledger at ``path``. Then all line up, or one would overtake others."""
    return fcntl is not None and os.path.lexists(path + SUFFIX)


@contextlib.contextmanager
def turn(path: str, wait: float) -> Iterator[None]:
    """Run the block as the first in line at the ledger at ``path``, or out of turn after ``wait`` seconds."""
    descriptor = None if fcntl is None else _first_in_line(path, wait)
    try:
        yield
    finally:
        if descriptor is not None:
            _leave(descriptor)


def _first_in_line(path: str, wait: float) -> int | None:
    """Return the open file whose lock is held; None without a lock, or not in time."""
    try:
        # Each wait opens the file: locks belong to open files, so a fork never shares one.
        descriptor = os.open(path + SUFFIX, _FLAGS, os.stat(path).st_mode & 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        return descriptor if _waited(descriptor, wait) else None
    except OSError:
        os.close(descriptor)
        return None


def _waited(descriptor: int, wait: float) -> bool:
    """Wait for the lock in a thread, since flock knows no timeout. After ``wait`` the thread closes the file."""
    waiter: Future[None] = Future()

    def block() -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if waiter.set_running_or_notify_cancel():
            waiter.set_result(None)
        else:
            _leave(descriptor)

    try:
        Thread(target=block, name="ledger-queue", daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter is ending
        os.close(descriptor)
        return False
    try:
        waiter.result(wait)
    except TimeoutError:
        return not waiter.cancel()
    except BaseException:  # Ctrl-C
        if not waiter.cancel():
            _leave(descriptor)
        raise
    return True


def _leave(descriptor: int) -> None:
    # Unlocked before it is closed: a child that was forked around Python keeps the file open.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
