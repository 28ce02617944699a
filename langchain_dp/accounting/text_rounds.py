"""Privacy profiles of rounds of private texts.

References:
    [1] Dong, Durfee, Rogers. ICML 2020.
    [2] Balle, Barthe, Gaboardi. NeurIPS 2018 (advanced joint convexity).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from langchain_dp.accounting.profiles import Array, amplified

_MOST_POINTS = 1024  # about so many points for the losses of one sign
_LEAST, _MOST = 8, 128  # points for the range of one token
_RANGE = 300.0  # nats of one token, beyond which numbers overflow and nothing is promised
_LARGEST = 700.0  # nats whose exponential is finite. Beyond, the profile keeps the value that it has there


@functools.lru_cache(maxsize=64)
def _worst_case(bound: float, times: int) -> tuple[Array, Array]:
    r"""Return ascending points of g = e^epsilon and upper bounds of the profile, which chords between them keep.

    With D_k(g) the largest hockey-stick divergence of k adaptive releases [1], D_0(g) = (1 - g)_+ and

        D_k(g) = max over c in [1, e^bound] of p(c) D_(k-1)(g / c) + (1 - p(c)) D_(k-1)(g e^bound / c),
        p(c) = (e^bound - c) / (e^bound - 1).

    Between points c of the grid, c D(g / c) and c D(g e^bound / c) are convex and lie below their chords, whose maximum
    has a closed form.
    """
    if bound > _RANGE:
        return np.ones(1), np.ones(1)
    parts = min(max(_MOST_POINTS // times, _LEAST), _MOST)
    step = bound / parts
    ends = np.exp(step * np.arange(parts + 1))  # of the pieces of c
    whole, most = math.exp(bound), math.expm1(bound)
    # Ascending in the loss y = -ln g, from the smallest that can still become positive.
    with np.errstate(over="ignore"):  # of what is cut off at zero
        values: Array = np.maximum(-np.expm1(-step * np.arange(-times * parts, times * parts + 1)), 0.0)
    for _ in range(times):
        count = len(values) - parts
        reached = np.concatenate([np.zeros(parts), values])  # a loss below the first point stays without value
        largest = np.zeros(count)
        gain, fall = reached[parts : parts + count], reached[:count]
        for r in range(1, parts + 1):
            low, high = ends[r - 1], ends[r]
            gain_now = ends[r] * reached[parts + r : parts + r + count]
            fall_now = ends[r] * reached[r : r + count]
            gain_slope, fall_slope = (gain_now - gain) / (high - low), (fall_now - fall) / (high - low)
            gain_start, fall_start = gain - gain_slope * low, fall - fall_slope * low
            a0 = (whole * gain_start - fall_start) / most
            a1 = (whole * gain_slope - gain_start - fall_slope + fall_start) / most
            a2 = (fall_slope - gain_slope) / most
            inside = (a0 < 0) & (a2 < 0)
            peak = np.sqrt(np.divide(a0, a2, out=np.ones(count), where=inside))
            for c in (np.clip(np.where(inside, peak, high), low, high), low, high):
                np.maximum(largest, a0 / c + a1 + a2 * c, out=largest)
            gain, fall = gain_now, fall_now
        values = largest
    gained = step * np.arange(times * parts + 1)
    finite = gained <= _LARGEST
    return np.exp(gained[finite]), np.minimum(values[::-1], 1.0)[finite]


def composed_bounded_range(epsilons: Array, *, bound: float, times: int) -> Array:
    """Return the largest profile of ``times`` adaptive releases [1]."""
    points, deltas = _worst_case(bound, times)
    with np.errstate(over="ignore"):
        return np.asarray(np.interp(np.exp(epsilons), points, deltas))


def text_round(epsilons: Array, *, bound: float, tokens: int, q: float) -> Array:
    """Return the profile of a replace-one round, (1-q) M0 + q M1 against (1-q) M0 + q M2. M0 lacks the record.

    M1 against M0 has half the bound, so delta <= q ((1 - share) D(M1, M0) + share D(M1, M2)) at the amplified epsilon
    [2].
    """
    inner = amplified(epsilons, q)
    share = np.exp(epsilons - inner)
    absent = composed_bounded_range(inner, bound=bound / 2, times=tokens)
    replaced = composed_bounded_range(inner, bound=bound, times=tokens)
    return np.asarray(q * ((1 - share) * absent + share * replaced))
