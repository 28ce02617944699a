"""What the replicas of one chain tell each other through their ledger: which answers have left, which records are gone.

Both are kept with the chain's plan, under keyed hashes: no question and no id of a record stands in the database. An
answer belongs to a page, the number of records that were forgotten before it was drawn: one that a forgotten record may
have helped to find is not given out again where the chain asks for the new page.
"""

from __future__ import annotations

from langchain_dp.accounting.store.backend import Connection
from langchain_dp.accounting.store.base import now
from langchain_dp.accounting.store.plans import PlanStore, StoredPlan


class Shared:
    """Answers and forgotten records of one plan. Thread-safe; nothing that was written changes or goes."""

    def __init__(self, store: PlanStore, plan: StoredPlan) -> None:
        self._store = store
        self._plan = plan

    @property
    def is_private_to_process(self) -> bool:
        """Whether nobody else can see it: a ledger in memory."""
        return self._store.path is None

    def digest(self, domain: str, text: str) -> bytes:
        """Keyed hash of ``text`` within this plan."""
        return self._store.digest(domain, f"{self._plan.name}\0{text}")

    def forget(self, record: bytes) -> None:
        """Note, durably, that the record of that hash is used no more. Once more changes nothing."""
        with self._store.transaction(write=True) as connection:
            connection.execute(
                "INSERT INTO forgotten (plan, record, time) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (self._row(connection), record, now()),
            )

    def forgotten(self, after: int = 0) -> list[tuple[int, bytes]]:
        """Records that are used no more, as (place in the ledger, hash), from behind a place on, in order."""
        with self._store.transaction(write=False) as connection:
            rows = connection.execute(
                "SELECT place, record FROM forgotten WHERE plan = ? AND place > ? ORDER BY place",
                (self._row(connection), after),
            )
            return [(int(place), bytes(record)) for place, record in rows.fetchall()]

    def answer(self, question: bytes, page: int) -> str | None:
        """What was released for the question of that hash on a page; None if nothing was."""
        with self._store.transaction(write=False) as connection:
            return _answer(connection, self._row(connection), question, page)

    def keep(self, question: bytes, page: int, answer: str) -> str:
        """Store what was drawn and charged, and return what now stands there: whoever came first wins.

        Raises:
            LedgerCorrupt: The charge is gone: an older copy of the ledger. What was drawn may not leave.
        """
        with self._store.transaction(write=True) as connection:
            self._store.check_newest(connection)
            row = self._row(connection)
            connection.execute(
                "INSERT INTO answers (plan, page, question, answer) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (row, page, question, answer),
            )
            kept = _answer(connection, row, question, page)
            assert kept is not None  # written above, or by another
            return kept

    def _row(self, connection: Connection) -> int:
        """The plan's row. Not by its name alone: in an older copy that may be another plan's."""
        found = connection.execute(
            "SELECT plan FROM plans WHERE name = ? AND time = ?", (self._plan.name, self._plan.time)
        ).fetchone()
        if found is None:
            raise self._store.lost(self._plan)
        return int(found[0])


def _answer(connection: Connection, plan: int, question: bytes, page: int) -> str | None:
    found = connection.execute(
        "SELECT answer FROM answers WHERE plan = ? AND page = ? AND question = ?", (plan, page, question)
    ).fetchone()
    return None if found is None else str(found[0])
