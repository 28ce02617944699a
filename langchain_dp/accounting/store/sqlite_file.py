"""A ledger's file. Its rollback journal, unlike a write-ahead log, leaves every acknowledged charge in it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import sqlite3
import stat
import uuid
from collections.abc import Callable

from langchain_dp._util.whole_files import sync, sync_folder
from langchain_dp.accounting.store.backend import Connection
from langchain_dp.accounting.store.schema import LedgerKind, check_version, of_another_kind
from langchain_dp.errors import LedgerCorrupt, LedgerError, LedgerUnwritable

MOUNTS = "/proc/self/mountinfo"
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_UNWRITABLE = {
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOLFS,
}  # fmt: skip


def held(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF == sqlite3.SQLITE_BUSY


def refusal(error: Exception, path: str | None, wait: float, kind: LedgerKind) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _HELD:
        return LedgerUnwritable(
            f"Expected the {kind.name} {path} to be free within {wait:g} s, but another process held a lock on "
            "it. Nothing was charged: end the process that holds it, then try again."
        )
    if code in _UNWRITABLE:
        return LedgerUnwritable(
            f"The {kind.name} {path} cannot be written durably ({error}). Make file and folder writable, free space on "
            "the disk, or give another path."
        )
    if code == sqlite3.SQLITE_NOTADB:
        return LedgerCorrupt(
            f"{path} is not a {kind.name} but another kind of file. Give the {kind.name} a path of its own, and pass "
            f"data as examples. If this file was a {kind.name}, its beginning was overwritten. {kind.restore}"
        )
    return LedgerCorrupt(f"The {kind.name} {path} is damaged or not a {kind.name} ({error}). {kind.restore}")


def make_schema(connection: Connection, kind: LedgerKind) -> None:
    connection.execute(f"PRAGMA application_id = {kind.application_id}")
    connection.execute(f"PRAGMA user_version = {kind.version}")
    for statement in kind.tables:
        connection.execute(statement)
    for rule in kind.rules:
        when = f" WHEN {rule.when}" if rule.when else ""
        connection.execute(
            f"CREATE TRIGGER IF NOT EXISTS {rule.name} BEFORE {rule.before}{when} "
            f"BEGIN SELECT RAISE(ABORT, '{rule.says}'); END"
        )


def inspect_file(path: str, kind: LedgerKind) -> bool:
    """Return whether ``path`` exists. Refuse files that are no ledger."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise LedgerUnwritable(
                f"The folder {folder} of the {kind.name} does not exist. Create it, or give another path."
            ) from None
        # Another process may have put the ledger there since: then its journal is no orphan.
        if os.path.lexists(path + "-journal") and not os.path.exists(path):
            raise LedgerCorrupt(
                f"The {kind.name} {path} was removed, but its journal {path}-journal is still there. Restore the file. "
                "Delete the journal only if the released answers may be forgotten."
            ) from None
        return os.path.exists(path)
    except OSError as error:
        raise LedgerUnwritable(
            f"The {kind.name} {path} cannot be reached ({error.strerror}). Give another path."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise LedgerCorrupt(f"Expected path={path} to be a file. Give the path of a {kind.name} file, new or old.")
    _refuse_mount_point(path, kind)
    if status.st_size == 0:
        raise LedgerCorrupt(
            f"The {kind.name} {path} is an empty file, and a {kind.name} never is: its spends are lost. Restore it, or "
            f"delete the file if it never was a {kind.name}."
        )
    if status.st_nlink > 1:
        _drop_building_names(path)
        if os.stat(path).st_nlink > 1:
            # SQLite finds a journal by the file's name: through the other name a crash would stay half done.
            raise LedgerError(
                f"The {kind.name} {path} has several hard links. Keep one name for it and remove the others."
            )
    return True


def _refuse_mount_point(path: str, kind: LedgerKind) -> None:
    """Refuse a file mounted by itself, whose journal other mounts would not find."""
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


def _drop_building_names(path: str) -> None:
    for name in pathlib.Path(path).parent.glob(".ledger-*.new"):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samefile(name, path):
                name.unlink()


def create_file(path: str, fill: Callable[[Connection], object], kind: LedgerKind) -> None:
    """Link a whole new file, unless another process was first."""
    building = os.path.join(os.path.dirname(path), f".ledger-{uuid.uuid4().hex}.new")
    try:
        if kind.owner_only:  # from its first byte on: SQLite's journal takes over the mode
            os.close(os.open(building, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(_uri(building, "rwc"), uri=True, isolation_level=None)
        try:
            make_schema(connection, kind)
            fill(connection)
        finally:
            connection.close()
        sync(building)
        with contextlib.suppress(FileExistsError):
            os.link(building, path)
        # Before anyone opens it: a file with two names is refused. Inspecting processes remove the second name, too.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(building)
        sync_folder(os.path.dirname(path))
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


def _uri(path: str, mode: str) -> str:
    return f"{pathlib.Path(path).as_uri()}?mode={mode}"


def open_connection(path: str, *, reading: bool = False, wait: float = 0.0) -> sqlite3.Connection:
    uri = _uri(path, "ro" if reading else "rw")
    connection = sqlite3.connect(uri, uri=True, timeout=wait, isolation_level=None, check_same_thread=False)
    # EXTRA: the removal of the journal, which is what commits, is synced to the folder as well.
    durable = ("foreign_keys = ON", "synchronous = EXTRA", "fullfsync = ON")
    try:
        for pragma in ("trusted_schema = OFF", *(("query_only = ON",) if reading else durable)):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def verify_header(connection: Connection, path: str, kind: LedgerKind) -> str:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != kind.application_id:
        raise of_another_kind(path, application, kind) or LedgerCorrupt(
            f"The file {path} is a database, but no {kind.name} of this package. Give another path."
        )
    check_version(path, connection.execute("PRAGMA user_version").fetchone()[0], kind)
    verify_journal(connection, path, kind)
    row = connection.execute("SELECT ledger_id FROM ledger").fetchone()
    if row is None:
        raise LedgerCorrupt(f"The {kind.name} {path} holds no first row. {kind.restore}")
    return str(row[0])


def verify_journal(connection: Connection, path: str | None, kind: LedgerKind) -> None:
    """Check that no log takes the commits."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "delete":
        raise LedgerCorrupt(
            f"Expected journal_mode={mode} of the {kind.name} {path} to be delete: another program changed it, and "
            "spends may lie outside the file. Put back all files that stood beside it, then run "
            "'PRAGMA journal_mode = DELETE' on it with that program."
        )
