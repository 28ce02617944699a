"""Ledgers in SQLite files or memory."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import re
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from langchain_dp.accounting.store.backend import Backend, Connection, LockUnavailable
from langchain_dp.accounting.store.key_file import SUFFIX
from langchain_dp.accounting.store.sqlite_file import (
    create_file,
    held,
    inspect_file,
    make_schema,
    open_connection,
    refusal,
    verify_header,
    verify_journal,
)
from langchain_dp.accounting.store.sqlite_queue import is_in_use, turn
from langchain_dp.errors import LedgerError, LedgerMismatch, LedgerUnwritable

FIRST_NAP, LONGEST_NAP = 0.0005, 0.004
"""Most seconds between two tries for the file's lock."""

_JITTER = random.SystemRandom()  # a generator with a state would be the same in parent and child after a fork
_LONGEST = 60  # letters of a run's name in a file's
T = TypeVar("T")


class SQLite(Backend):
    """Transactions on one file, or in memory."""

    errors = sqlite3.Error
    refusal = staticmethod(refusal)
    lost_key = "Bring {} back from the backup that holds both files."
    _place: tuple[int, int] | None = None

    def _memory(self) -> Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        make_schema(connection, self.kind)
        return connection

    def _find_or_make(self, fill: Callable[[Connection], str]) -> None:
        path = self._file()
        if not inspect_file(path, self.kind):
            if self.ledger_id is not None:
                raise LedgerError(
                    f"The {self.kind.name} {path} is gone. Restore the file. A new one would forget its spends."
                )
            create_file(path, fill, self.kind)
            inspect_file(path, self.kind)

    def _file(self) -> str:
        assert self.path is not None  # the memory has its connection from the start
        return self.path

    def _open(self, wait: float) -> Connection:
        path = self._file()
        before = place_of(path)
        connection = self._in_turn(lambda: open_connection(path, reading=self.reading), wait)
        try:
            ledger_id = self._in_turn(lambda: verify_header(connection, path, self.kind), wait)
            if place_of(path) != before or self.ledger_id not in (None, ledger_id):
                raise LedgerError(f"The file {path} was replaced by another. Restore the file that was there.")
        except BaseException:
            connection.close()
            raise
        self.ledger_id, self._place = ledger_id, before
        return connection

    def _begin(self, write: bool, wait: float) -> Connection:
        """Refuse a replaced file or a changed journal mode."""
        connection = self._connect(wait)
        ledger_id = self._in_turn(functools.partial(_begun, connection, write), wait, write=write)
        if self.path is None:
            return connection
        if ledger_id != self.ledger_id:
            raise LedgerMismatch(
                f"The {self.kind.name} {self.path} was replaced by another one while it was in use. Nothing was "
                "charged: stop, and restore the file that was there."
            )
        if place_of(self.path) != self._place:
            raise LedgerError(
                f"The {self.kind.name} {self.path} was replaced while it was in use. Stop, and restore the file that "
                "was there."
            )
        verify_journal(connection, self.path, self.kind)
        return connection

    def _in_turn(self, step: Callable[[], T], wait: float, *, write: bool = False) -> T:
        """Run ``step``. Only readers may go before waiting processes."""
        if self.path is None:
            return step()
        end = time.monotonic() + wait
        if not write or not is_in_use(self.path):
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not held(error) or not wait:
                    raise
        # A queue behind a stopped process does not move, and must not cost the whole time.
        with turn(self.path, wait / 2):
            return _patiently(step, end - time.monotonic())

    def _commit(self, connection: Connection, wait: float) -> None:
        # A writer that waits here keeps new readers out, so that they cannot starve it.
        _patiently(functools.partial(connection.execute, "COMMIT"), wait)

    def damage(self, connection: Connection, *, pages: bool) -> str:
        checked = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]) if pages else "ok"
        if checked != "ok":
            return checked
        triggers = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
        gone = sorted({rule.name for rule in self.kind.rules} - triggers)
        return f"its rule {gone[0]} is gone" if gone else ""

    @property
    def key_file(self) -> str:
        return self._file() + SUFFIX

    def _hold(self, name: str) -> Callable[[], None]:
        """Lock a file beside the ledger. Death frees it."""
        connection = sqlite3.connect(
            f"{beside(self._file(), name)}.lock", timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            connection.close()
            raise LockUnavailable(*() if held(error) else ("its folder is not writable: make it so",)) from None
        except BaseException:
            connection.close()
            raise
        return connection.close

    def newest_id(self, connection: Connection) -> int:
        rows = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries'")
        return int(rows.fetchone()[0])


def _patiently(step: Callable[[], T], wait: float) -> T:
    end, nap = time.monotonic() + wait, FIRST_NAP
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not held(error) or time.monotonic() >= end:
                raise
        time.sleep(_JITTER.uniform(0, nap))
        nap = min(2 * nap, LONGEST_NAP)


def _begun(connection: Connection, write: bool) -> str | None:
    # Forget cached pages: SQLite would reuse them for a copied file with the same change counter.
    connection.execute("PRAGMA shrink_memory")
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        row = connection.execute("SELECT ledger_id FROM ledger").fetchone()
    except BaseException:
        connection.rollback()
        raise
    return None if row is None else str(row[0])


def beside(path: str, name: str) -> str:
    short = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if short != name or len(short) > _LONGEST:
        short = f"{short[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{path}.{short}.run"


def place_of(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise LedgerError(
            f"The file {path} vanished while the ledger was in use. Nothing may be released: restore it."
        ) from None
    except OSError as error:
        raise LedgerUnwritable(
            f"The file {path} cannot be reached: {error.strerror}. Make its folder readable."
        ) from error
    return status.st_dev, status.st_ino
