"""Ledger files of an older version, brought to this one in the caller's transaction. Done twice, it changes nothing.

In version 1 the journals of runs lay in files of their own, and plans did not keep what they were made for. The key of
a metric ledger lay in its own file, and its released texts in a file beside it. That file is read and left.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

from langchain_dp.accounting.store.backend import BUSY_SECONDS, Connection
from langchain_dp.accounting.store.key_file import SUFFIX, read_key, write_key
from langchain_dp.accounting.store.schema import METRIC_LEDGER, LedgerKind
from langchain_dp.accounting.store.sqlite_file import make_schema, open_connection
from langchain_dp.errors import LedgerCorrupt, LedgerMismatch

_OLD_SUFFIX = ".releases"
_OLD_ID = 0x4C445052  # "LDPR"


def upgrade(connection: Connection, path: str, kind: LedgerKind) -> None:
    """Bring the ledger at ``path`` to the version of ``kind``, if it is older."""
    if connection.execute("PRAGMA user_version").fetchone()[0] >= kind.version:
        return
    make_schema(connection, kind)
    if kind is METRIC_LEDGER:
        _second_metric(connection, path)
    else:
        _add_column(connection, "plans", "settings TEXT")
        _add_column(connection, "ledger", "key_check BLOB NOT NULL DEFAULT x''")


def _second_metric(connection: Connection, path: str) -> None:
    ledger_id = connection.execute("SELECT ledger_id FROM ledger").fetchone()[0]
    _take_over(connection, path + _OLD_SUFFIX, ledger_id)
    if "key" not in _columns(connection, "ledger"):
        return
    key = connection.execute("SELECT key FROM ledger").fetchone()[0]
    if key is not None and read_key(path + SUFFIX, ledger_id, METRIC_LEDGER.name) != key:
        write_key(path + SUFFIX, ledger_id, key, METRIC_LEDGER.name)
    _add_column(connection, "ledger", "key_given INTEGER NOT NULL DEFAULT 0")
    connection.execute("UPDATE ledger SET key_given = key IS NULL")
    connection.execute("PRAGMA secure_delete = ON")  # or the key would stay in the free space of the file
    connection.execute("ALTER TABLE ledger DROP COLUMN key")


def _columns(connection: Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _add_column(connection: Connection, table: str, column: str) -> None:
    if column.split()[0] not in _columns(connection, table):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _take_over(connection: Connection, path: str, ledger_id: str) -> None:
    if not os.path.exists(path):
        return
    remedy = "Delete it, or restore it: without it, texts that are sanitized again are charged again."
    try:
        with contextlib.closing(open_connection(path)) as old:
            old.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
            sound = old.execute("PRAGMA application_id").fetchone()[0] == _OLD_ID
            checked = old.execute("PRAGMA quick_check(1)").fetchone()[0] if sound else "it is none"
            [beside] = old.execute("SELECT beside FROM ledger").fetchone() if checked == "ok" else [""]
            rows = old.execute("SELECT key, texts FROM releases").fetchall() if beside == ledger_id else []
    except (sqlite3.Error, TypeError) as error:
        checked = str(error)
    if checked != "ok":
        raise LedgerCorrupt(f"The file of releases {path} is damaged: {checked}. {remedy}")
    if beside != ledger_id:
        raise LedgerMismatch(
            f"The file of releases {path} belongs to another ledger than the one beside it. Restore that ledger, or "
            "delete the file if its releases may be forgotten."
        )
    connection.executemany("INSERT INTO releases (key, texts) VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
