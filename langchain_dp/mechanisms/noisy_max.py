"""Report noisy max."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from langchain_dp._util import validate
from langchain_dp.accounting.events import NoisyMaxEvent
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness, discrete_gaussian

GRID = 4096
"""Noise is drawn on multiples of 1/GRID votes.

From 0.3 votes up, its profile exceeds the continuous one by less than 1e-6 in relative terms, which the accountant's
rounding covers.
"""

LEAST_SIGMA = 0.3


@dataclasses.dataclass(frozen=True)
class NoisyMax:
    """Result of one release.

    Args:
        winner: Index of the largest noisy count. Ties go to the smaller index.
        noisy_counts: All noisy counts, in votes, at no further cost.

    Examples:
        >>> mechanism = ReportNoisyMax(NoisyMaxEvent(2.0))
        >>> ledger.spend(mechanism.event)  # charge first, then draw
        >>> mechanism.release([310, 70]).winner
        0
    """

    winner: int
    noisy_counts: tuple[Fraction, ...]


@dataclasses.dataclass(frozen=True)
class ReportNoisyMax:
    """Add Gaussian noise to EVERY class count and report the label with the most votes.

    Args:
        event: Cost of one release. Its ``sigma`` is the standard deviation per count, in votes, at least 0.3. The
            caller samples at the event's rate.

    Formal guarantee:
        If one record moves at most one vote, one release is dominated by the Gaussian pair at distance sqrt(2) (Panda,
        Wang, Wu, Mittal 2023, Theorem 2) and costs ``event``. The winner is post-processing of the noisy histogram.

    Examples:
        >>> mechanism = ReportNoisyMax(NoisyMaxEvent(2.0))
        >>> ledger.spend(mechanism.event)  # charge first, then draw
        >>> mechanism.release([31, 7]).winner
        0
    """

    event: NoisyMaxEvent

    def __post_init__(self) -> None:
        remedy = "Calibrate it with calibrate_noisy_max."
        validate.number("sigma", self.event.sigma, at_least=LEAST_SIGMA, remedy=remedy)

    def release(self, counts: Sequence[int], *, rng: Randomness | None = None) -> NoisyMax:
        """Return winner and noisy counts of the votes per label. Only these may leave."""
        validate.integer("number of labels", len(counts), at_least=2)
        rng = rng or SystemRandomness()
        variance = (Fraction(self.event.sigma) * GRID) ** 2
        noisy = tuple(Fraction(count * GRID + discrete_gaussian(rng, variance), GRID) for count in counts)
        return NoisyMax(noisy.index(max(noisy)), noisy)
