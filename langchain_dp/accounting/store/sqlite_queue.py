"""A fair queue of the processes that use one ledger file.

Each process locks the byte of its number, and waits for the byte before it. SQLite's own lock still protects the
ledger.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Thread

try:
    from fcntl import F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_UNLCK, F_WRLCK, fcntl
except ImportError:  # not Linux
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".queue"

_OPTIONS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_COUNTER, _NUMBERS = 1 << 62, 1 << 61  # the byte whose lock protects the last number, and how many numbers there are


def is_in_use(path: str) -> bool:
    """Return whether processes have met here. Then all must line up."""
    return fcntl is not None and os.path.lexists(path + SUFFIX)


@contextlib.contextmanager
def turn(path: str, wait: float) -> Iterator[None]:
    """Run the block as the first in line, or after ``wait`` seconds."""
    descriptor = None if fcntl is None else _first_in_line(path, wait)
    try:
        yield
    finally:
        if descriptor is not None:
            _leave(descriptor)


def _first_in_line(path: str, wait: float) -> int | None:
    try:
        descriptor = _opened(path)  # by each wait: locks belong to open files, so a fork never shares one
    except OSError:
        return None
    number = None
    try:
        number = _take_number(descriptor, F_OFD_SETLK)
        _lock(descriptor, F_OFD_SETLK, F_RDLCK, number - 1)
        return descriptor
    except BlockingIOError:
        return descriptor if _waited(descriptor, number, wait) else None
    except OSError:
        os.close(descriptor)
        return None
    except BaseException:  # Ctrl-C
        _leave(descriptor)
        raise


def _opened(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.open(path + SUFFIX, _OPTIONS)
    descriptor = os.open(path + SUFFIX, _OPTIONS | os.O_CREAT)
    with contextlib.suppress(OSError):  # another user made it
        os.fchmod(descriptor, os.stat(path).st_mode & 0o666)  # whoever shares the ledger shares its queue
    return descriptor


def _lock(descriptor: int, command: int, kind: int, byte: int, length: int = 1) -> None:
    """Lock or unlock bytes. Length 0 takes all from ``byte`` on."""
    fcntl(descriptor, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, length, 0))


def _take_number(descriptor: int, command: int) -> int:
    _lock(descriptor, command, F_WRLCK, _COUNTER)
    try:
        number = int.from_bytes(os.pread(descriptor, 8, 0)) % _NUMBERS + 1
        os.pwrite(descriptor, number.to_bytes(8), 0)
        _lock(descriptor, command, F_WRLCK, number)
    finally:
        _lock(descriptor, command, F_UNLCK, _COUNTER)
    return number


def _waited(descriptor: int, number: int | None, wait: float) -> bool:
    waiter: Future[None] = Future()

    def block() -> None:
        with contextlib.suppress(OSError):
            taken = _take_number(descriptor, F_OFD_SETLKW) if number is None else number
            _lock(descriptor, F_OFD_SETLKW, F_RDLCK, taken - 1)
        if waiter.set_running_or_notify_cancel():
            waiter.set_result(None)
        else:
            _leave(descriptor)

    try:
        Thread(target=block, name="ledger-queue", daemon=True).start()
        waiter.result(wait)
    except RuntimeError:  # no more threads, or the interpreter is ending
        os.close(descriptor)
        return False
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
        _lock(descriptor, F_OFD_SETLK, F_UNLCK, 0, length=0)
    os.close(descriptor)
