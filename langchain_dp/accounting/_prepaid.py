"""Releases paid for in blocks: one durable write pays for many, and what is left of a block is spent from memory.

A process that dies loses what is left of its blocks, and so does one that closes its ledger: nothing is refunded. A
child of a fork begins without any, or parent and child would both spend the same block.
"""

from __future__ import annotations

import threading

from langchain_dp._util import forks
from langchain_dp.accounting.store.plans import PlanStore, StoredPlan


class Prepaid:
    """Blocks of one process. Thread-safe.

    Args:
        store: The ledger that is charged.
        block: How many releases of an event are paid for at once; fewer where fewer are left.
    """

    def __init__(self, store: PlanStore, block: int) -> None:
        self.block = block
        self._store = store
        self._left: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()
        self._process = forks.process()
        forks.renew_lock(self)
        forks.watch(self)

    def take(self, plan: StoredPlan, event: str, count: int, caller: str) -> bool:
        """Spend ``count`` releases from a block, or from a new one. False, with nothing spent, if too few are left."""
        key = (plan.name, plan.time, event)
        item, most = plan.items[event]
        with self._lock:
            self._check_process()
            while (have := self._left.get(key, 0)) < count:
                missing = count - have
                unpaid = most - self._store.used([plan])[item]
                if unpaid < missing:
                    return False
                paid = min(max(self.block, missing), unpaid)
                if self._store.add_use(plan, event, paid, f"{caller} (prepaid)"):
                    self._left[key] = have + paid
            self._left[key] = have - count
            return True

    def left(self, plan: StoredPlan, event: str) -> int:
        """What this process has paid for and not spent."""
        with self._lock:
            self._check_process()
            return self._left.get((plan.name, plan.time, event), 0)

    def drop(self) -> None:
        """Give up what is left: the ledger is closed."""
        with self._lock:
            self._left.clear()

    def before_fork(self) -> None:
        """Nothing: a child takes nothing along. The lock is not waited for, since a database is asked under it."""

    def after_fork(self) -> None:
        """Begin without a block in a child, whose lock is new."""
        self._check_process()

    def _check_process(self) -> None:
        if self._process != forks.process():  # also after a fork around Python
            self._left, self._process = {}, forks.process()
