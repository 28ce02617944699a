"""Sanitised texts that have left, kept so that the same text need not be released again.

They are public output, but stored as carefully as the ledger beside which they lie: in a file of their own, readable
by its owner alone, under keyed hashes. Losing it costs budget and leaks nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Mapping, Sequence

from langchain_dp import _forks
from langchain_dp.accounting._connection import Database
from langchain_dp.accounting._ledger_file import FileKind
from langchain_dp.errors import LedgerCorrupt, LedgerMismatch

SUFFIX = ".releases"
"""What is added to the path of a ledger."""

_AT_ONCE = 500

_TABLES = """
CREATE TABLE ledger (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    ledger_id TEXT NOT NULL,
    beside TEXT NOT NULL
);
CREATE TABLE releases (key BLOB PRIMARY KEY, texts TEXT NOT NULL) WITHOUT ROWID;
"""

RELEASES = FileKind(
    name="file of releases",
    opener="MetricLedger(limit, path)",
    restore="Delete it, or restore it: without it, texts that are sanitised again are charged again.",
    application_id=0x4C445052,  # "LDPR"
    version=1,
    tables=_TABLES,
    owner_only=True,
)


class ReleasedTexts:
    """Released texts by keyed hash. Thread-safe; the first value of a key stays, whoever else writes it.

    Args:
        ledger_path: The ledger beside which the file lies; None keeps everything in memory.
        ledger_id: The ledger whose key made the hashes.

    Raises:
        LedgerMismatch: The file lies beside a new ledger, with which it has nothing in common.
        LedgerError: And its kinds, for a file that is damaged or cannot be written.
    """

    def __init__(self, ledger_path: str | None, ledger_id: str | None) -> None:
        self._memory: dict[bytes, tuple[str, ...]] = {}
        self._lock = threading.Lock()
        _forks.renew_lock(self)
        self._file = None if ledger_path is None else _File(ledger_path + SUFFIX, str(ledger_id))

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, ...]]:
        """What was released under these keys; keys without a release are left out."""
        if self._file is not None:
            return self._file.get(keys)
        with self._lock:
            return {key: self._memory[key] for key in keys if key in self._memory}

    def put(self, released: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, tuple[str, ...]]:
        """Store what was released and return what now stands under these keys: an earlier value wins."""
        if self._file is not None:
            return self._file.put(released)
        with self._lock:
            return {key: self._memory.setdefault(key, texts) for key, texts in released.items()}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class _File(Database):
    def __init__(self, path: str, beside: str) -> None:
        super().__init__(os.path.realpath(path), None, RELEASES)
        self._beside = beside
        try:
            self.begin(self._insert, self._verify)
        except BaseException:
            self.close()
            raise

    def _insert(self, connection: sqlite3.Connection) -> str:
        own_id = uuid.uuid4().hex
        connection.execute("INSERT INTO ledger (only_row, ledger_id, beside) VALUES (1, ?, ?)", (own_id, self._beside))
        return own_id

    def _verify(self, connection: sqlite3.Connection, path: str) -> None:
        checked = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if checked != "ok":
            raise LedgerCorrupt(f"The file of releases {path} is damaged: {checked}. {RELEASES.restore}")
        if connection.execute("SELECT beside FROM ledger").fetchone()[0] != self._beside:
            raise LedgerMismatch(
                f"The file of releases {path} belongs to another ledger than the one beside it. Restore that ledger, "
                "or delete the file if its releases may be forgotten."
            )

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, ...]]:
        found: dict[bytes, tuple[str, ...]] = {}
        with self.transaction(write=False) as connection:
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = connection.execute(f"SELECT key, texts FROM releases WHERE key IN ({marks})", some)  # noqa: S608  # question marks only
                found.update((key, tuple(json.loads(texts))) for key, texts in rows)
        return found

    def put(self, released: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, tuple[str, ...]]:
        with self.transaction(write=True) as connection:
            connection.executemany(
                "INSERT INTO releases (key, texts) VALUES (?, ?) ON CONFLICT DO NOTHING",
                [(key, json.dumps(texts)) for key, texts in released.items()],
            )
        return self.get(list(released))
