"""Released texts, answers and forgotten records, under keyed hashes.

A charge marks its text as being released. The text leaves once it is stored, and otherwise is charged again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from langchain_dp.accounting.store.backend import Connection
from langchain_dp.accounting.store.base import LedgerStore, now, rows_of
from langchain_dp.accounting.store.plans import PlanStore, StoredPlan


class AlreadyReleased(Exception):  # no error: the caller looks the text up
    """A text of this charge was released meanwhile."""


class ReleasedTexts:
    """Texts by keyed hash. The first value stays."""

    def __init__(self, ledger: LedgerStore) -> None:
        self._ledger = ledger

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, ...]]:
        with self._ledger.read() as connection:
            return dict(_released(connection, keys))

    def put(self, released: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, tuple[str, ...]]:
        """Store drawn texts and return the stored ones. If a charge is missing (LedgerCorrupt), no drawn text may
        leave.
        """

        def store(connection: Connection) -> dict[bytes, tuple[str, ...]]:
            self._ledger.check_newest(connection)
            connection.executemany(
                "UPDATE releases SET texts = ? WHERE key = ? AND texts IS NULL",
                [(json.dumps(texts), key) for key, texts in released.items()],
            )
            stored = dict(_released(connection, list(released)))
            if stored.keys() != released.keys():
                raise self._ledger.forgotten()
            return stored

        return self._ledger.backend.write(store)


def claim(connection: Connection, keys: Sequence[bytes]) -> None:
    """Mark keys as being released, in their charge's transaction."""
    if next(_released(connection, keys), None):
        raise AlreadyReleased
    connection.executemany("INSERT INTO releases (key) VALUES (?) ON CONFLICT DO NOTHING", [(key,) for key in keys])


def _released(connection: Connection, keys: Sequence[bytes]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    rows = rows_of(connection, "SELECT key, texts FROM releases WHERE texts IS NOT NULL AND key", keys)
    return ((key, tuple(json.loads(texts))) for key, texts in rows)


class Shared:
    """A plan's answers and forgotten records. ``page`` counts the records forgotten before a draw."""

    def __init__(self, store: PlanStore, plan: StoredPlan) -> None:
        self._store = store
        self._plan = plan

    @property
    def is_private_to_process(self) -> bool:
        return self._store.path is None

    def digest(self, domain: str, text: str) -> bytes:
        return self._store.digest(domain, f"{self._plan.name}\0{text}")

    def forget(self, record: bytes) -> None:
        self._store.backend.write(
            lambda connection: connection.execute(
                "INSERT INTO forgotten (plan, record, time) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (self._row(connection), record, now()),
            )
        )

    def forgotten(self, after: int = 0) -> list[tuple[int, bytes]]:
        with self._store.read() as connection:
            rows = connection.execute(
                "SELECT place, record FROM forgotten WHERE plan = ? AND place > ? ORDER BY place",
                (self._row(connection), after),
            )
            return [(int(place), bytes(record)) for place, record in rows.fetchall()]

    def answer(self, question: bytes, page: int) -> str | None:
        with self._store.read() as connection:
            return _answer(connection, self._row(connection), question, page)

    def keep(self, question: bytes, page: int, answer: str) -> str:
        """Store an answer and return the stored one. If the charge is missing (LedgerCorrupt), it may not leave."""

        def store(connection: Connection) -> str:
            self._store.check_newest(connection)
            row = self._row(connection)
            connection.execute(
                "INSERT INTO answers (plan, page, question, answer) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (row, page, question, answer),
            )
            stored = _answer(connection, row, question, page)
            assert stored is not None  # written above, or by another process
            return stored

        return self._store.backend.write(store)

    def _row(self, connection: Connection) -> int:
        """Return the plan's row by name and time. An older copy may reuse the name."""
        named = "SELECT plan FROM plans WHERE name = ? AND time = ?"
        row = connection.execute(named, (self._plan.name, self._plan.time)).fetchone()
        if row is None:
            raise self._store.lost(self._plan)
        return int(row[0])


def _answer(connection: Connection, plan: int, question: bytes, page: int) -> str | None:
    stored = "SELECT answer FROM answers WHERE plan = ? AND page = ? AND question = ?"
    row = connection.execute(stored, (plan, page, question)).fetchone()
    return None if row is None else str(row[0])
