"""Sanitized texts that have left, kept in their ledger so that the same text need not be released again.

That a text is being released is written with its charge; what it was released as, when it is drawn; and only then may
it leave. A charge without a text is one whose outcome nobody knows: the text is charged again and drawn anew. Which
text belongs to which charge is not kept: whoever sees the file cannot sort texts by their users.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from langchain_dp.accounting.store.connection import BUSY_SECONDS, Database
from langchain_dp.accounting.store.file import ONE_KEY, add_column, open_connection
from langchain_dp.accounting.store.key_file import read_key, write_key
from langchain_dp.errors import LedgerCorrupt, LedgerMismatch

# One statement each: what is new since version 1, for new files and for those that are migrated.
RELEASES = (
    ONE_KEY,
    "CREATE TABLE IF NOT EXISTS releases (key BLOB PRIMARY KEY, texts TEXT) WITHOUT ROWID",
    "CREATE TRIGGER IF NOT EXISTS released_once BEFORE UPDATE ON releases WHEN OLD.texts IS NOT NULL "
    "BEGIN SELECT RAISE(ABORT, 'what was released stays'); END",
)

_OLD_SUFFIX = ".releases"
_OLD_ID = 0x4C445052  # "LDPR"
_AT_ONCE = 500


class AlreadyReleased(Exception):  # no error: whoever asked looks it up
    """Nothing was charged: a text that was to be charged has been released meanwhile."""


class ReleasedTexts:
    """Released texts by keyed hash. Thread-safe; the first value of a key stays, whoever else writes it.

    Args:
        ledger: Whose key made the hashes, and in which they are kept.
    """

    def __init__(self, ledger: Database) -> None:
        self._ledger = ledger

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, ...]]:
        """What was released under these keys; keys without a release are left out."""
        with self._ledger.transaction(write=False) as connection:
            return dict(_released(connection, keys))

    def put(self, released: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, tuple[str, ...]]:
        """Store what was drawn and return what now stands under these keys: an earlier value wins.

        Raises:
            LedgerCorrupt: A key was never charged, or its charge is gone. What was drawn may not leave.
        """
        with self._ledger.transaction(write=True) as connection:
            self._ledger.check_newest(connection)
            connection.executemany(
                "UPDATE releases SET texts = ? WHERE key = ? AND texts IS NULL",
                [(json.dumps(texts), key) for key, texts in released.items()],
            )
            found = dict(_released(connection, list(released)))
            if found.keys() != released.keys():
                raise self._ledger.forgotten()
        return found


def claim(connection: sqlite3.Connection, keys: Sequence[bytes]) -> None:
    """Note that these are being released, in the transaction that charges them.

    Raises:
        AlreadyReleased: One of them has been, by another process: to charge it would be to pay for nothing.
    """
    if next(_released(connection, keys), None):
        raise AlreadyReleased
    connection.executemany("INSERT INTO releases (key) VALUES (?) ON CONFLICT DO NOTHING", [(key,) for key in keys])


def _released(connection: sqlite3.Connection, keys: Sequence[bytes]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        rows = connection.execute(
            f"SELECT key, texts FROM releases WHERE texts IS NOT NULL AND key IN ({marks})",  # noqa: S608  # question marks only
            some,
        )
        yield from ((key, tuple(json.loads(texts))) for key, texts in rows)


def migrate(connection: sqlite3.Connection, from_version: int) -> None:
    """Bring a metric ledger of an older version to this one. Done twice, it changes nothing.

    In version 1 the key lay in the ledger's own file, and the texts in a file beside it. That file is read and left.
    """
    if from_version < 2:
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        ledger_id = connection.execute("SELECT ledger_id FROM ledger").fetchone()[0]
        for statement in RELEASES:
            connection.execute(statement)
        _take_over(connection, path + _OLD_SUFFIX, ledger_id)
        if "key" not in {row[1] for row in connection.execute("PRAGMA table_info(ledger)")}:
            return
        key = connection.execute("SELECT key FROM ledger").fetchone()[0]
        if key is not None and read_key(path, ledger_id, _KIND) != key:
            write_key(path, ledger_id, key, _KIND)
        add_column(connection, "ledger", "key_given INTEGER NOT NULL DEFAULT 0")
        connection.execute("UPDATE ledger SET key_given = key IS NULL")
        connection.execute("PRAGMA secure_delete = ON")  # or the key would stay in the free space of the file
        connection.execute("ALTER TABLE ledger DROP COLUMN key")


_KIND = "metric ledger"


def _take_over(connection: sqlite3.Connection, path: str, ledger_id: str) -> None:
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
