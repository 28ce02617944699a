"""Sanitized texts that have left, kept in their ledger so that the same text need not be released again.

That a text is being released is written with its charge; what it was released as, when it is drawn; and only then may
it leave. A charge without a text is one whose outcome nobody knows: the text is charged again and drawn anew. Which
text belongs to which charge is not kept: whoever sees the file cannot sort texts by their users.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from langchain_dp.accounting.store.backend import Connection
from langchain_dp.accounting.store.base import LedgerStore

_AT_ONCE = 500


class AlreadyReleased(Exception):  # no error: whoever asked looks it up
    """Nothing was charged: a text that was to be charged has been released meanwhile."""


class ReleasedTexts:
    """Released texts by keyed hash. Thread-safe; the first value of a key stays, whoever else writes it."""

    def __init__(self, ledger: LedgerStore) -> None:
        self._ledger = ledger

    def get(self, keys: Sequence[bytes]) -> dict[bytes, tuple[str, ...]]:
        """What was released under these keys; keys without a release are left out."""
        with self._ledger.transaction(write=False) as connection:
            return dict(_released(connection, keys))

    def put(self, released: Mapping[bytes, tuple[str, ...]]) -> dict[bytes, tuple[str, ...]]:
        """Store what was drawn and return what now stands under these keys: an earlier value wins.

        Raises:
            LedgerCorrupt: A key was never charged, or its charge is gone. What was drawn may not leave.
        """
        with self._ledger.transaction(write=True) as connection:
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
