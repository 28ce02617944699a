"""What a metric ledger keeps: one account per document and per user, under keyed hashes, and one entry per release.

Etas are counted in whole billionths, rounded up: sums are exact, whatever their order.
"""

from __future__ import annotations

import dataclasses
import datetime
import hmac
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import Literal

from langchain_dp.accounting.store.connection import Database
from langchain_dp.accounting.store.file import FileKind
from langchain_dp.accounting.store.key_file import check_value, digest
from langchain_dp.accounting.store.releases import RELEASES, claim, migrate
from langchain_dp.errors import LedgerCorrupt, LedgerMismatch

Whose = Literal["document", "user"]

TICKS = 10**9
"""Whole units of account in an eta of 1."""

_PAGE = 500

# The file itself refuses what must never happen: an account above its limit, a refund, an edited history.
_TABLES = """
CREATE TABLE ledger (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    ledger_id TEXT NOT NULL,
    user_limit INTEGER,
    document_limit INTEGER,
    key_check BLOB NOT NULL,
    metric TEXT,
    time TEXT NOT NULL,
    key_given INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE accounts (
    account INTEGER PRIMARY KEY AUTOINCREMENT,
    whose TEXT NOT NULL CHECK (whose IN ('document', 'user')),
    hash BLOB NOT NULL,
    spent INTEGER NOT NULL CHECK (spent >= 0),
    UNIQUE (whose, hash)
);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL,
    document INTEGER NOT NULL REFERENCES accounts,
    user INTEGER REFERENCES accounts,
    eta INTEGER NOT NULL CHECK (eta >= 1),
    chain TEXT NOT NULL
);
CREATE TRIGGER no_refund BEFORE UPDATE ON accounts
    WHEN NEW.spent < OLD.spent OR NEW.hash <> OLD.hash OR NEW.whose <> OLD.whose
    BEGIN SELECT RAISE(ABORT, 'an account never falls'); END;
CREATE TRIGGER limited BEFORE UPDATE ON accounts
    WHEN NEW.spent > (SELECT CASE NEW.whose WHEN 'user' THEN user_limit ELSE document_limit END FROM ledger)
    BEGIN SELECT RAISE(ABORT, 'an account never exceeds its limit'); END;
CREATE TRIGGER limited_at_first BEFORE INSERT ON accounts
    WHEN NEW.spent > (SELECT CASE NEW.whose WHEN 'user' THEN user_limit ELSE document_limit END FROM ledger)
    BEGIN SELECT RAISE(ABORT, 'an account never exceeds its limit'); END;
CREATE TRIGGER one_metric BEFORE UPDATE ON ledger WHEN OLD.metric IS NOT NULL AND NEW.metric IS NOT OLD.metric
    BEGIN SELECT RAISE(ABORT, 'a ledger counts in one metric'); END;
CREATE TRIGGER no_account_removal BEFORE DELETE ON accounts BEGIN SELECT RAISE(ABORT, 'accounts stay'); END;
CREATE TRIGGER no_edit BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never edited'); END;
CREATE TRIGGER no_removal BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
"""

METRIC_LEDGER = FileKind(
    name="metric ledger",
    opener="MetricLedger(limit, path)",
    restore="Restore it from a copy that holds every release; a new one would forget what was released.",
    application_id=0x4C44504D,  # "LDPM"
    version=2,
    tables=_TABLES + ";\n".join(RELEASES) + ";",
    migrate=migrate,
    owner_only=True,
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the releases of one user, and of one document, may add up to, in ticks; None for no limit."""

    user: int | None
    document: int | None

    def of(self, whose: Whose) -> int | None:
        """The limit of a user's or of a document's account."""
        return self.user if whose == "user" else self.document


@dataclasses.dataclass(frozen=True)
class MetricEntry:
    """One recorded release. Names nobody: hashes are HMAC-SHA256 under the ledger's key.

    Args:
        id: Position in the ledger, from 1, without gaps.
        time: When it was written, ISO 8601 in UTC.
        document: Keyed hash of the document, in hex.
        user: Keyed hash of the user, in hex, or None.
        eta: What was charged, in nats per unit of distance.
        chain: Short public name of the caller.
    """

    id: int
    time: str
    document: str
    user: str | None
    eta: float
    chain: str


@dataclasses.dataclass(frozen=True)
class Shortfall:
    """Why nothing was charged: at this position of the request, this account would exceed its limit."""

    position: int
    whose: Whose
    spent: int


def ticks(eta: float) -> int:
    """Whole units of account of ``eta``, rounded up from its shortest decimal form: 0.1 is a tenth."""
    return ceil(Fraction(repr(float(eta))) * TICKS)


def units(spent: int) -> float:
    """The eta that so many ticks are."""
    return spent / TICKS


class MetricStore(Database):
    """Durable accounts of one metric ledger, shared by threads, and by processes when it has a path.

    Args:
        limits: Stored with a new file; must equal those of an existing one. None: take the existing one's.
        path: SQLite file, or None for a ledger that lives and dies with this process.
        key: Secret of the hashes, kept by the caller; None: a random one is kept in a file beside the ledger.
        ledger_id: When given, the file must exist and be exactly this ledger (a pickle that comes back).
    """

    def __init__(
        self,
        limits: Limits | None,
        path: str | os.PathLike[str] | None,
        *,
        key: bytes | None,
        ledger_id: str | None = None,
    ) -> None:
        super().__init__(None if path is None else os.path.realpath(os.fsdecode(path)), ledger_id, METRIC_LEDGER)
        self._given_key = key
        self.limits = limits or Limits(None, None)
        try:
            self.begin(self._insert, lambda connection, path: self._verify(connection, path, limits))
            self._load_key()
        except BaseException:
            self.close()
            raise

    def _insert(self, connection: sqlite3.Connection) -> str:
        ledger_id, key = uuid.uuid4().hex, self._given_key
        check = b"" if key is None else check_value(key)
        connection.execute(
            "INSERT INTO ledger (only_row, ledger_id, user_limit, document_limit, key_given, key_check, time) "
            "VALUES (1, ?, ?, ?, ?, ?, ?)",
            (
                ledger_id,
                self.limits.user,
                self.limits.document,
                key is not None,
                check,
                _now(),
            ),
        )
        return ledger_id

    def _load_key(self) -> None:
        with self.transaction(write=False) as connection:
            given, check = connection.execute("SELECT key_given, key_check FROM ledger").fetchone()
        if given != (self._given_key is not None):
            raise LedgerMismatch(
                f"Expected key= for the metric ledger {self.path} {'to be given' if given else 'to be left out'}: it "
                f"was made with a key that is kept {'elsewhere' if given else 'in the file beside it'}."
            )
        if self._given_key is not None and not hmac.compare_digest(check_value(self._given_key), check):
            raise LedgerMismatch(
                f"The metric ledger {self.path} was made with another key: its hashes would match nobody. "
                "Give the key that it was made with."
            )
        self._key = self._given_key
        self.key()  # now: a key that is lost must say so here

    def _verify(self, connection: sqlite3.Connection, path: str, limits: Limits | None) -> None:
        def damaged(what: str) -> LedgerCorrupt:
            return LedgerCorrupt(f"The metric ledger {path} is damaged: {what}. {METRIC_LEDGER.restore}")

        checked = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if checked != "ok":
            raise damaged(str(checked))
        self.limits = Limits(*connection.execute("SELECT user_limit, document_limit FROM ledger").fetchone())
        if limits is not None and limits != self.limits:
            raise LedgerMismatch(
                f"The metric ledger {path} has {_said(self.limits)}, not {_said(limits)}. Open it with its own limits; "
                "a larger limit is a weaker promise and needs a new ledger."
            )
        wrong = connection.execute(
            "SELECT count(*) FROM accounts LEFT JOIN (SELECT account, sum(eta) AS total FROM (SELECT document AS "
            "account, eta FROM entries UNION ALL SELECT user, eta FROM entries) GROUP BY account) USING (account) "
            "WHERE spent <> coalesce(total, 0)"
        ).fetchone()[0]
        if wrong:
            raise damaged(f"{wrong} accounts do not equal the sum of their releases")
        # Ids are handed out without gaps, and the sequence table remembers the last one.
        entries, newest, orphans, handed_out = connection.execute(
            "SELECT count(*), coalesce(max(id), 0), count(*) FILTER (WHERE document NOT IN (SELECT account FROM "
            "accounts) OR user NOT IN (SELECT account FROM accounts)), "
            "(SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries') FROM entries"
        ).fetchone()
        if entries != newest or newest != handed_out or orphans:
            raise damaged(f"of {max(newest, handed_out)} releases {entries - orphans} are left")
        if entries and not connection.execute("SELECT key_check FROM ledger").fetchone()[0]:
            raise damaged("it no longer says which key its hashes were made with")
        for whose in ("user", "document"):
            limit = self.limits.user if whose == "user" else self.limits.document
            most = connection.execute("SELECT max(spent) FROM accounts WHERE whose = ?", (whose,)).fetchone()[0]
            if limit is not None and most is not None and most > limit:
                raise damaged(f"a {whose} has spent more than the limit")
        self._newest_entry = newest

    def digest(self, domain: str, text: str) -> bytes:
        """Keyed hash of ``text``; equal texts of two domains have different hashes."""
        return digest(self.key(), domain, text)

    def add(
        self,
        eta: int,
        owners: Sequence[tuple[bytes, bytes | None]],
        metric: str,
        chain: str,
        keys: Sequence[bytes] = (),
    ) -> Shortfall | str | None:
        """Charge one release of ``eta`` ticks to each (document, user), durably, all of them or none.

        What is released will be kept under ``keys``, if there are any.

        Raises:
            AlreadyReleased: Something is kept there.

        Returns:
            None if all were charged; else the account that stands in the way, or the ledger's metric if it is another.
        """
        newest = 0
        try:
            with self.transaction(write=True) as connection:
                connection.execute("UPDATE ledger SET metric = ? WHERE metric IS NULL", (metric,))
                found = str(connection.execute("SELECT metric FROM ledger").fetchone()[0])
                if found != metric:
                    raise _Refused(found)
                claim(connection, keys)
                time = _now()
                for position, (document, user) in enumerate(owners):
                    charged = self._charge(connection, position, "document", document, eta)
                    also = None if user is None else self._charge(connection, position, "user", user, eta)
                    newest = connection.execute(
                        "INSERT INTO entries (time, document, user, eta, chain) VALUES (?, ?, ?, ?, ?) RETURNING id",
                        (time, charged, also, eta, chain),
                    ).fetchone()[0]
                    if newest <= self._newest_entry:
                        raise self.forgotten()
        except _Refused as refused:
            return refused.why
        self._newest_entry = max(self._newest_entry, newest)
        return None

    def _charge(self, connection: sqlite3.Connection, position: int, whose: Whose, key: bytes, eta: int) -> int:
        found = connection.execute("SELECT account, spent FROM accounts WHERE whose = ? AND hash = ?", (whose, key))
        account, spent = found.fetchone() or (None, 0)
        limit = self.limits.of(whose)
        if limit is not None and spent + eta > limit:
            raise _Refused(Shortfall(position, whose, spent))
        if account is not None:
            connection.execute("UPDATE accounts SET spent = spent + ? WHERE account = ?", (eta, account))
            return int(account)
        row = (whose, key, eta)
        new = connection.execute("INSERT INTO accounts (whose, hash, spent) VALUES (?, ?, ?) RETURNING account", row)
        return int(new.fetchone()[0])

    def spent(self, whose: Whose, key: bytes) -> int:
        """What the releases of one user or document add up to."""
        with self.transaction(write=False) as connection:
            row = connection.execute("SELECT spent FROM accounts WHERE whose = ? AND hash = ?", (whose, key)).fetchone()
        return 0 if row is None else int(row[0])

    def summary(self, *, wait: float | None = None) -> tuple[int, int | None, int | None, str | None]:
        """Number of releases, the largest account of a document and of a user, and the metric."""
        with self.transaction(write=False, wait=wait) as connection:
            releases = connection.execute("SELECT count(*) FROM entries").fetchone()[0]
            most = dict(connection.execute("SELECT whose, max(spent) FROM accounts GROUP BY whose"))
            metric = connection.execute("SELECT metric FROM ledger").fetchone()[0]
        return releases, most.get("document"), most.get("user"), metric

    def entries(self) -> Iterator[MetricEntry]:
        """Yield every release, in order. Pages: no lock is held between two of them."""
        last = 0
        while True:
            with self.transaction(write=False) as connection:
                rows = connection.execute(
                    "SELECT entries.id, entries.time, documents.hash, users.hash, entries.eta, entries.chain "
                    "FROM entries JOIN accounts AS documents ON documents.account = entries.document "
                    "LEFT JOIN accounts AS users ON users.account = entries.user "
                    "WHERE entries.id > ? ORDER BY entries.id LIMIT ?",
                    (last, _PAGE),
                ).fetchall()
            for number, time, document, user, eta, chain in rows:
                yield MetricEntry(number, time, document.hex(), user and user.hex(), units(eta), chain)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]


class _Refused(Exception):
    """Leaves the transaction, which is rolled back."""

    def __init__(self, why: Shortfall | str) -> None:
        super().__init__()
        self.why = why


def _said(limits: Limits) -> str:
    user, document = ("none" if limit is None else f"{units(limit):g}" for limit in (limits.user, limits.document))
    return f"limit={user}, document_limit={document}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
