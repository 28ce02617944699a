"""Limits of frequencies, what they disprove, and how many runs it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from langchain_dp.audit import canaries_needed, epsilon_bound, lower_limit, runs_needed, upper_limit
from langchain_dp.audit.bounds import check_runs
from langchain_dp.errors import InvalidParameter


@pytest.mark.parametrize("runs", [1, 7, 40])
def test_limits_hold_with_the_stated_error_whatever_the_probability(runs: int) -> None:
    """If it breaks, an audit accuses sound code more often than it says. By enumeration: no tolerance."""
    error, hits = 0.05, np.arange(runs + 1)
    low = np.array([lower_limit(int(h), runs, error) for h in hits])
    high = np.array([upper_limit(int(h), runs, error) for h in hits])
    for p in np.linspace(0.001, 0.999, 101):
        law = binom.pmf(hits, runs, p)
        assert law[low > p].sum() <= error + 1e-12
        assert law[high < p].sum() <= error + 1e-12
    assert (low[0], high[-1]) == (0.0, 1.0)
    # a limit that is twice as daring is wrong more often than stated
    daring = np.array([lower_limit(int(h), runs, 3 * error) for h in hits])
    assert runs < 7 or max(binom.pmf(hits, runs, p)[daring > p].sum() for p in np.linspace(0.01, 0.99, 99)) > error


def test_a_bound_disproves_what_the_definition_disproves() -> None:
    """If it breaks, the printed epsilon is not the one that the frequencies exclude."""
    bound = epsilon_bound(900, 100, 1000, delta=0.05, error=1e-3)
    low, high = lower_limit(900, 1000, 5e-4), upper_limit(100, 1000, 5e-4)
    assert low == pytest.approx(math.exp(bound) * high + 0.05)
    assert 1.5 < bound < math.log(0.85 / 0.1)
    assert epsilon_bound(900, 100, 1000, delta=0.9, error=1e-3) == 0.0
    assert epsilon_bound(100, 900, 1000, delta=0.0, error=1e-3) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("claim", [0.0, 1.0, 5.0])
def test_the_runs_that_are_asked_for_are_enough_and_no_fewer_are(claim: float, delta: float) -> None:
    """If it breaks, an audit that can never accuse is run, or one that could is refused."""
    least = runs_needed(claim, delta=delta, error=1e-3)
    assert epsilon_bound(least, 0, least, delta=delta, error=1e-3) > claim
    assert epsilon_bound(least - 1, 0, least - 1, delta=delta, error=1e-3) <= claim + 1e-9
    with pytest.raises(InvalidParameter, match=f"at least {least}"):
        check_runs(least - 1, epsilon=claim, delta=delta, error=1e-3)
    assert check_runs(least, epsilon=claim, delta=delta, error=1e-3) == least


@pytest.mark.parametrize("needed", [lambda claim: runs_needed(claim, delta=0.0, error=0.05),
                                    lambda claim: canaries_needed(claim, error=0.05)])  # fmt: skip
def test_a_claim_that_nothing_disproves_is_refused(needed: Callable[[float], int]) -> None:
    """If it breaks, asking how large an audit must be ends in a division by zero."""
    assert needed(699.0) > 1e300
    with pytest.raises(InvalidParameter, match=r"epsilon=800.*700"):
        needed(800.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hits": 1_500}, "hits=1500"),
        ({"other_hits": -5}, "other_hits=-5"),
        ({"runs": 0}, "runs=0"),
        ({"delta": -0.5}, "delta=-0.5"),
        ({"error": 1.99}, "error=1.99"),
    ],
)
def test_counts_that_are_none_are_refused(changes: dict[str, Any], said: str) -> None:
    """If it breaks, a bound is above what the counts disprove, or zero: nothing disproved."""
    given = {"hits": 900, "other_hits": 100, "runs": 1_000, "delta": 1e-5, "error": 1e-3} | changes
    with pytest.raises(InvalidParameter, match=said):
        epsilon_bound(**given)
    for limit in (lower_limit, upper_limit):
        for wrong in ((150, 100, 0.05), (-3, 100, 0.05), (3, 0, 0.05), (3, 100, 1.5)):
            with pytest.raises(InvalidParameter):
                limit(*wrong)
