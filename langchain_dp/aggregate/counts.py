"""Noisy counts of votes."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

import numpy as np

from langchain_dp.accounting import PrivacyBudget, VectorSumEvent, calibrate_vector_sum
from langchain_dp.aggregate.features import Floats
from langchain_dp.mechanisms import Randomness, VectorSum
from langchain_dp.mechanisms.vector_sum import Whole

VOTE = 1 << 16
"""Grid steps per vote."""
COVERAGE = 0.95
"""Chance that all error bars of a release hold."""


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Gaussian noise for counts, in grid steps of 2^-16 vote.

    Formal guarantee: A record adds at most ``votes`` ones, of norm sqrt(votes). Replacing it moves yes-or-no counts by
    sqrt(votes), and counts of choices by sqrt(2 votes).
    """

    votes: int
    event: VectorSumEvent

    def __post_init__(self) -> None:
        _mechanism(self.votes, self.event)  # checks the noise before any charge

    @classmethod
    def of(cls, budget: PrivacyBudget, *, votes: int, yes_or_no: bool = False) -> VoteCounts:
        """Calibrate noise. Yes-or-no votes have one cell."""
        replaced = 1.0 if yes_or_no else math.sqrt(2)
        return cls(votes, VectorSumEvent(calibrate_vector_sum(budget, replaced=replaced), replaced))

    @property
    def mechanism(self) -> VectorSum:
        return _mechanism(self.votes, self.event)

    @property
    def deviation(self) -> float:
        """Standard deviation in records."""
        return self.event.noise_multiplier * self.mechanism.norm / VOTE

    def release(self, totals: Whole, rng: Randomness) -> Floats:
        """Return records from grid steps."""
        return np.asarray(self.mechanism.release(totals, rng=rng) / VOTE)


def _mechanism(votes: int, event: VectorSumEvent) -> VectorSum:
    return VectorSum(event, math.isqrt(VOTE * VOTE * votes - 1) + 1)


def half_width(deviation: float, cells: int) -> float:
    """Half-width of bars that hold together in 95 of 100 releases."""
    return deviation * NormalDist().inv_cdf(1 - (1 - COVERAGE) / (2 * cells))


def consistent_shares(shares: Floats, low: Floats, high: Floats, total: float = 1.0) -> Floats:
    """Return nearest shares within bars that add up to ``total``."""
    if not low.sum() <= total <= high.sum():  # some bar fails, in at most 5 of 100 releases
        low, high = np.zeros_like(low), np.full_like(high, total)
    least, most = float((shares - high).min()) - 1.0, float((shares - low).max()) + 1.0
    for _ in range(100):
        shift = (least + most) / 2
        if np.clip(shares - shift, low, high).sum() > total:
            least = shift
        else:
            most = shift
    return np.clip(shares - (least + most) / 2, low, high)
