"""Metric accounts under keyed hashes, in billionths of eta."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Literal

from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.accounting.store.base import LedgerStore, now
from langchain_dp.accounting.store.key_file import check_value
from langchain_dp.accounting.store.releases import claim
from langchain_dp.errors import LedgerMismatch

Whose = Literal["document", "user"]

TICKS = 10**9


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits in ticks, or None."""

    user: int | None
    document: int | None

    def of(self, whose: Whose) -> int | None:
        return self.user if whose == "user" else self.document


@dataclasses.dataclass(frozen=True)
class MetricEntry:
    """One charged release."""

    id: int  # position in the ledger, from 1, without gaps
    time: str  # ISO 8601 in UTC
    document: str  # keyed hash, in hex
    user: str | None  # keyed hash, in hex
    eta: float  # nats per unit of distance
    caller: str


@dataclasses.dataclass(frozen=True)
class Shortfall:
    """The account that would exceed its limit."""

    position: int
    whose: Whose
    spent: int  # before the request
    asked: int = 1  # releases that the request charges to the account


def ticks(eta: float) -> int:
    return ceil(Fraction(repr(float(eta))) * TICKS)


def units(spent: int) -> float:
    return spent / TICKS


class MetricStore(LedgerStore):
    """Durable accounts of one metric ledger."""

    _charges = "releases"
    _wrong = (
        "SELECT count(*) FROM accounts LEFT JOIN (SELECT account, sum(eta) AS total FROM (SELECT document AS account, "
        'eta FROM entries UNION ALL SELECT "user", eta FROM entries) AS charged GROUP BY account) AS sums '
        "USING (account) WHERE spent <> coalesce(total, 0)",
        "accounts",
    )
    _orphaned = 'document NOT IN (SELECT account FROM accounts) OR "user" NOT IN (SELECT account FROM accounts)'

    def __init__(self, limits: Limits | None, backend: Backend, *, key: bytes | None) -> None:
        self._given_key, self._given_limits = key, limits
        self.limits = limits or Limits(None, None)
        super().__init__(backend)

    def _terms(self) -> dict[str, Any]:
        key = self._given_key
        return {
            "user_limit": self.limits.user,
            "document_limit": self.limits.document,
            "key_given": int(key is not None),
            "key_check": b"" if key is None else check_value(key),
        }

    def _check_terms(self, connection: Connection) -> None:
        expected = self._given_limits
        self.limits = Limits(*connection.execute("SELECT user_limit, document_limit FROM ledger").fetchone())
        if expected is not None and expected != self.limits:
            raise LedgerMismatch(
                f"The metric ledger {self.path} has {_described(self.limits)}, not {_described(expected)}. Open it "
                "with its own limits. Releases of another ledger over the same texts add up with these."
            )

    def _check_totals(self, connection: Connection, entries: int) -> None:
        if entries and not connection.execute("SELECT key_check FROM ledger").fetchone()[0]:
            raise self.damaged("it no longer says which key its hashes were made with")
        for whose, most in connection.execute("SELECT whose, max(spent) FROM accounts GROUP BY whose").fetchall():
            limit = self.limits.of(whose)
            if limit is not None and most > limit:
                raise self.damaged(f"a {whose} has spent more than the limit")

    def _opened(self) -> None:
        if self.backend.reading:  # nobody is looked up: the key stays where it is
            return
        with self.read() as connection:
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

    def add(
        self,
        eta: int,
        owners: Sequence[tuple[bytes, bytes | None]],
        metric: str,
        caller: str,
        keys: Sequence[bytes] = (),
    ) -> Shortfall | str | None:
        """Charge ``eta`` ticks to each (document, user), all or none.

        Return the short account or the other metric, if any. A stored text under ``keys`` raises AlreadyReleased.
        """

        def charge(connection: Connection) -> tuple[int, str] | None:
            connection.execute("UPDATE ledger SET metric = ? WHERE metric IS NULL", (metric,))
            stored = str(connection.execute("SELECT metric FROM ledger").fetchone()[0])
            if stored != metric:
                raise _Refused(stored)
            claim(connection, keys)
            time, newest = now(), None
            for position, (document, user) in enumerate(owners):
                charged = self._charge(connection, position, "document", document, eta)
                also = None if user is None else self._charge(connection, position, "user", user, eta)
                entry = {"document": charged, "user": also, "eta": eta, "caller": caller}
                newest = self._enter(connection, time, entry)
            return newest

        try:
            self._remember(self.backend.write(charge))
        except _Refused as refused:
            return refused.why if isinstance(refused.why, str) else _without_own_charges(refused.why, owners, eta)
        return None

    def _charge(self, connection: Connection, position: int, whose: Whose, key: bytes, eta: int) -> int:
        rows = connection.execute("SELECT account, spent FROM accounts WHERE whose = ? AND hash = ?", (whose, key))
        account, spent = rows.fetchone() or (None, 0)
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
        with self.read() as connection:
            row = connection.execute("SELECT spent FROM accounts WHERE whose = ? AND hash = ?", (whose, key)).fetchone()
        return 0 if row is None else int(row[0])

    def summary(self, *, wait: float | None = None) -> tuple[int, int | None, int | None, str | None]:
        """Return releases, largest document and user accounts, and metric."""
        with self.read(wait) as connection:
            releases = connection.execute("SELECT count(*) FROM entries").fetchone()[0]
            most = dict(connection.execute("SELECT whose, max(spent) FROM accounts GROUP BY whose"))
            metric = connection.execute("SELECT metric FROM ledger").fetchone()[0]
        return releases, most.get("document"), most.get("user"), metric

    def entries(self) -> Iterator[MetricEntry]:
        rows = self._rows_after(
            "SELECT entries.id, entries.time, documents.hash, users.hash, entries.eta, entries.caller "
            "FROM entries JOIN accounts AS documents ON documents.account = entries.document "
            'LEFT JOIN accounts AS users ON users.account = entries."user" WHERE true'
        )
        for number, time, document, user, eta, caller in rows:
            yield MetricEntry(number, time, document.hex(), user and user.hex(), units(eta), caller)


class _Refused(Exception):
    def __init__(self, why: Shortfall | str) -> None:
        super().__init__()
        self.why = why


def _without_own_charges(short: Shortfall, owners: Sequence[tuple[bytes, bytes | None]], eta: int) -> Shortfall:
    """Correct a shortfall for the request's own charges, which were rolled back."""
    accounts = [owner[short.whose == "user"] for owner in owners]
    account = accounts[short.position]
    earlier = accounts[: short.position].count(account)
    return dataclasses.replace(short, spent=short.spent - earlier * eta, asked=accounts.count(account))


def _described(limits: Limits) -> str:
    user, document = ("none" if limit is None else f"{units(limit):g}" for limit in (limits.user, limits.document))
    return f"limit={user}, document_limit={document}"
