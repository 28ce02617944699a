"""Work in a forked child."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable


def in_child(work: Callable[[], str], *, bare: bool = False) -> str:
    """Run ``work`` in a forked child and return what it returned; ``bare`` forks without Python's fork handlers."""
    read, write = os.pipe()
    pid = ctypes.PyDLL(None).fork() if bare else os.fork()
    if pid == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def end_of(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child; its exit code: 0 if it returned, 1 if it raised, and -9 if it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
