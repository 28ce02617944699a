"""Keeps forks safe: closed connections, paused stores, and free locks in a child.

SQLite counts its file locks in memory. A child with an inherited open file inherits that count but not the locks, so
even its own connection would skip locking, and two processes could write at once. A lock that another thread held at
the fork stays locked in the child, since that thread does not exist there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from langchain_dp.errors import PlanError


class Forkable(Protocol):
    """A store that survives forks."""

    def before_fork(self) -> None:
        """Acquire the lock, after any running transaction, and close the connection."""

    def after_fork(self) -> None:
        """Release the lock, in the parent and in the child."""


class ForkSafe:
    """Base of state that threads share under ``_lock``: in a child the lock is free and no call is under way.

    A subclass creates ``_lock``, then calls :meth:`_watch`.
    """

    _lock: Any

    def _watch(self) -> None:
        self._process = process()
        watch(self)

    def _alone(self) -> None:
        """Forget running calls: a child has no other threads."""
        raise NotImplementedError

    def before_fork(self) -> None:
        """Acquire the lock, so that it is free in a child."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Release the lock."""
        if process() != self._process:
            self._process = process()
            self._alone()
        self._lock.release()


_live: weakref.WeakSet[Forkable] = weakref.WeakSet()
_still: weakref.WeakSet[Any] = weakref.WeakSet()
_renewed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_gate = threading.Lock()
_held: list[Callable[[], object]] = []
_watching = False
_generation = 0


def process() -> tuple[int, int]:
    """Identity of this process. A different result than before means a fork.

    The process id alone is not unique between namespaces. The generation does not count forks outside Python.
    """
    return os.getpid(), _generation


def one_process(what: str) -> Callable[[], None]:
    """A check that raises :class:`PlanError` in another process: one charge pays for one process."""
    here = process()

    def check() -> None:
        if process() != here:
            raise PlanError(f"Expected {what} in one process, but it was forked. Start it again.")

    return check


def watch(store: Forkable) -> None:
    """Keep ``store`` safe over every later fork."""
    with _gate:
        _live.add(store)
        _handle()


@contextlib.contextmanager
def no_new_store() -> Iterator[list[Forkable]]:
    """All live stores. No other is created during the block, which must be short."""
    with _gate:
        yield list(_live)


def keep_still(owner: Any) -> None:
    """Let every fork wait for ``owner._lock``, whose state must be consistent in a child.

    Only for short locks under which no other such lock is acquired and no store opened: forks wait in any order.
    """
    with _gate:
        _still.add(owner)
        _handle()


def renew_lock(owner: Any, name: str = "_lock") -> None:
    """Give ``owner`` a new lock in every child. No fork waits for it.

    Only for state that is consistent at every moment, such as a cache, also under long work.
    """
    with _gate:
        _renewed[owner] = name
        _handle()


def _handle() -> None:
    global _watching
    if not _watching and hasattr(os, "register_at_fork"):  # absent where there is no fork
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
        _watching = True


def disown(connection: object) -> None:
    """Never close a connection in a child forked outside Python: that would roll back the parent's transaction."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _gate.acquire()  # held over the fork, so that no store is created
    for store in list(_live):
        store.before_fork()
        _held.append(store.after_fork)
    for owner in list(_still):
        owner._lock.acquire()
        _held.append(owner._lock.release)


def _after() -> None:
    while _held:
        _held.pop()()
    _gate.release()


def _after_in_child() -> None:
    global _generation
    _generation += 1
    for owner, name in list(_renewed.items()):
        setattr(owner, name, threading.Lock())
    _after()


_handle()  # count forks from the start
