"""The exponential mechanism: its law to the last digit, its price by enumeration, and what must not go through."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from audit_tools import exponential
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.accounting import ExponentialEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import Exponential, NotPrivateSeededRandomness
from langchain_dp.mechanisms.exponential_choice import below_exp, draw


class Digits:
    """Hands out given digits first, then seeded ones, and remembers all of them as one number uniform / 2^bits."""

    private = False

    def __init__(self, first: Fraction, seed: int = 0) -> None:
        self.first, self.rest = first, NotPrivateSeededRandomness(seed)
        self.uniform, self.bits, self.asked = 0, 0, 0

    def randbelow(self, upper: int) -> int:
        bits = upper.bit_length() - 1
        assert upper == 1 << bits, "digits are taken in whole blocks"
        block = self.rest.randbelow(upper) if self.asked else min(math.floor(self.first * upper), upper - 1)
        self.uniform, self.bits, self.asked = self.uniform << bits | block, self.bits + bits, self.asked + 1
        return block


def shares(base: Fraction, exponents: list[int], factors: list[int]) -> list[Fraction]:
    """The law, written out: factors[j] * base^exponents[j], normalized."""
    weights = [factor * base**exponent for factor, exponent in zip(factors, exponents, strict=True)]
    return [weight / sum(weights) for weight in weights]


def test_the_base_is_just_below_the_exponential_and_stays_printable() -> None:
    """If it breaks, the base is rounded up, and draws cost more than is charged, or a huge epsilon hangs the draw."""
    for exponent in [1e-300, 1e-12, 0.05, 0.4, 0.9, 1.0, 1.0 + 1e-15, 3.3, 17.25, 255.9]:
        with mpmath.workdps(200):
            base = below_exp(Fraction(exponent))
            gap = mpmath.mpf(exponent) - mpmath.log(mpmath.mpf(base.numerator) / base.denominator)
            assert 0 <= gap < mpmath.mpf(2) ** -63
        assert base >= 1
    assert below_exp(Fraction(1e9)) == below_exp(Fraction(256))
    assert exponential([1, 2], np.float32(1e9)) == 1


@settings(max_examples=150, deadline=None)
@given(
    base=st.one_of(
        st.fractions(min_value=1, max_value=5, max_denominator=50),
        st.floats(1e-6, 5.0).map(lambda exponent: below_exp(Fraction(exponent))),
    ),
    outcomes=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 10**6)), min_size=1, max_size=6),
    first=st.fractions(min_value=0, max_value=1),
    edge=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_every_draw_inverts_the_exact_law(
    base: Fraction, outcomes: list[tuple[int, int]], first: Fraction, edge: int, seed: int
) -> None:
    """If it breaks, some outcome gets a little more or less than its rational probability.

    A draw may answer j only where every real number that starts with the digits drawn lies in j's slice of [0, 1): then
    each outcome has exactly the length of its slice. Digits are tried anywhere and at the very edges of the slices.
    """
    exponents, factors = [e for e, _ in outcomes], [f for _, f in outcomes]
    exact = shares(base, exponents, factors)
    edges = [Fraction(0), *itertools.accumulate(exact)]
    for start in (first, edges[edge % len(edges)]):
        digits = Digits(start, seed)
        index = draw(digits, base, exponents, factors)
        assert digits.asked >= 1
        assert edges[index] <= Fraction(digits.uniform, 1 << digits.bits)
        assert Fraction(digits.uniform + 1, 1 << digits.bits) <= edges[index + 1]


def test_digits_at_an_edge_ask_for_more() -> None:
    """If it breaks, the draw settles what its digits leave open, or asks for more where one block decides."""
    base = below_exp(Fraction(0.7))
    edge = shares(base, [3, 1, 0], [1, 1, 1])[0]
    at_edge, inside = Digits(edge), Digits(edge / 2)
    assert draw(at_edge, base, [3, 1, 0], [1, 1, 1]) in (0, 1)
    assert at_edge.asked == 2
    assert draw(inside, base, [3, 1, 0], [1, 1, 1]) == 0
    assert inside.asked == 1


def test_bad_input_is_named_and_counts_are_not() -> None:
    """If it breaks, a wrong parameter goes through, or an error prints what the counts were."""
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidParameter, match="epsilon="):
            exponential([1, 2], epsilon)
    with pytest.raises(InvalidParameter, match="number of counts=0"):
        exponential([], 1.0)
    for counts in ([7717, -1], [7717, 1.5], [7717, True], np.array([7717, 1])):
        with pytest.raises(InvalidParameter, match="whole number") as refused:
            exponential(counts, 1.0)  # type: ignore[arg-type]  # wrong on purpose
        assert "7717" not in str(refused.value)
    for most in (0, -1, 1.5, True):
        with pytest.raises(InvalidParameter, match="most"):
            Exponential(ExponentialEvent(1.0), most=most)  # type: ignore[arg-type]  # wrong on purpose


def test_the_choice_weighs_points_by_the_most_that_a_record_gives() -> None:
    """If it breaks, ten points weigh ten records, and each record costs ten times what is charged."""
    counts, runs = [30, 20, 0], 4000
    rng = NotPrivateSeededRandomness(1)
    mechanism = Exponential(ExponentialEvent(0.7), most=10)
    seen = [mechanism.release(counts, rng=rng) for _ in range(runs)]
    expected = [runs * math.exp(0.7 * count / 10) for count in counts]
    total = sum(math.exp(0.7 * count / 10) for count in counts)
    square = sum((seen.count(place) - each / total) ** 2 / (each / total) for place, each in enumerate(expected))
    assert square < 27.6, "chi-square at an error rate of 1e-6"
