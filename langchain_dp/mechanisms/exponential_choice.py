"""The exponential mechanism over whole counts, and the exact draw behind it: no floats, no rounding of a probability.

A probability proportional to e^(epsilon * count) has no exact form in whole numbers, so the base e^epsilon is replaced
by a rational number just below it, which is the same mechanism at an epsilon smaller by less than 2^-63. With a
rational base every probability is rational. Written out, the weight of a count of 100,000 would hold millions of
digits. :func:`draw` therefore takes the digits of a uniform real number one block at a time, bounds the weights from
both sides, and stops as soon as all reals with these digits fall to the same outcome. That inverts the exact
distribution function, so nothing is approximated. One block nearly always settles it, in a time that hardly depends on
the counts.

References:
    [1] McSherry, Talwar. Mechanism design via differential privacy. FOCS 2007.
    [2] Dong, Durfee, Rogers. Optimal differential privacy composition for exponential mechanisms. ICML 2020.
    [3] Ilvento. Implementing the exponential mechanism with base-2 differential privacy. CCS 2020 (exact bases).
    [4] Knuth, Yao. The complexity of nonuniform random number generation. 1976 (digits on demand).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction

from langchain_dp._util import validate
from langchain_dp.accounting.events import ExponentialEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

_BASE_BITS = 64  # digits of a base after the point
_SERIES_BITS = 2 * _BASE_BITS  # digits while it is computed
_LARGEST_EXPONENT = 256  # a larger base changes nothing that one could see, and a smaller one is always sound
_BLOCK_BITS = 128  # digits drawn at first: for counts below 2^32 and 2^16 outcomes they settle all but 2^-60 of draws


@dataclasses.dataclass(frozen=True)
class Exponential:
    """Choose a candidate by the exponential mechanism: P(j) proportional to b^(counts[j]), b just below e^epsilon.

    Args:
        event: Cost of one choice. Its ``epsilon`` is the weight of one record in the exponent, in nats.
        most: Largest number that one record adds to a count. A count of ``most`` then weighs epsilon.

    Formal guarantee:
        If a record adds 0 to ``most`` to each count and takes nothing from any (it joins, leaves or becomes a ghost),
        one call is epsilon-bounded-range, hence epsilon-DP [2]. 2 epsilon if a record is replaced. It costs ``event``.
        The base is rounded down: a smaller base is a smaller epsilon.

    Examples:
        >>> mechanism = Exponential(ExponentialEvent(0.5))
        >>> ledger.spend(mechanism.event)  # charge first, then draw
        >>> mechanism.release([20, 120, 44])
        1
    """

    event: ExponentialEvent
    most: int = 1

    def __post_init__(self) -> None:
        validate.integer("most", self.most, at_least=1)

    def release(self, counts: Sequence[int], *, rng: Randomness | None = None) -> int:
        """Index of one candidate. Only this may leave. The counts may not.

        Args:
            counts: One whole number of at least 0 per candidate of a public list, such as how many held-out records
                each candidate prompt answers right.
            rng: Source of randomness. Operating-system entropy by default.

        Raises:
            InvalidParameter: There are no candidates, or a count is no whole number.
        """
        validate.integer("number of counts", len(counts), at_least=1, remedy="Give one count per candidate.")
        check_counts(counts)
        base = below_exp(Fraction(self.event.epsilon) / self.most)
        return draw(rng or SystemRandomness(), base, list(counts), [1] * len(counts))


def check_counts(counts: Iterable[int]) -> None:
    """Raise InvalidParameter unless every count is a whole number of at least 0. The counts are never printed."""
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in counts):
        raise InvalidParameter("Expected every count to be a whole number of at least 0. Give plain ints.")


def below_exp(exponent: Fraction) -> Fraction:
    """Rational base b >= 1 with b <= e^exponent, and ln b > exponent - 2^-63 for exponents in [0, 256].

    Every step rounds down: the Taylor series of a positive number stops early, each of its terms is cut, and so is each
    of the squarings that undo the halving of the exponent.
    """
    exponent = min(exponent, Fraction(_LARGEST_EXPONENT))
    halvings = 0
    while exponent > 1:
        exponent /= 2
        halvings += 1
    term, terms, total = 1 << _SERIES_BITS, 0, 0
    while term:
        total += term
        terms += 1
        term = term * exponent.numerator // (exponent.denominator * terms)
    for _ in range(halvings):
        total = total * total >> _SERIES_BITS
    return Fraction(total >> (_SERIES_BITS - _BASE_BITS), 1 << _BASE_BITS)


def draw(rng: Randomness, base: Fraction, exponents: Sequence[int], factors: Sequence[int]) -> int:
    """Index j with probability exactly proportional to factors[j] * base^(exponents[j]).

    Args:
        rng: Source of randomness. It is asked at least once, also where there is one outcome only.
        base: At least 1.
        exponents: Whole numbers, one per outcome. At least one.
        factors: Positive whole numbers, one per outcome. The largest one decides how many digits are drawn first.
    """
    ratio, largest = 1 / base, max(exponents)
    bits = _BLOCK_BITS + max(factors).bit_length()
    uniform = rng.randbelow(1 << bits)
    while True:
        powers = [_power(ratio, largest - exponent, bits) for exponent in exponents]
        low = [factor * power[0] for factor, power in zip(factors, powers, strict=True)]
        high = [factor * power[1] for factor, power in zip(factors, powers, strict=True)]
        settled = _settled(uniform, bits, low, high)
        if settled is not None:
            return settled
        uniform = uniform << bits | rng.randbelow(1 << bits)
        bits *= 2


def _power(ratio: Fraction, exponent: int, bits: int) -> tuple[int, int]:
    """Whole numbers below and above ratio^exponent * 2^bits, for a ratio in (0, 1]."""
    low = high = 1 << bits
    square_low = (ratio.numerator << bits) // ratio.denominator
    square_high = -(-(ratio.numerator << bits) // ratio.denominator)
    while exponent:
        if exponent & 1:
            low, high = low * square_low >> bits, -(-high * square_high >> bits)
        square_low, square_high = square_low * square_low >> bits, -(-square_high * square_high >> bits)
        exponent >>= 1
    return low, high


def _settled(uniform: int, bits: int, low: Sequence[int], high: Sequence[int]) -> int | None:
    """Outcome of every real number that starts with the digits ``uniform``, or None where they leave more than one.

    The real number u lies in [uniform, uniform + 1) / 2^bits, and belongs to the first outcome whose weight, added to
    those before it, exceeds u times the sum of all. The weights themselves are known between ``low`` and ``high``.
    """
    reached_low, reached_high = uniform * sum(low), (uniform + 1) * sum(high)
    below = above = 0
    for index in range(len(low) - 1):
        below += low[index]
        above += high[index]
        if reached_high <= below << bits:
            return index
        if reached_low < above << bits:
            return None
    return len(low) - 1
