"""The durable privacy ledger.

A plan's parameters are fixed in advance. Plans add up by basic composition, which holds for adaptive parameters (Rogers
et al. 2016) and concurrent plans (Haney et al. 2023).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from dp_accounting.dp_event import DpEvent

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.rounding import bound, room
from langchain_dp.accounting._account import Account, BaseLedger, BudgetHolder, claims, event_key, in_words, plan_items
from langchain_dp.accounting._plan import LedgerPlan
from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import event_from_json
from langchain_dp.accounting.quotas import Quotas
from langchain_dp.accounting.store.base import backend_at
from langchain_dp.accounting.store.plans import QUOTAS, SLACK, LedgerEntry, PlanStore, StoredPlan
from langchain_dp.accounting.store.schema import LEDGER
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError

__all__ = ["LedgerEntry", "LedgerPlan", "PrivacyLedger"]
SHARES = "give each plan a share of delta, too: delta= of reserve(), or budget=PrivacyBudget(1.0, 5e-6) of a chain"

DIRECT = "direct"


class PrivacyLedger(BaseLedger, BudgetHolder):
    """A durable privacy budget, shared by threads, by processes with one ``path``, and by machines with one database.

    :meth:`spend` uses a plan named "direct". Unless reserved before, it takes the whole remaining budget for the event
    of the first spend.

    Args:
        budget: Budget of all releases together. An existing file must have the same.
        path: SQLite file on a local disk, made if absent. Copy it from another process, because closing the file drops
            a process's own POSIX locks. Or a PostgreSQL URL without a password (extra ``postgres``):
            ``"postgresql://user@host/database?schema=name&key_file=/path"``. None: in memory.
        prepay_block: Releases paid for in one durable write and then spent from memory. The rest of a block is lost
            when the process closes the ledger or dies. An older copy of the file is noticed at the next block. Plans
            with ``quotas`` ignore it.

    Raises:
        LedgerMismatch: The file belongs to another budget.
        LedgerCorrupt: The file is damaged, empty or not a ledger.
        LedgerUnwritable: Charges cannot be stored durably. After a lost connection, the charge under way counts as
            spent.

    Formal guarantee:
        All releases charged to the ledger together are (epsilon, delta)-DP under its neighbors. A charge is on disk
        before ``spend`` returns. A charge beyond a plan, or a plan beyond the budget, is refused.

    Examples:
        >>> ledger = PrivacyLedger(PrivacyBudget(3.0))  # with a path it outlives the program
        >>> ledger.spend(NoisyMaxEvent(10.0), caller="tickets")
        >>> ledger.remaining(NoisyMaxEvent(10.0))
        24
    """

    _store: PlanStore
    _direct: LedgerPlan | None

    @validate.reject_unknown_arguments
    def __init__(
        self,
        budget: PrivacyBudget,
        path: str | os.PathLike[str] | None = None,
        *,
        prepay_block: int | None = None,
    ) -> None:
        if not isinstance(budget, PrivacyBudget):
            raise InvalidParameter(
                f"Expected budget{validate.shown(budget)} to be a PrivacyBudget. Write "
                "PrivacyLedger(PrivacyBudget(3.0), 'privacy.ledger'): the budget comes first, then the path."
            )
        if prepay_block is not None:
            validate.integer("prepay_block", prepay_block, at_least=1)
        self._over(Account(PlanStore(budget, backend_at(path, LEDGER)), prepay_block))

    def _over(self, account: Account) -> Self:
        self._account, self._store, self._direct = account, account.store, None
        self._refusals = account.refusals
        return self

    def close(self) -> None:
        """Close the ledger and its plans."""
        self._account.close()

    def _reservations(self) -> list[StoredPlan]:
        return self._store.plans()

    def reserve(
        self,
        events: Sequence[tuple[DpEvent, int]],
        *,
        name: str,
        epsilon: float | None = None,
        delta: float | None = None,
        settings: Mapping[str, float | int | str | None] | None = None,
        journal: str = "",
        quotas: Quotas | None = None,
    ) -> LedgerPlan:
        """Reserve a plan before its first release, or attach to the same plan reserved earlier.

        Args:
            events: Pairs (event, maximum count).
            name: 1 to 200 printable characters. Restarts and processes share a plan by its name.
            epsilon: Claim to reserve, at least (and by default) the composed epsilon of the full counts.
            delta: Share of delta, by default all that is unreserved.
            settings: Public settings, stored with the plan.
            journal: First journal of the plan's run.
            quotas: Fixed quotas per user. Every spend then names a user.

        Raises:
            BudgetExceeded: The claims would exceed the budget, or ``epsilon`` is below the plan's cost. Nothing was
                stored.
            PlanError: A plan of this name has other contents.
            UnsupportedEvent: The accountant has no bound for an event.
        """
        items = plan_items(events)
        validate.short_text("name", name, at_least=1)
        if epsilon is not None:
            epsilon = validate.number("epsilon", epsilon, above=0.0)
        if delta is not None:
            delta = validate.number("delta", delta, above=0.0, below=1.0)
        if settings is not None:
            settings = _public_settings(settings)
        remedy = "Give Quotas(default=, overrides=) or None."
        validate.instance("quotas", quotas, (Quotas, type(None)), "shares", remedy)
        shares = None if quotas is None else quotas.to_dict()
        account = self._account
        asked = f"plan {name!r} of {', '.join(f'{count} x {event_from_json(key)!r}' for key, count in items)}"

        def refused(why: str, fits: int, left: tuple[float, float] | None = None) -> BudgetExceeded:
            sentence = f"The plan {name!r} of {in_words(items)} cannot be reserved: {why}."
            whole = left if left is not None and fits >= items[0][1] else None
            return account.exceeded(sentence, asked=asked, fits=fits, whole=whole)

        def would_fit(left: tuple[float, float]) -> int:
            return account.releases(items[0][0], left) if len(items) == 1 else 0

        while True:
            stored = self._store.plans()
            for plan in stored:
                if plan.name == name:
                    return self._attach(plan, items, settings, quotas)
            left = account.left(stored)
            share = left[1] if delta is None else delta
            if share <= SLACK * self.budget.delta and delta is None:
                raise refused(f"no delta is left ({SHARES})", 0)
            cost = account.cost(items, share)
            claim = cost if epsilon is None else epsilon
            if claim < cost:
                why = f"it costs epsilon={cost:.6g} at delta={share:g}, more than the claim epsilon={claim:g}"
                raise refused(why, would_fit((claim, share)))
            new, before = self._store.add_plan(name, items, claim, share, settings, journal, shares)
            if new is not None:
                return self._attach(new, items, settings, quotas)
            left_now = account.left(before)
            if delta is None and left_now[1] != left[1]:
                continue  # another plan took a share of delta meanwhile: compose again with the rest of it
            why = (
                f"it needs epsilon={claim:.6g}, delta={share:g}, but only epsilon={left_now[0]:.6g}, "
                f"delta={left_now[1]:g} are not reserved yet"
            )
            why += f" ({SHARES})" if share > left_now[1] and left_now[0] > 0 else ""
            there = (left_now[0], min(left_now[1], share))
            raise refused(why, would_fit(there), there)

    def _attach(
        self,
        stored: StoredPlan,
        items: Sequence[tuple[str, int]],
        settings: Mapping[str, Any] | None,
        quotas: Quotas | None,
    ) -> LedgerPlan:
        have, want = {key: most for key, (_, most) in stored.items.items()}, dict(items)
        differences = [
            f"{event_from_json(key)!r}: {have.get(key, 0)} reserved, {want.get(key, 0)} asked"
            for key in sorted(have.keys() | want.keys())
            if have.get(key) != want.get(key)
        ]
        if stored.settings is not None and settings is not None:
            differences += [
                f"{key} was {stored.settings.get(key)!r}, now {settings.get(key)!r}"
                for key in sorted(stored.settings.keys() | settings.keys())
                if stored.settings.get(key) != settings.get(key)
            ]
        if quotas is not None and stored.quotas != quotas.to_dict():
            was = None if stored.quotas is None else Quotas.from_dict(stored.quotas)
            differences.append(f"quotas was {was!r}, now {quotas!r}")
        if differences:
            raise PlanError(
                f"The plan {stored.name!r} was reserved with other contents ({'; '.join(differences)}), and a plan "
                "never changes. Give another name to reserve a new plan beside it, or another ledger file."
            )
        return LedgerPlan(self._account, stored)

    def plan(self, name: str) -> LedgerPlan | None:
        """Return the plan, or None."""
        return next((plan for plan in self.plans() if plan.name == name), None)

    def plans(self) -> list[LedgerPlan]:
        """Return all plans in order."""
        return [LedgerPlan(self._account, stored) for stored in self._store.plans()]

    def spend(self, event: DpEvent, count: int = 1, *, caller: str = "") -> None:
        """Charge ``count`` releases to the direct plan, durably, before they are made.

        The first spend reserves the plan, for as many releases of this event as fit.

        Args:
            event: The event of the direct plan.
            count: At least 1.
            caller: Public name for the record, at most 200 characters.

        Raises:
            BudgetExceeded: Too few are left. Nothing was charged.
            PlanError: The direct plan lacks this event. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written. Release nothing.
        """
        event_key(event)
        validate.integer("count", count, at_least=1)
        validate.short_text("caller", caller, at_least=0)
        if self._direct is None:
            self._direct = self._direct_plan(event, count)
        self._direct.spend(event, count, caller=caller)

    def _direct_plan(self, event: DpEvent, count: int) -> LedgerPlan:
        while True:
            if (existing := self.plan(DIRECT)) is not None:
                return existing
            left = self._account.left(self._store.plans())
            most = self._account.releases(event_key(event), left)
            if count > most:
                price = self._account.price(
                    event_key(event), count, left, self.budget.epsilon, at_most=max(2 * most, 1)
                )
                why = f"{most:,} fit into the epsilon={left[0]:.6g}, delta={left[1]:g} that no plan has reserved."
                raise self._account.exceeded(f"{price} {why}", asked=f"{count} x {event!r}", fits=most)
            try:
                return self.reserve([(event, most)], name=DIRECT)
            except (PlanError, BudgetExceeded):
                # Another process was faster: look again, unless nothing has changed.
                if self._account.left(self._store.plans()) == left:
                    raise

    def remaining(self, event: DpEvent) -> int:
        """Return the number of direct spends left, or possible without a direct plan."""
        key = event_key(event)
        direct = self._direct or self.plan(DIRECT)
        if direct is not None:
            return direct.remaining(event)
        return self._account.releases(key, self._account.left(self._store.plans()))

    def digest(self, domain: str, text: str) -> bytes:
        """Return a keyed hash of ``text``, for stored values that must not show it.

        The key is made in ``<path>.key``, or for a database in the URL's ``key_file`` or ``<ledger id>.key`` in the
        folder ``LANGCHAIN_DP_KEYS``. Back it up, and hide it from the ledger's readers. A missing or foreign key raises
        LedgerError.
        """
        return self._store.digest(domain, text)

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield all charges in order."""
        return self._store.entries()

    @safe_repr
    def __repr__(self) -> str:
        try:  # cheap, and whatever the file is like: this is shown in error reports and debuggers
            plans, used = self._store.glance()
            spent = self._account.spent(plans, used, round_up=True)[0]
            left = self._account.left(plans)[0]  # that no plan has reserved
            now = f"spent={bound(spent, 4)}, reserved={bound(claims(plans)[0], 4)}, left={room(left, 4)}"
        except Exception:
            now = "closed or in use"
        return f"PrivacyLedger({self.budget}, path={self.path!r}, {now})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ledger_over, (self._account,))


def _public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain = json.loads(json.dumps(dict(settings), allow_nan=False))
    except (TypeError, ValueError):
        plain = None
    if not isinstance(plain, dict) or plain != dict(settings):
        raise InvalidParameter("Expected settings to be plain values by name: numbers, strings, None.")
    if QUOTAS in plain:
        raise InvalidParameter(f"Expected settings to hold no {QUOTAS!r}, which has an argument of its own: quotas=.")
    return plain


def ledger_over(account: Account) -> PrivacyLedger:
    return PrivacyLedger.__new__(PrivacyLedger)._over(account)
