"""What a noisy sum of vectors costs: the exact profile of the Gaussian mechanism, for all neighbors and numbers."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest

from langchain_dp.accounting import Neighbors, PrivacyBudget, VectorSumEvent, calibrate_vector_sum, epsilon
from langchain_dp.errors import InvalidParameter

DISTANCES = {Neighbors.REPLACE_ONE: 2.0, Neighbors.ADD_OR_REMOVE_ONE: 1.0, Neighbors.REPLACE_SPECIAL: 1.0}


def exact(mu: float, delta: float) -> float:
    """Epsilon at which Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) is delta (Balle and Wang 2018)."""

    def profile(eps: float) -> Any:
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)

    low, high = 0.0, mu * mu / 2 + 10 * mu
    with mpmath.workdps(40):
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("neighbors", Neighbors)
@pytest.mark.parametrize("noise", [0.1, 1.0, 7.46, 1e4])
def test_the_charge_is_the_exact_gaussian_profile(neighbors: Neighbors, noise: float) -> None:
    """If it breaks, a sum is charged for another distance, or below its price; T sums cost mu * sqrt(T)."""
    for releases in (1, 10):
        for delta in (1e-5, 1e-9):
            mu = DISTANCES[neighbors] / noise * math.sqrt(releases)
            charged = epsilon([(VectorSumEvent(noise), releases)], delta, neighbors=neighbors)
            due = exact(mu, delta)
            if due > 600:
                assert charged >= due, "beyond the accountant's reach it may say more, never less"
            else:
                assert due * (1 - 1e-9) <= charged <= due * (1 + 2e-4)


def test_reference_values_and_a_delta_too_small_to_resolve() -> None:
    """If it breaks, the noise of the specification is no longer drawn, or a tiny delta silently gets 2,000 times it."""
    assert calibrate_vector_sum(PrivacyBudget(1.0)) == pytest.approx(7.46, abs=0.005)
    assert calibrate_vector_sum(PrivacyBudget(3.0)) == pytest.approx(2.78, abs=0.005)
    assert calibrate_vector_sum(PrivacyBudget(1.0, 1e-12)) == pytest.approx(13.1, abs=0.05)
    with pytest.raises(InvalidParameter, match="delta"):
        calibrate_vector_sum(PrivacyBudget(1.0, 1e-15))


@pytest.mark.parametrize("neighbors", Neighbors)
@pytest.mark.parametrize(("replaced", "releases"), [(2.0, 1), (math.sqrt(2), 4), (1.0, 25)])
def test_calibrated_noise_meets_its_budget_and_little_less_does_not(
    neighbors: Neighbors, replaced: float, releases: int
) -> None:
    """If it breaks, a release costs more than its budget, or is far noisier than it must be."""
    budget = PrivacyBudget(2.0, 1e-6, neighbors)
    noise = calibrate_vector_sum(budget, releases=releases, replaced=replaced)
    for wrong, within in ((noise, True), (noise - 2e-4, False)):
        cost = epsilon([(VectorSumEvent(wrong, replaced), releases)], 1e-6, neighbors=neighbors)
        assert (cost <= 2.0) is within
    distance = replaced if neighbors is Neighbors.REPLACE_ONE else 1.0
    assert exact(distance * math.sqrt(releases) / noise, 1e-6) == pytest.approx(2.0, rel=1e-3)


def test_little_and_much_noise_end_at_once() -> None:
    """If it breaks, a slip in the noise takes minutes and gigabytes, or comes out as no cost at all."""
    assert epsilon([(VectorSumEvent(1e-5), 1)], 1e-5) == math.inf
    assert epsilon([(VectorSumEvent(0.02), 1)], 1e-5) == math.inf
    assert epsilon([(VectorSumEvent(1e12), 1000)], 1e-5) == 0.0
    assert 0 < epsilon([(VectorSumEvent(1e4), 1)], 1e-5) < 1e-3


@pytest.mark.parametrize("wrong", [0.0, -1.0, 0.999, 2.001, math.nan, math.inf, True, "2"])
def test_numbers_that_no_release_has_are_refused(wrong: Any) -> None:
    """If it breaks, a release without noise is charged, or made cheaper by claiming that records hardly differ."""
    with pytest.raises(InvalidParameter, match="replaced"):
        VectorSumEvent(1.0, wrong)
    with pytest.raises(InvalidParameter, match="replaced"):
        calibrate_vector_sum(PrivacyBudget(1.0), replaced=wrong)
    if not isinstance(wrong, float) or not 0 < wrong < math.inf:
        with pytest.raises(InvalidParameter, match="noise_multiplier"):
            VectorSumEvent(wrong)
