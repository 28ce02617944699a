"""What a ledger keeps: plans, their used counts, one entry per charge, and the journal of a plan's run.

One SQLite schema, in a file or in memory.

The store knows counts and claims, never what they cost: composition lives in ``_account.py``.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence

from langchain_dp.accounting._connection import Database
from langchain_dp.accounting._ledger_file import verify_contents
from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.errors import LedgerError

SLACK = 1e-9
"""Relative float slack when claims are added up and compared with the budget."""

LEAST_CLAIM = 1e-12
"""Nats at which a plan is read whose events cost epsilon 0: at its delta nothing is left for an epsilon to cover.

Such a plan is written as 0. Read as this it is a budget like any other, which 0 is not, and no smaller than it was.
"""

_PAGE = 500


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
    """One durable spend. Holds public parameters only, no private text.

    Args:
        id: Position in the ledger, from 1, without gaps.
        time: When it was written, ISO 8601 in UTC.
        plan: Name of the plan it was charged to.
        event: The event as JSON.
        count: How many releases of the event were charged at once.
        chain: Short name of the caller.
    """

    id: int
    time: str
    plan: str
    event: str
    count: int
    chain: str


@dataclasses.dataclass(frozen=True)
class StoredPlan:
    """A reserved plan as it was stored; never changes. ``items`` maps an event's JSON to (row, max_count).

    ``epsilon`` is above 0: a claim of 0 is read as ``LEAST_CLAIM``.
    """

    name: str
    epsilon: float
    delta: float
    items: dict[str, tuple[int, int]]


class Store(Database):
    """Durable counts of one ledger, shared by threads, and by processes when it has a path.

    Args:
        budget: Stored with a new ledger; must equal the stored one of an existing ledger.
        path: SQLite file, or None for a ledger that lives and dies with this process.
        ledger_id: When given, the file must exist and be exactly this ledger (a pickle that comes back).

    Raises:
        LedgerCorrupt, LedgerMismatch, LedgerUnwritable, LedgerError: See :mod:`langchain_dp.errors`.
    """

    def __init__(
        self, budget: PrivacyBudget, path: str | os.PathLike[str] | None, *, ledger_id: str | None = None
    ) -> None:
        # Resolved once: a later chdir, or a second name through a symlink, must not lead to another file.
        super().__init__(None if path is None else os.path.realpath(os.fsdecode(path)), ledger_id)
        self.budget = budget
        try:
            self.begin(lambda connection: _insert_budget(connection, budget), self._verify)
        except BaseException:
            self.close()
            raise

    def _verify(self, connection: sqlite3.Connection, path: str) -> None:
        verify_contents(connection, path, self.budget, SLACK)
        self._newest_entry = connection.execute("SELECT coalesce(max(id), 0) FROM entries").fetchone()[0]

    def plans(self) -> list[StoredPlan]:
        """Return every reserved plan in the order of reservation."""
        with self.transaction(write=False) as connection:
            return _plans(connection)

    def used(self) -> dict[int, int]:
        """Return the used count of every plan item by its row, read at one moment."""
        with self.transaction(write=False) as connection:
            return dict(connection.execute("SELECT item, used FROM items"))

    def add_plan(
        self, name: str, items: Sequence[tuple[str, int]], epsilon: float, delta: float, journal: str
    ) -> tuple[StoredPlan | None, list[StoredPlan]]:
        """Store a plan, and the first journal of its run unless it is empty, if its claim fits beside the others.

        Returns:
            The plan of that name, new or found (None if it does not fit), and the plans that were there before.
        """
        with self.transaction(write=True) as connection:
            before = _plans(connection)
            for plan in before:
                if plan.name == name:
                    return plan, before
            if not fits(self.budget, [*((p.epsilon, p.delta) for p in before), (epsilon, delta)]):
                return None, before
            row = connection.execute(
                "INSERT INTO plans (name, epsilon, delta, time) VALUES (?, ?, ?, ?)", (name, epsilon, delta, _now())
            ).lastrowid
            connection.executemany(
                "INSERT INTO items (plan, event, max_count) VALUES (?, ?, ?)",
                [(row, event, max_count) for event, max_count in items],
            )
            if journal:
                connection.execute("INSERT INTO journals (plan, state) VALUES (?, ?)", (row, journal))
            return _plans(connection)[-1], before

    def add_use(self, item: int, count: int, chain: str) -> bool:
        """Charge ``count`` uses of a plan item, durably. Returns False, with nothing charged, if too few are left."""
        with self.transaction(write=True) as connection:
            charged = connection.execute(
                "UPDATE items SET used = used + ?1 WHERE item = ?2 AND used + ?1 <= max_count", (count, item)
            ).rowcount
            if not charged:
                return False
            newest = connection.execute(
                "INSERT INTO entries (time, item, count, chain) VALUES (?, ?, ?, ?)", (_now(), item, count, chain)
            ).lastrowid
            if newest is None or newest <= self._newest_entry:
                raise self.forgotten()
        # Only after the commit: an entry that was rolled back gives its id to the next one.
        self._newest_entry = max(self._newest_entry, newest)
        return True

    def journal(self, plan: str) -> str:
        """The journal of a plan's run; empty if it has none."""
        with self.transaction(write=False) as connection:
            found = connection.execute("SELECT state FROM journals JOIN plans USING (plan) WHERE name = ?", (plan,))
            return str((found.fetchone() or ("",))[0])

    def keep_journal(self, plan: str, journal: str, instead_of: str) -> None:
        """Write the journal of a plan's run, durably, in place of the one that its writer knows.

        Raises:
            LedgerError: Another one stands there, or the charge of what it holds is gone. Nothing was written.
        """
        with self.transaction(write=True) as connection:
            self.check_newest(connection)
            wrote = connection.execute(
                "INSERT INTO journals (plan, state) SELECT plan, ?1 FROM plans LEFT JOIN journals USING (plan) "
                "WHERE name = ?2 AND coalesce(state, '') = ?3 ON CONFLICT DO UPDATE SET state = excluded.state",
                (journal, plan, instead_of),
            ).rowcount
            if not wrote:
                raise LedgerError(
                    f"The journal of the run {plan!r} in the ledger {self.path} was changed by somebody else, or is "
                    "that of another moment. What was just drawn is not kept and may not leave: start the run again."
                )

    def entries(self, plan: str | None = None) -> Iterator[LedgerEntry]:
        """Yield entries in order, of one plan or of all. Pages: no lock is held between two of them."""
        last = 0
        while True:
            with self.transaction(write=False) as connection:
                rows = connection.execute(
                    "SELECT entries.id, entries.time, plans.name, items.event, entries.count, entries.chain "
                    "FROM entries JOIN items USING (item) JOIN plans USING (plan) "
                    "WHERE entries.id > ?1 AND (?2 IS NULL OR plans.name = ?2) ORDER BY entries.id LIMIT ?3",
                    (last, plan, _PAGE),
                ).fetchall()
            for row in rows:
                yield LedgerEntry(*row)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]


def fits(budget: PrivacyBudget, claims: Sequence[tuple[float, float]]) -> bool:
    """Whether claims stay inside the budget under basic composition: epsilons add up, deltas add up."""
    return (
        math.fsum(epsilon for epsilon, _ in claims) <= budget.epsilon * (1 + SLACK)
        and math.fsum(delta for _, delta in claims) <= budget.delta * (1 + SLACK)
    )  # fmt: skip


def _plans(connection: sqlite3.Connection) -> list[StoredPlan]:
    plans = {
        row: StoredPlan(name, max(epsilon, LEAST_CLAIM), delta, {})
        for row, name, epsilon, delta in connection.execute(
            "SELECT plan, name, epsilon, delta FROM plans ORDER BY plan"
        )
    }
    for row, item, event, max_count in connection.execute(
        "SELECT plan, item, event, max_count FROM items ORDER BY item"
    ):
        plans[row].items[event] = (item, max_count)
    return list(plans.values())


def _insert_budget(connection: sqlite3.Connection, budget: PrivacyBudget) -> str:
    ledger_id = uuid.uuid4().hex
    connection.execute(
        "INSERT INTO ledger (only_row, ledger_id, epsilon, delta, neighbors, time) VALUES (1, ?, ?, ?, ?, ?)",
        (ledger_id, budget.epsilon, budget.delta, budget.neighbors.name, _now()),
    )
    return ledger_id


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
