"""Empirical lower bounds on privacy loss, with a stated error rate."""

from __future__ import annotations

import math

from langchain_dp.audit.bounds import lower_limit, upper_limit

ERROR_RATE = 1e-6
"""Chance that an audit fails sound code. Every statistical test of this project states it this way."""


def lower(successes: int, runs: int, error: float = ERROR_RATE) -> float:
    """Clopper-Pearson lower confidence limit of a probability: one of two, which share the error."""
    return lower_limit(successes, runs, error / 2)


def upper(successes: int, runs: int, error: float = ERROR_RATE) -> float:
    """Clopper-Pearson upper confidence limit of a probability: one of two, which share the error."""
    return upper_limit(successes, runs, error / 2)


def violates(hits: int, other_hits: int, runs: int, *, epsilon: float, delta: float) -> bool:
    """Whether an event's frequencies on two neighbouring data sets disprove (epsilon, delta) at ERROR_RATE."""
    return lower(hits, runs) > math.exp(epsilon) * upper(other_hits, runs) + delta
