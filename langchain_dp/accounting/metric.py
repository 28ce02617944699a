"""The ledger of metric privacy."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.rounding import bound, room
from langchain_dp.accounting._account import BaseLedger, Refusals
from langchain_dp.accounting.certificate import WHOLE_TEXTS, MetricCertificate, per
from langchain_dp.accounting.store.base import backend_at, is_there
from langchain_dp.accounting.store.metric import Limits, MetricEntry, MetricStore, Shortfall, Whose, ticks, units
from langchain_dp.accounting.store.releases import AlreadyReleased, ReleasedTexts
from langchain_dp.accounting.store.schema import METRIC_LEDGER
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError, PrivateDataError

__all__ = ["WHOLE_TEXTS", "AlreadyReleased", "MetricCertificate", "MetricEntry", "MetricLedger", "Owner", "per"]

MOST = 1e6

_SHORTEST_KEY = 32


@dataclasses.dataclass(frozen=True, repr=False)
class Owner:
    """The account to charge, stored as keyed hashes."""

    document: str  # an id, or the content
    user: str | None = None  # None: no user's account is charged

    def __post_init__(self) -> None:
        if not isinstance(self.document, str) or not isinstance(self.user, (str, type(None))):
            raise InvalidParameter(
                f"Expected the keys of a document ({type(self.document).__name__}) and a user "
                f"({type(self.user).__name__}) to be strings."
            )

    def __repr__(self) -> str:
        return "Owner(<private>)"


class MetricLedger(BaseLedger):
    """A ledger of metric privacy per user and per document, shared like a :class:`PrivacyLedger`.

    A release at ``eta`` costs its document and its user ``eta`` each, and releases add up. The first release fixes the
    table of word vectors, because distances in two tables are different units.

    The file holds sanitized texts, and HMAC-SHA256 hashes of documents, users and raw texts. Their key lies in
    ``<path>.key``, readable by its owner alone. Only both files together allow to test guesses. Back up both.

    Args:
        limit: Largest sum of one user's releases, in the unit of eta. None: no limit.
        path: As for :class:`PrivacyLedger`.
        document_limit: The same for one document, by default ``limit``.
        key: Secret of at least 32 bytes in place of the key file.

    Raises:
        LedgerMismatch: The file was made with other limits or another key.
        LedgerCorrupt: The file is no intact metric ledger, or its key is lost.
        LedgerUnwritable: The file cannot be written durably.

    Formal guarantee:
        Let a user's releases add up to eta_u. For any two collections of their texts, text by text of equal length at
        word-vector distances d_i, the probabilities of any joint outcome differ by a factor of at most exp(sum of eta_i
        d_i) <= exp(eta_u max d_i) (Chatzikokolakis, Andres, Bordenabe and Palamidessi 2013). A charge is on disk before
        :meth:`spend` returns.

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
        """Open an existing ledger under its own limits."""
        if not is_there(path):
            raise InvalidParameter(f"Expected path={os.fsdecode(path)!r} to be a metric ledger, but nothing is there.")
        return cls.__new__(cls)._over(
            MetricStore(None, backend_at(path, METRIC_LEDGER), key=key), keyed=key is not None
        )

    @property
    def limit(self) -> float | None:
        """Limit per user, or None."""
        return None if self._store.limits.user is None else units(self._store.limits.user)

    @property
    def document_limit(self) -> float | None:
        """Limit per document, or None."""
        return None if self._store.limits.document is None else units(self._store.limits.document)

    @property
    def table(self) -> str | None:
        """The ledger's metric, or None."""
        return self._store.summary()[3]

    def spend(
        self, eta: float, owners: Sequence[Owner], *, table: str, caller: str = "", keys: Sequence[bytes] = ()
    ) -> None:
        """Charge one release at ``eta`` to each owner, durably, before any is made. Charge all or none.

        Args:
            eta: Loss per unit of distance, in (0, 1e6], rounded up to a billionth.
            owners: One per release.
            table: Name of the table of word vectors.
            caller: Public name for the record, at most 200 characters.
            keys: One per release, under which :meth:`released` will store it.

        Raises:
            AlreadyReleased: A text was stored under one of ``keys``. Nothing was charged, as for the next two.
            BudgetExceeded: An account would exceed its limit.
            PlanError: The ledger counts in another metric.
            LedgerError: The ledger cannot be trusted or written. Release nothing.
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
            raise self._exceeded(refused, eta, cost)
        if refused is not None:
            raise _other_table(table, refused)

    def check_table(self, table: str) -> None:
        """Raise PlanError for another table."""
        if self.table not in (None, table):
            raise _other_table(table, str(self.table))

    def _exceeded(self, refused: Shortfall, eta: float, cost: int) -> BudgetExceeded:
        limit = self._store.limits.of(refused.whose)
        assert limit is not None  # only a limit refuses
        left = max(limit - refused.spent, 0)
        fits = left // cost
        what, times = ("text", "") if refused.asked == 1 else ("request", f"{refused.asked} x ")
        refusal = BudgetExceeded(
            f"This {what} would cost {times}eta {eta:g}; {units(left):g} of {units(limit):g} is left for the "
            f"{refused.whose} at position {refused.position} of the request. Nothing was charged and nothing released, "
            f"and {fits} more would fit into this account. Reuse what was released, or ask for less. (In nats per unit "
            "of distance.)",
            asked=f"{times}a release at eta={eta:g} for a {refused.whose}",
            spent=(units(refused.spent), 0.0),
            budget=(units(limit), 0.0),
            fits=fits,
        )
        return self._refusals.add(refusal)

    def spent(self, *, user: str | None = None, document: str | None = None) -> float:
        """Return one user's or document's sum of eta."""
        if (user is None) == (document is None):
            raise InvalidParameter("Expected exactly one of user= and document= to be given.")
        owner = Owner(document or "", user)
        whose: Whose = "document" if owner.user is None else "user"
        key = owner.document if owner.user is None else owner.user
        return units(self._store.spent(whose, self._store.digest(whose, key)))

    def entries(self) -> Iterator[MetricEntry]:
        """Yield every charged release."""
        return self._store.entries()

    def digest(self, domain: str, text: str) -> bytes:
        """Return a keyed hash of ``text``."""
        return self._store.digest(f"other {domain}", text)

    def released(self) -> ReleasedTexts:
        """Return the released texts."""
        return self._released

    def certificate(self, **fields: Any) -> MetricCertificate:
        """Return the certificate with the loss so far. ``fields`` are other fields of :class:`MetricCertificate`."""
        releases, document, user, _ = self._store.summary()
        return MetricCertificate(
            **fields,
            user_spent=None if user is None else units(user),
            document_spent=None if document is None else units(document),
            user_limit=self.limit,
            document_limit=self.document_limit,
            releases=releases,
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
    return MetricLedger.__new__(MetricLedger)._over(store, keyed=False)


def _reopened(limits: Limits, path: str, ledger_id: str) -> MetricLedger:
    return metric_ledger_over(MetricStore(limits, backend_at(path, METRIC_LEDGER, ledger_id), key=None))
