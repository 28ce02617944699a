"""Report noisy max: its grid, its ties, its bounds. Its sensitivity and its supports are audited in tests/audits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from audit_tools import report_noisy_max

from langchain_dp.accounting import NoisyMaxEvent, epsilon, profiles
from langchain_dp.accounting.calibrate import LEAST_SIGMA as LEAST_CALIBRATED
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import noisy_max
from langchain_dp.mechanisms.noisy_max import GRID, LEAST_SIGMA


def test_ties_go_to_the_smaller_index_and_counts_lie_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the data break a tie, or digits of a floating-point path leave with the counts."""
    assert all(
        (count * GRID).denominator == 1 for _ in range(50) for count in report_noisy_max([4, 1], 1.3).noisy_counts
    )
    monkeypatch.setattr(noisy_max, "discrete_gaussian", lambda rng, variance: 0)
    assert report_noisy_max([2, 5, 5], 1.0).winner == 1


def test_the_winner_is_that_of_the_noisy_counts() -> None:
    """If it breaks, the label with the most votes is released without noise. By chance all ties go one way: 2^-99."""
    released = [report_noisy_max([7, 7], 5.0) for _ in range(100)]
    assert all(each.noisy_counts[each.winner] == max(each.noisy_counts) for each in released)
    assert {each.winner for each in released} == {0, 1}


def test_bad_input_is_named() -> None:
    """If it breaks, zero noise or a single label goes through."""
    assert LEAST_CALIBRATED == LEAST_SIGMA, "calibration must return a scale that the mechanism takes"
    for sigma in (0.0, -1.0, 0.29, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match="sigma="):
            report_noisy_max([1, 2], sigma)
    with pytest.raises(InvalidParameter, match="number of labels=1"):
        report_noisy_max([1], 1.0)


@pytest.mark.parametrize(("sigma", "q"), [(1.3175, 40 / 6920), (0.7276, 40 / 6920), (1.4, 0.0625), (0.3, 1.0)])
def test_the_grid_is_fine_enough_to_be_charged_as_continuous(sigma: float, q: float) -> None:
    """If it breaks, the discrete noise that is drawn costs more than the continuous noise that is charged.

    On whole votes the profiles differ by a percent and more, on the grid of 1/4096 by less than 2e-7.
    """
    for eps in (0.001, 0.01, 0.05, 0.3):
        assert _vanishing(eps, sigma, q, GRID) == pytest.approx(exact_at(eps, sigma, q), rel=2e-7)
    assert abs(_vanishing(0.05, sigma, q, 1) / exact_at(0.05, sigma, q) - 1) > 0.01
    # a moved vote needs the plane: enumerate a coarse grid, whose error falls with its square
    for eps in (0.01, 0.05):
        exact = float(profiles.noisy_max_fixed(np.array([eps]), sigma=sigma, q=q)[0])
        assert abs(_moved(eps, sigma, q, 64) / exact - 1) * (64 / GRID) ** 2 < 2e-7


def test_the_grid_moves_a_profile_by_no_more_than_is_said() -> None:
    """If it breaks, noise on the grid costs more than the docstring of GRID says, or than is charged."""
    worst = 0.0
    close = {0.3119: 0.001518512, 0.3149: 0.0469278, 0.5164: 1.5297e-05, 0.8161: 0.0143303}
    for sigma in (0.3, 0.35, 0.376, 0.5, 0.7, 1.1, *close):
        moved = np.arange(-int(14 * sigma * GRID), int(14 * sigma * GRID) + 1)  # the difference of two counts
        weights = np.exp(-((moved / (2 * GRID * sigma)) ** 2))
        loss = (GRID + moved) / (GRID * sigma**2)
        for delta in [close[sigma]] if sigma in close else (1e-9, 2e-9, 1e-7, 1e-5, 1e-3, 0.03):
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
