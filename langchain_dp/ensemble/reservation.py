"""The plan of a private run in its ledger."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from langchain_dp.accounting import LedgerPlan, Neighbors, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.events import count_is_public
from langchain_dp.accounting.ledger import SHARES
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError

LedgerOrPath = PrivacyLedger | str | os.PathLike[str]
_ROUNDING = 1 + 1e-9  # the rest is a difference of sums


@dataclasses.dataclass(frozen=True)
class Reservation:
    """A reserved plan, its sampling constants and its share."""

    plan: LedgerPlan
    scheme: Scheme
    budget: PrivacyBudget


def about_run(model: str, records: Any, neighbors: Neighbors) -> dict[str, Any]:
    """Return what reports say of a plan: its model, and the number of records, or of users, if that is public."""
    unit = "records" if records.user_key is None else "users"
    return {"model": model, **({unit: records.count_users()} if count_is_public(neighbors) else {})}


R = TypeVar("R")


def reserved_once(ledger: PrivacyLedger, name: str, *, new: Callable[[], R], resumed: Callable[[LedgerPlan], R]) -> R:
    if (plan := ledger.plan(name)) is not None:
        return resumed(plan)
    try:
        return new()
    except BudgetExceeded:
        if (plan := ledger.plan(name)) is None:
            raise
        return resumed(plan)  # another worker reserved it at the same time


def check_same(
    plan: LedgerPlan, asked: Mapping[str, tuple[object, object]], budget: PrivacyBudget | None, whose: str
) -> None:
    settings = dict(asked)
    if budget is not None:
        settings["budget.epsilon"] = (plan.epsilon, budget.epsilon)
        settings["budget.delta"] = (plan.delta, budget.delta)
    differing = [f"{key} was {old!r}, now {new!r}" for key, (old, new) in settings.items() if old != new]
    if differing:
        raise PlanError(
            f"The ledger's plan {plan.name!r} was reserved for another configuration: {'; '.join(differing)}. "
            f"Keep the old one, or give this {whose} another name=."
        )


def check_promise(budget: PrivacyBudget | None, ledger: LedgerOrPath | None, not_private_seed: int | None) -> None:
    """Require a budget or a ledger, and no seed beside a ledger."""
    if budget is None and ledger is None:
        raise InvalidParameter("Expected budget= or ledger= to be given, but both are None. Give PrivacyBudget(3.0).")
    if budget is not None and not isinstance(budget, PrivacyBudget):
        raise InvalidParameter(f"Expected budget={budget!r} to be a PrivacyBudget. Give PrivacyBudget(3.0).")
    if ledger is not None and not isinstance(ledger, (PrivacyLedger, str, os.PathLike)):
        raise InvalidParameter(
            f"Expected ledger of type {type(ledger).__name__} to be a PrivacyLedger, or a path beside budget=. Give "
            "PrivacyLedger(budget, path)."
        )
    if budget is None and not isinstance(ledger, PrivacyLedger):
        raise InvalidParameter(
            "Expected budget= beside ledger= of a path: the total that the file may spend. Give PrivacyBudget(3.0)."
        )
    # A ledger's certificate counts every charge as private.
    if ledger is not None and not_private_seed is not None:
        raise InvalidParameter(
            f"Expected not_private_seed={not_private_seed} without a shared ledger, whose certificate would count "
            "releases that are not private. Give budget= alone."
        )


def ledger_for(budget: PrivacyBudget | None, ledger: LedgerOrPath | None) -> PrivacyLedger:
    if not isinstance(ledger, PrivacyLedger):
        assert budget is not None  # check_promise
        return PrivacyLedger(budget, ledger)
    if budget is not None and budget.neighbors is not ledger.budget.neighbors:
        raise InvalidParameter(
            f"Expected budget.neighbors={budget.neighbors.name} to be the ledger's {ledger.budget.neighbors.name}. "
            "A ledger holds one relation: use another ledger for another."
        )
    return ledger


def unreserved(ledger: PrivacyLedger) -> PrivacyBudget:
    epsilon, delta = ledger.reserved()
    left = ledger.budget.epsilon - epsilon, ledger.budget.delta - delta
    if min(left) <= 0:
        _refuse(
            ledger,
            f"The ledger has epsilon={left[0]:.6g}, delta={left[1]:.3g} left to reserve: no room for another plan. "
            f"Give every chain a share of the ledger with budget=; {SHARES}.",
            "a plan over the rest of the ledger",
        )
    return PrivacyBudget(left[0], left[1], ledger.budget.neighbors)


def affordable(ledger: PrivacyLedger, budget: PrivacyBudget | None) -> PrivacyBudget:
    """Return ``budget``, or all that is left."""
    left = unreserved(ledger)
    if budget is None:
        return left
    if budget.epsilon > left.epsilon * _ROUNDING or budget.delta > left.delta * _ROUNDING:
        less = f"Ask for less; {SHARES};" if budget.delta > left.delta * _ROUNDING else "Ask for less,"
        _refuse(
            ledger,
            f"Expected {budget} to fit into the ledger, but only epsilon={left.epsilon:.6g}, delta={left.delta:.3g} "
            f"are not reserved yet. {less} or stop: another ledger over these records adds its epsilon to this one's.",
            f"a plan over {budget}",
        )
    return budget


def _refuse(ledger: PrivacyLedger, message: str, asked: str) -> NoReturn:
    budget = ledger.budget.epsilon, ledger.budget.delta
    raise ledger._refusals.add(BudgetExceeded(message, asked=asked, spent=ledger.spent(), budget=budget, fits=0))


def share_of(budget: PrivacyBudget | None, ledger: LedgerOrPath | None, name: str) -> PrivacyBudget:
    if budget is not None:
        return budget
    assert isinstance(ledger, PrivacyLedger)  # check_promise
    plan = ledger.plan(name)
    return unreserved(ledger) if plan is None else PrivacyBudget(plan.epsilon, plan.delta, ledger.budget.neighbors)
