"""Files as version 1 of the schema kept them, made from those of today."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

_OLD_RELEASES = """
PRAGMA application_id = 1279545426;
PRAGMA user_version = 1;
CREATE TABLE ledger (only_row INTEGER PRIMARY KEY, ledger_id TEXT NOT NULL, beside TEXT NOT NULL);
CREATE TABLE releases (key BLOB PRIMARY KEY, texts TEXT NOT NULL) WITHOUT ROWID;
"""


def _key_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def old_ledger(path: Path) -> None:
    """Make a closed ledger one of version 1: no journals, no key, no settings of plans."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for trigger in ("one_key", "no_journal_removal"):
            connection.execute(f"DROP TRIGGER {trigger}")
        for table in ("journals", "askers", "forgotten", "answers"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE ledger DROP COLUMN key_check")
        connection.execute("ALTER TABLE plans DROP COLUMN settings")
        connection.execute("PRAGMA user_version = 1")
    _key_file(path).unlink(missing_ok=True)


def old_metric_ledger(path: Path) -> bytes:
    """Make a closed metric ledger one of version 1: its key in the file, its releases in one beside it."""
    key = bytes.fromhex(_key_file(path).read_text().split()[1])
    beside = path.with_name(f"{path.name}.releases")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        ledger_id = connection.execute("SELECT ledger_id FROM ledger").fetchone()[0]
        rows = connection.execute("SELECT key, texts FROM releases WHERE texts IS NOT NULL").fetchall()
        for trigger in ("one_key", "released_once"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DROP TABLE releases")
        connection.execute("ALTER TABLE ledger DROP COLUMN key_given")
        connection.execute("ALTER TABLE ledger ADD COLUMN key BLOB")
        connection.execute("UPDATE ledger SET key = ?", (key,))
        connection.execute("PRAGMA user_version = 1")
    with contextlib.closing(sqlite3.connect(beside)) as connection, connection:
        connection.executescript(_OLD_RELEASES)
        connection.execute("INSERT INTO ledger VALUES (1, 'of its own', ?)", (ledger_id,))
        connection.executemany("INSERT INTO releases VALUES (?, ?)", rows)
    _key_file(path).unlink()
    return key
