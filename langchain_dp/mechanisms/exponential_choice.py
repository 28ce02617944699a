"""The exponential mechanism over whole counts (McSherry, Talwar, FOCS 2007), drawn exactly.

The base e^epsilon is rounded down to a rational number (Ilvento, CCS 2020), by less than 2^-63 of epsilon. :func:`draw`
takes digits of a uniform number (Knuth, Yao 1976) until bounds of the weights leave one outcome.
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
    """Choose a candidate with P(j) proportional to b^(counts[j]), b just below e^epsilon.

    Args:
        event: Cost of one choice. Its ``epsilon`` is the weight of one record in the exponent, in nats.
        most: Largest number that one record adds to a count.

    Formal guarantee:
        If a record adds 0 to ``most`` to each count (it joins, leaves or becomes a ghost), one call is
        epsilon-bounded-range, hence epsilon-DP (Dong, Durfee and Rogers 2020), and twice that if a record is replaced.
        It costs ``event``.

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
        """Return the index of one candidate. Only the index may leave.

        Args:
            counts: One whole number of at least 0 per public candidate.
            rng: Source of randomness.
        """
        validate.integer("number of counts", len(counts), at_least=1, remedy="Give one count per candidate.")
        check_counts(counts)
        base = below_exp(Fraction(self.event.epsilon) / self.most)
        return draw(rng or SystemRandomness(), base, list(counts), [1] * len(counts))


def check_counts(counts: Iterable[int]) -> None:
    """Refuse wrong counts without printing them."""
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in counts):
        raise InvalidParameter("Expected every count to be a whole number of at least 0. Give plain ints.")


def below_exp(exponent: Fraction) -> Fraction:
    """Return a rational b with 1 <= b <= e^exponent, and ln b > exponent - 2^-63 for exponents in [0, 256]."""
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
    """Return j with probability exactly proportional to factors[j] * base^(exponents[j]), for a base >= 1."""
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
    """Bound ratio^exponent * 2^bits, for a ratio in (0, 1]."""
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
    """Return the outcome that all u in [uniform, uniform + 1) / 2^bits share, if any."""
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
