"""One connection to one ledger file per process: locked, checked before each use, closed before each fork.

Threads queue here and not in SQLite's busy loop. SQLite counts its file locks in memory, so a child that inherited
an open file would believe in locks that only its parent holds: see ``forks.py``.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from langchain_dp._util import forks
from langchain_dp.accounting.store.file import (
    LEDGER,
    FileKind,
    create_file,
    held,
    inspect_file,
    open_connection,
    refusal,
    verify_header,
    verify_journal,
)
from langchain_dp.accounting.store.key_file import bound_key, new_key
from langchain_dp.errors import LedgerCorrupt, LedgerError, LedgerMismatch, LedgerUnwritable

BUSY_SECONDS = 30.0
"""How long a spend waits for the file's lock: long enough for 64 racers that fsync one after the other."""

FIRST_NAP, LONGEST_NAP = 0.0005, 0.004
"""Seconds between two tries for the file's lock, at most. SQLite's own waits grow to a tenth of a second: two writers
that spend without a pause leave gaps so short that a third one, asking so rarely, missed them for half a minute."""

_JITTER = random.SystemRandom()  # a generator with a state would be the same in parent and child after a fork
T = TypeVar("T")


class Database:
    """Transactions on one ledger file, or on a memory that only this process may use.

    Args:
        path: Real path of the file, or None for memory.
        ledger_id: The ledger that must be found there, if it is known already.
        kind: Which kind of file it is.
    """

    def __init__(self, path: str | None, ledger_id: str | None, kind: FileKind = LEDGER) -> None:
        self.path = path
        self._kind = kind
        self.ledger_id = ledger_id
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._place: tuple[int, int] | None = None
        self._closed = False
        self._key: bytes | None = None
        self._newest_entry = 0
        if path is None:
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._connection.executescript(kind.schema)
        forks.watch(self)

    def begin(
        self,
        fill: Callable[[sqlite3.Connection], str],
        verify: Callable[[sqlite3.Connection, str], None],
    ) -> None:
        """Find the file or create it, and see that it can be trusted and written, before its first use.

        Args:
            fill: Writes the one row of a new file and returns the id of it.
            verify: Raises LedgerError when the contents of the file at a path are not what they must be, in this
                version or an older one.
        """
        if self.path is None:
            with self.transaction(write=True) as connection:
                self.ledger_id = fill(connection)
            return
        if not inspect_file(self.path, self._kind):
            if self.ledger_id is not None:
                raise LedgerError(
                    f"The {self._kind.name} {self.path} is gone. Restore the file; a new one would forget its spends."
                )
            create_file(self.path, fill, self._kind)
            inspect_file(self.path, self._kind)
        with self.transaction(write=False) as connection:
            verify(connection, self.path)
        with self.transaction(write=True) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version < self._kind.version:
                self._kind.migrate(connection, version)
                connection.execute(f"PRAGMA user_version = {self._kind.version}")
            # A real, synced write: a file that cannot be written must say so here, not at the first release.
            connection.execute("UPDATE ledger SET only_row = only_row")

    def key(self) -> bytes:
        """The key of this ledger's hashes, made at its first use: see ``_key_file.py``. In memory it dies with it."""
        if self._key is None:
            if self.path is None:
                self._key = new_key()
            else:
                with self.transaction(write=True) as connection:
                    self._key = bound_key(connection, self.path, str(self.ledger_id), self._kind.name)
        return self._key

    def check_newest(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that lacks entries which this process has seen: what they paid for may not be kept or given."""
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM entries").fetchone()[0]
        if newest < self._newest_entry:
            raise self.forgotten()

    def forgotten(self) -> LedgerCorrupt:
        """The error of a file in whose place an older copy was put."""
        return LedgerCorrupt(
            f"The {self._kind.name} {self.path} forgot entries that this process has seen: an older copy was put in "
            "its place. Restore the newest copy; until then nothing may be released."
        )

    @contextlib.contextmanager
    def _exclusive(self, wait: float) -> Iterator[None]:
        if not self._lock.acquire(timeout=wait):
            raise LedgerUnwritable(
                f"Expected the {self._kind.name} to be free within {wait:g} s, but other threads kept it. "
                "Nothing was charged: try again, with fewer threads."
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def transaction(self, *, write: bool, wait: float | None = None) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction: durable when the block is left, rolled back when it raises.

        Args:
            write: Whether the block writes.
            wait: Seconds to wait for others; ``BUSY_SECONDS`` by default.

        Raises:
            LedgerError: And its kinds, for whatever the database refuses.
        """
        wait = BUSY_SECONDS if wait is None else wait
        with self._exclusive(wait):
            try:
                connection = self._connect(wait)
                found = _patiently(lambda: _begin(connection, write), wait)
                self._check_place(connection, found)
                yield connection
                # Who waits here for readers to end keeps new ones out, so that no reader starves a writer.
                _patiently(lambda: connection.execute("COMMIT"), wait)
            except sqlite3.Error as error:
                self._abandon(drop=True)
                raise refusal(error, self.path, wait, self._kind) from error
            except BaseException:
                self._abandon(drop=False)
                raise

    def _abandon(self, *, drop: bool) -> None:
        """Roll back; after a database error also drop the connection, whose state is no longer certain."""
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            return
        failed = False
        try:
            connection.rollback()
        except sqlite3.Error:
            failed = True
        if self.path is not None and (drop or failed):
            self._connection = None
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self, wait: float) -> sqlite3.Connection:
        if self._closed:
            raise LedgerError(f"The {self._kind.name} is closed. Open it again with {self._kind.opener}.")
        if self._pid != os.getpid():
            if self.path is None:
                raise LedgerError(
                    f"An in-memory {self._kind.name} was carried into a forked process, where its budget could be "
                    f"spent twice. Share one budget between processes by a file: {self._kind.opener}."
                )
            if self._connection is not None:  # forked by code that runs no fork handlers
                raise LedgerError("The process was forked around Python. Open the file anew in the child.")
            self._pid = os.getpid()
        if self._connection is None:
            self._connection = self._open(wait)
        return self._connection

    def _open(self, wait: float) -> sqlite3.Connection:
        path = self.path
        assert path is not None  # the memory store has its connection from the start
        before = _place(path)
        connection = _patiently(lambda: open_connection(path), wait)
        try:
            found = _patiently(lambda: verify_header(connection, path, self._kind), wait)
            if _place(path) != before or self.ledger_id not in (None, found):
                raise LedgerError(f"The file {path} was replaced by another. Restore the file that was there.")
        except BaseException:
            connection.close()
            raise
        self.ledger_id, self._place = found, before
        return connection

    def _check_place(self, connection: sqlite3.Connection, found: str | None) -> None:
        """Refuse when the path leads to another file now, or the file holds another ledger, or its journal is off."""
        if self.path is None:
            return
        if found != self.ledger_id:
            raise LedgerMismatch(
                f"The {self._kind.name} {self.path} was replaced by another one while it was in use. Nothing was "
                "charged: stop, and restore the file that was there."
            )
        if _place(self.path) != self._place:
            raise LedgerError(
                f"The {self._kind.name} {self.path} was replaced while it was in use. Stop, and restore the file that "
                "was there."
            )
        verify_journal(connection, self.path, self._kind)

    def close(self) -> None:
        """Close the connection. Every later use of this ledger object is refused."""
        if self._pid != os.getpid() and self._connection is not None:
            forks.disown(self._connection)
            self._connection, self._closed = None, True
            return
        with self._exclusive(BUSY_SECONDS):
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        """Wait for a running transaction and close the connection; see ``forks.py``."""
        self._lock.acquire()
        if self.path is not None and self._connection is not None and self._pid == os.getpid():
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def after_fork(self) -> None:
        """Let transactions start again, in the parent and in the child."""
        self._lock.release()

    def __del__(self) -> None:
        # Nobody else can hold the lock here; half-built objects may lack it, and at exit modules are gone one by one.
        try:  # noqa: SIM105  # contextlib may be gone, too
            self.close()
        except Exception:  # noqa: S110  # nobody is left to be told
            pass


def _patiently(step: Callable[[], T], wait: float) -> T:
    """Return what ``step`` returns, trying again at short random intervals while another process holds the lock."""
    end, nap = time.monotonic() + wait, FIRST_NAP
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not held(error) or time.monotonic() >= end:
                raise
        time.sleep(_JITTER.uniform(0, nap))
        nap = min(2 * nap, LONGEST_NAP)


def _begin(connection: sqlite3.Connection, write: bool) -> str | None:
    """Begin a transaction that has its lock, and return the id of the ledger in it."""
    # SQLite takes pages for fresh whenever the file's change counter is what it was, and a copy put in its place may
    # have come to the same number: forget them all, and read the few that are needed.
    connection.execute("PRAGMA shrink_memory")
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        row = connection.execute("SELECT ledger_id FROM ledger").fetchone()
    except BaseException:
        connection.rollback()
        raise
    return None if row is None else str(row[0])


def _place(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise LedgerError(
            f"The file {path} vanished while the ledger was in use. Nothing may be released: restore it."
        ) from None
    except OSError as error:
        raise LedgerUnwritable(
            f"The file {path} cannot be reached: {error.strerror}. Make its folder readable."
        ) from error
    return found.st_dev, found.st_ino
