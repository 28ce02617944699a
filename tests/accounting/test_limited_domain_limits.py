"""Events at the ends: thresholds that miss nearly all mass, and losses beyond everything that is sensible."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_limited_domain,
    epsilon,
)
from langchain_dp.accounting.profiles import limited_domain_fixed
from langchain_dp.mechanisms import LimitedDomain
from langchain_dp.mechanisms.exponential_choice import below_exp

SCHEMES = [
    ("fixed", Neighbors.REPLACE_SPECIAL), ("fixed", Neighbors.REPLACE_ONE), ("resample", Neighbors.ADD_OR_REMOVE_ONE),
]  # fmt: skip


def test_what_leaves_room_in_delta_still_has_an_epsilon() -> None:
    """If it breaks, everything with a threshold is refused."""
    missed = -math.expm1(10 * math.log1p(-0.001))
    event = LimitedDomainEvent(1.0, 0.001, 1.0, "fixed")
    assert epsilon([(event, 10)], 0.999 * missed) == math.inf
    assert 0 < epsilon([(event, 10)], 1.1 * missed) < 20


@pytest.mark.parametrize(("sampling", "neighbors"), SCHEMES)
@pytest.mark.parametrize("q", [0.5, 0.9, 0.999])
def test_much_noise_is_accounted_for(sampling: Any, neighbors: Neighbors, q: float) -> None:
    """If it breaks, a small budget is refused for too little noise: what a threshold may miss keeps the grid open."""
    said = epsilon([(LimitedDomainEvent(1e-4, 3.9e-10, q, sampling), 257)], 1e-5, neighbors=neighbors)
    assert 0 < said < 257 * math.log1p(q * math.expm1(1e-4))


@pytest.mark.parametrize(("sampling", "neighbors"), SCHEMES)
@pytest.mark.parametrize("q", [0.05, 0.5, 1.0])
def test_what_a_threshold_may_miss_is_paid_for_out_of_delta(sampling: Any, neighbors: Neighbors, q: float) -> None:
    """If it breaks, the mass beyond the threshold is free: epsilon is that of a call that misses nothing."""
    delta0, delta = 1e-4, 2e-4
    said = epsilon([(LimitedDomainEvent(1.0, delta0, q, sampling), 1)], delta, neighbors=neighbors)
    left = (delta - q * delta0) / (1 - delta0)
    nothing_missed = epsilon([(LimitedDomainEvent(1.0, 1e-15, q, sampling), 1)], left, neighbors=neighbors)
    assert said >= nothing_missed - 1e-9
    assert said == pytest.approx(nothing_missed, rel=2e-2)


def chance(votes: dict[int, int], epsilon0: float, delta0: float, token: int) -> Fraction:
    """Exact probability of a token, by the law that the mechanism draws from."""
    base = below_exp(Fraction(epsilon0) / 2)
    law = LimitedDomain(LimitedDomainEvent(epsilon0, delta0), domain=1000)._candidates(votes)
    masses = {outcome: factor * base**exponent for outcome, exponent, factor in law}
    return masses[token] / sum(masses.values())


def shown(epsilon0: float, delta0: float, q: float, delta: float) -> float:
    """Epsilon that "token 1 comes out" shows at delta, where the changed subset turns a vote for 1 into one for 2."""
    out, left, right = (chance(votes, epsilon0, delta0, 1) for votes in ({1: 5, 2: 6}, {1: 6, 2: 6}, {1: 5, 2: 7}))
    rate = Fraction(q)
    one, other = (1 - rate) * out + rate * left - Fraction(delta), (1 - rate) * out + rate * right
    return math.log(one) - (math.log(other.numerator) - math.log(other.denominator)) if one > 0 else 0.0


@pytest.mark.parametrize("q", [1.0, 0.5, 0.05])
@pytest.mark.parametrize("epsilon0", [20.0, 60.0, 75.0, 80.0, 90.0, 130.0, 200.0, 400.0])
def test_no_epsilon_is_below_what_an_event_of_the_mechanism_shows(epsilon0: float, q: float) -> None:
    """If it breaks, the worst event is too improbable for the search, and a large loss is printed as a small one."""
    said = epsilon([(LimitedDomainEvent(epsilon0, 1e-9, q), 1)], 1e-5)
    found = shown(epsilon0, 1e-9, q, 1e-5)
    assert found <= said
    if q == 1.0:
        assert said <= epsilon0 + 0.01  # it is epsilon0-bounded-range
        assert found > epsilon0 - 0.7  # the event has probability one half


@pytest.mark.parametrize(("budget", "q", "tokens"), [(50.0, 0.5, 1), (45.0, 0.3, 1), (150.0, 1.0, 1), (100.0, 0.5, 2)])
def test_a_large_budget_buys_no_more_than_it_says(budget: float, q: float, tokens: int) -> None:
    """If it breaks, calibration finds a hole in the accounting and spends what is in it."""
    epsilon0, delta0 = calibrate_limited_domain(PrivacyBudget(budget), tokens=tokens, sampling_probability=q)
    assert budget / 4 < shown(epsilon0, delta0, q, 1e-5) <= budget


@pytest.mark.parametrize("q", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("epsilon0", [0.1, 4.0, 60.0, 76.0, 84.0, 120.0])
def test_the_worst_binary_event_is_found(epsilon0: float, q: float) -> None:
    """If it breaks, the search for the worst event ends elsewhere. By trying 100,001 of them."""
    logit = np.linspace(-1.5 * epsilon0 - 20, 20, 100_001)
    odds, step = np.exp(logit), math.exp(epsilon0 / 2)
    for share in (0.1, 0.5, 0.9, 0.99):
        g = math.exp(share * epsilon0)
        up, down, out = odds * step / (1 + odds * step), odds / (odds + step), odds / (1 + odds)
        tried = float(np.max((1 - q) * (1 - g) * out + q * (up - g * down)))
        found = float(limited_domain_fixed(np.array([share * epsilon0]), epsilon0=epsilon0, delta0=1e-12, q=q)[0])
        joint = float(limited_domain_fixed(np.array([share * epsilon0]), epsilon0=epsilon0, delta0=0.0, q=q)[0])
        assert found >= joint >= (1 - 1e-6) * tried - 1e-13
        assert found <= 1.001 * max(tried, 0.0) + 2e-12


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("neighbors", Neighbors)
@pytest.mark.parametrize(
    ("event", "counts"),
    [
        *((ExponentialEvent(loss), (1, 3)) for loss in (700.0, 5000.0)),
        *((LimitedDomainEvent(loss, 1e-9, q), (1, 3)) for loss, q in ((2600.0, 1.0), (5000.0, 0.3))),
        *((NoisyMaxEvent(sigma, q), (1, 3)) for sigma, q in ((0.02, 1.0), (0.01, 1.0), (1e-155, 0.1))),
        *((LimitedDomainEvent(1.0, missed, 1.0), (count,)) for missed, count in ((0.3, 50), (0.9, 100), (0.01, 5000))),
        (LimitedDomainEvent(0.01, 0.3, 0.1), (5000,)),
        (LimitedDomainEvent(400.0, 1e-9, 1.0), (4, 50, 256)),
    ],
    ids=str,
)
def test_what_loses_everything_costs_everything(event: object, counts: tuple[int, ...], neighbors: Neighbors) -> None:
    """If it breaks, what cannot be private ends in an error of a library, or gets a number.

    Losses beyond the grid, alone or composed, and thresholds that miss more than delta.
    """
    for count in counts:
        assert epsilon([(event, count)], 1e-5, neighbors=neighbors) == math.inf
