"""Where random bits come from, and exact samplers built on them. No floating point on any path.

Exact means: every sampler below returns each value with precisely its rational (or discrete Gaussian) probability,
given uniform integers. Floating-point noise has holes that betray the noiseless value.

Reference: Canonne, Kamath, Steinke. The Discrete Gaussian for Differential Privacy. NeurIPS 2020, Algorithms 1-3.
"""

from __future__ import annotations

import random
import secrets
from fractions import Fraction
from math import isqrt
from numbers import Integral
from typing import Protocol

from langchain_dp.errors import InvalidParameter


class Randomness(Protocol):
    """Source of uniform integers.

    Examples:
        >>> def winner(rng: Randomness) -> int:
        ...     return report_noisy_max([31, 7], 2.0, rng=rng).winner
        >>> winner(NotPrivateSeededRandomness(1))
        0
    """

    @property
    def private(self) -> bool:
        """Whether an outsider cannot reproduce the draws."""
        ...

    def randbelow(self, upper: int) -> int:
        """Uniform integer in [0, upper)."""
        ...


class SystemRandomness:
    """Entropy of the operating system. The only source whose results are private.

    Examples:
        >>> ledger.spend(NoisyMaxEvent(2.0))
        >>> report_noisy_max([31, 7], 2.0, rng=SystemRandomness()).winner  # the same as without rng=
        0
    """

    private = True

    def randbelow(self, upper: int) -> int:
        """Uniform integer in [0, upper)."""
        return secrets.randbelow(upper)


class NotPrivateSeededRandomness:
    """Reproducible draws for tests and figures. Whoever knows the seed can remove the noise: NOT private.

    Examples:
        >>> first, second = (report_noisy_max([31, 7], 2.0, rng=NotPrivateSeededRandomness(1)) for _ in range(2))
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
        """Uniform integer in [0, upper)."""
        return self._random.randrange(upper)


def bernoulli(rng: Randomness, probability: Fraction) -> bool:
    """True with exactly this probability, in [0, 1]."""
    return rng.randbelow(probability.denominator) < probability.numerator


def shuffled(rng: Randomness, count: int) -> list[int]:
    """Uniformly random permutation of range(count) (Fisher-Yates)."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = rng.randbelow(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def discrete_gaussian(rng: Randomness, variance: Fraction) -> int:
    """Integer x with probability proportional to exp(-x^2 / (2 variance)), exactly.

    Args:
        rng: Source of randomness.
        variance: Parameter sigma^2 > 0 (the variance itself, up to a term that vanishes fast in sigma).
    """
    scale = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        candidate = _discrete_laplace(rng, scale)
        gap = abs(candidate) - variance / scale
        if _bernoulli_exp(rng, gap * gap / (2 * variance)):
            return candidate


def _discrete_laplace(rng: Randomness, scale: int) -> int:
    """Integer x with probability proportional to exp(-|x| / scale)."""
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
    """True with probability exp(-exponent), exponent >= 0."""
    while exponent > 1:
        if not _bernoulli_exp(rng, Fraction(1)):
            return False
        exponent -= 1
    k = 1
    while rng.randbelow(exponent.denominator * k) < exponent.numerator:
        k += 1
    return k % 2 == 1
