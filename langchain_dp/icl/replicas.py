"""Answers and forgotten records that replicas of a chain share."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

from langchain_dp._util import forks
from langchain_dp._util.validate import shown
from langchain_dp.accounting import LedgerPlan
from langchain_dp.errors import InvalidParameter
from langchain_dp.records import AUTOMATIC, PrivateRecords, unknown_id

_RECORD, _ANSWER = "forgotten record", "answered question"


class Replicas:
    """The state shared with other replicas. ``public`` holds labels, template and model."""

    def __init__(
        self, plan: LedgerPlan, records: PrivateRecords, drop: Callable[[str], None], public: Sequence[object]
    ) -> None:
        self._shared = plan.shared
        if self._shared.is_private_to_process:
            raise InvalidParameter(
                "Expected a ledger with replicas=True that others can open: give ledger= a path or a postgresql:// URL."
            )
        check_named(records.ids())
        self._records = records
        self._drop = drop
        self._public = json.dumps(public, ensure_ascii=False)
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._last_seen = (0, 0)
        self.catch_up()

    @property
    def epoch(self) -> int:
        return self._last_seen[1]

    def catch_up(self) -> None:
        """Drop records that other replicas forgot, before every use of a record."""
        with self._lock:
            last, epoch = self._last_seen
            new = self._shared.forgotten(last)
            if not new:
                return
            gone = {record for _, record in new}
            for record_id in self._records.ids():
                if self._hash(record_id) in gone:
                    self._drop(record_id)
            # Last, in one assignment: a process forked before it repeats the drops, which changes nothing.
            self._last_seen = (new[-1][0], epoch + len(new))

    def _hash(self, record_id: str) -> bytes:
        return self._shared.digest(_RECORD, record_id)

    def forget(self, record_id: str) -> None:
        self.catch_up()
        if record_id not in self._records.ids():
            raise unknown_id(record_id)
        self._shared.forget(self._hash(record_id))
        self.catch_up()

    def check_new(self, record_id: str) -> None:
        """Refuse an automatic id, and the id of a forgotten record."""
        check_named([record_id])
        if self._hash(record_id) in {record for _, record in self._shared.forgotten()}:
            raise InvalidParameter(
                f"Expected record_id{shown(record_id)} to be new, but a record of this id was forgotten. "
                "Give another id."
            )

    def answered(self, question: str, epoch: int) -> str | None:
        return self._shared.answer(self._question(question), epoch)

    def keep(self, question: str, epoch: int, answer: str) -> str:
        return self._shared.keep(self._question(question), epoch, answer)

    def _question(self, question: str) -> bytes:
        return self._shared.digest(_ANSWER, f"{self._public}\0{question}")


def check_named(ids: Sequence[str]) -> None:
    if unnamed := sum(record_id.startswith(AUTOMATIC) for record_id in ids):
        raise InvalidParameter(
            f"Expected every example to have an 'id' with replicas=True, but {unnamed} have none. Give each example an "
            "id that is the same on every replica."
        )
