"""Report noisy max: its law, its ties, its grid, and audits that also reject what is planted wrong."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from audit_tools import lower, upper, violates
from scipy.special import ndtr

from langchain_dp.accounting import NoisyMaxEvent, epsilon, profiles
from langchain_dp.accounting.calibrate import LEAST_SIGMA as LEAST_CALIBRATED
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import NoisyMax, NotPrivateSeededRandomness, report_noisy_max
from langchain_dp.mechanisms.noisy_max import GRID, LEAST_SIGMA, _largest


@pytest.mark.statistical
def test_audit_sensitivity_is_root_two() -> None:
    """If it breaks, noise meant for a vote that vanishes is used for a vote that moves (error rate 1e-6).

    Moving one vote shifts the margin by 2. Noise calibrated at sensitivity 1 for (1, 0.05) must be disproved within
    8,000 runs, and noise calibrated at sqrt(2) must not: the audit has power.
    """
    target, delta, runs = 1.0, 0.05, 8_000
    wrong = _single_release_sigma(target, delta, distance=1.0)
    right = _single_release_sigma(target, delta, distance=math.sqrt(2))
    rng = NotPrivateSeededRandomness(11)
    for sigma, disproved in [(wrong, True), (right, False)]:
        hits = [
            sum(_margin(counts, sigma, rng) > sigma**2 * target for _ in range(runs))  # the best event
            for counts in ([11, 10], [10, 11])
        ]
        assert violates(hits[0], hits[1], runs, epsilon=target, delta=delta) == disproved, (sigma, hits)


def _single_release_sigma(epsilon: float, delta: float, *, distance: float) -> float:
    low, high = 0.1, 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        cost = profiles.gaussian(np.array([epsilon]), distance=distance, sigma=middle)[0]
        low, high = (low, middle) if cost < delta else (middle, high)
    return high


def _margin(counts: list[int], sigma: float, rng: NotPrivateSeededRandomness) -> float:
    first, second = report_noisy_max(counts, sigma, rng=rng).noisy_counts
    return float(first - second)


def test_design_reference_for_sensitivity_one() -> None:
    """If it breaks, the worked example of the wrong scale (sigma 3.73, margin -15 to -13) no longer shows the gap."""
    spread = math.sqrt(2) * 3.73
    gap = ndtr(-13 / spread) - math.e * ndtr(-15 / spread)
    assert gap == pytest.approx(8e-4, rel=0.05)
    assert gap > 1e-5


@pytest.mark.statistical
def test_every_label_can_win_even_without_votes() -> None:
    """If it breaks, a label with no votes, or an empty sample, gets no noise: supports differ (error 1e-6)."""
    rng = NotPrivateSeededRandomness(3)
    runs = 3_000
    empty = Counter(report_noisy_max([0, 0, 0], 1.5, rng=rng).winner for _ in range(runs))
    one = Counter(report_noisy_max([1, 0, 0], 1.5, rng=rng).winner for _ in range(runs))
    assert set(empty) == set(one) == {0, 1, 2}
    for label in range(3):
        assert lower(empty[label], runs) < 1 / 3 < upper(empty[label], runs)
    assert one[0] > empty[0]


def test_ties_go_to_the_smaller_index() -> None:
    """If it breaks, ties are broken by something other than the public order of the labels."""
    assert _largest([Fraction(2), Fraction(5), Fraction(5)]) == 1


def test_noisy_counts_lie_on_the_public_grid() -> None:
    """If it breaks, digits of a floating-point path leave with the vote shares."""
    for _ in range(50):
        result = report_noisy_max([4, 1], 1.3)
        assert all((count * GRID).denominator == 1 for count in result.noisy_counts)
        assert sum(result.shares()) == pytest.approx(1.0)
    assert report_noisy_max([0, 0], 1.0).shares().__len__() == 2


@pytest.mark.parametrize(("sigma", "q"), [(1.3175, 40 / 6920), (0.7276, 40 / 6920), (1.4, 0.0625), (0.3, 1.0)])
def test_the_grid_is_fine_enough_to_be_charged_as_continuous(sigma: float, q: float) -> None:
    """If it breaks, the discrete noise that is drawn costs more than the continuous noise that is charged.

    On whole votes the profiles differ by a percent and more, on the grid of 1/4096 by less than 2e-7.
    """
    for eps in (0.001, 0.01, 0.05, 0.3):
        exact = float(
            profiles.poisson_remove(lambda e: profiles.gaussian(e, distance=1.0, sigma=sigma), q, np.array([eps]))[0]
        )
        assert _vanishing(eps, sigma, q, GRID) == pytest.approx(exact, rel=2e-7)
    assert abs(_vanishing(0.05, sigma, q, 1) / exact_at(0.05, sigma, q) - 1) > 0.01
    # a moved vote needs the plane: enumerate a coarse grid, whose error falls with its square
    for eps in (0.01, 0.05):
        exact = float(profiles.noisy_max_fixed(np.array([eps]), sigma=sigma, q=q)[0])
        assert abs(_moved(eps, sigma, q, 64) / exact - 1) * (64 / GRID) ** 2 < 2e-7


@pytest.mark.parametrize(
    ("sigma", "delta"), [(0.3119, 0.001518512), (0.3149, 0.0469278), (0.5164, 1.5297e-05), (0.8161, 0.0143303)]
)
def test_what_is_printed_for_one_release_covers_the_noise_on_the_grid(sigma: float, delta: float) -> None:
    """If it breaks, the epsilon of a single release with little noise lies below what its noise costs."""
    printed = epsilon([(NoisyMaxEvent(sigma), 1)], delta)
    moved = np.arange(-int(14 * sigma * GRID), int(14 * sigma * GRID) + 1)  # the difference of two counts
    weights = np.exp(-((moved / (2 * GRID * sigma)) ** 2))
    loss = (GRID + moved) / (GRID * sigma**2)
    assert float((weights * np.maximum(-np.expm1(printed - loss), 0)).sum() / weights.sum()) <= delta


def test_the_grid_moves_a_profile_by_no_more_than_is_said() -> None:
    """If it breaks, noise on the grid costs more than the docstring of GRID says, or than is charged."""
    worst = 0.0
    for sigma in (0.3, 0.35, 0.376, 0.5, 0.7, 1.1):
        moved = np.arange(-int(14 * sigma * GRID), int(14 * sigma * GRID) + 1)
        weights = np.exp(-((moved / (2 * GRID * sigma)) ** 2))
        loss = (GRID + moved) / (GRID * sigma**2)
        for delta in (1e-9, 2e-9, 1e-7, 1e-5, 1e-3, 0.03):
            charged = epsilon([(NoisyMaxEvent(sigma), 1)], delta)
            drawn = float((weights * np.maximum(-np.expm1(charged - loss), 0)).sum() / weights.sum())
            assert drawn <= delta
            [continuous] = profiles.gaussian(np.array([charged]), distance=math.sqrt(2), sigma=sigma)
            worst = max(worst, drawn / continuous - 1)
    assert 1e-7 < worst < 1e-6


def exact_at(eps: float, sigma: float, q: float) -> float:
    """Continuous profile of a vanishing vote."""
    base = profiles.poisson_remove(lambda e: profiles.gaussian(e, distance=1.0, sigma=sigma), q, np.array([eps]))
    return float(base[0])


def _vanishing(eps: float, sigma: float, q: float, grid: int) -> float:
    reach = int((14 * sigma + 1) * grid)
    x = np.arange(-reach, reach + 1) / grid
    here, moved = np.exp(-0.5 * (x / sigma) ** 2), np.exp(-0.5 * ((x - 1) / sigma) ** 2)
    return float(np.maximum((1 - q) * here + q * moved - math.exp(eps) * here, 0).sum() / here.sum())


def _moved(eps: float, sigma: float, q: float, grid: int) -> float:
    reach = int((9 * sigma + 1) * grid)
    x = np.arange(-reach, reach + 1) / grid
    here, moved = np.exp(-0.5 * (x / sigma) ** 2), np.exp(-0.5 * ((x - 1) / sigma) ** 2)
    out, a, b = np.outer(here, here), np.outer(moved, here), np.outer(here, moved)
    g = math.exp(eps)
    return float(np.maximum((1 - q) * (1 - g) * out + q * a - q * g * b, 0).sum() / here.sum() ** 2)


def test_bad_input_is_named() -> None:
    """If it breaks, zero noise or a single label goes through."""
    assert LEAST_CALIBRATED == LEAST_SIGMA, "calibration must return a scale that the mechanism takes"
    for sigma in (0.0, -1.0, 0.29, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match="sigma="):
            report_noisy_max([1, 2], sigma)
    with pytest.raises(InvalidParameter, match="number of labels=1"):
        report_noisy_max([1], 1.0)
    assert isinstance(report_noisy_max([10**6, 0], 0.3).noisy_counts[0], Fraction)


def test_shares_of_counts_that_are_all_below_zero_are_equal_and_sum_to_one() -> None:
    """If it breaks, noise alone is given out as shares of more than one."""
    for counts in ([0, 0], [-3, -1], [-1, 0, -2]):
        shares = NoisyMax(0, tuple(map(Fraction, counts))).shares()
        assert shares == (1 / len(counts),) * len(counts)
