"""Prints numbers that stay bounds after rounding, and times."""

from __future__ import annotations

import math

_OFF = 1e-12
_LARGE = 1e300


def rounded_up(value: float, digits: int = 3) -> float:
    """Return the smallest number of ``digits`` digits that is not below ``value``, which is finite and not negative."""
    return _rounded(value, digits, 1)


def bound(value: float, digits: int = 6) -> str:
    """Print the smallest number of ``digits`` digits that is not below ``value``: a loss that was, or may be, spent."""
    return _printed(value, digits, 1)


def room(value: float, digits: int = 6) -> str:
    """Print the largest number of ``digits`` digits not above ``value``, a loss that is left. Below 0 counts as 0."""
    return _printed(value, digits, -1)


def took(seconds: float) -> str:
    """Print a time in minutes, or below 90 seconds in seconds."""
    return f"{max(1, round(seconds / 60)):,} min" if seconds >= 90 else f"{max(1, round(seconds))} s"


def _printed(value: float, digits: int, side: int) -> str:
    """Print rounded to one side, without the rounding errors of sums such as .1 + .2."""
    value = max(value, 0.0)
    plain = f"{value:.{digits}g}"
    if math.isinf(value) or value > _LARGE or abs(float(plain) - value) <= _OFF * value:
        return plain
    return f"{_rounded(value, digits, side):.{digits}g}"


def _rounded(value: float, digits: int, side: int) -> float:
    """The nearest number of this many digits not below ``value`` (``side`` 1), or not above it (-1)."""
    if value == 0:
        return 0.0
    places = digits - 1 - math.floor(math.log10(value))
    near = round(value, places)
    return near if side * (near - value) >= 0 else round(near + side * 10.0**-places, places)
