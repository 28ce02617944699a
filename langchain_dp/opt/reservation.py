"""The plan that a run reserves in its ledger: the calls with their noise, and one selection."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LedgerPlan,
    LimitedDomainEvent,
    Neighbors,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    calibrate_limited_domain,
    calibrate_text_round,
    epsilon,
)
from langchain_dp.accounting.budget import LEAST_CLIP, USUAL
from langchain_dp.accounting.events import SamplingName, votes_move
from langchain_dp.ensemble.reservation import Reservation, check_same, reserved_once, unreserved
from langchain_dp.ensemble.scheme import Scheme
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.mechanisms import ClippedSum

TRAINING, VALIDATION = "training", "validation"

WritingEvent = LimitedDomainEvent | ClippedSumRoundEvent
"""One call: a vote on one token, or the clipped sums of a whole text."""


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """Most calls of a run; ``tokens`` is the most tokens of a clipped-sums text, and 0 if a call votes on one token."""

    most: int
    tokens: int = 0

    def __bool__(self) -> bool:
        return self.most > 0

    def charged(self, token: WritingEvent) -> PartEvent:
        """Return the event that a call is charged as."""
        return PartEvent(TRAINING, token)

    def events(self, token: WritingEvent | None) -> list[tuple[PartEvent, int]]:
        """Return the events of a plan, none if nothing is written."""
        if not self:
            return []
        assert token is not None  # choose_noise
        return [(self.charged(token), self.most)]


@dataclasses.dataclass(frozen=True)
class PromptReservation(Reservation):
    """A reserved plan of one run. ``token`` is the event of one call, None if nothing is written."""

    token: WritingEvent | None
    selection: ExponentialEvent
    calls: CallPlan

    def left(self) -> int:
        """Return the calls left in the plan."""
        return sum(self.plan.remaining(event) for event, _ in self.calls.events(self.token))

    @property
    def charged_selection(self) -> PartEvent:
        """Event that the selection is charged as."""
        return PartEvent(VALIDATION, self.selection)

    @property
    def moved_votes(self) -> bool:
        """Whether a neighbor's vote may move (rather than appear or disappear)."""
        return votes_move(self.budget.neighbors)


def votes_needed(token: LimitedDomainEvent, *, moved_votes: bool) -> float:
    """Return the threshold of LimitedDomain above the (kbar+1)-th count, in votes."""
    return (2 if moved_votes else 1) + 2 / token.epsilon0 * math.log((1 - token.delta0) / token.delta0)


def chance(token: LimitedDomainEvent, votes: float, *, moved_votes: bool) -> float:
    """Return the chance to release a token with so many votes if the others have too few."""
    needed = votes_needed(token, moved_votes=moved_votes)
    return 1 / (1 + math.exp(min(token.epsilon0 / 2 * (needed - votes), 700.0)))


def reserve(
    ledger: PrivacyLedger,
    budget: PrivacyBudget | None,
    *,
    name: str,
    scheme: Scheme,
    calls: CallPlan,
    epsilon0: float | None,
    delta0: float | None,
    journal: str,
    check: Callable[[WritingEvent | None, PrivacyBudget], None] = lambda token, share: None,
) -> PromptReservation:
    """Choose the noise and reserve the plan, or resume the ledger's plan of this name.

    ``check`` refuses useless noise before anything is reserved. ``journal`` is stored with a new plan.

    Raises:
        InvalidParameter: The budget, or the given noise, is too small for a single token.
        BudgetExceeded: The ledger has no room.
        PlanError: The ledger's plan of this name was made for another configuration.
    """

    def new() -> PromptReservation:
        share = budget or unreserved(ledger)
        token, selection = choose_noise(share, scheme=scheme, calls=calls, epsilon0=epsilon0, delta0=delta0)
        check(token, share)
        events = [*calls.events(token), (PartEvent(VALIDATION, selection), 1)]
        plan = ledger.reserve(events, name=name, epsilon=share.epsilon, delta=share.delta, journal=journal)
        return PromptReservation(plan, scheme, share, token, selection, calls)

    return reserved_once(
        ledger, name, new=new, resumed=lambda found: _resume(found, ledger.budget.neighbors, budget, scheme, calls)
    )


def choose_noise(
    share: PrivacyBudget, *, scheme: Scheme, calls: CallPlan, epsilon0: float | None, delta0: float | None
) -> tuple[WritingEvent | None, ExponentialEvent]:
    """Return the noise of one call, if there is any, and of the selection. Together they fit into ``share``.

    ``epsilon0=None`` is the largest that fits; ``delta0=None`` a tenth of delta over all calls.

    Raises:
        InvalidParameter: The given noise does not fit, or these neighbors are not supported for clipped sums.
    """
    if not calls:
        return None, selection_event(share)
    q, sampling = scheme.sampling_probability, scheme.sampling
    if calls.tokens:
        return _round_event(share, calls.most, calls.tokens, q, epsilon0), selection_event(share)
    return _token_event(share, calls.most, q, sampling, epsilon0, delta0), selection_event(share)


def _round_event(
    share: PrivacyBudget, rounds: int, tokens: int, q: float, epsilon0: float | None
) -> ClippedSumRoundEvent:
    """A member is a subset of several records: a replaced record changes it by as much as it can."""
    if share.neighbors is not Neighbors.REPLACE_ONE:
        raise InvalidParameter(
            f'Expected neighbors={share.neighbors.name} to be REPLACE_ONE with decoder="clip": a subset of several '
            'records would change by more than is accounted for under other relations. Use decoder="votes".'
        )
    if epsilon0 is None:
        return ClippedSumRoundEvent(
            calibrate_text_round(share, rounds=rounds, tokens=tokens, sampling_probability=q), tokens, q
        )
    event = ClippedSumRoundEvent(epsilon0, tokens, q)
    _check_fits(share, event, rounds, f"epsilon0={event.epsilon0:g}", "Lower epsilon0, or leave it out to have it")
    return event


def _check_fits(share: PrivacyBudget, event: WritingEvent, calls: int, given: str, remedy: str) -> None:
    cost = epsilon([(event, calls)], share.delta, neighbors=share.neighbors)
    if cost > share.epsilon:
        raise InvalidParameter(
            f"Expected {given} to fit into {share} for {calls} calls, but they cost epsilon={cost:.4g}. {remedy} "
            "chosen."
        )


def _token_event(
    share: PrivacyBudget, calls: int, q: float, sampling: SamplingName, epsilon0: float | None, delta0: float | None
) -> LimitedDomainEvent:
    if epsilon0 is None:
        chosen = calibrate_limited_domain(share, tokens=calls, sampling_probability=q, sampling=sampling)
        return LimitedDomainEvent(*chosen, q, sampling)
    event = LimitedDomainEvent(epsilon0, min(0.1 * share.delta / (calls * q), 0.5) if delta0 is None else delta0, q,
                               sampling)  # fmt: skip
    given = f"epsilon0={event.epsilon0:g}, delta0={event.delta0:g}"
    _check_fits(share, event, calls, given, "Lower epsilon0 or delta0, or leave both out to have them")
    return event


def clip_of(token: ClippedSumRoundEvent, scheme: Scheme, temperature: float) -> ClippedSum:
    """Return the mechanism of a text's tokens. Its divisor is the expected number of members, a constant."""
    return ClippedSum.sharpened(token, max(1, round(scheme.expected_subsets)), temperature)


def check_clip(clip: float, share: PrivacyBudget) -> None:
    """Refuse a clip under which the subsets have almost no influence."""
    if clip < LEAST_CLIP:
        raise InvalidParameter(
            f"Expected epsilon={share.epsilon:g}, delta={share.delta:g} to be enough for a clip of {LEAST_CLIP} nats, "
            f"but it is {clip:.2g}: the subsets would hardly move the public model. Give a larger budget, more "
            "records, or fewer texts and tokens (num_prompts=, max_new_tokens=)."
        )


def check_reachable(
    token: LimitedDomainEvent,
    share: PrivacyBudget,
    scheme: Scheme,
    plan: CallPlan,
    *,
    given: bool,
    agreement: float = 1.0,
) -> None:
    """Refuse noise that no token can win against. ``agreement`` is the share of the votes that must suffice."""
    calls = plan.most
    moved = votes_move(share.neighbors)
    needed, voters = votes_needed(token, moved_votes=moved), agreement * scheme.expected_subsets
    if needed <= voters:
        return
    at_best = "" if agreement == 1 else f", {agreement:.0%} of them for one token at best"
    instead = (
        "fewer calls (num_prompts=, max_new_tokens=), more votes (subsets=), or fewer shots= and more records."
        if agreement == 1
        else 'more records; decoder="clip" and DPPromptSelector do with fewer, as their plan() says.'
    )
    remedy = _remedy(token, share, voters, calls, moved, given=given, fitted=agreement < 1)
    raise InvalidParameter(
        f"Expected {'epsilon0' if given else 'epsilon'}={token.epsilon0 if given else share.epsilon:g}, "
        f"delta={share.delta:g} to be enough for one token: with {calls} calls a token needs {needed:.0f} votes, but "
        f"only {scheme.expected_subsets:.3g} subsets vote{at_best}. Give {f'{remedy}, or ' if remedy else ''}{instead}"
    )


def _remedy(
    token: LimitedDomainEvent,
    share: PrivacyBudget,
    voters: float,
    calls: int,
    moved: bool,
    *,
    given: bool,
    fitted: bool,
) -> str:
    room = voters - (2 if moved else 1)
    if room <= 0:
        return f"subsets= above {2 if moved else 1}"
    least = 2 * math.log((1 - token.delta0) / token.delta0) / room
    if given:
        least = float(_rounded_up(least))
    cost = epsilon([(dataclasses.replace(token, epsilon0=least), calls)], share.delta, neighbors=share.neighbors)
    if not math.isfinite(cost):
        return "a larger budget"
    if given:
        return f"at least epsilon0={least:g} (which costs epsilon={_rounded_up(cost)})"
    if fitted and cost > USUAL:  # nobody should take it
        return ""
    return f"at least epsilon={_rounded_up(cost)} at these settings (from there on a token can win; often, with more)"


def _rounded_up(value: float) -> str:
    """Format three digits that are not below ``value``, with room for the steps of the calibration."""
    return f"{rounded_up(value * 1.001):.3g}"


def selection_event(share: PrivacyBudget) -> ExponentialEvent:
    """Return the sharpest selection within ``share``: the parts are disjoint, so the larger cost counts."""
    weight = share.epsilon / (2 if share.neighbors is Neighbors.REPLACE_ONE else 1)
    while epsilon([(ExponentialEvent(weight), 1)], share.delta, neighbors=share.neighbors) > share.epsilon:
        weight *= 0.99  # the accountant's grid rounds up
    return ExponentialEvent(weight)


def _resume(
    plan: LedgerPlan, neighbors: Neighbors, budget: PrivacyBudget | None, scheme: Scheme, calls: CallPlan
) -> PromptReservation:
    parts = [(event, most) for event, most in plan.events if isinstance(event, PartEvent)]
    selection = next((event.event for event, _ in parts if event.part == VALIDATION), None)
    texts = [(event.event, most) for event, most in parts if event.part == TRAINING]
    token = texts[0][0] if texts else None
    kind = (ClippedSumRoundEvent if calls.tokens else LimitedDomainEvent) if calls else type(None)
    if not isinstance(token, kind) or not isinstance(selection, ExponentialEvent):
        raise PlanError(
            f"The ledger's plan {plan.name!r} is not a prompt's, or was made for another decoder=. Give this run "
            "another name=."
        )
    share = PrivacyBudget(plan.epsilon, plan.delta, neighbors)
    if token is None:
        check_same(plan, {}, budget, "run")
        return PromptReservation(plan, scheme, share, None, selection, calls)
    assert isinstance(token, WritingEvent)
    sampling = token.sampling if isinstance(token, LimitedDomainEvent) else "fixed"
    asked = {
        "calls": (sum(most for _, most in texts), calls.most),
        "tokens": (token.tokens if isinstance(token, ClippedSumRoundEvent) else 0, calls.tokens),
        "sampling": (sampling, scheme.sampling),
        "sampling_probability": (token.sampling_probability, scheme.sampling_probability),
    }
    check_same(plan, asked, budget, "run")
    return PromptReservation(plan, scheme, share, token, selection, calls)
