"""One connection to one ledger file per process: locked, checked before each use, closed before each fork.

Threads queue here and not in SQLite's busy loop. SQLite counts its file locks in memory, so a child that inherited
an open file would believe in locks that only its parent holds: see ``_forks.py``.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator

from langchain_dp.accounting import _forks
from langchain_dp.accounting._key_file import bound_key, new_key
from langchain_dp.accounting._ledger_file import (
    LEDGER,
    FileKind,
    create_file,
    inspect_file,
    open_connection,
    refusal,
    verify_header,
    verify_journal,
)
from langchain_dp.errors import LedgerCorrupt, LedgerError, LedgerUnwritable

BUSY_SECONDS = 30.0
"""How long a spend waits for the file's lock: long enough for 64 racers that fsync one after the other."""


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
        _forks.watch(self)

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
    def _exclusive(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise LedgerUnwritable(
                f"Expected the {self._kind.name} to be free within {BUSY_SECONDS:g} s, but other threads kept it. "
                "Nothing was charged: try again, with fewer threads."
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction: durable when the block is left, rolled back when it raises.

        Raises:
            LedgerError: And its kinds, for whatever the database refuses.
        """
        with self._exclusive():
            try:
                connection = self._connect()
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                self._check_place(connection)
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._abandon(drop=True)
                raise refusal(error, self.path, BUSY_SECONDS, self._kind) from error
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

    def _connect(self) -> sqlite3.Connection:
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
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        assert self.path is not None  # the memory store has its connection from the start
        before = _place(self.path)
        connection = open_connection(self.path, BUSY_SECONDS)
        try:
            found = verify_header(connection, self.path, self._kind)
            if _place(self.path) != before or self.ledger_id not in (None, found):
                raise LedgerError(f"The file {self.path} was replaced by another. Restore the file that was there.")
        except BaseException:
            connection.close()
            raise
        self.ledger_id, self._place = found, before
        return connection

    def _check_place(self, connection: sqlite3.Connection) -> None:
        """Refuse when the path no longer leads to the file that this connection writes to, or its journal is off."""
        if self.path is None:
            return
        if _place(self.path) != self._place:
            raise LedgerError(
                f"The {self._kind.name} {self.path} was replaced while it was in use. Stop, and restore the file that "
                "was there."
            )
        verify_journal(connection, self.path, self._kind)

    def close(self) -> None:
        """Close the connection. Every later use of this ledger object is refused."""
        if self._pid != os.getpid() and self._connection is not None:
            _forks.disown(self._connection)
            self._connection, self._closed = None, True
            return
        with self._exclusive():
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        """Wait for a running transaction and close the connection; see ``_forks.py``."""
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
