"""What a fork must find in order: closed connections, stores that stand still, and locks that a child can take.

SQLite counts its file locks in memory. A child that inherits an open file inherits that count but not the locks,
so even a connection of its own would skip locking, and two processes could write to the file at once. And a lock that
another thread held at the fork stays locked in the child for ever, since that thread did not come along.
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
    """What a fork needs of a store."""

    def before_fork(self) -> None:
        """Take the lock, waiting for a running transaction to end, and close the connection."""
        ...

    def after_fork(self) -> None:
        """Give the lock back, in the parent and in the child."""
        ...


class ForkSafe:
    """Base of what threads share under ``_lock`` and wait for: a child finds the lock open and nobody under way.

    A subclass makes ``_lock``, then calls :meth:`_watch`.
    """

    _lock: Any

    def _watch(self) -> None:
        self._process = process()
        watch(self)

    def _alone(self) -> None:
        """Forget whoever is under way: threads do not come along to a child."""
        raise NotImplementedError

    def before_fork(self) -> None:
        """Keep still, so that a child finds the lock open."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on."""
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
    """What tells this process from its parents and children: whoever finds another one than it kept was forked.

    The number alone does not: a container's first process and a child in a namespace of its own are both number 1. It
    does where a fork went around Python, which the generation then does not count.
    """
    return os.getpid(), _generation


def one_process(what: str) -> Callable[[], None]:
    """Return a check that raises :class:`PlanError` in any other process: one charge pays for one process."""
    here = process()

    def check() -> None:
        if process() != here:
            raise PlanError(f"Expected {what} in one process, but it was forked. Begin it anew.")

    return check


def watch(store: Forkable) -> None:
    """Keep ``store`` safe over every later fork, for as long as it lives."""
    with _gate:
        _live.add(store)
        _handle()


@contextlib.contextmanager
def no_new_store() -> Iterator[list[Forkable]]:
    """All stores that live. For the block, which must be short, no other starts to."""
    with _gate:
        yield list(_live)


def keep_still(owner: Any) -> None:
    """Let every fork wait for who holds ``owner._lock``: what it covers must be whole in a child.

    For locks that are held for moments, while no other of them is taken and no store opened: forks wait in any order.
    """
    with _gate:
        _still.add(owner)
        _handle()


def renew_lock(owner: Any, name: str = "_lock") -> None:
    """Give ``owner`` a new lock of that name in every child, whoever held it. No fork waits for it.

    For locks over what is sound at every moment, such as a cache, also under long work.
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
    """Keep a connection that was forked around Python from ever closing in this process.

    Its close would roll back what the parent was writing at the fork: undo it in the file, and remove the journal.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _gate.acquire()  # held over the fork: no store can start to exist meanwhile
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


_handle()  # from the start: forks are counted, whatever is watched
