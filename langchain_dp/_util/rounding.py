"""Prints bounds and times."""

from __future__ import annotations

import math

_OFF = 1e-12
_LARGE = 1e300


def rounded_up(value: float, digits: int = 3) -> float:
    """Return the smallest number of ``digits`` digits not below ``value``."""
    return _rounded(value, digits, 1)


def bound(value: float, digits: int = 6) -> str:
    """Print a loss, rounded up."""
    return _printed(value, digits, 1)


def room(value: float, digits: int = 6) -> str:
    """Print a remaining loss, rounded down."""
    return _printed(value, digits, -1)


def took(seconds: float) -> str:
    return f"{max(1, round(seconds / 60)):,} min" if seconds >= 90 else f"{max(1, round(seconds))} s"


def _printed(value: float, digits: int, side: int) -> str:
    """Ignore rounding errors of sums such as .1 + .2."""
    value = max(value, 0.0)
    plain = f"{value:.{digits}g}"
    if math.isinf(value) or value > _LARGE or abs(float(plain) - value) <= _OFF * value:
        return plain
    return f"{_rounded(value, digits, side):.{digits}g}"


def _rounded(value: float, digits: int, side: int) -> float:
    """``side`` is 1 for up and -1 for down."""
    if value == 0:
        return 0.0
    places = digits - 1 - math.floor(math.log10(value))
    near = round(value, places)
    return near if side * (near - value) >= 0 else round(near + side * 10.0**-places, places)
