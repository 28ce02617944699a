"""Register of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.accounting.store.base import LedgerStore, now, rows_of
from langchain_dp.errors import LedgerMismatch


class BlockStore(LedgerStore):
    """Durable register in which no record is in two blocks."""

    _charges = "records"
    _wrong = ("SELECT 0", "blocks")
    _orphaned = "false"

    def __init__(self, length: str, backend: Backend) -> None:
        self._length = length
        super().__init__(backend)

    def _terms(self) -> dict[str, Any]:
        return {"length": self._length}

    def _check_terms(self, connection: Connection) -> None:
        length = connection.execute("SELECT length FROM ledger").fetchone()[0]
        if length != self._length:
            raise LedgerMismatch(
                f"Expected by={self._length!r} to be {length!r}: the blocks at {self.path} are of one {length} each. "
                f"Give by={length!r}, or another place."
            )

    def _check_totals(self, connection: Connection, entries: int) -> None: ...

    def enter(self, records: Sequence[tuple[bytes, str]]) -> list[int]:
        """Store all blocks, or return the positions of records in another block."""

        def note(connection: Connection) -> tuple[list[int], tuple[int, str] | None]:
            newest = self.check_newest(connection)
            rows = rows_of(connection, "SELECT mark, block FROM entries WHERE mark", [mark for mark, _ in records])
            before = {bytes(mark): str(block) for mark, block in rows}
            known = dict(before)
            elsewhere = [at for at, (mark, block) in enumerate(records) if known.setdefault(mark, block) != block]
            new = [(now(), mark, block) for mark, block in known.items() if mark not in before]
            if elsewhere or not new:
                return elsewhere, newest
            connection.executemany("INSERT INTO entries (time, mark, block, caller) VALUES (?, ?, ?, '')", new)
            return [], self.check_newest(connection)

        elsewhere, newest = self.backend.write(note)
        if not elsewhere:
            self._remember(newest)
        return elsewhere
