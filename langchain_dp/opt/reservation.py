"""The plan of a run in its ledger: calls, and one selection."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting import (
    ExponentialEvent,
    LedgerPlan,
    LimitedDomainEvent,
    Neighbors,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    calibrate_limited_domain,
    epsilon,
)
from langchain_dp.accounting.budget import USUAL
from langchain_dp.accounting.events import votes_move
from langchain_dp.ensemble.reservation import Reservation, check_same, reserved_once, unreserved
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.opt.settings import Settings

TRAINING, VALIDATION = "training", "validation"


@dataclasses.dataclass(frozen=True)
class PromptReservation(Reservation):
    """A reserved plan. ``token`` is None if nothing is written."""

    token: LimitedDomainEvent | None
    selection: ExponentialEvent
    calls: int

    @property
    def charged_call(self) -> PartEvent:
        assert self.token is not None  # choose_noise
        return PartEvent(TRAINING, self.token)

    def left(self) -> int:
        return self.plan.remaining(self.charged_call) if self.calls else 0

    @property
    def charged_selection(self) -> PartEvent:
        return PartEvent(VALIDATION, self.selection)


def votes_needed(token: LimitedDomainEvent, neighbors: Neighbors) -> float:
    """Return the threshold of LimitedDomain above the (kbar+1)-th count."""
    return (2 if votes_move(neighbors) else 1) + 2 / token.epsilon0 * math.log((1 - token.delta0) / token.delta0)


def chance(token: LimitedDomainEvent, votes: float, neighbors: Neighbors) -> float:
    """Return the chance to release a token if others have too few votes."""
    needed = votes_needed(token, neighbors)
    return 1 / (1 + math.exp(min(token.epsilon0 / 2 * (needed - votes), 700.0)))


def reserve(
    ledger: PrivacyLedger,
    budget: PrivacyBudget | None,
    settings: Settings,
    scheme: Scheme,
    *,
    name: str,
    journal: str,
    about: Mapping[str, str | int],
    check: Callable[[LimitedDomainEvent | None, PrivacyBudget], None],
) -> PromptReservation:
    """Reserve or resume. ``check`` refuses useless noise first."""

    def new() -> PromptReservation:
        share = budget or unreserved(ledger)
        token, selection = choose_noise(share, scheme, settings)
        check(token, share)
        events = [(PartEvent(TRAINING, token), settings.calls)] if token is not None else []
        events.append((PartEvent(VALIDATION, selection), 1))
        plan = ledger.reserve(
            events, name=name, epsilon=share.epsilon, delta=share.delta, settings=about, journal=journal
        )
        return PromptReservation(plan, scheme, share, token, selection, settings.calls)

    def resumed(plan: LedgerPlan) -> PromptReservation:
        events = {event.part: (event.event, most) for event, most in plan.events if isinstance(event, PartEvent)}
        token, calls = events.get(TRAINING, (None, 0))
        selection, _ = events.get(VALIDATION, (None, 0))
        kind = LimitedDomainEvent if settings.calls else type(None)
        if not isinstance(token, kind) or not isinstance(selection, ExponentialEvent):
            raise PlanError(
                f"The ledger's plan {plan.name!r} is not that of a prompt of this kind. Give this run another name=."
            )
        differing: dict[str, tuple[object, object]] = {}
        if token is not None:
            differing = {
                "calls": (calls, settings.calls),
                "sampling": (token.sampling, scheme.sampling),
                "sampling_probability": (token.sampling_probability, scheme.sampling_probability),
            }
        check_same(plan, differing, budget, "run")
        share = PrivacyBudget(plan.epsilon, plan.delta, ledger.budget.neighbors)
        return PromptReservation(plan, scheme, share, token, selection, settings.calls)

    return reserved_once(ledger, name, new=new, resumed=resumed)


def choose_noise(
    share: PrivacyBudget, scheme: Scheme, settings: Settings
) -> tuple[LimitedDomainEvent | None, ExponentialEvent]:
    """Return the noise of a call and of the selection, within ``share``."""
    selection, options = selection_event(share), settings.candidate_options
    calls, q, sampling = settings.calls, scheme.sampling_probability, scheme.sampling
    if not calls:
        return None, selection
    if options.epsilon0 is None:
        chosen = calibrate_limited_domain(share, tokens=calls, sampling_probability=q, sampling=sampling)
        return LimitedDomainEvent(*chosen, q, sampling), selection
    delta0 = min(0.1 * share.delta / (calls * q), 0.5) if options.delta0 is None else options.delta0
    token = LimitedDomainEvent(options.epsilon0, delta0, q, sampling)
    cost = epsilon([(token, calls)], share.delta, neighbors=share.neighbors)
    if cost > share.epsilon:
        raise InvalidParameter(
            f"Expected epsilon0={token.epsilon0:g}, delta0={delta0:g} to fit into {share} for {calls} calls, but they "
            f"cost epsilon={cost:.4g}. Lower epsilon0 or delta0, or leave both out to have them chosen."
        )
    return token, selection


def check_reachable(
    token: LimitedDomainEvent,
    share: PrivacyBudget,
    scheme: Scheme,
    calls: int,
    *,
    given: bool,
    agreement: float = 1.0,
) -> None:
    """``agreement`` is the share of votes that must suffice."""
    needed, voters = votes_needed(token, share.neighbors), agreement * scheme.expected_subsets
    if needed <= voters:
        return
    at_best = "" if agreement == 1 else f", {agreement:.0%} of them for one token at best"
    instead = (
        "fewer calls (num_prompts=, max_new_tokens=), more votes (subsets=), or fewer shots= and more records."
        if agreement == 1
        else "more records. DPPromptSelector needs fewer, as its plan() says."
    )
    remedy = _remedy(token, share, voters, calls, given=given, fitted=agreement < 1)
    raise InvalidParameter(
        f"Expected {'epsilon0' if given else 'epsilon'}={token.epsilon0 if given else share.epsilon:g}, "
        f"delta={share.delta:g} to be enough for one token: with {calls} calls a token needs {needed:.0f} votes, but "
        f"only {scheme.expected_subsets:.3g} subsets vote{at_best}. Give {f'{remedy}, or ' if remedy else ''}{instead}"
    )


def _remedy(
    token: LimitedDomainEvent, share: PrivacyBudget, voters: float, calls: int, *, given: bool, fitted: bool
) -> str:
    beyond = 2 if votes_move(share.neighbors) else 1
    room = voters - beyond
    if room <= 0:
        return f"subsets= above {beyond}"
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
    return f"{rounded_up(value * 1.001):.3g}"


def selection_event(share: PrivacyBudget) -> ExponentialEvent:
    """Return the sharpest selection: the parts are disjoint, so the larger cost counts."""
    weight = share.epsilon / (2 if share.neighbors is Neighbors.REPLACE_ONE else 1)
    while epsilon([(ExponentialEvent(weight), 1)], share.delta, neighbors=share.neighbors) > share.epsilon:
        weight *= 0.99  # the accountant's grid rounds up
    return ExponentialEvent(weight)
