"""Closed connections and free locks across forks: a child would skip SQLite's file locks."""

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

    def before_fork(self) -> None: ...

    def after_fork(self) -> None: ...


class ForkSafe:
    """Base of state under ``_lock``, free and idle in a child. Create ``_lock`` before :meth:`_watch`."""

    _lock: Any

    def _watch(self) -> None:
        self._process = process()
        watch(self)

    def _alone(self) -> None:
        """Forget running calls."""
        raise NotImplementedError

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self) -> None:
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
    """Return an identity that changes with a fork."""
    return os.getpid(), _generation


def one_process(what: str) -> Callable[[], None]:
    here = process()

    def check() -> None:
        if process() != here:
            raise PlanError(f"Expected {what} in one process, but it was forked. Start it again.")

    return check


def watch(store: Forkable) -> None:
    with _gate:
        _live.add(store)
        _handle()


@contextlib.contextmanager
def no_new_store() -> Iterator[list[Forkable]]:
    with _gate:
        yield list(_live)


def keep_still(owner: Any) -> None:
    """Let every fork wait for ``owner._lock``.

    Only for short locks without nested ones: forks wait in any order.
    """
    with _gate:
        _still.add(owner)
        _handle()


def renew_lock(owner: Any, name: str = "_lock") -> None:
    """Give ``owner`` a new lock in every child. Its state must always be consistent."""
    with _gate:
        _renewed[owner] = name
        _handle()


def _handle() -> None:
    global _watching
    if not _watching and hasattr(os, "register_at_fork"):  # absent where there is no fork
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
        _watching = True


def disown(connection: object) -> None:
    """Closing it in a child would roll back the parent's transaction."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _gate.acquire()  # no new store during the fork
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
