"""Numbers as they are printed where the printed one must be a bound too."""

from __future__ import annotations

import math
from collections.abc import Callable


def rounded_up(value: float, digits: int = 3) -> float:
    """The smallest number of so many digits that is not below ``value``.

    Args:
        value: Above 0 and finite, or 0.
        digits: Digits to keep, at least 1.
    """
    if value == 0:
        return 0.0
    places = digits - 1 - math.floor(math.log10(value))
    up = round(value, places)
    return up if up >= value else round(up + 10.0**-places, places)


def bound(value: float, digits: int = 6) -> str:
    """A number that promises no more than ``value``, printed: a loss that was, or may be, spent.

    Args:
        value: At least 0; infinity is "inf".
        digits: Digits to keep, at least 1.
    """
    return _on(value, rounded_up, digits)


def room(value: float, digits: int = 6) -> str:
    """The largest number of so many digits that is not above ``value``, printed: a loss that is left to be spent.

    Args:
        value: Finite or infinite; what is below 0 by rounding alone is 0.
        digits: Digits to keep, at least 1.
    """
    return _on(value, _rounded_down, digits)


def _on(value: float, rounded: Callable[[float, int], float], digits: int) -> str:
    """Printed on one side; but what sums of decimals are off by, as .1 + .2 is, is no digit."""
    value = max(value, 0.0)
    plain = f"{value:.{digits}g}"
    if math.isinf(value) or value > _LARGE or abs(float(plain) - value) <= _OFF * value:
        return plain
    return f"{rounded(value, digits):.{digits}g}"


def _rounded_down(value: float, digits: int) -> float:
    if value == 0:
        return 0.0
    places = digits - 1 - math.floor(math.log10(value))
    down = round(value, places)
    return down if down <= value else round(down - 10.0**-places, places)


_OFF = 1e-12
_LARGE = 1e300
