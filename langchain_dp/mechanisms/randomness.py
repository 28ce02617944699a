"""Random bits, and samplers without floating point, whose holes would betray the noiseless value.

Reference: Canonne, Kamath, Steinke. The Discrete Gaussian for Differential Privacy. NeurIPS 2020.
"""

from __future__ import annotations

import random
import secrets
from fractions import Fraction
from math import isqrt
from numbers import Integral
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from langchain_dp.errors import InvalidParameter


class Randomness(Protocol):
    """Source of uniform integers.

    Examples:
        >>> def winner(rng: Randomness) -> int:
        ...     return ReportNoisyMax(NoisyMaxEvent(2.0)).release([31, 7], rng=rng).winner
        >>> winner(NotPrivateSeededRandomness(1))
        0
    """

    @property
    def private(self) -> bool:
        """True if an outsider cannot reproduce the draws."""
        ...

    def randbelow(self, upper: int) -> int:
        """Return a uniform integer in [0, upper)."""
        ...


class SystemRandomness:
    """Entropy of the operating system. The only source whose results are private.

    Examples:
        >>> mechanism = ReportNoisyMax(NoisyMaxEvent(2.0))
        >>> ledger.spend(mechanism.event)
        >>> mechanism.release([31, 7], rng=SystemRandomness()).winner  # the same as without rng=
        0
    """

    private = True

    def randbelow(self, upper: int) -> int:
        """Return a uniform integer in [0, upper)."""
        return secrets.randbelow(upper)


class NotPrivateSeededRandomness:
    """Reproducible draws for tests and figures. NOT private: anyone with the seed can remove the noise.

    Examples:
        >>> mechanism = ReportNoisyMax(NoisyMaxEvent(2.0))
        >>> first, second = (mechanism.release([31, 7], rng=NotPrivateSeededRandomness(1)) for _ in range(2))
        >>> first == second
        True
    """

    private = False

    def __init__(self, not_private_seed: int) -> None:
        seed: object = not_private_seed
        if isinstance(seed, bool) or not isinstance(seed, Integral):
            raise InvalidParameter(f"Expected not_private_seed of type {type(seed).__name__} to be a whole number.")
        self._random = random.Random(int(seed))  # noqa: S311  # reproducible on purpose, and labelled so

    def randbelow(self, upper: int) -> int:
        """Return a uniform integer in [0, upper)."""
        return self._random.randrange(upper)


def bernoulli(rng: Randomness, probability: Fraction) -> bool:
    return rng.randbelow(probability.denominator) < probability.numerator


def shuffled(rng: Randomness, count: int) -> list[int]:
    """Permute range(count) (Fisher-Yates)."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = rng.randbelow(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def discrete_gaussian(rng: Randomness, variance: Fraction) -> int:
    """Return x with probability exactly proportional to exp(-x^2 / (2 variance))."""
    scale = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        candidate = _discrete_laplace(rng, scale)
        gap = abs(candidate) - variance / scale
        if _bernoulli_exp(rng, gap * gap / (2 * variance)):
            return candidate


def _discrete_laplace(rng: Randomness, scale: int) -> int:
    """Return x with probability proportional to exp(-|x| / scale)."""
    while True:
        remainder = rng.randbelow(scale)
        if not _bernoulli_exp(rng, Fraction(remainder, scale)):
            continue
        quotient = 0
        while _bernoulli_exp(rng, Fraction(1)):
            quotient += 1
        magnitude = remainder + scale * quotient
        negative = rng.randbelow(2) == 1
        if negative and magnitude == 0:
            continue  # zero would otherwise count twice
        return -magnitude if negative else magnitude


def _bernoulli_exp(rng: Randomness, exponent: Fraction) -> bool:
    """Return True with probability exp(-exponent)."""
    while exponent > 1:
        if not _bernoulli_exp(rng, Fraction(1)):
            return False
        exponent -= 1
    k = 1
    while rng.randbelow(exponent.denominator * k) < exponent.numerator:
        k += 1
    return k % 2 == 1


# Bulk bits are one block from the system, or one seeded number per row, so that rows do not depend on their count.


def words(rng: Randomness, rows: int, columns: int) -> NDArray[np.uint64]:
    """Return uniform 64-bit numbers."""
    if isinstance(rng, SystemRandomness):
        raw = secrets.token_bytes(8 * rows * columns)
    else:
        size = 8 * columns
        raw = b"".join(rng.randbelow(1 << (8 * size)).to_bytes(size, "little") for _ in range(rows))
    return np.frombuffer(raw, dtype="<u8").reshape(rows, columns)


class Words:
    """Uniform 64-bit numbers. Seeded ones do not depend on the threads' order."""

    def __init__(self, rng: Randomness, rows: int, columns: int) -> None:
        self._rng = rng
        self._columns = columns
        self._drawn = None if isinstance(rng, SystemRandomness) else words(rng, rows, columns)

    def uniforms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return midpoints of a grid of 2^-52."""
        drawn = words(self._rng, stop - start, self._columns) if self._drawn is None else self._drawn[start:stop]
        numbers = (drawn >> np.uint64(12)).astype(np.float64)
        numbers += 0.5
        numbers *= 2.0**-52
        return numbers
