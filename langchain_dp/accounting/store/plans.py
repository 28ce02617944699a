"""Plans, charges and journals."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.accounting.store.base import LedgerStore, now
from langchain_dp.errors import LedgerCorrupt, LedgerError, LedgerMismatch

SLACK = 1e-9

QUOTAS = "quotas"

LEAST_CLAIM = 1e-12
"""Stands for a claim of 0, because a valid budget is above 0."""

# Not the row alone: in an older copy of the file the row may be another plan's.
_ITS_OWN = "item = ? AND plan = (SELECT plan FROM plans WHERE name = ? AND time = ?) AND event = ? AND max_count = ?"


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
    """A durable charge."""

    id: int  # position in the ledger, from 1, without gaps
    time: str  # ISO 8601 in UTC
    plan: str
    event: str  # JSON
    count: int
    caller: str


@dataclasses.dataclass(frozen=True)
class StoredPlan:
    """A stored plan. In an older copy, another plan may have its name, with another ``time``."""

    name: str
    epsilon: float  # above 0: a claim of 0 is read as LEAST_CLAIM
    delta: float
    time: str
    settings: Mapping[str, Any] | None  # public
    items: dict[str, tuple[int, int]]  # event JSON -> (row, max_count)
    quotas: Mapping[str, Any] | None = None  # None if every user may use it up


_ADDED_UP = 100_000


class UserRefused(Exception):
    """The quota is used up."""


class PlanStore(LedgerStore):
    """Durable counts of a ledger."""

    _charges = "entries"
    _wrong = (
        "SELECT count(*) FROM items LEFT JOIN (SELECT item, sum(count) AS total FROM entries GROUP BY item) AS sums "
        "USING (item) WHERE used <> coalesce(total, 0) OR plan NOT IN (SELECT plan FROM plans)",
        "used counts",
    )
    _wrong_since = (
        "SELECT count(*) FROM items LEFT JOIN checked USING (item) LEFT JOIN (SELECT item, sum(count) AS since FROM "
        "entries WHERE id > ? GROUP BY item) AS sums USING (item) WHERE used <> coalesce(checked.total, 0) + "
        "coalesce(since, 0) OR plan NOT IN (SELECT plan FROM plans)"
    )
    _orphaned = "item NOT IN (SELECT item FROM items)"

    def __init__(self, budget: PrivacyBudget, backend: Backend) -> None:
        self.budget = budget
        super().__init__(backend)

    def _terms(self) -> dict[str, Any]:
        budget = self.budget
        return {"epsilon": budget.epsilon, "delta": budget.delta, "neighbors": budget.neighbors.name}

    def _check_terms(self, connection: Connection) -> None:
        budget = self.budget
        epsilon, delta, neighbors = connection.execute("SELECT epsilon, delta, neighbors FROM ledger").fetchone()
        if (epsilon, delta, neighbors) != (budget.epsilon, budget.delta, budget.neighbors.name):
            raise LedgerMismatch(
                f"The ledger {self.path} belongs to the budget epsilon={epsilon!r}, delta={delta!r}, neighbors="
                f"{str(neighbors).lower()}, not to epsilon={budget.epsilon!r}, delta={budget.delta!r}, "
                f"neighbors={budget.neighbors.name.lower()}. Open it with its own budget, or give another path."
            )

    def _check_totals(self, connection: Connection, entries: int) -> None:
        if not fits(self.budget, connection.execute("SELECT epsilon, delta FROM plans").fetchall()):
            raise self.damaged("its plans claim more than its budget")
        more = connection.execute(
            "SELECT count(*) FROM (SELECT plan, sum(used) AS total FROM quotas GROUP BY plan) AS sums WHERE total "
            "> (SELECT coalesce(sum(used), 0) FROM items WHERE items.plan = sums.plan)"
        ).fetchone()[0]
        if more:
            raise self.damaged(f"the users of {more} of its plans used more than was charged")

    def plans(self) -> list[StoredPlan]:
        with self.read() as connection:
            return self._stored(connection)

    def _stored(self, connection: Connection) -> list[StoredPlan]:
        try:
            return _plans(connection)
        except (LookupError, ValueError, TypeError, AttributeError):  # of a row that was edited
            pass
        raise self.damaged("a plan in it cannot be read")

    def used(self, plans: Sequence[StoredPlan]) -> dict[int, int]:
        with self.read() as connection:
            rows = _used(connection)
        for plan in plans:
            for event, (item, most) in plan.items.items():
                if rows.get(item, ())[1:] != (plan.name, plan.time, event, most):
                    raise self.lost(plan)
        return {item: row[0] for item, row in rows.items()}

    def glance(self, *, wait: float = 0.0) -> tuple[list[StoredPlan], dict[int, int]]:
        with self.read(wait) as connection:
            return self._stored(connection), {item: row[0] for item, row in _used(connection).items()}

    def lost(self, plan: StoredPlan) -> LedgerCorrupt:
        return LedgerCorrupt(
            f"The ledger {self.path} no longer holds the plan {plan.name!r} as this process knows it: another copy was "
            "put in its place. Nothing was charged. Restore the newest copy. Until then nothing may be released."
        )

    def add_plan(
        self,
        name: str,
        items: Sequence[tuple[str, int]],
        epsilon: float,
        delta: float,
        settings: Mapping[str, Any] | None = None,
        journal: str = "",
        quotas: Mapping[str, Any] | None = None,
    ) -> tuple[StoredPlan | None, list[StoredPlan]]:
        """Store a plan if it fits. Return it, if any, and the earlier plans."""
        stored = None if settings is None and quotas is None else dict(settings or {})
        if stored is not None and quotas is not None:
            stored[QUOTAS] = dict(quotas)
        with self.backend.transaction(write=True) as connection:
            self.check_newest(connection)
            before = self._stored(connection)
            for plan in before:
                if plan.name == name:
                    return plan, before
            if not fits(self.budget, [*((p.epsilon, p.delta) for p in before), (epsilon, delta)]):
                return None, before
            row = connection.execute(
                "INSERT INTO plans (name, epsilon, delta, time, settings) VALUES (?, ?, ?, ?, ?) RETURNING plan",
                (name, epsilon, delta, now(), None if stored is None else json.dumps(stored, sort_keys=True)),
            ).fetchone()[0]
            connection.executemany(
                "INSERT INTO items (plan, event, max_count) VALUES (?, ?, ?)",
                [(row, event, max_count) for event, max_count in items],
            )
            if journal:
                connection.execute("INSERT INTO journals (plan, state) VALUES (?, ?)", (row, journal))
            return self._stored(connection)[-1], before

    def add_use(
        self, plan: StoredPlan, event: str, count: int, caller: str, user_id: tuple[str, int] | None = None
    ) -> bool:
        """Charge plan and quota in one step. Return False, with nothing charged, if too few are left."""
        newest = self.backend.write(
            functools.partial(self._charge, plan=plan, event=event, count=count, caller=caller, user_id=user_id),
            self._charge_all if user_id is None else None,
            (plan, event, count, caller),
        )
        return self._remember(newest)

    def add_missing(self, plan: StoredPlan, event: str, count: int, caller: str) -> int:
        """Charge the uncharged part of ``count``. Return 0, or that part if it does not fit."""
        item, _ = plan.items[event]

        def charge(connection: Connection) -> tuple[int, tuple[int, str] | None]:
            self.check_newest(connection)
            self._check_own(connection, plan, event)
            sums = "SELECT coalesce(sum(count), 0) FROM entries WHERE item = ? AND caller = ?"
            missing = count - int(connection.execute(sums, (item, caller)).fetchone()[0])
            return missing, self._charge(connection, plan, event, missing, caller) if missing > 0 else None

        missing, newest = self.backend.write(charge)
        return 0 if missing <= 0 or self._remember(newest) else missing

    def _charge(
        self,
        connection: Connection,
        plan: StoredPlan,
        event: str,
        count: int,
        caller: str,
        user_id: tuple[str, int] | None = None,
    ) -> tuple[int, str] | None:
        newest = self._charge_all(connection, [(plan, event, count, caller)])
        if newest is None:
            self._check_own(connection, plan, event)
        elif user_id is not None:
            _charge_user(connection, plan.items[event][0], count, *user_id)
        return newest

    def _charge_all(
        self, connection: Connection, charges: Sequence[tuple[StoredPlan, str, int, str]]
    ) -> tuple[int, str] | None:
        """Charge all or none. If the sum fits, each charge fits in turn."""
        totals: dict[tuple[int, str, str, str, int], int] = {}
        entries = []
        for plan, event, count, caller in charges:
            item, most = plan.items[event]
            own = (item, plan.name, plan.time, event, most)
            totals[own] = totals.get(own, 0) + count
            entries.append({"item": item, "count": count, "caller": caller})
        statement = f"UPDATE items SET used = used + ? WHERE {_ITS_OWN} AND used + ? <= max_count"  # noqa: S608  # no value in it
        for own, total in totals.items():
            if not connection.execute(statement, (total, *own, total)).rowcount:
                return None
        newest = self._enter(connection, now(), *entries)
        if newest[0] % _ADDED_UP < len(entries):
            connection.execute(
                "INSERT INTO checked (item, total, entry) SELECT item, sum(count), ? FROM entries WHERE id > ? GROUP "
                "BY item ON CONFLICT (item) DO UPDATE SET total = checked.total + excluded.total, "
                "entry = excluded.entry",
                (newest[0], self._checked(connection)),
            )
        return newest

    def _checked(self, connection: Connection) -> int:
        return int(connection.execute("SELECT coalesce(max(entry), 0) FROM checked").fetchone()[0])

    def _check_own(self, connection: Connection, plan: StoredPlan, event: str) -> None:
        item, most = plan.items[event]
        row = (item, plan.name, plan.time, event, most)
        if connection.execute(f"SELECT 1 FROM items WHERE {_ITS_OWN}", row).fetchone() is None:  # noqa: S608  # as above
            raise self.lost(plan)

    def quotas(self, plan: StoredPlan) -> dict[str, int]:
        with self.read() as connection:
            rows = connection.execute(
                "SELECT user_id, used FROM quotas JOIN plans USING (plan) WHERE name = ? AND plans.time = ? "
                "ORDER BY user_id",
                (plan.name, plan.time),
            ).fetchall()
        return {str(user_id): int(used) for user_id, used in rows}

    def journal(self, plan: str) -> str:
        with self.read() as connection:
            rows = connection.execute("SELECT state FROM journals JOIN plans USING (plan) WHERE name = ?", (plan,))
            return str((rows.fetchone() or ("",))[0])

    def keep_journal(self, plan: str, journal: str, expected: str) -> None:
        """Replace the journal ``expected``, or refuse."""
        with self.backend.transaction(write=True) as connection:
            self.check_newest(connection)
            wrote = connection.execute(
                "INSERT INTO journals (plan, state) SELECT plan, ? FROM plans LEFT JOIN journals USING (plan) "
                "WHERE name = ? AND coalesce(state, '') = ? ON CONFLICT (plan) DO UPDATE SET state = excluded.state",
                (journal, plan, expected),
            ).rowcount
            if not wrote:
                raise LedgerError(
                    f"The journal of the run {plan!r} in the ledger {self.path} was changed by somebody else, or is "
                    "that of another moment. The values just drawn are not kept and may not leave: start the run again."
                )

    def entries(self, plan: str | None = None) -> Iterator[LedgerEntry]:
        rows = self._rows_after(
            "SELECT entries.id, entries.time, plans.name, items.event, entries.count, entries.caller "
            "FROM entries JOIN items USING (item) JOIN plans USING (plan) WHERE "
            + ("true" if plan is None else "plans.name = ?"),
            () if plan is None else (plan,),
        )
        return (LedgerEntry(*row) for row in rows)


def fits(budget: PrivacyBudget, claims: Sequence[tuple[float, float]]) -> bool:
    return (
        math.fsum(epsilon for epsilon, _ in claims) <= budget.epsilon * (1 + SLACK)
        and math.fsum(delta for _, delta in claims) <= budget.delta * (1 + SLACK)
    )  # fmt: skip


def _plans(connection: Connection) -> list[StoredPlan]:
    plans: dict[int, StoredPlan] = {}
    for row, name, epsilon, delta, time, stored in connection.execute(
        "SELECT plan, name, epsilon, delta, time, settings FROM plans ORDER BY plan"
    ):
        settings = json.loads(stored or "null")
        quotas = None if settings is None else settings.pop(QUOTAS, None)
        public = None if quotas is not None and not settings else settings
        plans[row] = StoredPlan(name, max(epsilon, LEAST_CLAIM), delta, time, public, {}, quotas)
    for row, item, event, max_count in connection.execute(
        "SELECT plan, item, event, max_count FROM items ORDER BY item"
    ):
        plans[row].items[event] = (item, max_count)
    return list(plans.values())


def _charge_user(connection: Connection, item: int, count: int, user_id: str, most: int) -> None:
    charged = 0
    if count <= most:
        charged = connection.execute(
            "INSERT INTO quotas (plan, user_id, most, used) SELECT plan, ?, ?, ? FROM items WHERE item = ? "
            "ON CONFLICT (plan, user_id) DO UPDATE SET used = quotas.used + excluded.used "
            "WHERE quotas.used + excluded.used <= quotas.most",
            (user_id, most, count, item),
        ).rowcount
    if not charged:
        raise UserRefused  # out of the transaction, which rolls the plan's charge back


def _used(connection: Connection) -> dict[int, tuple[Any, ...]]:
    rows = connection.execute("SELECT item, used, name, time, event, max_count FROM items JOIN plans USING (plan)")
    return {row[0]: row[1:] for row in rows}
