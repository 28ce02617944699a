"""Numbers as they are printed where the printed one must be a bound too."""

from __future__ import annotations

import math


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
