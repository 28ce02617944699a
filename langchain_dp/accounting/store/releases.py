"""What has left, kept in its ledger: sanitized texts, answers of a chain's replicas, and which records are gone.

The ledger writes with the charge that a text is being released; what it was released as, when it is drawn; and only
then may the text leave. A charge without a text has an unknown outcome: the text is charged again and drawn again. The
ledger does not keep which text belongs to which charge: whoever sees the file cannot sort texts by their users.

Answers and forgotten records are kept with the chain's plan, under keyed hashes: no question and no id of a record
stands in the database. An answer belongs to a page, the number of records that were forgotten before it was drawn: one
that a forgotten record may have helped to find is not given out again where the chain asks for the new page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from langchain_dp.accounting.store.backend import Connection
from langchain_dp.accounting.store.base import LedgerStore, now
from langchain_dp.accounting.store.plans import PlanStore, StoredPlan

_AT_ONCE = 500


class AlreadyReleased(Exception):  # no error: whoever asked looks it up
    """Nothing was charged: a text that was to be charged has been released meanwhile."""


class ReleasedTexts:
    """Released texts by keyed hash. Thread-safe; the first value of a key stays, whoever else writes it."""

    def __init__(self, ledger: LedgerStore) -> None:
        self._ledger = ledger

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, ...]]:
        """What was released under these keys; keys without a release are left out."""
        with self._ledger.read() as connection:
            return dict(_released(connection, keys))

    def put(self, released: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, tuple[str, ...]]:
        """Store what was drawn and return what now stands under these keys: an earlier value wins.

        Raises:
            LedgerCorrupt: A key was never charged, or its charge is gone. What was drawn may not leave.
        """
        with self._ledger.backend.transaction(write=True) as connection:
            self._ledger.check_newest(connection)
            connection.executemany(
                "UPDATE releases SET texts = ? WHERE key = ? AND texts IS NULL",
                [(json.dumps(texts), key) for key, texts in released.items()],
            )
            found = dict(_released(connection, list(released)))
            if found.keys() != released.keys():
                raise self._ledger.forgotten()
        return found


def claim(connection: Connection, keys: Sequence[bytes]) -> None:
    """Note that these are being released, in the transaction that charges them.

    Raises:
        AlreadyReleased: One of them has been, by another process: to charge it would be to pay for nothing.
    """
    if next(_released(connection, keys), None):
        raise AlreadyReleased
    connection.executemany("INSERT INTO releases (key) VALUES (?) ON CONFLICT DO NOTHING", [(key,) for key in keys])


def _released(connection: Connection, keys: Sequence[bytes]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        rows = connection.execute(
            f"SELECT key, texts FROM releases WHERE texts IS NOT NULL AND key IN ({marks})",  # noqa: S608  # question marks only
            some,
        )
        yield from ((key, tuple(json.loads(texts))) for key, texts in rows)


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
        with self._store.backend.transaction(write=True) as connection:
            connection.execute(
                "INSERT INTO forgotten (plan, record, time) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (self._row(connection), record, now()),
            )

    def forgotten(self, after: int = 0) -> list[tuple[int, bytes]]:
        """Records that are used no more, as (place in the ledger, hash), from behind a place on, in order."""
        with self._store.read() as connection:
            rows = connection.execute(
                "SELECT place, record FROM forgotten WHERE plan = ? AND place > ? ORDER BY place",
                (self._row(connection), after),
            )
            return [(int(place), bytes(record)) for place, record in rows.fetchall()]

    def answer(self, question: bytes, page: int) -> str | None:
        """What was released for the question of that hash on a page; None if nothing was."""
        with self._store.read() as connection:
            return _answer(connection, self._row(connection), question, page)

    def keep(self, question: bytes, page: int, answer: str) -> str:
        """Store what was drawn and charged, and return what now stands there: whoever came first wins.

        Raises:
            LedgerCorrupt: The charge is gone: an older copy of the ledger. What was drawn may not leave.
        """
        with self._store.backend.transaction(write=True) as connection:
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
