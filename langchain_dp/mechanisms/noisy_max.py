"""Report noisy max: the label with the most votes after Gaussian noise on EVERY class count."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from langchain_dp._util import validate
from langchain_dp.accounting.events import NoisyMaxEvent
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness, discrete_gaussian

GRID = 4096
"""Noise is drawn on multiples of 1/GRID votes. On this grid the discrete Gaussian's privacy profile may exceed the
continuous one's, by which it is accounted, by less than 1e-6 in relative terms, from 0.3 votes of noise up: 1e-11 at a
delta of 1e-5. No term of its own is added for that. What covers it is that the accountant rounds privacy losses up to a
grid: the tests enumerate single releases, and find what is drawn within the epsilon and delta that are charged. On
whole votes a single profile is off by percents here and there, though not the composition of many."""

LEAST_SIGMA = 0.3
"""Smallest noise for which that holds, in votes."""


@dataclasses.dataclass(frozen=True)
class NoisyMax:
    """Result of one release.

    Args:
        winner: Index of the largest noisy count. Ties go to the smaller index.
        noisy_counts: All noisy counts, in votes, multiples of 1/4096. Same price as the winner alone.

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
    """Add Gaussian noise to every count and report the largest.

    Args:
        event: Cost of one release. Its ``sigma`` is the standard deviation of the noise per count, in votes, at
            least 0.3. Who is asked is drawn elsewhere, at the event's rate.

    Raises:
        InvalidParameter: sigma is out of bounds.

    Formal guarantee:
        If one record moves at most one vote, one release is dominated by the Gaussian pair at distance sqrt(2)
        (Panda, Wang, Wu, Mittal 2023, Theorem 2) and costs ``event``. The winner is post-processing of the noisy
        histogram.

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
        """Winner and noisy counts. Only these may leave. The counts given may not.

        Args:
            counts: Votes per label of the public label set, in its public order. All zero is fine: the noise is
                drawn all the same.
            rng: Source of randomness. Operating-system entropy by default.

        Raises:
            InvalidParameter: There are fewer than two labels.
        """
        validate.integer("number of labels", len(counts), at_least=2)
        rng = rng or SystemRandomness()
        variance = (Fraction(self.event.sigma) * GRID) ** 2
        noisy = tuple(Fraction(count * GRID + discrete_gaussian(rng, variance), GRID) for count in counts)
        winner = max(range(len(noisy)), key=lambda index: (noisy[index], -index))
        return NoisyMax(winner, noisy)
