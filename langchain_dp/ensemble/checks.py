"""What every system of the package refuses before anything is reserved or spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.errors import BudgetExceeded, InvalidParameter
from langchain_dp.records import exact


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """At least two labels, each a non-empty string and once."""
    if isinstance(labels, str) or not all(isinstance(label, str) and label.strip() for label in labels):
        raise InvalidParameter(f"Expected labels={labels!r} to be a list of non-empty strings.")
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise InvalidParameter(f"Expected labels={list(labels)} to hold at least two labels, each once. Name them all.")
    return tuple(map(exact, labels))


def check_promise(budget: PrivacyBudget | None, ledger: PrivacyLedger | None, not_private_seed: int | None) -> None:
    """A budget or a ledger to charge, and no seed beside a ledger."""
    if budget is None and ledger is None:
        raise InvalidParameter("Expected budget= or ledger= to be given, but both are None. Give PrivacyBudget(3.0).")
    if budget is not None and not isinstance(budget, PrivacyBudget):
        raise InvalidParameter(f"Expected budget={budget!r} to be a PrivacyBudget. Give PrivacyBudget(3.0).")
    check_unseeded(ledger, not_private_seed)


def check_unseeded(ledger: PrivacyLedger | None, not_private_seed: int | None) -> None:
    """A ledger is charged for private releases only: its own certificate counts them as private."""
    if ledger is not None and not_private_seed is not None:
        raise InvalidParameter(
            f"Expected not_private_seed={not_private_seed} without a shared ledger, whose certificate would count "
            "releases that are not private. Give budget= alone."
        )


def check_no_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Typos are not swallowed."""
    if kwargs:
        raise InvalidParameter(f"Expected no further arguments, got {sorted(kwargs)}. Bind them to the inner model.")


def ledger_for(budget: PrivacyBudget | None, ledger: PrivacyLedger | None) -> PrivacyLedger:
    """The ledger to charge: the one given, if ``budget`` fits its neighbours, or a new one in memory."""
    if ledger is None:
        assert budget is not None  # check_promise
        return PrivacyLedger(budget)
    if budget is not None and budget.neighbors is not ledger.budget.neighbors:
        raise InvalidParameter(
            f"Expected budget.neighbors={budget.neighbors.name} to be the ledger's {ledger.budget.neighbors.name}. "
            "A ledger holds one relation: use another ledger for another."
        )
    return ledger


def unreserved(ledger: PrivacyLedger) -> PrivacyBudget:
    """What no plan has reserved yet; BudgetExceeded if that is nothing."""
    epsilon, delta = ledger.reserved()
    left = ledger.budget.epsilon - epsilon, ledger.budget.delta - delta
    if min(left) <= 0:
        raise BudgetExceeded(
            f"The ledger has epsilon={left[0]:.6g}, delta={left[1]:.3g} left to reserve: no room for another plan. "
            "Give every chain a share of the ledger with budget=.",
            asked="a plan over the rest of the ledger",
            spent=ledger.spent(),
            budget=(ledger.budget.epsilon, ledger.budget.delta),
            fits=0,
        )
    return PrivacyBudget(left[0], left[1], ledger.budget.neighbors)
