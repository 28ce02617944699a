"""Open a ledger read-only, with all checks of its store."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import stat
from collections.abc import Callable
from typing import Any

from langchain_dp._util import forks
from langchain_dp.accounting import MetricLedger, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting._account import Account
from langchain_dp.accounting.ledger import ledger_over
from langchain_dp.accounting.metric import metric_ledger_over
from langchain_dp.accounting.store.backend import BUSY_SECONDS, Connection
from langchain_dp.accounting.store.base import file_at, is_url
from langchain_dp.accounting.store.metric import MetricStore
from langchain_dp.accounting.store.plans import PlanStore
from langchain_dp.accounting.store.schema import KINDS, LEDGER, METRIC_LEDGER, LedgerKind
from langchain_dp.accounting.store.sqlite import SQLite
from langchain_dp.accounting.store.sqlite_file import refusal, verify_header
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerCorrupt, LedgerUnwritable

_ROLLBACK = b"\x01\x01"  # bytes 18 and 19 of a file whose commits go into the file itself


class _Reading(SQLite):
    """A ledger file that is never written."""

    reading = True

    def begin(self, fill: Callable[[Connection], str], verify: Callable[[Connection], None]) -> None:
        with self.transaction(write=False) as connection:
            verify(connection)

    def _opened_file(self) -> Connection:
        return _connect(self._file(), 0.0)  # the caller waits


def open_ledger(path: str | os.PathLike[str]) -> PrivacyLedger | MetricLedger:
    if is_url(path):
        return _open_schema(str(path))
    real = file_at(path)
    kind = _kind(real)
    try:
        if kind is METRIC_LEDGER:
            return metric_ledger_over(MetricStore(None, _Reading(real, kind), key=None))
        return ledger_over(Account(PlanStore(_budget(real), _Reading(real, kind))))
    except LedgerUnwritable as error:
        raise _unfinished(real) or error from None


def _open_schema(url: str) -> PrivacyLedger | MetricLedger:
    from langchain_dp.accounting.store.postgres import Postgres, terms_at

    mark, budget = terms_at(url)
    if mark not in KINDS:
        raise LedgerCorrupt(f"The schema of {url} holds no ledger of this package. Give another schema.")
    kind = KINDS[mark]
    if budget is None:
        return metric_ledger_over(MetricStore(None, Postgres(url, kind, reading=True), key=None))
    return ledger_over(Account(PlanStore(_promised(url, budget), Postgres(url, kind, reading=True))))


def name_of(path: str | os.PathLike[str]) -> str:
    if is_url(path):
        from langchain_dp.accounting.store.postgres import Place

        return Place(str(path)).schema
    return os.path.basename(file_at(path))


def made(ledger: PrivacyLedger | MetricLedger) -> str:
    with ledger._store.read() as connection:
        return str(connection.execute("SELECT time FROM ledger").fetchone()[0])


def plan_times(ledger: PrivacyLedger) -> list[str]:
    with ledger._store.read() as connection:
        return [str(row[0]) for row in connection.execute("SELECT time FROM plans ORDER BY plan")]


def accounts(ledger: MetricLedger) -> dict[str, list[int]]:
    with ledger._store.read() as connection:
        rows = connection.execute("SELECT whose, spent FROM accounts ORDER BY spent DESC").fetchall()
    return {whose: [spent for kind, spent in rows if kind == whose] for whose in ("document", "user")}


def _kind(path: str) -> LedgerKind:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise InvalidParameter(f"Expected path={path!r} to be a ledger, but nothing is there. Check it.") from None
    except OSError as error:
        raise LedgerUnwritable(f"The ledger {path} cannot be reached ({error.strerror}).") from None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidParameter(f"Expected path={path!r} to be a file. Give the path of a ledger file.")
    if not status.st_size:
        raise LedgerCorrupt(f"The ledger {path} is an empty file, and a ledger never is. {LEDGER.restore}")
    _check_journal(path)
    try:
        with contextlib.closing(_connect(path)) as connection:
            mark = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.Error as error:
        raise _unfinished(path) or refusal(error, path, BUSY_SECONDS, LEDGER) from None
    if mark not in KINDS:
        raise LedgerCorrupt(f"The file {path} is a database, but no ledger of this package. Give another path.")
    return KINDS[mark]


def _check_journal(path: str) -> None:
    """Refuse a write-ahead log, whose reading would create files.

    A ledger open in this process is skipped, because closing a second handle would drop this process's locks.
    """
    with forks.no_new_store() as stores:
        if any(getattr(store, "path", None) == path for store in stores):
            return
        try:
            with open(path, "rb") as file:
                head = file.read(20)
        except OSError as error:
            raise LedgerUnwritable(f"The ledger {path} cannot be read ({error.strerror}).") from None
    if not head.startswith(b"SQLite format 3\0"):
        raise LedgerCorrupt(f"{path} is not a ledger. Give the path of a ledger file.")
    if head[18:20] != _ROLLBACK:
        raise LedgerCorrupt(
            f"The file {path} keeps a log beside it, as another program must have set it. Run 'PRAGMA journal_mode = "
            "DELETE' on it with that program."
        )


def _connect(path: str, wait: float = BUSY_SECONDS) -> sqlite3.Connection:
    address = f"{pathlib.Path(path).as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=wait, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _budget(path: str) -> PrivacyBudget:
    try:
        with contextlib.closing(_connect(path)) as connection:
            verify_header(connection, path, LEDGER)
            row = connection.execute("SELECT epsilon, delta, neighbors FROM ledger").fetchone()
    except sqlite3.Error as error:
        raise _unfinished(path) or refusal(error, path, BUSY_SECONDS, LEDGER) from None
    return _promised(path, row)


def _promised(path: str, row: Any) -> PrivacyBudget:
    try:
        epsilon, delta, neighbors = row
        return PrivacyBudget(epsilon, delta, neighbors)
    except (LangChainDPError, TypeError, ValueError, AttributeError):
        raise LedgerCorrupt(f"The ledger {path} is damaged: its budget cannot be read. {LEDGER.restore}") from None


def _unfinished(path: str) -> LedgerUnwritable | None:
    if not os.path.lexists(path + "-journal"):
        return None
    return LedgerUnwritable(
        f"The ledger {path} was left in the middle of a spend: {path}-journal stands beside it. Open it once with its "
        "own class, which takes the unfinished spend back. A report changes nothing."
    )
