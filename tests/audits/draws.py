"""Audits of how votes are drawn: noise scales, thresholds, supports. Each event is the worst one, known beforehand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from audit_tools import exponential, limited_domain, report_noisy_max
from numpy.typing import NDArray
from scipy import stats

from audits.check import ERROR, Check, Finding, count, excess, worst
from langchain_dp._util.binomial import lower_limit, upper_limit
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    MetricEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_noisy_max,
    epsilon,
)
from langchain_dp.mechanisms import MetricLaplace, NoisyMax, SystemRandomness
from langchain_dp.mechanisms._nearest import NearestVector
from langchain_dp.mechanisms.metric_exponential import MetricExponential
from langchain_dp.mechanisms.metric_noise import noise
from langchain_dp.mechanisms.randomness import Randomness

TokenDraw = Callable[..., int | None]
LabelDraw = Callable[[Sequence[int], float], NoisyMax]
CountDraw = Callable[[Sequence[int], float], int]
WordDraw = Callable[[NearestVector, float, NDArray[np.int64]], NDArray[np.int64]]
BallDraw = Callable[[int, int, float, Randomness], Any]

RELEASE = PrivacyBudget(2.0, 0.2)  # noise for sensitivity 1 really costs epsilon 3.6 here: 3,000 runs tell


@functools.cache
def _calibrated() -> float:
    return calibrate_noisy_max(RELEASE, queries=1)


@functools.cache
def _cost(event: LimitedDomainEvent | NoisyMaxEvent, delta: float) -> float:
    return epsilon([(event, 1)], delta)


def sensitivity(sigma: Callable[[], float], runs: int = 3_000) -> Finding:
    """One vote moves: noise calibrated for (2, 0.2) must hold it."""
    scale = sigma()
    exact = scale**2 * RELEASE.epsilon  # where the likelihood ratio is e^epsilon; half of it where noise is too small

    def margin(counts: Sequence[int]) -> float:
        first, second = report_noisy_max(counts, scale).noisy_counts
        return float(first - second)

    margins = [[margin(counts) for _ in range(runs)] for counts in ([11, 10], [10, 11])]
    return worst(
        excess(
            [count(each > threshold for each in side) for side in margins],
            runs,
            epsilon=RELEASE.epsilon,
            delta=RELEASE.delta,
            measured=f"margin > {threshold:.2f}",
            error=ERROR / 2,
        )
        for threshold in (exact / 2, exact)
    )


def gumbel(draw: TokenDraw, runs: int = 1_400) -> Finding:
    """Seven votes each, and six against eight."""
    settings: dict[str, Any] = {"epsilon0": 2.4, "delta0": 0.01, "kbar": 10, "domain": 1000}
    hits = [count(draw(votes, **settings) == 0 for _ in range(runs)) for votes in ({0: 7, 1: 7}, {0: 6, 1: 8})]
    claim = _cost(LimitedDomainEvent(2.4, 0.01), 0.05)
    return excess(hits, runs, epsilon=claim, delta=0.05, measured="the token that lost a vote")


def threshold(draw: TokenDraw, runs: int = 1_300) -> Finding:
    """One candidate only: the second token stands on the threshold in one data set and is lost in the other."""
    settings: dict[str, Any] = {"epsilon0": 2.5, "delta0": 0.2, "kbar": 1, "domain": 1000, "moved_votes": True}
    hits = [count(draw(votes, **settings) == 1 for _ in range(runs)) for votes in ({0: 2, 1: 4}, {0: 3, 1: 3})]
    claim = _cost(LimitedDomainEvent(2.5, 0.2), 0.22)
    return excess(hits, runs, epsilon=claim, delta=0.22, measured="the token that is lost")


def candidates(draw: TokenDraw, before: Mapping[int, int], after: Mapping[int, int], runs: int = 400) -> Finding:
    """A token that one record alone makes possible or impossible."""
    settings: dict[str, Any] = {"epsilon0": 1.8, "delta0": 1e-6, "kbar": 3, "moved_votes": False, "domain": range(4)}
    if len(before) == 2:
        settings["kbar"] = 4  # the whole domain: plain exponential mechanism
    hits = [count(draw(votes, **settings) == 1 for _ in range(runs)) for votes in (before, after)]
    claim = _cost(LimitedDomainEvent(1.8, 1e-6), 1e-5)
    return worst(
        excess(pair, runs, epsilon=claim, delta=1e-5, measured="the second token") for pair in (hits, hits[::-1])
    )


def supports(draw: LabelDraw, runs: int = 500) -> Finding:
    """Nobody votes, against one vote for either label: that label must be possible in both."""
    claim = _cost(NoisyMaxEvent(1.5), 0.05)
    hits = []
    for label, voted in enumerate(([1, 0], [0, 1])):
        pair = [count(draw(counts, 1.5).winner == label for _ in range(runs)) for counts in (voted, [0, 0])]
        hits += [(label, pair), (label, pair[::-1])]
    return worst(
        excess(pair, runs, epsilon=claim, delta=0.05, measured=f"label {label} of 0 and 1") for label, pair in hits
    )


def selection(draw: CountDraw, runs: int = 3_000) -> Finding:
    """A record that the last three of 100 candidates answer right joins: one of these is chosen."""
    event = ExponentialEvent(1.5)
    before, after = [7] * 100, [7] * 97 + [8] * 3
    hits = [count(draw(counts, event.epsilon) >= 97 for _ in range(runs)) for counts in (after, before)]
    claim = epsilon([(event, 1)], 1e-9, neighbors=Neighbors.ADD_OR_REMOVE_ONE)
    return worst(
        excess(pair, runs, epsilon=claim, delta=1e-9, measured="one of the three") for pair in (hits, hits[::-1])
    )


def word_choice(draw: WordDraw, runs: int = 10_000) -> Finding:
    """A word alone at 0, and thirty at 1: how often the lonely one is chosen from there and from here."""
    table = NearestVector(np.array([[0.0], *[[1.0]] * 30]), np.ones(31, dtype=bool))
    keys = [np.full(runs, key, dtype=np.int64) for key in (0, 1)]  # a key is its own point
    hits = [int((draw(table, 2.0, each) == 0).sum()) for each in keys]
    law = [1 / (1 + 30 * math.exp(-1)), math.exp(-1) / (math.exp(-1) + 30)]  # exp(-(eta/2) d), and it sums to one
    inside = all(
        lower_limit(hit, runs, ERROR / 2) <= each <= upper_limit(hit, runs, ERROR / 2)
        for hit, each in zip(hits, law, strict=True)
    )
    found = excess(hits, runs, epsilon=2.0, delta=0.0, measured="the lonely word, d = 1")
    return Finding(found.broken or not inside, found.seen)


def ball(draw: BallDraw, runs: int = 20_000) -> Finding:
    """Length and crossing chance of the noise of metric privacy, which must have density exp(-eta |z|)."""
    rng, eta = SystemRandomness(), 2.0
    lengths = eta * np.linalg.norm(draw(runs, 2, eta, rng), axis=1)
    p_value = float(stats.kstest(lengths, stats.gamma(2).cdf).pvalue)
    # One dimension, two words 2/eta apart: the ratio of the two outputs is at most e^2.
    steps = draw(runs, 1, eta, rng)[:, 0]
    crossed = int((steps > 1 / eta).sum())
    found = excess((runs - crossed, crossed), runs, epsilon=2.0, delta=0.0, measured="word kept, d = 1")
    return Finding(found.broken or p_value < ERROR, f"length has p = {p_value:.1g}; {found.seen}")


def words(runs: int = 10_000) -> Finding:
    """The same crossing chance through the mechanism itself."""
    table = NearestVector(np.array([[0.0], [1.0]]), np.array([True, True]))
    out = MetricLaplace(MetricEvent(2.0), table, threads=1).release(np.zeros((runs, 1)))
    crossed = int((out == 1).sum())
    kept = excess((runs - crossed, crossed), runs, epsilon=2.0, delta=0.0, measured="word kept, d = 1")
    law = math.exp(-1.0) / 2
    inside = lower_limit(crossed, runs, ERROR / 2) <= law <= upper_limit(crossed, runs, ERROR / 2)
    return Finding(kept.broken or not inside, kept.seen)


def chosen_words(table: NearestVector, eta: float, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """This package: keys that are points on a line."""
    return MetricExponential(MetricEvent(eta), table, threads=1).release(keys, lambda each: each[:, None].astype(float))


UNSEEN = {0: 30, 1: 30, 2: 1}, {0: 30, 1: 30, 2: 0}
"""Votes of two neighbors: a third token has one vote, or none."""
LONELY = {0: 1, 1: 0}, {0: 1, 1: 1}
"""The same of a domain of two tokens."""

CHECKS = [
    Check("sensitivity", "noise for sqrt 2 where a vote moves", lambda: sensitivity(_calibrated)),
    Check("Gumbel scale", "2/epsilon0 is epsilon0-bounded-range", lambda: gumbel(limited_domain)),
    Check("threshold", "a lost token has mass delta0 at most", lambda: threshold(limited_domain)),
    Check(
        "candidates",
        "no token hangs on one record alone",
        lambda: worst([candidates(limited_domain, *UNSEEN), candidates(limited_domain, *LONELY)]),
    ),
    Check("supports", "noise is drawn when nobody votes", lambda: supports(report_noisy_max)),
    Check("selection", "a chosen candidate hides a record", lambda: selection(exponential)),
    Check("word noise", "density proportional to exp(-eta |z|)", lambda: worst([words(), ball(noise)])),
    Check("word choice", "chances proportional to exp(-eta d/2)", lambda: word_choice(chosen_words)),
]
