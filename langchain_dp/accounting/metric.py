"""The durable account of metric privacy: every release is recorded before it is made, and refused at the limit.

Its unit is eta, nats per unit of distance between word vectors. It is no epsilon: nothing here is ever added to a
:class:`PrivacyLedger`, and the two kinds of file refuse each other.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.rounding import bound, room
from langchain_dp.accounting._account import BaseLedger, Refusals
from langchain_dp.accounting._metric_certificate import WHOLE_TEXTS, MetricCertificate, per
from langchain_dp.accounting.store.base import backend_at, is_there
from langchain_dp.accounting.store.metric import Limits, MetricEntry, MetricStore, Shortfall, Whose, ticks, units
from langchain_dp.accounting.store.releases import AlreadyReleased, ReleasedTexts
from langchain_dp.accounting.store.schema import METRIC_LEDGER
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError, PrivateDataError

__all__ = ["WHOLE_TEXTS", "AlreadyReleased", "MetricCertificate", "MetricEntry", "MetricLedger", "Owner", "per"]

MOST = 1e6
"""Largest eta or limit that is taken; far beyond any that protects a word."""

_SHORTEST_KEY = 32


@dataclasses.dataclass(frozen=True, repr=False)
class Owner:
    """Whose account a release is charged to. Kept as keyed hashes only.

    Args:
        document: Key of the document: an id, or its content.
        user: Key of the user whose document it is; None if nobody's account is kept.
    """

    document: str
    user: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.document, str) or not isinstance(self.user, (str, type(None))):
            raise InvalidParameter(
                f"Expected the keys of a document ({type(self.document).__name__}) and a user "
                f"({type(self.user).__name__}) to be strings."
            )

    def __repr__(self) -> str:
        return "Owner(<private>)"


class MetricLedger(BaseLedger):
    """How much metric privacy the texts of every user, and every document, have spent.

    A release of a text at ``eta`` costs its document and its user ``eta`` each; releases add up. Threads may share one
    ledger; processes share one account by opening the same ``path``. One ledger counts in one metric: distances in
    two tables of word vectors are different units, so the first release fixes the table and others are refused.

    The file holds sanitized texts, no raw text and no name: documents, users and what a text was sanitized from are
    stored as HMAC-SHA256. The key of these hashes is random and lies in ``<path>.key``, which only its owner can read:
    whoever holds one of the two files cannot test a guess, whoever holds both can. Back them up together: a ledger
    whose key is lost is refused. Give ``key`` to keep it elsewhere.

    Args:
        limit: What the releases of one user may add up to, in the unit of eta; None for no limit.
        path: SQLite file on a local disk, made if absent; None keeps the ledger in memory, for this process only. Or
            the URL of a schema in PostgreSQL, as for :class:`PrivacyLedger`: its hashes' key lies in ``key_file``.
        document_limit: The same for one document; as ``limit`` if left out.
        key: Secret of at least 32 bytes for the hashes, to be given at each opening. None: see above.

    Raises:
        LedgerMismatch: The file was made with other limits or another key.
        LedgerCorrupt: The file is damaged, empty or no metric ledger, or its key is lost.
        LedgerUnwritable: File or folder cannot be written durably, or the folder does not exist.

    Formal guarantee:
        Let user u's releases add up to eta_u. For any two collections of u's texts, text by text of equal length and at
        word-vector distances d_i, the probabilities of any outcome of all releases together differ by a factor of at
        most exp(sum of eta_i d_i), so by at most exp(eta_u max d_i) (composition of metric privacy: Chatzikokolakis,
        Andres, Bordenabe and Palamidessi 2013). A charge is on disk before :meth:`spend` returns.

    Examples:
        >>> from langchain_dp.accounting.metric import Owner
        >>> ledger = MetricLedger(limit=20.0)
        >>> ledger.spend(4.0, [Owner("letter 1", user="ann")], table="glove")
        >>> ledger.spent(user="ann")
        4.0
    """

    _store: MetricStore

    def __init__(
        self,
        limit: float | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        document_limit: float | None = None,
        key: bytes | None = None,
    ) -> None:
        if document_limit is None:
            document_limit = limit
        limits = Limits(_limit("limit", limit), _limit("document_limit", document_limit))
        if key is not None and (not isinstance(key, bytes) or len(key) < _SHORTEST_KEY):
            raise InvalidParameter(
                f"Expected key to be at least {_SHORTEST_KEY} secret bytes. Make one with secrets.token_bytes(32)."
            )
        self._over(MetricStore(limits, backend_at(path, METRIC_LEDGER), key=key), keyed=key is not None)

    def _over(self, store: MetricStore, *, keyed: bool) -> Self:
        self._store, self._keyed = store, keyed
        self._refusals = Refusals()
        self._released = ReleasedTexts(store)
        return self

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, key: bytes | None = None) -> MetricLedger:
        """Open an existing ledger under the limits that it was made with.

        Raises:
            InvalidParameter: There is nothing at ``path``.
            LedgerError: As for the constructor.
        """
        if not is_there(path):
            raise InvalidParameter(f"Expected path={os.fsdecode(path)!r} to be a metric ledger, but nothing is there.")
        return cls.__new__(cls)._over(
            MetricStore(None, backend_at(path, METRIC_LEDGER), key=key), keyed=key is not None
        )

    @property
    def limit(self) -> float | None:
        """What the releases of one user may add up to; None for no limit."""
        return None if self._store.limits.user is None else units(self._store.limits.user)

    @property
    def document_limit(self) -> float | None:
        """What the releases of one document may add up to; None for no limit."""
        return None if self._store.limits.document is None else units(self._store.limits.document)

    @property
    def table(self) -> str | None:
        """The metric that this ledger counts in; None before the first release."""
        return self._store.summary()[3]

    def spend(
        self, eta: float, owners: Sequence[Owner], *, table: str, caller: str = "", keys: Sequence[bytes] = ()
    ) -> None:
        """Record one release at ``eta`` for each owner, durably, before any is made: all of them or none.

        Args:
            eta: Loss per unit of distance, in (0, 1e6]. Rounded up to a billionth.
            owners: One per release. The same document twice is two releases of it.
            table: Name of the metric: the table of word vectors whose distances are meant.
            caller: Short public name of the caller, for the record; at most 200 printable characters.
            keys: One per release, under which :meth:`released` will keep it; none if it is not kept.

        Raises:
            AlreadyReleased: Something was kept under one of ``keys`` meanwhile. Nothing was charged: look it up.
            BudgetExceeded: An account would exceed its limit. Nothing was charged. Its ``spent`` and ``budget`` are
                (eta, 0.0): there is no delta.
            PlanError: The ledger counts in another metric. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written; release nothing.
        """
        validate.number("eta", eta, above=0.0, at_most=MOST)
        validate.short_text("table", table, at_least=1)
        validate.short_text("caller", caller, at_least=0)
        if not owners:
            return
        cost, digest = ticks(eta), self._store.digest
        accounts = [
            (digest("document", owner.document), None if owner.user is None else digest("user", owner.user))
            for owner in owners
        ]
        refused = self._store.add(cost, accounts, table, caller, keys)
        if isinstance(refused, Shortfall):
            raise self._refusals.add(self._exceeded(refused, eta, cost))
        if refused is not None:
            raise _other_table(table, refused)

    def check_table(self, table: str) -> None:
        """Refuse a table whose distances this ledger does not count in.

        Raises:
            PlanError: Its first release was made under another table.
        """
        if self.table not in (None, table):
            raise _other_table(table, str(self.table))

    def check_room(self, eta: float, owners: Sequence[Owner], *, remedy: str) -> None:
        """Refuse releases that are to be charged in several calls and could not be all; nothing is charged.

        Args:
            eta: Loss of each, as of :meth:`spend`.
            owners: One per release of all calls.
            remedy: What to do about it.

        Raises:
            BudgetExceeded: An account has too little left for all of its releases.
        """
        cost, limits = ticks(eta), self._store.limits
        _, document, user, _ = self._store.summary()
        accounts: list[tuple[Whose, int | None, int | None, list[str | None]]] = [
            ("document", limits.document, document, [owner.document for owner in owners]),
            ("user", limits.user, user, [owner.user for owner in owners]),
        ]
        for whose, limit, most, names in accounts:
            for name, times in Counter(names).items():
                if name is None or limit is None or (most or 0) + times * cost <= limit:
                    continue
                spent = self._store.spent(whose, self._store.digest(whose, name))
                if spent + times * cost > limit:
                    raise self._refusals.add(self._too_many(whose, times, eta, spent, limit, remedy))

    def _too_many(self, whose: Whose, times: int, eta: float, spent: int, limit: int, remedy: str) -> BudgetExceeded:
        return BudgetExceeded(
            f"This would cost one {whose} {times} x eta {eta:g}; {units(limit - spent):g} of {units(limit):g} is left "
            f"for it. Nothing was charged and nothing released. {remedy} (In nats per unit of distance.)",
            asked=f"{times} x a release at eta={eta:g} for a {whose}",
            spent=(units(spent), 0.0),
            budget=(units(limit), 0.0),
            fits=(limit - spent) // ticks(eta),
        )

    def _exceeded(self, refused: Shortfall, eta: float, cost: int) -> BudgetExceeded:
        limit = self._store.limits.of(refused.whose)
        assert limit is not None  # only a limit refuses
        left = max(limit - refused.spent, 0)
        fits = left // cost
        what, times = ("text", "") if refused.asked == 1 else ("request", f"{refused.asked} x ")
        return BudgetExceeded(
            f"This {what} would cost {times}eta {eta:g}; {units(left):g} of {units(limit):g} is left for the "
            f"{refused.whose} at position {refused.position} of the request. Nothing was charged and nothing released, "
            f"and {fits} more would fit into this account. Reuse what was released, or ask for less. "
            "(In nats per unit of distance.)",
            asked=f"{times}a release at eta={eta:g} for a {refused.whose}",
            spent=(units(refused.spent), 0.0),
            budget=(units(limit), 0.0),
            fits=fits,
        )

    def spent(self, *, user: str | None = None, document: str | None = None) -> float:
        """What the releases of one user, or of one document, add up to, in nats per unit of distance.

        Raises:
            InvalidParameter: Not exactly one of the two is given, or it is no string.
        """
        if (user is None) == (document is None):
            raise InvalidParameter("Expected exactly one of user= and document= to be given.")
        owner = Owner("" if document is None else document, user)
        if owner.user is not None:
            return units(self._store.spent("user", self._store.digest("user", owner.user)))
        return units(self._store.spent("document", self._store.digest("document", owner.document)))

    def entries(self) -> Iterator[MetricEntry]:
        """Yield every recorded release, in order."""
        return self._store.entries()

    def digest(self, domain: str, text: str) -> bytes:
        """Keyed hash of ``text`` under the ledger's key, for indices that must not show it either."""
        return self._store.digest(f"other {domain}", text)

    def released(self) -> ReleasedTexts:
        """What was released before, kept in the ledger so that it can be reused."""
        return self._released

    def certificate(
        self,
        *,
        mechanism: str,
        eta: float,
        table: str,
        neighbor_distance: float | None = None,
        replaced: float | None = None,
        private: bool = True,
        reason: str = "",
        notes: Sequence[str] = (),
        parameters: Mapping[str, float | int | str] | None = None,
    ) -> MetricCertificate:
        """Return the certificate of releases at ``eta``, with what is spent so far.

        Args: as the fields of :class:`MetricCertificate`.
        """
        releases, document, user, _ = self._store.summary()
        return MetricCertificate(
            mechanism=mechanism,
            eta=eta,
            table=table,
            neighbor_distance=neighbor_distance,
            replaced=replaced,
            user_spent=None if user is None else units(user),
            document_spent=None if document is None else units(document),
            user_limit=self.limit,
            document_limit=self.document_limit,
            releases=releases,
            private=private,
            reason=reason,
            notes=tuple(notes),
            parameters=parameters or {},
        )

    @safe_repr
    def __repr__(self) -> str:
        try:  # cheap, and whatever the file is like: this is shown in error reports and debuggers
            releases, document, user, _ = self._store.summary(wait=0.0)
            now = f"releases={releases}" + "".join(
                f", {whose}_spent={bound(units(most), 4)}"
                + ("" if limit is None else f", {whose}_left={room(limit - units(most), 4)}")
                for whose, most, limit in (("user", user, self.limit), ("document", document, self.document_limit))
                if most is not None
            )
        except Exception:
            now = "closed or in use"
        return f"MetricLedger(limit={self.limit}, document_limit={self.document_limit}, path={self.path!r}, {now})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None or self._keyed:
            raise PrivateDataError(
                "A metric ledger in memory, or with a key of its own, cannot be pickled: its copy would have an "
                "account of its own, or show the key. Open it by its path where it is used."
            )
        return (_reopened, (self._store.limits, self.path, self._store.ledger_id))


def _other_table(table: str, counted: str) -> PlanError:
    return PlanError(
        f"Expected table={table!r} to be {counted!r}: distances of two tables are different units. "
        "Use another metric ledger for another table."
    )


def _limit(name: str, value: float | None) -> int | None:
    remedy = "Give nats per unit of distance, or None for no limit."
    if isinstance(value, (str, os.PathLike)):
        remedy += f" A file is path=: MetricLedger(20.0, {os.fspath(value)!r})."
    return None if value is None else ticks(validate.number(name, value, above=0.0, at_most=MOST, remedy=remedy))


def metric_ledger_over(store: MetricStore) -> MetricLedger:
    """The ledger of a store that is open already."""
    return MetricLedger.__new__(MetricLedger)._over(store, keyed=False)


def _reopened(limits: Limits, path: str, ledger_id: str) -> MetricLedger:
    return metric_ledger_over(MetricStore(limits, backend_at(path, METRIC_LEDGER, ledger_id), key=None))
