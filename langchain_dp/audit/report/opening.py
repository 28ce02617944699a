"""Open a ledger read-only, with all checks of its store."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from typing import Any

from langchain_dp._util import forks
from langchain_dp.accounting import MetricLedger, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting._account import Account
from langchain_dp.accounting.ledger import ledger_over
from langchain_dp.accounting.metric import metric_ledger_over
from langchain_dp.accounting.store.backend import BUSY_SECONDS, Backend
from langchain_dp.accounting.store.base import file_at, is_url
from langchain_dp.accounting.store.metric import MetricStore
from langchain_dp.accounting.store.plans import PlanStore
from langchain_dp.accounting.store.schema import KINDS, LEDGER, METRIC_LEDGER, LedgerKind
from langchain_dp.accounting.store.sqlite import SQLite
from langchain_dp.accounting.store.sqlite_file import open_connection, refusal, verify_header
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerCorrupt, LedgerUnwritable

_ROLLBACK = b"\x01\x01"  # bytes 18 and 19 of a file whose commits go into the file itself


def open_ledger(path: str | os.PathLike[str]) -> PrivacyLedger | MetricLedger:
    if is_url(path):
        from langchain_dp.accounting.store.postgres import Postgres, terms_at

        url = str(path)
        mark, budget = terms_at(url)
        if mark not in KINDS:
            raise LedgerCorrupt(f"The schema of {url} holds no ledger of this package. Give another schema.")
        return _open(Postgres(url, KINDS[mark], reading=True), budget)
    real = file_at(path)
    kind, budget = _terms(real)
    try:
        return _open(SQLite(real, kind, reading=True), budget)
    except LedgerUnwritable as error:
        raise _unfinished(real) or error from None


def _open(backend: Backend, budget: Any) -> PrivacyLedger | MetricLedger:
    if backend.kind is METRIC_LEDGER:
        return metric_ledger_over(MetricStore(None, backend, key=None))
    try:
        promised = PrivacyBudget(*budget)
    except (LangChainDPError, TypeError, ValueError, AttributeError):
        raise LedgerCorrupt(
            f"The ledger {backend.path} is damaged: its budget cannot be read. {LEDGER.restore}"
        ) from None
    return ledger_over(Account(PlanStore(promised, backend)))


def name_of(path: str | os.PathLike[str]) -> str:
    if is_url(path):
        from langchain_dp.accounting.store.postgres import Place

        return Place(str(path)).schema
    return os.path.basename(file_at(path))


def accounts(ledger: MetricLedger) -> dict[str, list[int]]:
    with ledger._store.read() as connection:
        rows = connection.execute("SELECT whose, spent FROM accounts ORDER BY spent DESC").fetchall()
    return {whose: [spent for kind, spent in rows if kind == whose] for whose in ("document", "user")}


def _terms(path: str) -> tuple[LedgerKind, Any]:
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
        with contextlib.closing(open_connection(path, reading=True, wait=BUSY_SECONDS)) as connection:
            mark = connection.execute("PRAGMA application_id").fetchone()[0]
            if mark not in KINDS:
                raise LedgerCorrupt(f"The file {path} is a database, but no ledger of this package. Give another path.")
            if KINDS[mark] is METRIC_LEDGER:
                return METRIC_LEDGER, None
            verify_header(connection, path, LEDGER)
            return LEDGER, connection.execute("SELECT epsilon, delta, neighbors FROM ledger").fetchone()
    except sqlite3.Error as error:
        raise _unfinished(path) or refusal(error, path, BUSY_SECONDS, LEDGER) from None


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


def _unfinished(path: str) -> LedgerUnwritable | None:
    if not os.path.lexists(path + "-journal"):
        return None
    return LedgerUnwritable(
        f"The ledger {path} was left in the middle of a spend: {path}-journal stands beside it. Open it once with its "
        "own class, which takes the unfinished spend back. A report changes nothing."
    )
