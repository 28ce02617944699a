"""A second accountant that shares nothing with the first: Renyi divergences of the mechanisms' laws, and exact sums.

Nothing here knows a privacy profile. Noisy max: Gaussian densities, integrated. LimitedDomain: laws over the tokens
that gain a vote and the rest, of which the worst is searched for at every order; and, from below, two-point laws whose
composition is a binomial sum.

What must hold: the Gaussian pairs are the worst ones, so that their Renyi bound lies above the reference, by at most
14% at these settings. LimitedDomain's reference composes an envelope of many pairs, which no single mechanism has: it
lies above the Renyi bound by at most 13%, and above the exact composition of every fixed pair by 16 to 25%.

References:
    [1] Mironov. Renyi differential privacy. CSF 2017.
    [2] Canonne, Kamath, Steinke. The discrete Gaussian for differential privacy. 2020, Proposition 12 (conversion).
    [3] Dong, Durfee, Rogers. Optimal differential privacy composition for exponential mechanisms. ICML 2020.
    [4] Mironov, Talwar, Zhang. Renyi differential privacy of the sampled Gaussian mechanism. 2019 (whole orders).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from audits.accountant import NOISE, TOKENS
from scipy.optimize import brentq
from scipy.stats import binom

from langchain_dp.accounting import LimitedDomainEvent, Neighbors, NoisyMaxEvent, epsilon

ADD, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL
SCHEMES = [("resample", ADD), ("fixed", ADD), ("fixed", ZERO)]
RATE, QUERIES = 40 / 6920, 10_000

Divergence = Callable[[float], float]
"""Renyi divergence of order alpha > 1 of one release, the larger of both directions, in nats."""


def converted(one: Divergence, count: int, delta: float, orders: np.ndarray) -> float:
    """Smallest epsilon over the orders [2, Proposition 12]."""
    return min(count * one(float(a)) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)


def log_normal(square: np.ndarray, sigma: float, dimension: int) -> np.ndarray:
    return -square / (2 * sigma**2) - dimension * math.log(sigma * math.sqrt(2 * math.pi))


def renyi(p: np.ndarray, q: np.ndarray, order: float, cell: float) -> float:
    """From log densities on a grid."""
    terms = order * p + (1 - order) * q
    top = float(terms.max())
    return (top + math.log(float(np.exp(terms - top).sum()) * cell)) / (order - 1)


def poisson_gaussian(sigma: float, q: float, distance: float) -> Divergence:
    """A record that is sampled and moves the mean by ``distance``."""
    x = np.arange(-14 * sigma, 14 * sigma + 60 * distance, 0.15 * sigma)  # the trapezoid rule is exact enough
    here = log_normal(x**2, sigma, 1)
    mixed = np.logaddexp(math.log1p(-q) + here, math.log(q) + log_normal((x - distance) ** 2, sigma, 1))
    step = 0.15 * sigma

    def one(order: float) -> float:
        return max(renyi(mixed, here, order, step), renyi(here, mixed, order, step))

    return one


def fixed_noisy_max(sigma: float, q: float) -> Divergence:
    """A subset that takes part with probability q and votes u or v: three Gaussians in a plane. Symmetric."""
    axis = np.arange(-12 * sigma, 12 * sigma + 6, 0.25 * sigma)
    x, y = np.meshgrid(axis, axis)
    out = math.log1p(-q) + log_normal(x**2 + y**2, sigma, 2)
    p = np.logaddexp(out, math.log(q) + log_normal((x - 1) ** 2 + y**2, sigma, 2))
    r = np.logaddexp(out, math.log(q) + log_normal(x**2 + (y - 1) ** 2, sigma, 2))
    return lambda order: renyi(p, r, order, (0.25 * sigma) ** 2)


def noisy_max(sigma: float, sampling: str, neighbors: Neighbors) -> Divergence:
    if sampling == "fixed" and neighbors is ADD:
        return fixed_noisy_max(sigma, RATE)
    return poisson_gaussian(sigma, RATE, 1.0 if neighbors is ZERO else math.sqrt(2))


def sampled_range(bound: float, q: float, order: float) -> float:
    """A sampled vote that appears, both directions: ratios in a range of ``bound``, worst at two points [3]."""
    t = np.linspace(0.0, bound, 2001)[1:-1]
    high, low = np.exp(t), np.exp(t - bound)
    share = (1 - low) / (high - low)  # of the outcome whose ratio is high, so that the mean ratio is 1
    base = np.stack([share, 1 - share])
    mixed = base * (1 - q) + q * base * np.stack([high, low])
    return max(
        float(np.log((base * (mixed / base) ** order).sum(axis=0)).max()) / (order - 1),
        float(np.log((mixed * (base / mixed) ** order).sum(axis=0)).max()) / (order - 1),
    )


@functools.cache
def simplex() -> np.ndarray:
    """Masses of the two tokens and of the rest, without the changed subset; finer towards the corners."""
    ticks = np.concatenate(
        [np.geomspace(1e-4, 0.05, 12), np.linspace(0.06, 0.94, 45), 1 - np.geomspace(0.05, 1e-4, 12)]
    )
    a, b = (each.ravel() for each in np.meshgrid(ticks, ticks))
    inside = a + b <= 1.0
    edge = np.stack([ticks, 1 - ticks])
    return np.concatenate([np.stack([a, b])[:, inside], edge], axis=1)


def fixed_tokens(epsilon0: float, q: float, order: float) -> float:
    """A subset that takes part with probability q and votes for one token or for another. Symmetric."""
    gain = math.exp(epsilon0 / 2)
    a, b = simplex()
    rest = np.maximum(1 - a - b, 0.0)
    out = np.stack([a, b, rest])
    one = np.stack([a * gain, b, rest])
    other = np.stack([a, b * gain, rest])
    p = (1 - q) * out + q * one / one.sum(axis=0)
    r = (1 - q) * out + q * other / other.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, np.exp(order * np.log(p) + (1 - order) * np.log(r)), 0.0)
    return float(np.log(terms.sum(axis=0)).max() / (order - 1))


def tokens(epsilon0: float, q: float, sampling: str, neighbors: Neighbors) -> Divergence:
    if sampling == "fixed" and neighbors is ADD:
        return lambda order: fixed_tokens(epsilon0, q, order)
    return lambda order: sampled_range(epsilon0 / 2 if neighbors is ZERO else epsilon0, q, order)


def test_the_integrals_are_right() -> None:
    """If it breaks, the second accountant is none: trapezoids against mpmath's quadrature and a closed sum."""
    mp = pytest.importorskip("mpmath").mp
    sigma, q, distance = 1.3519, 0.05, math.sqrt(2)

    def normal(x: object, mean: float) -> object:
        return mp.npdf(x, mean, sigma)

    def mixed(x: object) -> object:
        return (1 - q) * normal(x, 0) + q * normal(x, distance)

    for order in (1.7, 6.0):
        ends = [-30, 0, distance, 6, 40]
        forward = mp.quad(lambda x, a=order: mixed(x) ** a * normal(x, 0) ** (1 - a), ends)
        backward = mp.quad(lambda x, a=order: normal(x, 0) ** a * mixed(x) ** (1 - a), ends)
        expected = float(mp.log(max(forward, backward))) / (order - 1)
        assert poisson_gaussian(sigma, q, distance)(order) == pytest.approx(expected, rel=1e-7)
    whole = sum(
        math.comb(6, k) * (1 - q) ** (6 - k) * q**k * math.exp((k * k - k) * distance**2 / (2 * sigma**2))
        for k in range(7)
    )
    assert poisson_gaussian(sigma, q, distance)(6.0) == pytest.approx(math.log(whole) / 5, rel=1e-7)  # [4]
    fp = pytest.importorskip("mpmath").fp

    def cube(x: float, y: float) -> float:
        out, one, other = (fp.npdf(x, a, sigma) * fp.npdf(y, b, sigma) for a, b in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)))
        return float(((1 - q) * out + q * one) ** 3 / ((1 - q) * out + q * other) ** 2)

    plane = fp.quad(cube, [-8.0, 0.5, 10.0], [-8.0, 0.5, 10.0], maxdegree=5)
    assert fixed_noisy_max(sigma, q)(3.0) == pytest.approx(math.log(plane) / 2, rel=1e-5)


ORDERS = np.concatenate([np.linspace(1.2, 8, 35), np.geomspace(8.5, 300, 30)])


@pytest.mark.parametrize(("delta", "target", "sigmas"), NOISE)
def test_noisy_max_is_charged_between_its_exact_price_and_the_renyi_bound(
    delta: float, target: float, sigmas: tuple[float, ...]
) -> None:
    """If it breaks, one of two independent accountants is wrong, and DP-ICL's epsilon with it."""
    for (sampling, neighbors), sigma in zip(SCHEMES, sigmas, strict=True):
        bound = converted(noisy_max(sigma, sampling, neighbors), QUERIES, delta, ORDERS[ORDERS < 60])
        charged = epsilon([(NoisyMaxEvent(sigma, RATE, sampling), QUERIES)], delta, neighbors=neighbors)  # type: ignore[arg-type]
        assert charged == pytest.approx(target, rel=0.01)
        assert 1.07 < bound / charged < 1.14, (sampling, neighbors)
    wrong = converted(poisson_gaussian(sigmas[0], RATE, 1.0), QUERIES, delta, ORDERS[ORDERS < 60])
    assert wrong < target, "a bound for sensitivity 1 must show"


def below(epsilon0: float, q: float, sampling: str, neighbors: Neighbors, count: int, delta: float) -> float:
    """Exact epsilon of ``count`` releases of one and the same two-point law, the worst of a few."""
    gain, worst = math.exp(epsilon0 / 2), 0.0
    for place in (0.4, 0.5, 0.6, 0.7):
        if sampling == "fixed" and neighbors is ADD:
            here, there = place * gain / (1 + place * (gain - 1)), place / (place + (1 - place) * gain)
            pairs = [((1 - q) * place + q * here, (1 - q) * place + q * there)]
        else:
            bound = epsilon0 / 2 if neighbors is ZERO else epsilon0
            high, low = math.exp(place * bound), math.exp((place - 1) * bound)
            share = (1 - low) / (high - low)
            mixed = (1 - q) * share + q * share * high
            pairs = [(mixed, share), (share, mixed)]
        worst = max([worst, *(binomial(p, r, count, delta) for p, r in pairs)])
    return worst


def binomial(p: float, r: float, count: int, delta: float) -> float:
    """Epsilon at ``delta`` of two coins, thrown ``count`` times."""
    hits = np.arange(count + 1)
    here, there = binom.logpmf(hits, count, p), binom.logpmf(hits, count, r)

    def excess(eps: float) -> float:
        return float(np.maximum(np.exp(here) - np.exp(eps + there), 0).sum()) - delta

    return float(brentq(excess, 0.0, 60.0))


@pytest.mark.parametrize(("records", "batch", "epsilon0", "table"), TOKENS)
def test_limited_domain_is_charged_above_every_law_and_near_the_renyi_bound(
    records: int, batch: int, epsilon0: float, table: tuple[tuple[float, float], ...]
) -> None:
    """If it breaks, a token costs more than it is charged, or the accountants disagree by more than their methods do.

    What the threshold may miss, delta0 a call at rate q, is taken off delta for the Renyi bound.
    """
    q, delta = batch / records, 1 / records
    delta0 = 0.1 * delta / (2000 * q)
    for (sampling, neighbors), values in zip(SCHEMES, table, strict=True):
        for calls, reference in zip((50, 2000), values, strict=True):
            event = LimitedDomainEvent(epsilon0, delta0, q, sampling)  # type: ignore[arg-type]
            charged = epsilon([(event, calls)], delta, neighbors=neighbors)
            assert charged == pytest.approx(reference, rel=0.01)
            least = below(epsilon0, q, sampling, neighbors, calls, delta)
            bound = converted(tokens(epsilon0, q, sampling, neighbors), calls, delta - calls * q * delta0, ORDERS)
            assert least < bound, "no upper bound lies below an exact price"
            assert 0.79 < least / charged < 0.87
            assert 0.87 < bound / charged < 0.99
            half = converted(tokens(epsilon0 / 2, q, sampling, neighbors), calls, delta - calls * q * delta0, ORDERS)
            assert half < least, "a bound for half the range must show"


def test_other_accountants_agree_on_the_pairs_that_they_know() -> None:
    """If it breaks, a third party's accountant contradicts ours (prv-accountant by numbers, autodp by Renyi)."""
    prv = pytest.importorskip("prv_accountant")
    for delta, target, sigmas in NOISE[:2]:
        for (sampling, neighbors), sigma in zip(SCHEMES, sigmas, strict=True):
            if (sampling, neighbors) == ("fixed", ADD):
                continue
            multiplier = sigma if neighbors is ZERO else sigma / math.sqrt(2)
            pair = prv.PoissonSubsampledGaussianMechanism(noise_multiplier=multiplier, sampling_probability=RATE)
            made = prv.PRVAccountant(
                prvs=[pair], max_self_compositions=[QUERIES], eps_error=0.01, delta_error=delta / 1000
            )
            low, middle, high = made.compute_epsilon(delta=delta, num_self_compositions=[QUERIES])
            assert low <= middle <= high
            assert middle == pytest.approx(target, rel=0.01)


def test_another_renyi_accountant_agrees_with_this_one() -> None:
    """If it breaks, the second accountant above is wrong where autodp knows its pair."""
    zoo = pytest.importorskip("autodp.mechanism_zoo")
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    for delta, _, sigmas in NOISE[:3]:
        one = zoo.GaussianMechanism(sigma=sigmas[0] / math.sqrt(2))
        sampled = AmplificationBySampling(PoissonSampling=True)(one, RATE, improved_bound_flag=True)
        theirs = float(Composition()([sampled], [QUERIES]).get_approxDP(delta))
        ours = converted(poisson_gaussian(sigmas[0], RATE, math.sqrt(2)), QUERIES, delta, ORDERS[ORDERS < 60])
        assert 0.99 < theirs / ours < 1.04  # it takes whole orders only
