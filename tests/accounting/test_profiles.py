"""Profiles against oracles that share no code with them: integrals on grids, and dp_accounting's own accountants."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import DpEvent, dp_event

from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    MetricEvent,
    Neighbors,
    NoisyMaxEvent,
    epsilon,
    profiles,
)
from langchain_dp.errors import InvalidParameter, UnsupportedEvent

ADD, ONE, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL
SCALES = [(1.1767, 40 / 6920), (0.7276, 40 / 6920), (2.0, 0.3), (5.0, 1.0)]
AT = np.array([0.0, 0.001, 0.01, 0.1, 0.5])


def plane(sigma: float, centre: tuple[float, float], step: float) -> np.ndarray:
    """Density of a plane Gaussian on a fine grid."""
    axis = np.arange(-9 * sigma, 9 * sigma + 1, step)
    x, y = (np.exp(-0.5 * ((axis - c) / sigma) ** 2) for c in centre)
    return np.outer(x, y) * step**2 / (2 * math.pi * sigma**2)


@pytest.mark.parametrize(("sigma", "q"), SCALES)
def test_fixed_scheme_equals_an_integral_over_the_plane(sigma: float, q: float) -> None:
    """If it breaks, the closed form of the fixed scheme is not the pair it claims to be."""
    step = sigma / 60
    left_out, a, b = (plane(sigma, centre, step) for centre in ((0, 0), (1, 0), (0, 1)))
    exact = profiles.noisy_max_fixed(AT, sigma=sigma, q=q)
    for eps, value in zip(AT, exact, strict=True):
        oracle = np.maximum((1 - q) * left_out + q * a - math.exp(eps) * ((1 - q) * left_out + q * b), 0).sum()
        assert value == pytest.approx(oracle, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("bound", [0.1, 0.8, 1.8, 5.0])
def test_bounded_range_profile_equals_the_supremum_over_binary_pairs(bound: float) -> None:
    """If it breaks, one call of the exponential mechanism is charged for less than its worst event."""
    for eps in (-0.5 * bound, 0.0, 0.3 * bound, 0.9 * bound):
        best = mpmath.mpf(0)
        for k in range(1, 4000):
            p = mpmath.mpf(k) / 4000
            # the worst bounded-range pair puts ratio e^t on an event and e^(t-bound) off it
            t = mpmath.log(mpmath.e**bound / (1 + p * (mpmath.e**bound - 1)))
            best = max(best, p * mpmath.e**t - mpmath.e**eps * p)
        got = float(profiles.bounded_range(np.array([eps]), bound=bound)[0])
        worst = float(max(best, 1 - mpmath.e**eps))  # on a grid of p: from below
        assert worst <= got * (1 + 1e-9)
        assert got == pytest.approx(worst, rel=3e-3)


@pytest.mark.parametrize("wrong", [2 / 3, 3 / 2])
def test_the_oracles_reject_a_wrong_scale(wrong: float) -> None:
    """If it breaks, the comparisons above would also pass for noise off by a half."""
    sigma, q = 1.1767, 40 / 6920
    right, off = (profiles.noisy_max_fixed(AT, sigma=s, q=q) for s in (sigma, wrong * sigma))
    assert np.abs(off / right - 1).max() > 0.2


@pytest.mark.parametrize(
    "event", [ExponentialEvent(1.0), LimitedDomainEvent(0.5, 1e-9, 0.5), ClippedSumRoundEvent(0.5, 10)]
)
@pytest.mark.parametrize("name", ["replace_one", "Replace-One", "replace_special", "add_or_remove_one"])
def test_a_relation_may_be_given_by_its_name(event: DpEvent, name: str) -> None:
    """If it breaks, who writes "replace_one" is told half of what two replaced records can cost."""
    member = Neighbors[name.upper().replace("-", "_")]
    by_member = epsilon([(event, 2)], 1e-5, neighbors=member)
    assert epsilon([(event, 2)], 1e-5, neighbors=name) == by_member
    for odd in ("swap", 2, None):
        with pytest.raises(InvalidParameter, match="to be one of"):
            epsilon([(event, 2)], 1e-5, neighbors=odd)


def test_refused_events_say_why() -> None:
    """If it breaks, an event without a proof, or that the library miscounts, is composed, or refused with no remedy."""
    with pytest.raises(UnsupportedEvent, match='use sampling="fixed"'):
        epsilon([(LimitedDomainEvent(1.0, 1e-6, 0.1, "resample"), 5)], 1e-5, neighbors=ONE)
    with pytest.raises(UnsupportedEvent, match=r"^NoisyMaxEvent .*resample.* Neighbors\.REPLACE_ONE\.$"):
        epsilon([(NoisyMaxEvent(1.0, 0.1, "resample"), 5)], 1e-5, neighbors=ZERO)
    for event in (MetricEvent(10.0), dp_event.ComposedDpEvent([NoisyMaxEvent(2.0), MetricEvent(1.0)])):
        with pytest.raises(UnsupportedEvent, match="unit of its own"):
            epsilon([(event, 1)], 1e-5)
    with pytest.raises(UnsupportedEvent, match="known to be counted right"):
        epsilon([(dp_event.UnsupportedDpEvent(), 1)], 1e-5)
    assert epsilon([(NoisyMaxEvent(2.0), 3), (dp_event.NonPrivateDpEvent(), 1)], 1e-5) == math.inf
    with pytest.raises(InvalidParameter, match=r"sampling_probability=1.2 to be above 0 and at most 1"):
        NoisyMaxEvent(1.0, 1.2)
    with pytest.raises(InvalidParameter, match=r"delta=0 "):
        epsilon([(NoisyMaxEvent(1.0), 1)], 0)
    response = dp_event.RandomizedResponseDpEvent(0.5, 2)
    for event in (response, dp_event.ComposedDpEvent([response]), dp_event.SelfComposedDpEvent(response, 5)):
        with pytest.raises(UnsupportedEvent, match="RandomizedResponse"):
            epsilon([(event, 2)], 1e-5)
    with pytest.raises(InvalidParameter, match="count=100000000 "):
        epsilon([(NoisyMaxEvent(2.0), 10**8)], 1e-5)


@pytest.mark.parametrize(
    "event",
    [
        dp_event.GaussianDpEvent(20.0),
        dp_event.LaplaceDpEvent(50.0),
        dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(3.0)),
        dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(5.0)),
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(20.0), 3),
        NoisyMaxEvent(5.0, 0.2),
        LimitedDomainEvent(0.2, 1e-8, 0.2),
        ExponentialEvent(0.02),
    ],
)
def test_n_copies_cost_what_n_listed_ones_cost(event: dp_event.DpEvent) -> None:
    """If it breaks, an event's count is ignored and a thousand releases cost as much as one."""
    counted = epsilon([(event, 8)], 1e-6, neighbors=ADD)
    listed = epsilon([(event, 1)] * 8, 1e-6, neighbors=ADD)
    assert counted == pytest.approx(listed, rel=1e-3)
    assert counted > 1.5 * epsilon([(event, 1)], 1e-6, neighbors=ADD)


def test_little_noise_of_the_library_is_counted_on_a_grid_that_fits_in_memory() -> None:
    """If it breaks, a release with little noise takes gigabytes, a false one an error of the library's inside."""
    little, delta = dp_event.GaussianDpEvent(0.05), 1e-5
    total = epsilon([(little, 1)], delta, neighbors=ADD)
    (exact,) = profiles.gaussian(np.array([total]), distance=1.0, sigma=0.05)
    (below,) = profiles.gaussian(np.array([0.995 * total]), distance=1.0, sigma=0.05)
    assert exact <= delta < below
    assert epsilon([(dp_event.LaplaceDpEvent(0.01), 1)], delta, neighbors=ADD) == pytest.approx(100, rel=1e-3)
    for less in (dp_event.GaussianDpEvent(1e-3), dp_event.LaplaceDpEvent(1e-3)):
        for event in (less, dp_event.PoissonSampledDpEvent(0.1, less), dp_event.ComposedDpEvent([little, less])):
            assert epsilon([(event, 1), (NoisyMaxEvent(10.0), 1)], delta, neighbors=ADD) == math.inf
    with pytest.raises(
        InvalidParameter, match=r"GaussianDpEvent.noise_multiplier=nan to be a finite number, at least 0"
    ):
        epsilon([(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(math.nan), 2), 1)], delta)
    with pytest.raises(
        InvalidParameter, match=r"PoissonSampledDpEvent.sampling_probability=2 to be at least 0 and at most 1"
    ):
        epsilon([(dp_event.PoissonSampledDpEvent(2, little), 1)], delta)
