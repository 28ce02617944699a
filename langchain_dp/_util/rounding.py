"""Numbers as they are printed: where the printed one must be a bound too, and times."""

from __future__ import annotations

import math

_OFF = 1e-12
_LARGE = 1e300


def rounded_up(value: float, digits: int = 3) -> float:
    """The smallest number of so many digits that is not below ``value``.

    Args:
        value: Above 0 and finite, or 0.
        digits: Digits to keep, at least 1.
    """
    return _rounded(value, digits, 1)


def bound(value: float, digits: int = 6) -> str:
    """The smallest number of so many digits that is not below ``value``, printed: a loss that was, or may be, spent.

    Args:
        value: At least 0; infinity is "inf".
        digits: Digits to keep, at least 1.
    """
    return _printed(value, digits, 1)


def room(value: float, digits: int = 6) -> str:
    """The largest number of so many digits that is not above ``value``, printed: a loss that is left to be spent.

    Args:
        value: Finite or infinite; what is below 0 by rounding alone is 0.
        digits: Digits to keep, at least 1.
    """
    return _printed(value, digits, -1)


def took(seconds: float) -> str:
    """A time as it is said: in minutes, or in seconds where that is one or less."""
    return f"{max(1, round(seconds / 60)):,} min" if seconds >= 90 else f"{max(1, round(seconds))} s"


def _printed(value: float, digits: int, side: int) -> str:
    """Printed on one side; but what sums of decimals are off by, as .1 + .2 is, is no digit."""
    value = max(value, 0.0)
    plain = f"{value:.{digits}g}"
    if math.isinf(value) or value > _LARGE or abs(float(plain) - value) <= _OFF * value:
        return plain
    return f"{_rounded(value, digits, side):.{digits}g}"


def _rounded(value: float, digits: int, side: int) -> float:
    """The nearest number of so many digits that is not below ``value`` (``side`` 1), or not above it (-1)."""
    if value == 0:
        return 0.0
    places = digits - 1 - math.floor(math.log10(value))
    near = round(value, places)
    return near if side * (near - value) >= 0 else round(near + side * 10.0**-places, places)
