"""Verdict on a plan in one sentence, before anything is spent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting import ExponentialEvent, LimitedDomainEvent, PrivacyBudget
from langchain_dp.accounting.budget import LEAST_CLIP, USUAL
from langchain_dp.accounting.events import votes_move
from langchain_dp.ensemble.scheme import Scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.fit import AGREED, ENOUGH_CLIP
from langchain_dp.opt.reservation import chance, selection_event, votes_needed

Rating = Literal["yes", "hardly", "no"]
NEARLY_ALL = 0.9
"""Share of the votes beyond which hardly any token of a text has support."""
_STEP, _STEPS = 1.25, 16
_FINE, _COARSE = 0.05, 0.15
"""Shares of the rows: a choice that tells prompts apart by the first is of use, by more than the second of none."""
_SURE = 0.95
_MORE = "rows=, or a larger effort="
"""What lets more rows take part."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Verdict on a plan.

    Args:
        rating: "yes": a token with 70% of the votes is released at least half of the time. "hardly": one with 90% is.
            "no": neither. If nothing is written: whether a prompt that leads by 5, or 15, percent of the rows is
            selected 95% of the time.
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
    """Return the lead in rows with which one of so many prompts is selected 95 times in 100."""
    return math.ceil(math.log(_SURE / (1 - _SURE) * max(prompts - 1, 1)) / selection.epsilon)


def choice_note(selection: ExponentialEvent, prompts: int) -> str:
    """Return the certificate's note on the noise of the selection. It uses public constants."""
    return (
        f"which prompt is handed over is a noisy choice: one that answers {ahead_for_sure(selection, prompts):,} more "
        f"of the rows that select than every other wins {_SURE:.0%} of the time; of closer ones a worse may win, also "
        "one that is worse than the initial instruction: compare both by evaluate_prompt on rows that need no secrecy"
    )


def choice_verdict(selection: ExponentialEvent, budget: PrivacyBudget, *, prompts: int, rows: int) -> Verdict:
    """Judge a selection among public prompts by the lead that a prompt needs."""
    ahead = ahead_for_sure(selection, prompts)
    share = ahead / max(rows, 1)
    said = f"the prompt that answers {ahead:,} more of {rows:,} rows right than any other wins {_SURE:.0%} of the time"
    if share <= _FINE:
        return Verdict("yes", f"yes: {said}")
    more = f"About {rounded_up(ahead / _FINE, digits=2):,.0f} rows that select"

    def does(larger: PrivacyBudget) -> bool:
        return ahead_for_sure(selection_event(larger), prompts) <= _FINE * rows

    helps = " or ".join(found for found in (more, _epsilon(budget, does)) if found)
    if share <= _COARSE:
        return Verdict("hardly", f"hardly: {said}. {helps} would tell prompts apart better")
    return _at_random(f"{rows:,} rows", budget, ahead, helps)


def selecting_verdict(selection: ExponentialEvent, budget: PrivacyBudget, *, prompts: int, rows: int) -> Verdict | None:
    """Judge the selection among written prompts: None unless so few rows select that the best prompt may lose."""
    ahead = ahead_for_sure(selection, prompts)
    if rows >= ahead:
        return None
    return _at_random(f"{rows:,} rows that select", budget, ahead, "More rows")


def _at_random(rows: str, budget: PrivacyBudget, ahead: int, helps: str) -> Verdict:
    return Verdict(
        "no",
        f"not with {rows} at epsilon {budget.epsilon:g}: keep your instruction, spend nothing. To win {_SURE:.0%} of "
        f"the time a prompt would have to answer {ahead:,} rows more right than any other. {helps} would do",
    )


def refuse_at_random(found: Verdict | None) -> None:
    """Refuse a random choice."""
    if found is not None and found.rating == "no":
        raise InvalidParameter(f"Expected rows and epsilon to be enough for a choice: {found.message}.")


def clip_verdict(
    clip: float,
    budget: PrivacyBudget,
    *,
    rows: int,
    taken: int,
    clip_at: Callable[[PrivacyBudget, float], float],
) -> Verdict:
    """Judge a plan by its clip. ``clip_at`` gives the clip under another budget, or a multiple of the rows."""
    if clip >= ENOUGH_CLIP:
        return Verdict(
            "yes", f"yes: a subset may move a token by {clip:.2g} nats, where it would hardly move it by more"
        )
    times = _least(lambda factor: clip_at(budget, factor) >= ENOUGH_CLIP)
    more = "" if times is None else f"About {rounded_up(taken * times, digits=2):,.0f} rows that take part"
    more = more if taken == rows or not more else f"{more}, and not {taken:,} ({_MORE}),"
    less = _epsilon(budget, lambda share: clip_at(share, 1.0) >= ENOUGH_CLIP)
    helps = " or ".join(found for found in (more, less) if found) or "Fewer tokens to write"
    if clip >= LEAST_CLIP:
        return Verdict("hardly", f"hardly: a subset may move a token by {clip:.2g} nats only. {helps} would do more")
    return Verdict(
        "no",
        f"not with {rows:,} rows at epsilon {budget.epsilon:g}: keep your instruction, spend nothing. A subset may "
        f"move a token by {clip:.2g} nats. {helps} would do",
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
    """Judge a plan by the votes that a token needs. ``noise`` gives one call under another budget."""
    moved = votes_move(budget.neighbors)
    needed, votes = votes_needed(token, moved_votes=moved), scheme.expected_subsets
    at = {share: chance(token, share * votes, moved_votes=moved) for share in (AGREED, NEARLY_ALL)}
    if at[AGREED] >= 0.5:
        return Verdict(
            "yes", f"yes: a token that {AGREED:.0%} of the subsets vote for is released {at[AGREED]:.0%} of the time"
        )
    more = _rows(rows, taken, needed, scheme)
    less = _epsilon(budget, lambda share: votes_needed(noise(share), moved_votes=moved) <= AGREED * votes)
    helps = " or ".join(found for found in (more, less) if found) or "Fewer tokens to write"
    if at[NEARLY_ALL] >= 0.5:
        return Verdict(
            "hardly",
            f"hardly: only a token that nearly all subsets vote for is released ({NEARLY_ALL:.0%}: "
            f"{at[NEARLY_ALL]:.0%} of the time, {AGREED:.0%}: {at[AGREED]:.0%}). {helps} would do more",
        )
    return Verdict(
        "no",
        f"not with {rows:,} rows at epsilon {budget.epsilon:g}: keep your instruction, spend nothing. A token needs "
        f"{needed:.0f} votes, and {votes:,.0f} subsets vote. {helps} would do",
    )


def _rows(rows: int, taken: int, needed: float, scheme: Scheme) -> str:
    """Return the rows with which enough subsets of this size vote, or "" if more rows make no more subsets."""
    if scheme.sampling != "fixed" or not scheme.even:
        return ""
    least = rounded_up(taken * needed / (AGREED * scheme.expected_subsets), digits=2)
    said = f"About {least:,.0f} rows that take part"
    return said if taken == rows else f"{said}, and not {taken:,} ({_MORE}),"


def _epsilon(budget: PrivacyBudget, does: Callable[[PrivacyBudget], bool]) -> str:
    """Return the least epsilon that suffices, to a quarter, or "" if it promises almost nothing."""
    times = _least(lambda factor: does(dataclasses.replace(budget, epsilon=budget.epsilon * factor)))
    enough = math.inf if times is None else math.ceil(10 * budget.epsilon * times) / 10
    return "" if enough > USUAL else f"epsilon {enough:g}"


def _least(does: Callable[[float], bool]) -> float | None:
    """Return the least factor that suffices, to a quarter; None beyond thirty, or if the caller fixed the noise."""
    low, high = 0, _STEPS
    while low < high:
        middle = (low + high) // 2
        try:
            enough = does(_STEP**middle)
        except InvalidParameter:  # noise that the caller has fixed
            return None
        low, high = (low, middle) if enough else (middle + 1, high)
    return None if low == _STEPS else _STEP**low
