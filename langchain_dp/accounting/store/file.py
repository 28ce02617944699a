"""The file of a ledger: how it comes into being whole, and what must hold before it is trusted.

SQLite keeps a rollback journal here, not a log of writes still to be merged: every acknowledged spend is in the one
file, so a copy of it forgets none, and locks sit on the file itself, whatever path it is reached by. A journal beside
the file exists only while a transaction runs, or after a crash in one; SQLite then takes back the unfinished spend.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import sqlite3
import stat
import uuid
from collections.abc import Callable

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.errors import LedgerCorrupt, LedgerError, LedgerMismatch, LedgerUnwritable

MOUNTS = "/proc/self/mountinfo"


@dataclasses.dataclass(frozen=True)
class FileKind:
    """One kind of durable file, all kept with the same discipline.

    Args:
        name: What messages call it.
        opener: How a caller opens it.
        restore: What to do about a lost or damaged one.
        application_id: Its mark in the header, so that no kind is taken for another.
        version: Version of its schema.
        tables: SQL of its tables and triggers. One of them is ``ledger``, with one row, its ``ledger_id``, and the
            ``key_check`` of :mod:`_key_file`. Entries have ids without gaps, in a table ``entries``.
        migrate: Brings a file of an older version to this one, in the caller's transaction, given that version.
        owner_only: Whether it is readable by its owner alone.
    """

    name: str
    opener: str
    restore: str
    application_id: int
    version: int
    tables: str
    migrate: Callable[[sqlite3.Connection, int], None]
    owner_only: bool = False

    @property
    def schema(self) -> str:
        """SQL script that makes an empty file of this kind."""
        return f"PRAGMA application_id = {self.application_id};\nPRAGMA user_version = {self.version};\n{self.tables}"


# One statement each: what is new since version 1, for new files and for those that are migrated.
ONE_KEY = """
CREATE TRIGGER IF NOT EXISTS one_key BEFORE UPDATE ON ledger
    WHEN OLD.key_check <> x'' AND NEW.key_check <> OLD.key_check
    BEGIN SELECT RAISE(ABORT, 'a ledger has one key'); END
"""
_JOURNALS = (
    ONE_KEY,
    "CREATE TABLE IF NOT EXISTS journals (plan INTEGER PRIMARY KEY REFERENCES plans, state TEXT NOT NULL)",
    "CREATE TRIGGER IF NOT EXISTS no_journal_removal BEFORE DELETE ON journals "
    "BEGIN SELECT RAISE(ABORT, 'journals are never removed'); END",
)


def add_column(connection: sqlite3.Connection, table: str, column: str) -> None:
    """Add a column, unless the table has it."""
    if column.split()[0] not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _migrate(connection: sqlite3.Connection, from_version: int) -> None:
    """Bring a ledger of an older version to this one. Done twice, it changes nothing."""
    if from_version < 2:  # journals lay in files of their own, and plans did not keep what they were made for
        add_column(connection, "plans", "settings TEXT")
        add_column(connection, "ledger", "key_check BLOB NOT NULL DEFAULT x''")
        for statement in _JOURNALS:
            connection.execute(statement)


# The file itself refuses what must never happen: a count above its maximum, a refund, an edited history.
_TABLES = """
CREATE TABLE ledger (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    ledger_id TEXT NOT NULL,
    epsilon REAL NOT NULL,
    delta REAL NOT NULL,
    neighbors TEXT NOT NULL,
    time TEXT NOT NULL,
    key_check BLOB NOT NULL DEFAULT x''
);
CREATE TABLE plans (
    plan INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    epsilon REAL NOT NULL CHECK (epsilon >= 0),
    delta REAL NOT NULL CHECK (delta >= 0),
    time TEXT NOT NULL,
    settings TEXT
);
CREATE TABLE items (
    item INTEGER PRIMARY KEY AUTOINCREMENT,
    plan INTEGER NOT NULL REFERENCES plans,
    event TEXT NOT NULL,
    max_count INTEGER NOT NULL CHECK (max_count >= 1),
    used INTEGER NOT NULL DEFAULT 0 CHECK (used BETWEEN 0 AND max_count),
    UNIQUE (plan, event)
);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL,
    item INTEGER NOT NULL REFERENCES items,
    count INTEGER NOT NULL CHECK (count >= 1),
    chain TEXT NOT NULL
);
CREATE TRIGGER no_refund BEFORE UPDATE ON items WHEN NEW.used < OLD.used OR NEW.max_count <> OLD.max_count
    OR NEW.event <> OLD.event OR NEW.plan <> OLD.plan
    BEGIN SELECT RAISE(ABORT, 'a used count never falls and a plan never changes'); END;
CREATE TRIGGER no_edit BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never edited'); END;
CREATE TRIGGER no_removal BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
CREATE TRIGGER no_item_removal BEFORE DELETE ON items BEGIN SELECT RAISE(ABORT, 'plans are never removed'); END;
CREATE TRIGGER no_plan_edit BEFORE UPDATE ON plans BEGIN SELECT RAISE(ABORT, 'plans are never edited'); END;
CREATE TRIGGER no_plan_removal BEFORE DELETE ON plans BEGIN SELECT RAISE(ABORT, 'plans are never removed'); END;
"""

LEDGER = FileKind(
    name="ledger",
    opener="PrivacyLedger(budget, path)",
    restore="Restore it from a copy that holds every spend; a new ledger would forget what was released.",
    application_id=0x4C445042,  # "LDPB"
    version=2,
    tables=_TABLES + ";\n".join(_JOURNALS) + ";",
    migrate=_migrate,
)

_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_UNWRITABLE = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOLFS,
}


def held(error: sqlite3.Error) -> bool:
    """Whether another process holds a lock on the file, and it is worth while to ask again."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF == sqlite3.SQLITE_BUSY


def refusal(error: sqlite3.Error, path: str | None, busy_seconds: float, kind: FileKind = LEDGER) -> LedgerError:
    """Return the error of this package that says what SQLite's ``error`` means for a ledger."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _HELD:
        return LedgerUnwritable(
            f"Expected the {kind.name} {path} to be free within {busy_seconds:g} s, but another process held a lock on "
            "it. Nothing was charged: end the process that holds it, then try again."
        )
    if code in _UNWRITABLE:
        return LedgerUnwritable(
            f"The {kind.name} {path} cannot be written durably ({error}). Make file and folder writable, free space on "
            "the disk, or give another path."
        )
    return LedgerCorrupt(f"The {kind.name} {path} is damaged or not a {kind.name} ({error}). {kind.restore}")


def inspect_file(path: str, kind: FileKind = LEDGER) -> bool:
    """Return whether a file of this kind stands at ``path``; refuse what could never be one."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        _refuse_without_folder(path, kind)
        # Another process may have put the ledger there since: then its journal is no orphan.
        if os.path.lexists(path + "-journal") and not os.path.exists(path):
            raise LedgerCorrupt(
                f"The {kind.name} {path} was removed, but its journal {path}-journal is still there. Restore the file; "
                "delete the journal only if the released answers may be forgotten."
            ) from None
        return os.path.exists(path)
    except OSError as error:
        raise LedgerUnwritable(
            f"The {kind.name} {path} cannot be reached ({error.strerror}). Give another path."
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise LedgerCorrupt(f"Expected path={path} to be a file. Give the path of a {kind.name} file, new or old.")
    _refuse_mount_point(path, kind)
    if found.st_size == 0:
        raise LedgerCorrupt(
            f"The {kind.name} {path} is an empty file, and a {kind.name} never is: its spends are lost. Restore it, or "
            f"delete the file if it never was a {kind.name}."
        )
    if found.st_nlink > 1:
        _drop_building_names(path)
        if os.stat(path).st_nlink > 1:
            # SQLite finds a journal by the file's name: through the other name a crash would stay half done.
            raise LedgerError(
                f"The {kind.name} {path} has several hard links. Keep one name for it and remove the others."
            )
    return True


def _refuse_mount_point(path: str, kind: FileKind) -> None:
    """Refuse a file that is mounted by itself: its journal would be named by this path, which other mounts lack."""
    try:
        with open(MOUNTS, "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # not Linux, or no /proc: nothing to look up
        return
    # The fifth field is the mount point, with blanks and backslashes as three octal digits.
    points = {
        re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), fields[4])
        for fields in (line.split(b" ") for line in lines)
        if len(fields) > 4
    }
    if os.fsencode(path) in points:
        raise LedgerUnwritable(
            f"The {kind.name} {path} is mounted as a single file, so another path to it would not find its journal "
            f"after a crash and spends could be forgotten. Mount the folder that holds the {kind.name}, not the file."
        )


def _refuse_without_folder(path: str, kind: FileKind) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise LedgerUnwritable(
            f"The folder {folder} of the {kind.name} does not exist. Create it, or give another path."
        )


def _building_name(folder: str) -> str:
    return os.path.join(folder, f".ledger-{uuid.uuid4().hex}.new")


def _drop_building_names(path: str) -> None:
    """Remove the second name that a creator leaves when it dies between link and unlink."""
    for name in pathlib.Path(path).parent.glob(".ledger-*.new"):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samefile(name, path):
                name.unlink()


def create_file(path: str, fill: Callable[[sqlite3.Connection], object], kind: FileKind = LEDGER) -> None:
    """Put a whole new file of this kind at ``path``, or leave the one that another process put there first.

    It is built under another name and linked into place, so that no moment exists at which ``path`` is half a
    ledger: a process that dies here leaves nothing, or everything.
    """
    building = _building_name(os.path.dirname(path))
    try:
        if kind.owner_only:  # from its first byte on: SQLite's journal takes over the mode
            os.close(os.open(building, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(_uri(building, "rwc"), uri=True, isolation_level=None)
        try:
            connection.executescript(kind.schema)
            fill(connection)
        finally:
            connection.close()
        _sync(building)
        with contextlib.suppress(FileExistsError):
            os.link(building, path)
        # Before anyone opens it: an inode with two names is refused above.
        os.unlink(building)
        if os.name == "posix":  # elsewhere a folder cannot be synced
            _sync(os.path.dirname(path))
    except sqlite3.Error as error:
        raise refusal(error, path, 0.0, kind) from error
    except OSError as error:
        raise LedgerUnwritable(
            f"The {kind.name} {path} cannot be created ({error.strerror}). Its folder must be writable and on a file "
            "system with hard links: make it so, or give another path."
        ) from error
    finally:
        for name in (building, building + "-journal"):
            with contextlib.suppress(OSError):
                os.unlink(name)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _uri(path: str, mode: str) -> str:
    return f"{pathlib.Path(path).as_uri()}?mode={mode}"


def open_connection(path: str) -> sqlite3.Connection:
    """Return a connection whose commits are durable when they return. Never creates a file, never waits for a lock."""
    connection = sqlite3.connect(_uri(path, "rw"), uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # EXTRA: the removal of the journal, which is what commits, is synced to the folder as well.
        for pragma in ("trusted_schema = OFF", "foreign_keys = ON", "synchronous = EXTRA", "fullfsync = ON"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def verify_header(connection: sqlite3.Connection, path: str, kind: FileKind = LEDGER) -> str:
    """Check that the file calls itself one of this kind and of a known schema, this one or older; return its id."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != kind.application_id:
        raise LedgerCorrupt(f"The file {path} is a database, but no {kind.name} of this package. Give another path.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in range(1, kind.version + 1):
        raise LedgerCorrupt(
            f"Expected schema={version} of the {kind.name} {path} to be at most {kind.version}. Use the version of "
            "this package that wrote it."
        )
    verify_journal(connection, path, kind)
    row = connection.execute("SELECT ledger_id FROM ledger").fetchone()
    if row is None:
        raise LedgerCorrupt(f"The {kind.name} {path} holds no first row. {kind.restore}")
    return str(row[0])


def verify_journal(connection: sqlite3.Connection, path: str | None, kind: FileKind = LEDGER) -> None:
    """Check that commits go into the file itself, and not into a log that a copy of the file would lack."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "delete":
        raise LedgerCorrupt(
            f"Expected journal_mode={mode} of the {kind.name} {path} to be delete: another program changed it, and "
            "spends may lie outside the file. Put back all files that stood beside it, then run "
            "'PRAGMA journal_mode = DELETE' on it with that program."
        )


def verify_contents(connection: sqlite3.Connection, path: str, budget: PrivacyBudget, slack: float) -> None:
    """Check the pages, the budget, and that counts, entries and claims agree with one another."""

    def damaged(what: str) -> LedgerCorrupt:
        return LedgerCorrupt(f"The ledger {path} is damaged: {what}. Restore it from a copy that holds every spend.")

    checked = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if checked != "ok":
        raise damaged(str(checked))
    epsilon, delta, neighbors = connection.execute("SELECT epsilon, delta, neighbors FROM ledger").fetchone()
    if (epsilon, delta, neighbors) != (budget.epsilon, budget.delta, budget.neighbors.name):
        raise LedgerMismatch(
            f"The ledger {path} belongs to the budget epsilon={epsilon!r}, delta={delta!r}, neighbors="
            f"{str(neighbors).lower()}, not to epsilon={budget.epsilon!r}, delta={budget.delta!r}, "
            f"neighbors={budget.neighbors.name.lower()}. Open it with its own budget, or give another path."
        )
    wrong = connection.execute(
        "SELECT count(*) FROM items LEFT JOIN (SELECT item, sum(count) AS total FROM entries GROUP BY item) "
        "USING (item) WHERE used <> coalesce(total, 0) OR plan NOT IN (SELECT plan FROM plans)"
    ).fetchone()[0]
    if wrong:
        raise damaged(f"{wrong} used counts do not equal the sum of their entries")
    # Ids are handed out without gaps, and the sequence table remembers the last one.
    entries, newest, orphans, handed_out = connection.execute(
        "SELECT count(*), coalesce(max(id), 0), count(*) FILTER (WHERE item NOT IN (SELECT item FROM items)), "
        "(SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries') FROM entries"
    ).fetchone()
    if entries != newest or newest != handed_out or orphans:
        raise damaged(f"of {max(newest, handed_out)} entries {entries - orphans} are left")
    claims = connection.execute("SELECT epsilon, delta FROM plans").fetchall()
    if (
        math.fsum(claim[0] for claim in claims) > epsilon * (1 + slack)
        or math.fsum(claim[1] for claim in claims) > delta * (1 + slack)
    ):  # fmt: skip
        raise damaged("its plans claim more than its budget")
