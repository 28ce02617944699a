"""Reserved plans."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from dp_accounting.dp_event import DpEvent

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.accounting._account import Account, BudgetHolder, event_key
from langchain_dp.accounting.events import event_from_json
from langchain_dp.accounting.quotas import Quotas
from langchain_dp.accounting.store.plans import LedgerEntry, StoredPlan, UserRefused
from langchain_dp.accounting.store.releases import Shared
from langchain_dp.errors import BudgetExceeded, PlanError, QuotaExceeded


class LedgerPlan(BudgetHolder):
    """Reserved releases: events and their maximum counts, made by :meth:`PrivacyLedger.reserve`.

    Threads and processes that share the ledger share the counts.

    Formal guarantee:
        All releases charged to the plan together are (epsilon, delta)-DP under the ledger's neighbors, in any order and
        under any adaptive choice (Vadhan and Zhang 2022, Lyu 2022).

    Examples:
        >>> plan = ledger.reserve([(NoisyMaxEvent(20.0), 50)], name="answers")
        >>> plan.spend(NoisyMaxEvent(20.0))
        >>> plan.remaining(NoisyMaxEvent(20.0))
        49
    """

    def __init__(self, account: Account, stored: StoredPlan) -> None:
        self._account = account
        self._stored = stored

    def _reservations(self) -> list[StoredPlan]:
        return [self._stored]

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self._stored.name

    @property
    def epsilon(self) -> float:
        """Reserved epsilon, in nats."""
        return self._stored.epsilon

    @property
    def delta(self) -> float:
        """Reserved delta."""
        return self._stored.delta

    @property
    def events(self) -> list[tuple[DpEvent, int]]:
        """Pairs (event, maximum count)."""
        return [(event_from_json(event), most) for event, (_, most) in self._stored.items.items()]

    @property
    def settings(self) -> Mapping[str, Any] | None:
        """Public settings of the plan, or None."""
        return self._stored.settings

    @functools.cached_property
    def quotas(self) -> Quotas | None:
        """Quotas per user, or None."""
        return None if self._stored.quotas is None else Quotas.from_dict(self._stored.quotas)

    def used_by(self) -> dict[str, int]:
        """Return the releases per user id."""
        return {} if self._stored.quotas is None else self._account.store.quotas(self._stored)

    def spend(self, event: DpEvent, count: int = 1, *, caller: str = "", user_id: str | None = None) -> None:
        """Charge ``count`` releases durably before they are made. Nothing is refunded.

        Args:
            event: An event of the plan.
            count: At least 1.
            caller: Public name for the record, at most 200 characters.
            user_id: User whose quota is charged, for plans with :class:`Quotas` only.

        Raises:
            BudgetExceeded: The plan has too few left. Nothing was charged, as for the next two.
            QuotaExceeded: The user's quota has too few left.
            PlanError: The plan lacks the event or a quota for the user.
            LedgerError: The ledger cannot be trusted or written. Release nothing.
        """
        key, most = self._item(event, count)
        validate.short_text("caller", caller, at_least=0)
        whose = self.account_of(user_id)
        account, stored = self._account, self._stored
        with contextlib.suppress(UserRefused):
            # A count above the whole plan is refused here: it need not even fit into the file's integers.
            if count > most:
                charged = False
            elif account.prepaid is None or whose is not None:  # no block is paid for a user who may not query again
                charged = account.store.add_use(stored, key, count, caller, whose)
            else:
                charged = account.prepaid.take(stored, key, count, caller)
            if charged:
                return
            raise self._exhausted(event, key, count)
        assert whose is not None
        left = whose[1] - self.used_by().get(whose[0], 0)
        refusal = QuotaExceeded(
            f"This user's share of the plan {self.name!r} is {whose[1]:,} releases, and {left:,} are left of it. "
            "Nothing was charged. A share is not refilled on the same rows. New rows get a new ledger.",
            asked=f"{count} x {event!r}",
            spent=account.spent(account.store.plans(), round_up=False),
            budget=(self.budget.epsilon, self.budget.delta),
            fits=min(left, self.remaining(event)),
        )
        raise account.refusals.add(refusal)

    def spend_up_to(self, event: DpEvent, count: int, *, caller: str) -> None:
        """Charge durably the part of ``count`` releases that ``caller`` has not been charged.

        So a resumed run pays once for a release that it charged and did not make. The plan must have no quotas. Errors
        are those of :meth:`spend`.

        Args:
            event: An event of the plan.
            count: Releases to be paid for, from the run's first.
            caller: Public name of the run, unique in the plan.
        """
        key, most = self._item(event, count)
        validate.short_text("caller", caller, at_least=1)
        self.account_of(None)
        missing = count if count > most else self._account.store.add_missing(self._stored, key, count, caller)
        if missing:
            raise self._exhausted(event, key, missing)

    def _item(self, event: DpEvent, count: int) -> tuple[str, int]:
        key = event_key(event)
        validate.integer("count", count, at_least=1)
        if key not in self._stored.items:
            raise PlanError(
                f"The plan {self.name!r} holds no {event!r}. Reserve another plan for it with reserve(), under a "
                "name of its own."
            )
        return key, self._stored.items[key][1]

    def account_of(self, user_id: str | None) -> tuple[str, int] | None:
        """Return user id and quota, or None without quotas. Charge nothing. A user without a quota raises PlanError."""
        quotas = self.quotas
        if user_id is None and quotas is None:
            return None
        if quotas is None:
            raise PlanError(
                f"The plan {self.name!r} has no accounts for users, and a plan never changes. Leave user_id= out, or "
                "reserve a plan with quotas=Quotas(...) under another name. Nothing was charged."
            )
        if user_id is None:
            raise PlanError(
                f"The plan {self.name!r} has accounts for users. Say who asks: user_id= of a plan, or "
                "config={'configurable': {'user_id': name}} of a chain. Nothing was charged."
            )
        share = quotas.of(validate.short_text("user_id", user_id, at_least=1))
        if share is None:
            raise PlanError(
                f"The plan {self.name!r} has no account for this user, and no share for those it does not name. "
                "Give a user that it names. Another plan can have Quotas(default=...). Nothing was charged."
            )
        return user_id, share

    def _exhausted(self, event: DpEvent, key: str, count: int) -> BudgetExceeded:
        used = self._account.store.used([self._stored])
        _, most = self._stored.items[key]
        left = most - used[self._stored.items[key][0]] + self._account.unspent(self._stored, key)
        spent = self._account.spent([self._stored], used, round_up=False)[0]
        unspent = (max(self.epsilon - spent, 0.0), self.delta)
        before = {name: used[item] for name, (item, _) in self._stored.items.items()}
        price = self._account.price(key, count, unspent, self.epsilon, at_most=most, before=before)
        said = f"{left:,} of {most:,} planned releases are left in {self.name!r}. {price}"
        return self._account.exceeded(said, asked=f"{count} x {event!r}", fits=left)

    def remaining(self, event: DpEvent, *, user_id: str | None = None) -> int:
        """Return releases left in the plan and in the quota of ``user_id``, with this process's unused prepaid ones."""
        key = event_key(event)
        whose = None if user_id is None else self.account_of(user_id)
        item, most = self._stored.items.get(key, (None, 0))
        if item is None:
            return 0
        left = most - self._account.store.used([self._stored])[item] + self._account.unspent(self._stored, key)
        return left if whose is None else min(left, whose[1] - self.used_by().get(whose[0], 0))

    @property
    def shared(self) -> Shared:
        """State that the plan's processes share."""
        return Shared(self._account.store, self._stored)

    @property
    def journal(self) -> str:
        """Journal of the plan's run, or ""."""
        return self._account.store.journal(self.name)

    def save_journal(self, journal: str, *, expected: str) -> None:
        """Write the run's journal durably beside its charges. A charge without an outcome in it is never drawn again.

        Args:
            journal: The new journal. It holds released values only.
            expected: The journal that the writer knows, or "".

        Raises:
            LedgerError: The ledger holds another journal, or is an older copy. Release none of the new values.
        """
        self._account.store.keep_journal(self.name, journal, expected)

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield the plan's charges."""
        return self._account.store.entries(self.name)

    def __repr__(self) -> str:
        promise = f"epsilon={bound(self.epsilon)}, delta={bound(self.delta)}"
        return f"LedgerPlan(name={self.name!r}, events={self.events!r}, {promise})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (find_plan, (self._account, self.name))


def find_plan(account: Account, name: str) -> LedgerPlan:
    for stored in account.store.plans():
        if stored.name == name:
            return LedgerPlan(account, stored)
    raise PlanError(f"The ledger holds no plan {name!r}. Reserve it with reserve().")
