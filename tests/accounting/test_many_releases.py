"""The accountant at many releases, and at little noise beside much: upper bounds, against the library and formulas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dp_accounting import DpEvent
from dp_accounting.dp_event import GaussianDpEvent

from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_noisy_max,
    epsilon,
    pld,
    profiles,
)

ADD, ONE, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL
MANY: list[tuple[DpEvent, int]] = [
    (NoisyMaxEvent(200.0), 6_000),
    (NoisyMaxEvent(20.0, 0.05), 20_000),
    (NoisyMaxEvent(8.0, 0.01, "resample"), 50_000),
    (LimitedDomainEvent(0.05, 1e-12, 0.3), 8_000),
    (ExponentialEvent(0.005), 9_000),
    (ClippedSumRoundEvent(0.05, 10, 0.02), 10_000),
]


@pytest.mark.parametrize(
    ("event", "count", "neighbors"),
    [(*pair, relation) for pair, relation in itertools.product(MANY, (ADD, ONE)) if relation is ADD or "resample" not in
     repr(pair[0])],
)  # fmt: skip
def test_many_releases_cost_what_the_library_finds(event: DpEvent, count: int, neighbors: Neighbors) -> None:
    """If it breaks, the range of the sum of losses is cut too short, or sums of arrays miss the point."""
    delta = 1e-5 - pld.least_delta([(event, count)]) / 2
    for interval in (pld.grid([event]), 4 * pld.grid([event])):
        one = pld.privacy_loss(event, neighbors, interval)
        expected = one.self_compose(count).get_epsilon_for_delta(delta)
        found = pld.repeated(event, count, neighbors, interval)
        assert found.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-6)
        at = np.array([0.5, 1.0, 2.0]) * expected
        assert found.get_delta_for_epsilon(at) == pytest.approx(
            one.self_compose(count).get_delta_for_epsilon(at), abs=1e-9
        )
    assert epsilon([(event, count)], 1e-5, neighbors=neighbors) == pytest.approx(
        pld.repeated(event, count, neighbors, pld.grid([event])).get_epsilon_for_delta(delta), rel=1e-7
    )


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.3])
@pytest.mark.parametrize("count", [1, 3, 400])
@pytest.mark.parametrize("event", [NoisyMaxEvent(0.5), NoisyMaxEvent(5.0, 0.2), ExponentialEvent(0.3)], ids=repr)
def test_sums_of_arrays_give_the_epsilon_of_the_library(event: DpEvent, count: int, delta: float) -> None:
    """If it breaks, epsilon is read off one grid point away, where the printed bound no longer holds."""
    for neighbors in Neighbors:
        lost = pld.least_delta([(event, count)]) / 2
        expected = pld.repeated(event, count, neighbors, pld.grid([event])).get_epsilon_for_delta(delta - lost)
        assert epsilon([(event, count)], delta, neighbors=neighbors) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("neighbors", [ADD, ONE])
@pytest.mark.parametrize(
    "large", [NoisyMaxEvent(0.7, 0.5), LimitedDomainEvent(3.0, 1e-9, 0.4), ExponentialEvent(2.0)], ids=repr
)
@pytest.mark.parametrize(("small", "count"), [(NoisyMaxEvent(60.0), 300), (ExponentialEvent(0.01), 50)], ids=repr)
def test_losses_on_a_coarser_grid_are_an_upper_bound(
    neighbors: Neighbors, large: DpEvent, small: DpEvent, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, events of two sizes cost less together than they may, or far more than their grid explains."""
    events = [(large, 2), (small, count)]
    fine = [epsilon(events, delta, neighbors=neighbors) for delta in (1e-8, 1e-5, 1e-2)]
    coarsest = pld.grid([large])
    assert coarsest >= 4 * pld.grid([small])
    monkeypatch.setattr(pld, "_MAX_POINTS", 64)
    monkeypatch.setattr(pld, "_pmf", _pmf_of_any_size)
    coarse = [epsilon(events, delta, neighbors=neighbors) for delta in (1e-8, 1e-5, 1e-2)]
    assert coarse != fine
    for low, high in zip(fine, coarse, strict=True):
        assert low - 1e-9 <= high <= low + 4 * coarsest


_whole = pld._pmf


def _pmf_of_any_size(*given: object, **named: object) -> object:
    """The distribution of one release, whose bound of points is that of a test."""
    kept, pld._MAX_POINTS = pld._MAX_POINTS, 400_000
    try:
        return _whole(*given, **named)  # type: ignore[arg-type]
    finally:
        pld._MAX_POINTS = kept


@pytest.mark.parametrize("tiny", [ExponentialEvent(1e-5), NoisyMaxEvent(100_000.0)], ids=repr)
def test_little_noise_beside_a_tiny_event_is_counted_in_seconds(tiny: DpEvent) -> None:
    """If it breaks, one release on a grid for another takes minutes and gigabytes, or is refused."""
    for large, most in ((GaussianDpEvent(0.2), 0.02), (NoisyMaxEvent(0.2), 0.02)):
        sigma, distance = (0.2, 1.0) if isinstance(large, GaussianDpEvent) else (0.2, 2**0.5)
        found = epsilon([(large, 1), (tiny, 1)], 1e-5, neighbors=ADD)
        alone = epsilon([(large, 1)], 1e-5, neighbors=ADD)
        (delta,) = profiles.gaussian(np.array([found]), distance=distance, sigma=sigma)
        assert delta <= 1e-5
        assert alone <= found <= alone + most


def test_a_million_answers_are_calibrated_on_the_formula() -> None:
    """If it breaks, a chain of a million answers takes minutes to build, or is given less noise than it needs."""
    sigma = calibrate_noisy_max(PrivacyBudget(3.0), queries=10**6)
    (true,) = profiles.gaussian(np.array([3.0]), distance=np.sqrt(2e6), sigma=sigma)
    (less,) = profiles.gaussian(np.array([3.0]), distance=np.sqrt(2e6), sigma=0.999 * sigma)
    assert true <= 1e-5 < less
