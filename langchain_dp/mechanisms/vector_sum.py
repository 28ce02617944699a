"""Noisy sums of vectors."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.accounting.events import VectorSumEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness, discrete_gaussian

Whole = NDArray[np.int64]

NORM = 4096
LEAST_STEPS = 1024
"""Smallest standard deviation of the noise, in grid steps.

There the discrete Gaussian's profile exceeds the continuous one's by less than 3e-6 in relative terms at any delta of
at least 1e-9. The accountant's own rounding is larger.
"""
_MOST_STEPS = 2.0**50  # noise of more would leave the whole numbers of 64 bits, after the charge


@dataclasses.dataclass(frozen=True)
class VectorSum:
    """Add exact discrete Gaussian noise to a sum of whole-number vectors.

    Args:
        event: Cost of one release. Its noise multiplier times ``norm`` is the standard deviation of the noise, at least
            1,024 grid steps.
        norm: Largest L2 norm of one record's vector, in grid steps.

    Formal guarantee:
        If each record adds one vector of norm at most ``norm`` to the total, one release costs ``event``. It is the
        Gaussian mechanism at the event's distance of neighbors (Dwork and Roth 2014, Appendix A), drawn from the
        discrete Gaussian (Canonne, Kamath and Steinke 2020).

    Examples:
        >>> mechanism = VectorSum(VectorSumEvent(noise_multiplier=2.8))
        >>> total = clip_to_norm(np.array([[4096, 0], [3000, 3000]]), mechanism.norm).sum(axis=0)
        >>> ledger.spend(mechanism.event)  # charge first, then draw
        >>> mechanism.release(total).shape
        (2,)
    """

    event: VectorSumEvent
    norm: int = NORM

    def __post_init__(self) -> None:
        validate.integer("norm", self.norm, at_least=1)
        sigma = self.event.noise_multiplier * self.norm
        remedy = "A smaller epsilon, or a finer grid (a larger norm), raises it."
        validate.number(
            "the noise in grid steps", sigma, at_least=float(LEAST_STEPS), at_most=_MOST_STEPS, remedy=remedy
        )

    def release(self, total: Whole, *, rng: Randomness | None = None) -> Whole:
        """Return the noisy total of all records. Only this may leave. ``total`` holds whole numbers of any shape."""
        if not np.issubdtype(total.dtype, np.integer):
            raise InvalidParameter(f"Expected a total of whole numbers, not {total.dtype}. Sum integer vectors.")
        rng = rng or SystemRandomness()
        variance = (Fraction(self.event.noise_multiplier) * self.norm) ** 2
        noise = [discrete_gaussian(rng, variance) for _ in range(total.size)]
        return total.astype(np.int64) + np.array(noise, dtype=np.int64).reshape(total.shape)


def clip_to_norm(vectors: Whole, norm: int) -> Whole:
    """Scale each row of ``vectors`` (coordinates below 2^62) down to an L2 norm of at most ``norm``.

    The norm is checked in whole numbers. A row depends on no other row.

    Examples:
        >>> clip_to_norm(np.array([[30, 40], [3, 4]]), 10).tolist()
        [[6, 8], [3, 4]]
    """
    rows = np.array(vectors, dtype=np.int64)
    squares = _squares(rows)
    long = squares > norm * norm
    if long.any():
        scale = norm / np.sqrt(squares[long].astype(np.float64))
        rows[long] = np.trunc(rows[long] * scale[:, None]).astype(np.int64)
    while (long := _squares(rows) > norm * norm).any():  # the floating-point scale may have been a last bit too large
        rows[long] -= np.sign(rows[long])
    return rows


def _squares(rows: Whole) -> NDArray[Any]:
    largest = int(np.abs(rows).max(initial=0))
    exact = rows if largest**2 * rows.shape[1] < 1 << 63 else rows.astype(object)  # Python's numbers have no end
    return np.asarray((exact * exact).sum(axis=1))
