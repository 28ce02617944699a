"""The noisy sum of vectors: its profile by enumeration, its clip in whole numbers, its scale, what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.accounting import PrivacyBudget, VectorSumEvent, calibrate_vector_sum, epsilon, profiles
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import VectorSum, clip_to_norm
from langchain_dp.mechanisms.vector_sum import LEAST_STEPS, NORM

EPSILONS = (0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0)


def continuous(eps: float, distance: float) -> float:
    return float(profiles.gaussian(np.array([eps]), distance=distance, sigma=1.0)[0])


def in_one(sigma: float, shift: int, eps: float) -> float:
    """Delta of the discrete Gaussian for sums that differ by ``shift`` steps in one coordinate."""
    x = np.arange(-int(10 * sigma), int(10 * sigma) + 1, dtype=np.float64)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    loss = (2 * x * shift + shift**2) / (2 * sigma**2)
    return float((weights * np.maximum(-np.expm1(eps - loss), 0)).sum() / weights.sum())


def worst(sigma: int) -> float:
    """Largest relative gap between the two profiles where delta is at least 1e-9, in one dimension."""
    shifts = [round(distance * sigma) for distance in (0.25, 0.5, 1.0, 2.0, 4.0)]
    return max(
        abs(in_one(sigma, shift, eps) / exact - 1)
        for shift in shifts
        for eps in EPSILONS
        if (exact := continuous(eps, shift / sigma)) > 1e-9
    )


def test_the_grid_is_so_fine_that_the_noise_costs_what_continuous_noise_costs() -> None:
    """If it breaks, the noise that is drawn costs more than the Gaussian that is charged.

    At 64 steps the gap is near 1e-3, at 4 steps above a tenth: so noise of few steps is refused.
    """
    assert worst(LEAST_STEPS) < 3e-6
    assert worst(64) > 1e-4
    assert worst(4) > 0.1


@pytest.mark.parametrize("delta", [1e-9, 1e-5])
@pytest.mark.parametrize("budget", [0.5, 1.0, 3.0, 10.0, 60.0])
def test_what_is_charged_covers_the_noise_on_the_grid(budget: float, delta: float) -> None:
    """If it breaks, two records of opposite vectors are told apart a little better than the certificate says."""
    noise = calibrate_vector_sum(PrivacyBudget(budget, delta))
    if noise * NORM < LEAST_STEPS:
        with pytest.raises(InvalidParameter, match="grid steps"):
            VectorSum(VectorSumEvent(noise))
        return
    assert in_one(noise * NORM, 2 * NORM, epsilon([(VectorSumEvent(noise), 1)], delta)) <= delta


@settings(max_examples=200, deadline=None)
@given(data=st.data(), columns=st.integers(1, 5), norm=st.integers(1, 5000), bits=st.sampled_from([4, 13, 31, 40, 61]))
def test_clipped_vectors_are_within_the_norm_alone_and_in_company(
    data: st.DataObject, columns: int, norm: int, bits: int
) -> None:
    """If it breaks, a record moves the sum by more than its share, turns around, or moves another's vector."""
    number = st.integers(-(2**bits), 2**bits)
    rows = np.array(data.draw(st.lists(st.lists(number, min_size=columns, max_size=columns), min_size=1, max_size=4)))
    clipped = clip_to_norm(rows, norm)
    for before, after in zip(rows.tolist(), clipped.tolist(), strict=True):
        assert sum(x * x for x in after) <= norm * norm
        scale = min(1.0, norm / math.sqrt(sum(x * x for x in before) or 1))
        assert all(abs(x) <= abs(y) * scale * (1 + 1e-12) for x, y in zip(after, before, strict=True)), "toward zero"
        assert all(x * y >= 0 for x, y in zip(after, before, strict=True))
        assert after == before or scale < 1
        assert clip_to_norm(np.array([before]), norm).tolist() == [after]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: VectorSum(VectorSumEvent(0.2499)), "grid steps"),
        (lambda: VectorSum(VectorSumEvent(1.0), norm=LEAST_STEPS - 1), "grid steps"),
        (lambda: VectorSum(VectorSumEvent(1e300)), "grid steps"),
        (lambda: VectorSum(VectorSumEvent(1.0), norm=0), "norm"),
        (lambda: VectorSum(VectorSumEvent(1e6), norm=1.5), "norm"),  # type: ignore[arg-type]
        (lambda: VectorSum(VectorSumEvent(1.0)).release(np.zeros(3)), "whole numbers"),
    ],
)
def test_what_cannot_be_released_soundly_is_refused(make: object, match: str) -> None:
    """If it breaks, noise is drawn on a grid too coarse for its price, or a draw fails after its charge."""
    with pytest.raises(InvalidParameter, match=match):
        make()  # type: ignore[operator]
