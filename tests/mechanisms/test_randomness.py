"""The exact samplers: their laws, and that nothing about them can be reproduced."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from langchain_dp.mechanisms import NotPrivateSeededRandomness, SystemRandomness
from langchain_dp.mechanisms.randomness import bernoulli, discrete_gaussian, shuffled

TESTS = Path(__file__).parents[1]
SEEDED = NotPrivateSeededRandomness(7)  # laws are tested reproducibly; error rate 1e-4 a test at the first seed


@pytest.mark.statistical
@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(9, 4), Fraction(50)])
def test_discrete_gaussian_has_its_law(variance: Fraction) -> None:
    """If it breaks, the noise has another shape or scale than the accountant believes (chi-square, error 1e-4)."""
    draws = Counter(discrete_gaussian(SEEDED, variance) for _ in range(30_000))
    for scale, accepted in [(1.0, True), (2 / 3, False), (3 / 2, False)]:
        assert (_p_value(draws, float(variance) * scale**2) > 1e-4) == accepted, scale


def _p_value(draws: Counter[int], variance: float) -> float:
    values = np.arange(-60, 61)
    weights = np.exp(-(values**2) / (2 * variance))
    expected = weights / weights.sum() * draws.total()
    observed = np.array([draws[int(value)] for value in values], dtype=float)
    common = expected > 5
    pooled_observed = np.append(observed[common], observed[~common].sum())
    pooled_expected = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    return float(stats.chi2.sf(((pooled_observed - pooled_expected) ** 2 / pooled_expected).sum(), common.sum()))


@pytest.mark.statistical
def test_bernoulli_is_exact_for_small_rates() -> None:
    """If it breaks, subsets take part at another rate than the one accounted for (binomial, error 1e-4)."""
    rate, runs = Fraction(1, 64), 60_000
    hits = sum(bernoulli(SEEDED, rate) for _ in range(runs))
    assert stats.binomtest(hits, runs, float(rate)).pvalue > 1e-4
    assert stats.binomtest(hits, runs, 1.3 / 64).pvalue < 1e-4
    assert not any(bernoulli(SEEDED, Fraction(0)) for _ in range(100))
    assert all(bernoulli(SEEDED, Fraction(1)) for _ in range(100))


@pytest.mark.statistical
def test_shuffle_is_uniform() -> None:
    """If it breaks, the assignment of records to subsets is predictable (chi-square, error 1e-4)."""
    counts = Counter(tuple(shuffled(SEEDED, 4)) for _ in range(24_000))
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_two_processes_never_draw_the_same_noise() -> None:
    """If it breaks, noise is seeded or reused and whoever knows the seed can take it off."""
    code = (
        "from audit_tools import exponential, limited_domain, report_noisy_max\n"
        "print([str(x) for _ in range(20) for x in report_noisy_max([5, 3, 1], 2.0).noisy_counts])\n"
        "print([exponential([5, 5, 4], 0.1) for _ in range(60)])\n"
        "one = dict(epsilon0=1.0, delta0=0.1, domain=9, kbar=4)\n"
        "print([limited_domain({1: 4, 2: 4, 3: 4}, **one) for _ in range(60)])"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=TESTS).stdout.splitlines()
        for _ in range(2)
    )
    assert len(first) == 3
    assert all(here != there for here, there in zip(first, second, strict=True))
    assert SystemRandomness().private
    assert not SEEDED.private
