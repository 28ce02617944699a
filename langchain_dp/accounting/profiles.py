r"""Privacy profiles of one release: arrays of epsilon >= 0 in nats give arrays of deltas.

The profile of (P, Q) is H_g(P || Q) = sup_S P(S) - g Q(S) at g = e^epsilon. q is the sampling probability, M(h) the
mechanism on the vote histogram h, and e_a a unit vote.

* "resample": P = (1-q) M(h+e_a) + q M(h+e_b) against Q = M(h+e_a).
* "fixed": P = (1-q) M(h) + q M(h+e_a) against Q = (1-q) M(h) + q M(h+e_b), or Q = M(h) under zero-out.

References:
    [1] Balle, Barthe, Gaboardi. NeurIPS 2018 (advanced joint convexity).
    [2] Dong, Durfee, Rogers. ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_ndtr, ndtr

Array = NDArray[np.float64]
Profile = Callable[[Array], Array]

_STEP = 0.2  # trapezoid step in standard deviations: the rule is exponentially accurate for Gaussians
_TAIL = 10.0  # standard deviations beyond which a Gaussian holds less than 1e-22
_FAR = 50.0  # nats beyond which expit is its own exponential, to the last bit
_BLOCK = 2_000_000  # entries of one (epsilon x node) block, to bound memory


def at_any_epsilon(forward: Profile, backward: Profile, epsilons: Array) -> Array:
    """Extend to negative epsilon by H_g(P||Q) = 1 - g + g H_(1/g)(Q||P)."""
    deltas = np.empty_like(epsilons)
    positive = epsilons >= 0
    deltas[positive] = forward(epsilons[positive])
    negative = epsilons[~positive]
    deltas[~positive] = -np.expm1(negative) + np.exp(negative) * backward(-negative)
    return np.asarray(np.clip(deltas, 0.0, 1.0))


def gaussian(epsilons: Array, *, distance: float, sigma: float) -> Array:
    """Return the profile of two Gaussians."""
    mu = distance / sigma
    deltas = ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons + log_ndtr(-mu / 2 - epsilons / mu))
    return np.asarray(np.maximum(deltas, 0.0))


def poisson_remove(base: Profile, q: float, epsilons: Array) -> Array:
    """Return the profile of (1-q) Q + q P against Q [1, Theorem 2]."""
    return q * base(amplified(epsilons, q))


def poisson_add(base: Profile, q: float, epsilons: Array) -> Array:
    """Return the profile of Q against (1-q) Q + q P [1, Theorem 2]."""
    left = 1.0 - np.exp(epsilons) * (1.0 - q)
    deltas = np.zeros_like(epsilons)
    inside = left > 0
    deltas[inside] = left[inside] * base(epsilons[inside] + math.log(q) - np.log(left[inside]))
    return deltas


def noisy_max_fixed(epsilons: Array, *, sigma: float, q: float) -> Array:
    """Return the exact, symmetric profile of "fixed" for add/remove and replace-one.

    The Gaussians are at 0 (subset left out), u and v (the votes). With y along u - v and x across, acceptance is y >
    y*(x) in closed form, which leaves one integral over x.
    """
    g = np.exp(epsilons)[:, None]
    nodes = np.arange(-_TAIL * sigma, math.sqrt(0.5) + _TAIL * sigma, _STEP * sigma)
    log_a = math.log(q) + (nodes / math.sqrt(2) - 0.5) / sigma**2
    weight_0 = _density(nodes, sigma)
    weight_v = _density(nodes - math.sqrt(0.5), sigma)
    shift = math.sqrt(0.5) / sigma

    def block(g: Array) -> Array:
        beta = (1 - q) * (g - 1)
        # ln t* with t* = (beta + sqrt(beta^2 + 4 g A^2)) / (2A): hypot keeps it finite where A underflows
        top = np.log(beta + np.hypot(beta, 2 * np.sqrt(g) * np.exp(log_a)) + 1e-300)
        y_star = math.sqrt(2) * sigma * (top - math.log(2) - log_a)  # in units of sigma
        inner = -beta * weight_0 * ndtr(-y_star)
        inner += q * weight_v * (ndtr(shift - y_star) - g * ndtr(-shift - y_star))
        return np.asarray(inner.sum(axis=1) * _STEP * sigma)

    return np.asarray(np.maximum(_in_blocks(block, g, nodes.size), 0.0))


def _density(x: Array, sigma: float) -> Array:
    return np.asarray(np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi)))


def _in_blocks(function: Callable[[Array], Array], g: Array, width: int) -> Array:
    rows = max(1, _BLOCK // width)
    return np.concatenate([function(g[i : i + rows]) for i in range(0, len(g), rows)] or [np.zeros(0)])


def bounded_range(epsilons: Array, *, bound: float, delta0: float = 0.0) -> Array:
    """Return a delta0-approximately ``bound``-bounded-range profile [2], at any epsilon."""
    middle = np.clip(epsilons, -bound, bound)
    deltas = np.expm1((middle - bound) / 2) ** 2 / -math.expm1(-bound)
    deltas = np.where(epsilons < -bound, -np.expm1(epsilons), deltas)
    return np.asarray(delta0 + (1 - delta0) * deltas)


def limited_domain_fixed(epsilons: Array, *, epsilon0: float, delta0: float, q: float) -> Array:
    """Return the smaller of two sound, symmetric bounds for "fixed", add/remove and replace-one. It may not be convex
    in g.

    One is the worst case of a moved vote on a binary event, the other advanced joint convexity [1]. The search runs
    over t = logit p, because the worst p may be e^(-epsilon0/2).
    """
    eta = epsilon0 / 2
    log_q, log_out = math.log(q), math.log1p(-q) if q < 1 else -math.inf
    with np.errstate(divide="ignore"):
        log_g1 = epsilons + np.log(-np.expm1(-epsilons))  # ln(g - 1)

    def slope(t: Array) -> Array:  # of log-derivatives of expit. The event's own is common to both sides
        falling = np.logaddexp(log_out + log_g1 + _log_bell(t), log_q + epsilons + _log_bell(t - eta))
        return np.asarray(log_q + _log_bell(t + eta) - falling)

    low, high = np.full_like(epsilons, -eta - _FAR), np.full_like(epsilons, eta + _FAR)
    for _ in range(80):
        middle = (low + high) / 2
        rising = slope(middle) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    t = (low + high) / 2
    with np.errstate(over="ignore"):  # an infinite loss on one side is no event to report
        lost = np.exp(log_out + log_g1 + log_expit(t)) + np.exp(log_q + epsilons + log_expit(t - eta))
    exact = (1 - delta0) * np.maximum(q * expit(t + eta) - lost, 0.0) + q * delta0

    inner = amplified(epsilons, q)
    share = np.exp(epsilons - inner)
    joint = q * (
        (1 - share) * bounded_range(inner, bound=eta, delta0=delta0)
        + share * bounded_range(inner, bound=epsilon0, delta0=delta0)
    )
    return np.asarray(np.minimum(exact, joint))


def _log_bell(x: Array) -> Array:
    logs: Array = log_expit(x) + log_expit(-x)
    return logs


def amplified(epsilons: Array, q: float) -> Array:
    """Return ln(1 + (e^epsilon - 1) / q)."""
    near = np.log1p(np.expm1(np.minimum(epsilons, 1.0)) / q)
    return np.asarray(np.where(epsilons <= 1.0, near, epsilons - math.log(q) + np.log1p(-(1 - q) * np.exp(-epsilons))))


def convex_minorant(epsilons: Array, deltas: Array) -> Array:
    """Return the largest function below that is convex in g, as every true profile is."""
    g = np.exp(epsilons)
    hull: list[int] = []
    for i in range(len(g)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (deltas[b] - deltas[a]) * (g[i] - g[a]) < (deltas[i] - deltas[a]) * (g[b] - g[a]):
                break
            hull.pop()
        hull.append(i)
    return np.asarray(np.interp(g, g[hull], deltas[hull]))
