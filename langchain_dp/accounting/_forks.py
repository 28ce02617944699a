"""Closes connections before a fork, and keeps every store still while it happens.

SQLite counts its file locks in memory. A child that inherits an open file inherits that count but not the locks,
so even a connection of its own would skip locking, and two processes could write to the file at once.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What a fork needs of a store."""

    def before_fork(self) -> None:
        """Take the lock, waiting for a running transaction to end, and close the connection."""
        ...

    def after_fork(self) -> None:
        """Give the lock back, in the parent and in the child."""
        ...


_live: weakref.WeakSet[Forkable] = weakref.WeakSet()
_gate = threading.Lock()
_held: list[Forkable] = []
_watching = False


def watch(store: Forkable) -> None:
    """Keep ``store`` safe over every later fork, for as long as it lives."""
    global _watching
    with _gate:
        _live.add(store)
        if not _watching and hasattr(os, "register_at_fork"):  # absent where there is no fork
            os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
            _watching = True


def disown(connection: sqlite3.Connection) -> None:
    """Keep a connection that was forked around Python from ever closing in this process.

    Its close would roll back what the parent was writing at the fork: undo it in the file, and remove the journal.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _before() -> None:
    _gate.acquire()  # held over the fork: no store can start to exist meanwhile
    for store in list(_live):
        store.before_fork()
        _held.append(store)


def _after() -> None:
    while _held:
        _held.pop().after_fork()
    _gate.release()
