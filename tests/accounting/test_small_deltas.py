"""A delta that rounding would hide is refused by name, and above it the printed epsilon stays an upper bound."""

from __future__ import annotations

import itertools
import math
import re

import mpmath
import pytest

from langchain_dp.accounting import (
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_limited_domain,
    calibrate_noisy_max,
    calibrate_text_round,
    epsilon,
)
from langchain_dp.errors import InvalidParameter


def exact(sigma: float, count: int, delta: float) -> float:
    """Epsilon of ``count`` votes in which everybody takes part: of one Gaussian mechanism, to 40 digits."""
    with mpmath.workdps(40):
        mu = mpmath.sqrt(2 * count) / sigma

        def too_small(eps: mpmath.mpf) -> bool:
            return bool(mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu) > delta)

        low, high = mpmath.mpf(0), mpmath.mpf(100)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if too_small(middle) else (low, middle)
        return float(low)


@pytest.mark.parametrize("calibrate", [
    lambda budget: calibrate_noisy_max(budget, queries=100),
    lambda budget: calibrate_limited_domain(budget, tokens=1000),
    lambda budget: calibrate_text_round(budget, rounds=50, tokens=10),
])  # fmt: skip
def test_a_delta_that_cannot_be_resolved_is_refused_and_the_smallest_is_named(calibrate: object) -> None:
    """If it breaks, a tiny delta silently gives noise that drowns every answer: a thousand times too much, and more."""
    with pytest.raises(InvalidParameter, match=r"rounding hides what they cost\. Raise delta") as refused:
        calibrate(PrivacyBudget(3.0, 1e-15))  # type: ignore[operator]
    [least] = re.findall(r"at least (\S+) for", str(refused.value))
    assert 1e-15 < float(least) < 1e-11
    calibrate(PrivacyBudget(3.0, float(least)))  # type: ignore[operator]


def test_noise_grows_gently_down_to_the_smallest_delta() -> None:
    """If it breaks, ten times less delta asks for a hundred times the noise, somewhere on the way down."""
    scales = [calibrate_noisy_max(PrivacyBudget(3.0, 10.0**-digits), queries=10) for digits in (6, 8, 10, 12, 13)]
    assert all(1 < after / before < 1.25 for before, after in itertools.pairwise(scales))


@pytest.mark.parametrize(
    ("sigma", "count", "delta"),
    [(20.0, 100, 2e-13), (20.0, 100, 1e-12), (60.0, 1000, 2e-12), (200.0, 10_000, 2e-11), (600.0, 100_000, 2e-10),
     (2000.0, 1_000_000, 2e-9), (6000.0, 10_000_000, 2e-8)],
)  # fmt: skip
def test_the_epsilon_of_many_releases_is_no_less_than_the_exact_one(sigma: float, count: int, delta: float) -> None:
    """If it breaks, rounding takes off what was lost, and a printed epsilon is too small."""
    found, true = epsilon([(NoisyMaxEvent(sigma), count)], delta), exact(sigma, count, delta)
    assert true <= found <= 1.05 * true
    assert math.isinf(epsilon([(NoisyMaxEvent(sigma), count)], delta / 1000))
