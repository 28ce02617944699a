"""Calibration agrees both ways and refuses what is absurd; the audit "accountant" has the reference numbers."""

from __future__ import annotations

import pytest

from langchain_dp.accounting import (
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_limited_domain,
    calibrate_noisy_max,
    epsilon,
    max_releases,
)
from langchain_dp.errors import InvalidParameter

RECORDS = 6920
RATE = 40 / RECORDS
QUERIES = 10_000
ADD, ONE, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL


def test_sensitivity_one_would_have_cost_28() -> None:
    """If it breaks, the accountant agrees with the paper's sensitivity 1, which is wrong for subsets of examples."""
    delta = 1 / RECORDS
    # a vote that only appears or vanishes has sensitivity 1: that is what the paper's accountant charges for
    wrong = calibrate_noisy_max(PrivacyBudget(8, delta, ZERO), queries=QUERIES, sampling_probability=RATE)
    true = epsilon([(NoisyMaxEvent(wrong, RATE, "resample"), QUERIES)], delta, neighbors=ADD)
    assert true == pytest.approx(28.2, rel=0.01)


def test_calibration_both_ways_agrees() -> None:
    """If it breaks, a plan asks for noise that its own number of releases does not match."""
    budget = PrivacyBudget(3.0, 1e-5)
    sigma = calibrate_noisy_max(budget, queries=500, sampling_probability=0.02)
    fits = max_releases(NoisyMaxEvent(sigma, 0.02), budget)
    assert 500 <= fits <= 503
    epsilon0, delta0 = calibrate_limited_domain(budget, tokens=400, sampling_probability=0.05)
    event = LimitedDomainEvent(epsilon0, delta0, 0.05)
    assert epsilon([(event, 400)], 1e-5) <= 3.0 < epsilon([(event, 404)], 1e-5)


@pytest.mark.parametrize("tiny", [1e-4, 1e-9])
def test_a_budget_that_only_noise_could_keep_is_refused_at_once(tiny: float) -> None:
    """If it breaks, a slip of the pen in epsilon takes minutes of the accountant's time, and then all memory."""
    with pytest.raises(InvalidParameter, match=r"sigma up to 1,000,000 votes to reach epsilon=.* fewer releases"):
        calibrate_noisy_max(PrivacyBudget(tiny, 1e-5), queries=10_000)
