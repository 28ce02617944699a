"""Uniform numbers in arrays, from the same sources as :mod:`langchain_dp.mechanisms.randomness`.

Bulk noise needs millions of bits. From the operating system they come as one block of bytes; from any other source one
whole number a row, so that a row's bits do not depend on how many rows are asked for together.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness


def words(rng: Randomness, rows: int, columns: int) -> NDArray[np.uint64]:
    """Independent uniform 64-bit numbers, ``rows`` x ``columns``."""
    if isinstance(rng, SystemRandomness):
        raw = secrets.token_bytes(8 * rows * columns)
    else:
        size = 8 * columns
        raw = b"".join(rng.randbelow(1 << (8 * size)).to_bytes(size, "little") for _ in range(rows))
    return np.frombuffer(raw, dtype="<u8").reshape(rows, columns)


class Words:
    """Uniform 64-bit numbers of an array, ``rows`` x ``columns``, each given out once.

    Whatever thread asks: numbers of the operating system are drawn when they are asked for, since nobody could tell
    their order; those of any other source at once, here, so that they are the same however threads take turns.
    """

    def __init__(self, rng: Randomness, rows: int, columns: int) -> None:
        self._rng = rng
        self._columns = columns
        self._drawn = None if isinstance(rng, SystemRandomness) else words(rng, rows, columns)

    def uniforms(self, start: int, stop: int) -> NDArray[np.float64]:
        """Numbers of these rows, on the midpoints of a grid of 2^-52: strictly between 0 and 1."""
        drawn = words(self._rng, stop - start, self._columns) if self._drawn is None else self._drawn[start:stop]
        numbers = (drawn >> np.uint64(12)).astype(np.float64)
        numbers += 0.5
        numbers *= 2.0**-52
        return numbers
