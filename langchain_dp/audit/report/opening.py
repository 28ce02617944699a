"""Opens a ledger file to be read: nothing is created, written, or taken back, and no budget has to be known.

The ledger classes write when they open a file, to see that a spend would be durable. A reader must not, so their
stores are opened here through connections that cannot write, with all of their checks.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import stat
import threading
from collections.abc import Callable

from langchain_dp._util import forks
from langchain_dp.accounting import MetricLedger, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting._account import Account
from langchain_dp.accounting.store.connection import BUSY_SECONDS, Database, _place
from langchain_dp.accounting.store.file import LEDGER, FileKind, refusal, verify_header
from langchain_dp.accounting.store.metric import METRIC_LEDGER, MetricStore
from langchain_dp.accounting.store.plans import Store
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerCorrupt, LedgerError, LedgerUnwritable

_ROLLBACK = b"\x01\x01"  # bytes 18 and 19 of a file whose commits go into the file itself
_KINDS = {kind.application_id: kind for kind in (LEDGER, METRIC_LEDGER)}


class _Reading(Database):
    """A database that is never created and never written."""

    def begin(
        self, fill: Callable[[sqlite3.Connection], str], verify: Callable[[sqlite3.Connection, str], None]
    ) -> None:
        assert self.path is not None
        with self.transaction(write=False) as connection:
            verify(connection, self.path)

    def _open(self, wait: float) -> sqlite3.Connection:
        assert self.path is not None
        before = _place(self.path)
        connection = _connect(self.path)
        try:
            self.ledger_id = verify_header(connection, self.path, self._kind)
        except BaseException:
            connection.close()
            raise
        self._place = before
        return connection


class _ReadStore(_Reading, Store):
    """Plans and entries of a ledger that is only read."""


class _ReadMetricStore(_Reading, MetricStore):
    """Accounts and entries of a metric ledger that is only read. Its key is not needed: nobody is looked up."""

    def _load_key(self) -> None:
        """Leave the key where it is."""


class _ReadAccount(Account):
    def __init__(self, budget: PrivacyBudget, store: Store) -> None:
        self.budget = budget
        self.store = store
        self._known = {}
        self._lock = threading.Lock()
        forks.renew_lock(self)


class _ReadLedger(PrivacyLedger):
    """A ledger that is only read."""

    def __init__(self, budget: PrivacyBudget, path: str) -> None:
        self._account = _ReadAccount(budget, _ReadStore(budget, path))
        self._direct = None


class _ReadMetricLedger(MetricLedger):
    """A metric ledger that is only read."""

    def __init__(self, path: str) -> None:
        self._open(_ReadMetricStore(None, path, key=None), keyed=False)


def open_ledger(path: str | os.PathLike[str]) -> PrivacyLedger | MetricLedger:
    """Open an existing ledger, of either kind, that can be read and not be charged.

    Raises:
        InvalidParameter: Nothing is there, or it is a folder.
        LedgerCorrupt: The file is damaged, empty or no ledger.
        LedgerUnwritable: It is locked, cannot be reached, or a crash left a spend in its journal that has to be taken
            back first; opening it once with its own class does that.
    """
    real = os.path.realpath(os.fsdecode(path))
    kind = _kind(real)
    try:
        return _ReadMetricLedger(real) if kind is METRIC_LEDGER else _ReadLedger(_budget(real), real)
    except LedgerUnwritable as error:
        raise _unfinished(real) or error from None


def made(ledger: PrivacyLedger | MetricLedger) -> str:
    """When the ledger was made, ISO 8601 in UTC."""
    store = ledger._store if isinstance(ledger, MetricLedger) else ledger._account.store
    with store.transaction(write=False) as connection:
        return str(connection.execute("SELECT time FROM ledger").fetchone()[0])


def plan_times(ledger: PrivacyLedger) -> list[str]:
    """When each plan was reserved, in order."""
    with ledger._account.store.transaction(write=False) as connection:
        return [str(row[0]) for row in connection.execute("SELECT time FROM plans ORDER BY plan")]


def accounts(ledger: MetricLedger) -> dict[str, list[int]]:
    """What the accounts of documents and of users have spent, largest first, in billionths. Names nobody."""
    with ledger._store.transaction(write=False) as connection:
        rows = connection.execute("SELECT whose, spent FROM accounts ORDER BY spent DESC").fetchall()
    return {whose: [spent for kind, spent in rows if kind == whose] for whose in ("document", "user")}


def _kind(path: str) -> FileKind:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise InvalidParameter(f"Expected path={path!r} to be a ledger, but nothing is there. Check it.") from None
    except OSError as error:
        raise LedgerUnwritable(f"The ledger {path} cannot be reached ({error.strerror}).") from None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidParameter(f"Expected path={path!r} to be a file. Give the path of a ledger file.")
    if not found.st_size:
        raise LedgerCorrupt(f"The ledger {path} is an empty file, and a ledger never is. {LEDGER.restore}")
    _check_journal(path)
    try:
        with contextlib.closing(_connect(path)) as connection:
            mark = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.Error as error:
        raise _unfinished(path) or refusal(error, path, BUSY_SECONDS) from None
    if mark not in _KINDS:
        raise LedgerCorrupt(f"The file {path} is a database, but no ledger of this package. Give another path.")
    return _KINDS[mark]


def _check_journal(path: str) -> None:
    """Refuse a file that merely being read would get companions: one whose commits go into a log beside it.

    A ledger that is open in this process is known to be none, and must not be opened beside SQLite: closing a file
    gives up the locks that the process holds on it.
    """
    if any(getattr(store, "path", None) == path for store in list(forks._live)):
        return
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError as error:
        raise LedgerUnwritable(f"The ledger {path} cannot be read ({error.strerror}).") from None
    if not head.startswith(b"SQLite format 3\0"):
        raise LedgerCorrupt(f"The file {path} is no ledger. Give the path of a ledger file.")
    if head[18:20] != _ROLLBACK:
        raise LedgerCorrupt(
            f"The file {path} keeps a log beside it, as another program must have set it. Run 'PRAGMA journal_mode = "
            "DELETE' on it with that program."
        )


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{pathlib.Path(path).as_uri()}?mode=ro",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
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
            epsilon, delta, neighbors = connection.execute("SELECT epsilon, delta, neighbors FROM ledger").fetchone()
        return PrivacyBudget(epsilon, delta, neighbors)
    except sqlite3.Error as error:
        raise _unfinished(path) or refusal(error, path, BUSY_SECONDS) from None
    except LedgerError:
        raise
    except (LangChainDPError, TypeError, AttributeError):
        raise LedgerCorrupt(f"The ledger {path} is damaged: its budget cannot be read. {LEDGER.restore}") from None


def _unfinished(path: str) -> LedgerUnwritable | None:
    if not os.path.lexists(path + "-journal"):
        return None
    return LedgerUnwritable(
        f"The ledger {path} was left in the middle of a spend: {path}-journal stands beside it. Open it once with its "
        "own class, which takes the unfinished spend back; a report changes nothing."
    )
