"""A reserved plan: releases whose kinds and numbers are fixed before the first one."""

from __future__ import annotations

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
    """A reserved plan: events and their maximum counts, fixed before its first release.

    :meth:`PrivacyLedger.reserve` makes it. Threads and processes that share the ledger share its counts.

    Formal guarantee:
        All releases charged to the plan together are (epsilon, delta)-DP under the ledger's neighbors, in any order and
        however each was chosen from earlier answers (Vadhan and Zhang 2022; Lyu 2022).

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
        """Name of the plan in its ledger."""
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
        """Public settings that the plan was reserved for. None without any."""
        return self._stored.settings

    @functools.cached_property
    def quotas(self) -> Quotas | None:
        """Quotas per user. None if every user may use up the plan."""
        return None if self._stored.quotas is None else Quotas.from_dict(self._stored.quotas)

    def used_by(self) -> dict[str, int]:
        """Return the number of releases by user id. Empty for a plan without quotas."""
        return {} if self._stored.quotas is None else self._account.store.quotas(self._stored)

    def spend(self, event: DpEvent, count: int = 1, *, caller: str = "", user_id: str | None = None) -> None:
        """Charge ``count`` releases of ``event``, durably, before they are made. Nothing is ever refunded.

        Args:
            event: An event of the plan.
            count: At least 1.
            caller: Short public name of the caller, for the record. At most 200 printable characters.
            user_id: Public name of the user whose quota is charged too. Required for a plan with :class:`Quotas`, and
                refused for others.

        Raises:
            BudgetExceeded: Fewer than ``count`` are left in the plan. Nothing was charged.
            QuotaExceeded: Fewer are left in the user's quota. Nothing was charged.
            PlanError: The plan does not hold this event, or has no quota for the user. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written. Release nothing.
        """
        key, most = self._item(event, count)
        validate.short_text("caller", caller, at_least=0)
        whose = self.account_of(user_id)
        try:
            # A count above the whole plan is refused here: it need not even fit into the file's integers.
            account, stored = self._account, self._stored
            if count > most:
                charged = False
            elif account.prepaid is None or whose is not None:  # no block is paid for a user who may not query again
                charged = account.store.add_use(stored, key, count, caller, whose)
            else:
                charged = account.prepaid.take(stored, key, count, caller)
            if not charged:
                raise self._exhausted(event, key, count)
        except UserRefused:
            pass
        else:
            return
        assert whose is not None
        left = whose[1] - self.used_by().get(whose[0], 0)
        refusal = QuotaExceeded(
            f"This user's share of the plan {self.name!r} is {whose[1]:,} releases, and {left:,} are left of it. "
            "Nothing was charged. A share is not refilled on the same rows; new rows get a new ledger.",
            asked=f"{count} x {event!r}",
            spent=self._account.spent(self._account.store.plans(), round_up=False),
            budget=(self.budget.epsilon, self.budget.delta),
            fits=min(left, self.remaining(event)),
        )
        raise self._account.refusals.add(refusal)

    def spend_up_to(self, event: DpEvent, count: int, *, caller: str) -> None:
        """Charge, durably, the part of ``count`` releases that ``caller`` has not been charged yet.

        For a resumed run: a release that an earlier process charged and did not make is not charged twice. Charges of
        other callers do not count.

        Args:
            event: An event of the plan.
            count: Releases that are paid for afterwards, from the run's first. At least 1.
            caller: Public name of the run, 1 to 200 printable characters. No other caller of this plan may use it.

        Raises:
            BudgetExceeded: Fewer than the missing ones are left in the plan. Nothing was charged.
            PlanError: The plan does not hold this event, or has quotas. Nothing was charged.
            LedgerError: The ledger cannot be trusted or written. Release nothing.

        Examples:
            >>> plan = ledger.reserve([(NoisyMaxEvent(20.0), 5)], name="run")
            >>> plan.spend_up_to(NoisyMaxEvent(20.0), 2, caller="run")
            >>> plan.spend_up_to(NoisyMaxEvent(20.0), 2, caller="run")  # charges nothing more
            >>> plan.remaining(NoisyMaxEvent(20.0))
            3
        """
        key, most = self._item(event, count)
        validate.short_text("caller", caller, at_least=1)
        self.account_of(None)
        missing = count if count > most else self._account.store.add_missing(self._stored, key, count, caller)
        if missing:
            raise self._exhausted(event, key, missing)

    def _item(self, event: DpEvent, count: int) -> tuple[str, int]:
        """Return key and maximum count of an event of the plan."""
        key = event_key(event)
        validate.integer("count", count, at_least=1)
        if key not in self._stored.items:
            raise PlanError(
                f"The plan {self.name!r} holds no {event!r}. Reserve another plan for it with reserve(), under a "
                "name of its own."
            )
        return key, self._stored.items[key][1]

    def account_of(self, user_id: str | None) -> tuple[str, int] | None:
        """Return user id and quota. None in a plan without quotas. Charges nothing.

        Raises:
            PlanError: The plan has quotas, and none for this user, or it has none, and a user was named.
            InvalidParameter: The id is not 1 to 200 printable characters. The message does not show it.
        """
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
                "Give a user that it names; another plan can have Quotas(default=...). Nothing was charged."
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
        return self._account.exceeded(
            f"{left:,} of {most:,} are left in the plan {self.name!r}. {price}", asked=f"{count} x {event!r}", fits=left
        )

    def remaining(self, event: DpEvent, *, user_id: str | None = None) -> int:
        """Return how many more releases of ``event`` the plan covers. 0 for an event that it does not hold.

        With ``prepay_block`` this includes the releases that this process has paid for and not made.

        Args:
            event: An event of the plan.
            user_id: User whose quota must cover them, too. None for the plan alone.

        Raises:
            PlanError: The plan has no quota for the user.
        """
        key = event_key(event)
        whose = None if user_id is None else self.account_of(user_id)
        item, most = self._stored.items.get(key, (None, 0))
        if item is None:
            return 0
        left = most - self._account.store.used([self._stored])[item] + self._account.unspent(self._stored, key)
        return left if whose is None else min(left, whose[1] - self.used_by().get(whose[0], 0))

    @property
    def shared(self) -> Shared:
        """State that processes with this plan share: see ``store/releases.py``."""
        return Shared(self._account.store, self._stored)

    @property
    def journal(self) -> str:
        """Journal of the run that reserved the plan. Empty without one."""
        return self._account.store.journal(self.name)

    def save_journal(self, journal: str, *, expected: str) -> None:
        """Write the journal of the plan's run, durably, in the ledger's file: a copy holds charges and journal of one
        moment.

        A charge whose outcome is not in the journal has an unknown outcome. It is never drawn again.

        Args:
            journal: The new journal. It holds released values only, and nothing private.
            expected: The journal that the writer knows. Empty if there is none yet.

        Raises:
            LedgerError: The ledger holds another journal, or is an older copy. The values just drawn may not leave.
        """
        self._account.store.keep_journal(self.name, journal, expected)

    def entries(self) -> Iterator[LedgerEntry]:
        """Yield the charges to the plan, in order."""
        return self._account.store.entries(self.name)

    def __repr__(self) -> str:
        promise = f"epsilon={bound(self.epsilon)}, delta={bound(self.delta)}"
        return f"LedgerPlan(name={self.name!r}, events={self.events!r}, {promise})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (find_plan, (self._account, self.name))


def find_plan(account: Account, name: str) -> LedgerPlan:
    """Return the plan of that name, or raise PlanError."""
    for stored in account.store.plans():
        if stored.name == name:
            return LedgerPlan(account, stored)
    raise PlanError(f"The ledger holds no plan {name!r}. Reserve it with reserve().")
