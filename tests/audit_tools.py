"""Empirical lower bounds on privacy loss, with a stated error rate."""

from __future__ import annotations

import math

from scipy.stats import beta

ERROR_RATE = 1e-6
"""Chance that an audit fails sound code. Every statistical test of this project states it this way."""


def lower(successes: int, runs: int, error: float = ERROR_RATE) -> float:
    """Clopper-Pearson lower confidence limit of a probability."""
    return 0.0 if successes == 0 else float(beta.ppf(error / 2, successes, runs - successes + 1))


def upper(successes: int, runs: int, error: float = ERROR_RATE) -> float:
    """Clopper-Pearson upper confidence limit of a probability."""
    return 1.0 if successes == runs else float(beta.ppf(1 - error / 2, successes + 1, runs - successes))


def violates(hits: int, other_hits: int, runs: int, *, epsilon: float, delta: float) -> bool:
    """Whether an event's frequencies on two neighbouring data sets disprove (epsilon, delta) at ERROR_RATE."""
    return lower(hits, runs) > math.exp(epsilon) * upper(other_hits, runs) + delta
