"""Verdict on a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting import ExponentialEvent, LimitedDomainEvent, PrivacyBudget
from langchain_dp.accounting.budget import USUAL
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.fit import AGREED
from langchain_dp.opt.reservation import chance, selection_event, votes_needed

Rating = Literal["yes", "possible", "hardly", "no"]
NEARLY_ALL = 0.9
"""Share of the votes that few tokens of a text exceed."""
_STEP, _STEPS = 1.25, 16
_FINE, _COARSE = 0.05, 0.15
"""Leads as shares of the rows: useful up to the first, useless beyond the second."""
_SURE = 0.95
_NOT_SHOWN = (
    "But in our trials the texts of models of up to 1.5 billion parameters did not help. Try a larger one on public "
    "rows, or use alternatives= or DPPrototypeClassifier"
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Verdict on a plan.

    Args:
        rating: "yes": a choice that leads by 5% of the rows wins 95% of the time. "possible": a text can be written,
            since a token with 70% of the votes is released at least half of the time. "hardly": one with 90% is, or a
            lead of 15% wins. "no": neither. A possible text was not measured to help.
        message: The same as a sentence, with a remedy.

    Examples:
        >>> print(optimizer.plan(200).verdict)
        not with 200 rows at epsilon 1: keep your instruction, spend nothing. ...
    """

    rating: Rating
    message: str

    def __str__(self) -> str:
        return self.message


def ahead_for_sure(selection: ExponentialEvent, prompts: int) -> int:
    """Return the lead in rows with which a prompt wins 95% of the time."""
    return math.ceil(math.log(_SURE / (1 - _SURE) * max(prompts - 1, 1)) / selection.epsilon)


def choice_note(selection: ExponentialEvent, prompts: int) -> str:
    return (
        f"which prompt is handed over is a noisy choice: one that answers {ahead_for_sure(selection, prompts):,} more "
        f"of the rows that select than every other wins {_SURE:.0%} of the time. Among closer ones a worse may win, "
        "also one that is worse than the initial instruction. Compare both by evaluate_prompt on public rows"
    )


def choice_verdict(selection: ExponentialEvent, budget: PrivacyBudget, *, prompts: int, rows: int) -> Verdict:
    lead = ahead_for_sure(selection, prompts)
    share = lead / max(rows, 1)
    finding = (
        f"the prompt that answers {lead:,} more of {rows:,} rows right than any other wins {_SURE:.0%} of the time"
    )
    if share <= _FINE:
        return Verdict("yes", f"yes: {finding}")

    def enough(larger: PrivacyBudget) -> bool:
        return ahead_for_sure(selection_event(larger), prompts) <= _FINE * rows

    more_rows = f"About {rounded_up(lead / _FINE, digits=2):,.0f} rows that select"
    remedy = _either(more_rows, _epsilon(budget, enough))
    if share <= _COARSE:
        return Verdict("hardly", f"hardly: {finding}. {remedy} would tell prompts apart better")
    return _at_random(f"{rows:,} rows", budget, lead, remedy)


def selecting_verdict(selection: ExponentialEvent, budget: PrivacyBudget, *, prompts: int, rows: int) -> Verdict | None:
    """None if enough rows select."""
    lead = ahead_for_sure(selection, prompts)
    return None if rows >= lead else _at_random(f"{rows:,} rows that select", budget, lead, "More rows")


def _at_random(rows: str, budget: PrivacyBudget, lead: int, remedy: str) -> Verdict:
    reason = f"To win {_SURE:.0%} of the time a prompt would have to answer {lead:,} rows more right than any other"
    return _no(rows, budget, reason, remedy)


def _no(rows: str, budget: PrivacyBudget, reason: str, remedy: str) -> Verdict:
    return Verdict(
        "no",
        f"not with {rows} at epsilon {budget.epsilon:g}: keep your instruction, spend nothing. {reason}. {remedy} "
        "would do",
    )


def verdict(
    token: LimitedDomainEvent,
    scheme: Scheme,
    budget: PrivacyBudget,
    *,
    rows: int,
    taken: int,
    noise: Callable[[PrivacyBudget], LimitedDomainEvent],
) -> Verdict:
    votes, neighbors = scheme.expected_subsets, budget.neighbors
    needed = votes_needed(token, neighbors)
    agreed, nearly_all = (chance(token, share * votes, neighbors) for share in (AGREED, NEARLY_ALL))
    if agreed >= 0.5:
        return Verdict(
            "possible",
            f"possible: a token that {AGREED:.0%} of the subsets vote for is released {agreed:.0%} of the time. "
            f"{_NOT_SHOWN}",
        )
    more_rows = ""
    if scheme.sampling == "fixed" and scheme.even:  # otherwise more rows make no more subsets
        more_rows = _rows(taken * needed / (AGREED * votes), rows, taken)
    enough = _epsilon(budget, lambda share: votes_needed(noise(share), neighbors) <= AGREED * votes)
    remedy = _either(more_rows, enough)
    if nearly_all >= 0.5:
        return Verdict(
            "hardly",
            f"hardly: only a token that nearly all subsets vote for is released ({NEARLY_ALL:.0%}: "
            f"{nearly_all:.0%} of the time, {AGREED:.0%}: {agreed:.0%}). {remedy} would do more",
        )
    return _no(f"{rows:,} rows", budget, f"A token needs {needed:.0f} votes, and {votes:,.0f} subsets vote", remedy)


def _either(more_rows: str, larger_epsilon: str) -> str:
    return " or ".join(filter(None, (more_rows, larger_epsilon))) or "Fewer tokens to write"


def _rows(needed: float, rows: int, taken: int) -> str:
    limited = "" if taken == rows else f", and not {taken:,} (rows=, or a larger effort=),"
    return f"About {rounded_up(needed, digits=2):,.0f} rows that take part{limited}"


def _epsilon(budget: PrivacyBudget, enough: Callable[[PrivacyBudget], bool]) -> str:
    """Return a sufficient epsilon, or "" if it promises almost nothing."""
    times = _least(lambda factor: enough(dataclasses.replace(budget, epsilon=budget.epsilon * factor)))
    epsilon = math.inf if times is None else math.ceil(10 * budget.epsilon * times) / 10
    return "" if epsilon > USUAL else f"epsilon {epsilon:g}"


def _least(enough: Callable[[float], bool]) -> float | None:
    """Return the least sufficient factor, to a quarter."""
    low, high = 0, _STEPS
    while low < high:
        middle = (low + high) // 2
        try:
            low, high = (low, middle) if enough(_STEP**middle) else (middle + 1, high)
        except InvalidParameter:  # noise that the caller has fixed
            return None
    return None if low == _STEPS else _STEP**low
