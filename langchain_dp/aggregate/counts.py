"""Noisy counts of votes, with error bars."""

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
"""Grid steps of one vote."""
COVERAGE = 0.95
"""Chance that all error bars of a release hold."""


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Gaussian noise for counts of votes, in whole numbers of 2^-16 of a vote. ``votes`` are the most of one record.

    Formal guarantee: One record adds a vector of at most ``votes`` ones, so its norm is at most sqrt(votes). Votes that
    each choose one cell of a group differ between two records by sqrt(2 votes). Yes-or-no votes, which are one or zero
    in a cell of their own, differ by sqrt(votes). One release is the Gaussian mechanism at that distance.
    """

    votes: int
    event: VectorSumEvent

    def __post_init__(self) -> None:
        _mechanism(self.votes, self.event)  # it checks the noise, before anything is charged

    @classmethod
    def of(cls, budget: PrivacyBudget, *, votes: int, yes_or_no: bool = False) -> VoteCounts:
        """Calibrate the noise to a budget. A yes-or-no vote is one or zero in a cell of its own."""
        replaced = 1.0 if yes_or_no else math.sqrt(2)
        return cls(votes, VectorSumEvent(calibrate_vector_sum(budget, replaced=replaced), replaced))

    @property
    def mechanism(self) -> VectorSum:
        """The sum with noise, in grid steps."""
        return _mechanism(self.votes, self.event)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of one count, in records."""
        return self.event.noise_multiplier * self.mechanism.norm / VOTE

    def release(self, totals: Whole, rng: Randomness) -> Floats:
        """Return noisy counts in records, of exact counts in grid steps."""
        return np.asarray(self.mechanism.release(totals, rng=rng) / VOTE)


def _mechanism(votes: int, event: VectorSumEvent) -> VectorSum:
    return VectorSum(event, math.isqrt(VOTE * VOTE * votes - 1) + 1)


def half_width(deviation: float, cells: int) -> float:
    """Half the width of error bars that all hold together in 95 of 100 releases."""
    return deviation * NormalDist().inv_cdf(1 - (1 - COVERAGE) / (2 * cells))


def consistent_shares(shares: Floats, low: Floats, high: Floats, total: float = 1.0) -> Floats:
    """Return the nearest shares that lie within their bars and add up to ``total``."""
    if not low.sum() <= total <= high.sum():  # some bar does not hold, in 5 of 100 releases at most
        low, high = np.zeros_like(low), np.full_like(high, total)
    least, most = float((shares - high).min()) - 1.0, float((shares - low).max()) + 1.0
    for _ in range(100):
        shift = (least + most) / 2
        if np.clip(shares - shift, low, high).sum() > total:
            least = shift
        else:
            most = shift
    return np.clip(shares - (least + most) / 2, low, high)
