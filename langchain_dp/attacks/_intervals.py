"""Intervals of 95% for what an attack measures, each by a named method."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import rankdata

from langchain_dp._util.binomial import clopper_pearson

Floats = NDArray[np.float64]
Interval = tuple[float, float]

_ERROR = 0.05
_RESAMPLES = 2_000
_FEW = 20


def bootstrap_ratio(hits: Floats, runs: Floats) -> Interval:
    """Percentile bootstrap of sum(hits) / sum(runs), drawing whole texts (Efron and Tibshirani 1993, section 13.3).

    The draws are seeded: the same figures give the same interval. Of few texts, or where all texts agree, the bootstrap
    claims far more than it knows (of 10 texts it holds 90% of the time); the exact interval with texts as the runs is
    then taken instead. Texts of unlike length count as fewer: (sum of runs)^2 / sum of squared runs (Kish 1965), which
    the exact interval takes for its number of runs (Korn and Graubard 1998).

    Args:
        hits: Successes in each text.
        runs: Attempts in each text, their sum above 0.
    """
    share = float(hits.sum() / runs.sum())
    used = runs > 0
    texts = float(runs.sum() ** 2 / (runs**2).sum())
    if texts < _FEW or np.ptp(hits[used] / runs[used]) == 0:
        return clopper_pearson(share * texts, texts)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(int(used.sum()), np.full(int(used.sum()), 1 / used.sum()), size=_RESAMPLES)
    shares = (counts @ hits[used]) / (counts @ runs[used])
    low, high = np.quantile(shares, [_ERROR / 2, 1 - _ERROR / 2])
    return min(float(low), share), max(float(high), share)


def auc(positives: Floats, negatives: Floats) -> float:
    """Chance that a positive scores above a negative, ties counting half (Mann and Whitney 1947)."""
    ranks = rankdata(np.concatenate([positives, negatives]))[: len(positives)]
    pairs = len(positives) * len(negatives)
    return float((ranks.sum() - len(positives) * (len(positives) + 1) / 2) / pairs)


def auc_interval(value: float, positives: int, negatives: int, *, error: float = _ERROR) -> Interval:
    """Interval of an area under the curve: all areas from which ``value`` is not too many standard errors away.

    Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic. Part 2",
    method 5: Hanley and McNeil's variance at the area in question, not at the one measured, so that an area of 1 has
    an interval too.

    Args:
        value: Measured area, in [0, 1].
        positives: Number of positives, at least 1.
        negatives: Number of negatives, at least 1.
        error: Chance to miss, both sides together.
    """
    z = NormalDist().inv_cdf(1 - error / 2)
    typical = (positives + negatives) / 2 - 1

    def away(area: float) -> float:
        spread = 1 + typical * ((1 - area) / (2 - area) + area / (1 + area))
        return (value - area) ** 2 - z * z * area * (1 - area) * spread / (positives * negatives)

    tiny = 1e-12
    inside = min(max(value, tiny), 1 - tiny)  # at 0 and 1 the variance vanishes, which is no root that is meant
    low = 0.0 if value <= tiny else float(brentq(away, tiny, inside))
    high = 1.0 if value >= 1 - tiny else float(brentq(away, inside, 1 - tiny))
    return low, high


def accuracy_bound(epsilon: float, delta: float) -> float:
    """Largest accuracy of telling two equally likely neighbouring data sets apart under (epsilon, delta).

    True minus false positive rate is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh, Viswanath 2015,
    Theorem 2.1 and Remark 2.2).

    Args:
        epsilon: At least 0.
        delta: In [0, 1].
    """
    advantage = math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2))
    return min(1.0, 0.5 + advantage / 2)
