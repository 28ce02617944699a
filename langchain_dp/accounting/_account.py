"""Common parts of a ledger and its plans."""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from dp_accounting.dp_event import DpEvent, PoissonSampledDpEvent

from langchain_dp._util import forks, validate
from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting.budget import PrivacyBudget, weak_promise_reasons
from langchain_dp.accounting.calibrate import max_releases
from langchain_dp.accounting.certificate import ROUNDED, PrivacyCertificate
from langchain_dp.accounting.events import (
    MetricEvent,
    Neighbors,
    PartEvent,
    event_from_json,
    event_to_json,
)
from langchain_dp.accounting.pld import epsilon as composed_epsilon
from langchain_dp.accounting.provenance import ReleaseCost
from langchain_dp.accounting.quotas import POOLED
from langchain_dp.accounting.store.base import LedgerStore, backend_at
from langchain_dp.accounting.store.plans import SLACK, PlanStore, StoredPlan
from langchain_dp.accounting.store.schema import LEDGER
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PrivateDataError, UnsupportedEvent

_SHARED = 256
_CACHED = 512
_NOUNS = {"NoisyMaxEvent": "question", "LimitedDomainEvent": "token", "ExponentialEvent": "choice"}


class SharedOnCopy:
    """Base of objects whose copy is the same object."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Refusals:
    """Refusals in this process."""

    def __init__(self) -> None:
        self._number, self._process = 0, forks.process()
        self._lock = threading.Lock()
        forks.renew_lock(self)

    def add(self, refusal: BudgetExceeded) -> BudgetExceeded:
        with self._lock:
            self._number, self._process = self.number + 1, forks.process()
        return refusal

    @property
    def number(self) -> int:
        return self._number if self._process == forks.process() else 0


class BaseLedger(SharedOnCopy):
    """Base of both kinds of ledger."""

    _store: LedgerStore
    _refusals: Refusals

    @property
    def path(self) -> str | None:
        """Absolute path of the file, or URL. None in memory."""
        return self._store.path

    def verify(self) -> None:
        """Add up all entries again, or raise LedgerCorrupt. Opening a ledger may add up the newest only."""
        self._store.verify()

    @property
    def refusals(self) -> int:
        """Number of this object's refusals in this process."""
        return self._refusals.number

    def close(self) -> None:
        """Close the ledger and its plans."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Prepaid:
    """Blocks of releases that are paid for in one write. Their rest is lost, and a forked child begins without one."""

    def __init__(self, store: PlanStore, block: int) -> None:
        self.block = block
        self._store = store
        self._left: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()
        self._process = forks.process()
        forks.renew_lock(self)
        forks.watch(self)

    def take(self, plan: StoredPlan, event: str, count: int, caller: str) -> bool:
        """Spend ``count`` releases, or nothing if too few are left."""
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
        with self._lock:
            self._check_process()
            return self._left.get((plan.name, plan.time, event), 0)

    def drop(self) -> None:
        with self._lock:
            self._left.clear()

    def before_fork(self) -> None:
        """Do not wait for the lock, which is held during database writes."""

    def after_fork(self) -> None:
        self._check_process()

    def _check_process(self) -> None:
        if self._process != forks.process():  # also after a fork around Python
            self._left, self._process = {}, forks.process()


class Account(SharedOnCopy):
    """An open ledger. An unpickled account is the same ledger."""

    def __init__(self, store: PlanStore, prepay_block: int | None = None) -> None:
        self.budget = store.budget
        self.store = store
        self.prepaid = None if prepay_block is None else Prepaid(store, prepay_block)
        self.refusals = Refusals()
        self.family: str | None = None  # name of the ledgers that share no record with this one
        self._known: dict[tuple[object, ...], float] = {}
        self._lock = threading.Lock()
        forks.renew_lock(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.store.path is None:
            raise PrivateDataError(
                "An in-memory ledger cannot be pickled: its copy would have a budget of its own. Give PrivacyLedger a "
                "path, and the copy opens the same file."
            )
        block = None if self.prepaid is None else self.prepaid.block
        return (_reopened, (self.budget, self.store.path, self.store.ledger_id, block))

    def unspent(self, plan: StoredPlan, event: str) -> int:
        return 0 if self.prepaid is None else self.prepaid.left(plan, event)

    def close(self) -> None:
        self.store.close()
        if self.prepaid is not None:  # only now: a thread could pay for another block before
            self.prepaid.drop()

    def cost(self, counts: Sequence[tuple[str, int]], delta: float) -> float:
        sums = tuple(sorted(counts))
        return self._remembered((*sums, delta), lambda: _composed(sums, delta, self.budget.neighbors))

    def releases(self, event: str, left: tuple[float, float]) -> int:
        if not (left[0] > SLACK * self.budget.epsilon and left[1] > SLACK * self.budget.delta):
            return 0
        rest = PrivacyBudget(left[0], left[1], self.budget.neighbors)
        return int(self._remembered((event, *left), lambda: max_releases(event_from_json(event), rest)))

    def _remembered(self, key: tuple[object, ...], compute: Callable[[], float]) -> float:
        with self._lock:
            if key not in self._known:
                value = compute()
                if len(self._known) >= _CACHED:
                    del self._known[next(iter(self._known))]  # the oldest: used counts only grow, so it is out of date
                self._known[key] = value
            return self._known[key]

    def left(self, plans: Sequence[StoredPlan]) -> tuple[float, float]:
        epsilon, delta = claims(plans)
        return max(self.budget.epsilon - epsilon, 0.0), max(self.budget.delta - delta, 0.0)

    def spent(
        self, plans: Sequence[StoredPlan], used: Mapping[int, int] | None = None, *, round_up: bool
    ) -> tuple[float, float]:
        used = self.store.used(plans) if used is None else used
        costs = [self._spent(plan, used, round_up) for plan in plans]
        return math.fsum(epsilon for epsilon, _ in costs), math.fsum(delta for _, delta in costs)

    def _spent(self, plan: StoredPlan, used: Mapping[int, int], round_up: bool) -> tuple[float, float]:
        counts = [
            (event, min(int(rounded_up(used[item], digits=1)), most) if round_up else used[item])
            for event, (item, most) in plan.items.items()
            if used[item]
        ]
        if not counts:
            return 0.0, 0.0
        # The claim covers every part of the plan, so it bounds the part that was used as well.
        return min(self.cost(counts, plan.delta), plan.epsilon), plan.delta

    def price(
        self,
        event: str,
        count: int,
        left: tuple[float, float],
        whole: float,
        *,
        at_most: int,
        before: Mapping[str, int] | None = None,
    ) -> str:
        before = {name: used for name, used in (before or {}).items() if used}
        request = f"This {_noun(event)}" if count == 1 else f"These {count:,} {_noun(event)}s"
        cost = math.inf
        if count <= at_most and left[1] > 0.0:
            after = {**before, event: before.get(event, 0) + count}
            cost = self.cost(list(after.items()), left[1])
            cost -= self.cost(list(before.items()), left[1]) if before else 0.0
        if not left[0] < cost < math.inf:
            return f"{request} would go beyond what is left."
        return f"{request} would cost epsilon {cost:.3g}; {left[0]:.3g} of {whole:.4g} is left."

    def exceeded(
        self, sentence: str, *, asked: str, fits: int, whole: tuple[float, float] | None = None
    ) -> BudgetExceeded:
        plans = self.store.plans()
        spent, reserved = self.spent(plans, round_up=False), claims(plans)
        more = f", and {fits} more would fit. Ask for less." if fits else "."
        if whole is not None:
            more = f", and it would fit into epsilon={whole[0]:.6g}, delta={whole[1]:g}. Ask for that share."
        refusal = BudgetExceeded(
            f"{sentence} Nothing was charged{more} A second ledger over these records would add its epsilon. (Spent so "
            f"far: epsilon={spent[0]:.6g}, delta={spent[1]:g}; reserved: epsilon={reserved[0]:.6g}, "
            f"delta={reserved[1]:g}; budget: {self.budget}.)",
            asked=asked,
            spent=spent,
            budget=(self.budget.epsilon, self.budget.delta),
            fits=fits,
        )
        return self.refusals.add(refusal)


class BudgetHolder(SharedOnCopy):
    """A plan or a ledger."""

    _account: Account

    def _reservations(self) -> list[StoredPlan]:
        raise NotImplementedError

    @property
    def budget(self) -> PrivacyBudget:
        """The ledger's budget."""
        return self._account.budget

    def spent(self, *, round_up: bool = False) -> tuple[float, float]:
        """Return the (epsilon, delta) of the releases so far. A ledger sums over its used plans.

        With ``round_up``, used counts are rounded up to one leading digit, so costs are composed rarely and never too
        low.
        """
        return self._account.spent(self._reservations(), round_up=round_up)

    def reserved(self) -> tuple[float, float]:
        """Return the reserved (epsilon, delta)."""
        return claims(self._reservations())

    def remaining(self, event: DpEvent) -> int:
        """Return the number of releases left."""
        raise NotImplementedError

    def certificate(
        self,
        event: DpEvent | None = None,
        *,
        mechanism: str = "",
        model: str = "",
        private: bool = True,
        reason: str = "",
        notes: Sequence[str] = (),
        parameters: Mapping[str, float | int | str] | None = None,
        round_up: bool = False,
    ) -> PrivacyCertificate:
        """Return the current certificate, for a ledger over all plans.

        Args:
            event: Event whose remaining count and parameters are printed. Optional if there is only one.
            mechanism: Name of the mechanism, by default the kinds of the events.
            model: Name of the model.
            private: False for seeded or non-private use.
            reason: Why it is not private.
            notes: Further notes.
            parameters: Public parameters, by default the event's.
            round_up: As for :meth:`spent`.
        """
        account, plans = self._account, self._reservations()
        events = list(dict.fromkeys(key for plan in plans for key in plan.items))
        if event is None and len(events) == 1:
            event = event_from_json(events[0])
        epsilon, delta = claims(plans)
        added = [POOLED] if any(plan.quotas is not None for plan in plans) else []
        added += [ROUNDED] if round_up else []
        if private:
            added += [point for point in weak_promise_reasons(epsilon, delta) if point not in notes]
        if account.prepaid is not None and any(plan.quotas is None for plan in plans):
            unspent = sum(account.unspent(plan, key) for plan in plans for key in plan.items)
            added.append(
                f"paid for in blocks of {account.prepaid.block}: the cost counts {unspent} releases that this "
                "process has paid for and not made, and those that others have"
            )
        if len(plans) > 1:
            added.append(f"the claims of {len(plans)} plans, each chosen adaptively, are added up")
        neighbors = account.budget.neighbors
        releases = [event_from_json(key) for key in events]
        kinds = sorted({type(one.event if isinstance(one, PartEvent) else one).__name__ for one in releases})
        return PrivacyCertificate(
            mechanism=mechanism or " + ".join(kinds) or "none yet",
            epsilon=epsilon,
            delta=delta,
            neighbors=neighbors,
            spent=self.spent(round_up=round_up),
            remaining=None if event is None else self.remaining(event),
            model=model,
            private=private,
            reason=reason,
            notes=(*notes, *added),
            parameters=_public_parameters(event) if parameters is None else parameters,
            sources=tuple(
                ReleaseCost(
                    ledger=account.store.ledger_id, plan=plan.name, epsilon=plan.epsilon, delta=plan.delta,
                    neighbors=neighbors, reason=reason,
                )
                for plan in plans
            ),
        )  # fmt: skip


@functools.lru_cache(maxsize=_SHARED)
def _composed(counts: tuple[tuple[str, int], ...], delta: float, neighbors: Neighbors) -> float:
    return composed_epsilon([(event_from_json(event), count) for event, count in counts], delta, neighbors=neighbors)


def _reopened(budget: PrivacyBudget, path: str, ledger_id: str, prepay_block: int | None = None) -> Account:
    return Account(PlanStore(budget, backend_at(path, LEDGER, ledger_id)), prepay_block)


def claims(plans: Sequence[StoredPlan]) -> tuple[float, float]:
    return math.fsum(plan.epsilon for plan in plans), math.fsum(plan.delta for plan in plans)


def event_key(event: DpEvent) -> str:
    validate.instance("event", event, DpEvent, "a DpEvent, such as NoisyMaxEvent")
    try:
        return _event_key(event)
    except TypeError:  # unhashable, as ComposedDpEvent is
        return _event_key.__wrapped__(event)


@functools.lru_cache(maxsize=_SHARED)
def _event_key(event: DpEvent) -> str:
    inner = event
    while isinstance(inner, (PoissonSampledDpEvent, PartEvent)):
        inner = inner.event
    if isinstance(inner, MetricEvent):
        raise UnsupportedEvent(
            f"{event!r} is metric privacy: nats per unit of distance, which never add up with an epsilon. This ledger "
            "has no account for it: keep it out of plans and spends."
        )
    # Every number of an event is a float: sigma=1 and sigma=1.0 are one event and must be one key.
    return json.dumps(json.loads(event_to_json(event), parse_int=float), sort_keys=True, separators=(",", ":"))


def plan_items(events: Sequence[tuple[DpEvent, int]]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for pair in events:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidParameter("Expected events to be pairs: [(event, max_count), ...].")
        key = event_key(pair[0])
        counts[key] = counts.get(key, 0) + validate.integer("max_count", pair[1], at_least=1, at_most=10**12)
    if not counts:
        raise InvalidParameter("Expected events=[] to hold at least one pair (event, max_count).")
    return sorted(counts.items())


def in_words(items: Sequence[tuple[str, int]]) -> str:
    counts: dict[str, int] = {}
    for event, count in items:
        counts[_noun(event)] = counts.get(_noun(event), 0) + count
    return " and ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())


def _noun(event: str) -> str:
    fields = json.loads(event)
    while "of" in fields:
        fields = fields["of"]
    return _NOUNS.get(fields["event"], "release")


def _public_parameters(event: DpEvent | None) -> dict[str, float | int | str]:
    fields = {} if event is None else json.loads(event_key(event))
    return {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name != "event"
    }
