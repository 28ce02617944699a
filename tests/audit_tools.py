"""Empirical lower bounds on privacy loss, with a stated error rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.accounting import ExponentialEvent, LimitedDomainEvent, NoisyMaxEvent
from langchain_dp.audit.bounds import lower_limit, upper_limit
from langchain_dp.mechanisms import Exponential, LimitedDomain, NoisyMax, ReportNoisyMax

ERROR_RATE = 1e-6
"""Chance that an audit fails sound code. Every statistical test of this project states it this way."""


def lower(successes: int, runs: int, error: float = ERROR_RATE) -> float:
    """Clopper-Pearson lower confidence limit of a probability: one of two, which share the error."""
    return lower_limit(successes, runs, error / 2)


def upper(successes: int, runs: int, error: float = ERROR_RATE) -> float:
    """Clopper-Pearson upper confidence limit of a probability: one of two, which share the error."""
    return upper_limit(successes, runs, error / 2)


def report_noisy_max(counts: Sequence[int], sigma: float, *, rng: Any = None) -> NoisyMax:
    """One release of the mechanism, given by its number."""
    return ReportNoisyMax(NoisyMaxEvent(sigma)).release(counts, rng=rng)


def limited_domain(
    votes: Mapping[Any, int], *, epsilon0: float, delta0: float, rng: Any = None, **settings: Any
) -> Any:
    """The same, by two."""
    return LimitedDomain(LimitedDomainEvent(epsilon0, delta0), **settings).release(votes, rng=rng)


def exponential(counts: Sequence[int], epsilon: float, *, rng: Any = None) -> int:
    """The same, by one."""
    return Exponential(ExponentialEvent(epsilon)).release(counts, rng=rng)
