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


def uniforms(rng: Randomness, rows: int, columns: int) -> NDArray[np.float64]:
    """Independent uniform numbers on the midpoints of a grid of 2^-52: strictly between 0 and 1."""
    numbers = (words(rng, rows, columns) >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-52
    return numbers
