"""Printed numbers that must be bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_dp._util.rounding import bound, room


@given(st.floats(1e-280, 1e300), st.integers(1, 12))
def test_a_printed_number_lies_on_its_side(value: float, digits: int) -> None:
    """If it breaks, an epsilon is printed below the true one, or more is left than there is."""
    step = 10.0 ** (1 - digits)
    above, below = float(bound(value, digits)), float(room(value, digits))
    assert below * (1 - 1e-12) <= value <= above * (1 + 1e-12)
    assert above == pytest.approx(value, rel=2 * step)
    assert below == pytest.approx(value, rel=2 * step)


def test_numbers_that_are_short_are_printed_as_they_are() -> None:
    """If it breaks, epsilon 3 is printed as 3.00001, or a number that has no digits ends the program."""
    for value, said in ((3.0, "3"), (0.1, "0.1"), (1e-5, "1e-05"), (0.0, "0"), (math.inf, "inf")):
        assert (bound(value), room(value)) == (said, said)
    assert (bound(9.9999999), room(9.9999999)) == ("10", "9.99999")
    assert room(-1e-18) == bound(-1e-18) == "0"
    assert (bound(0.1 + 0.2), room(0.3 - 0.1)) == ("0.3", "0.2")  # no digits, but what sums of decimals are off by
