"""The probability that a word stays unchanged, as a function of eta.

Noise: along a direction v the nearest word of x + l v is x while l < l* = min_w |w - x|^2 / (2 v.(w - x))_+. The length
l is Gamma(d, 1/eta), so P(unchanged | eta) = E_v[P(d, eta l*)], P the lower regularized gamma function.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc

from langchain_dp.mechanisms._nearest import NearestVector, sharded
from langchain_dp.mechanisms.metric_exponential import distances

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_DIRECTIONS = 8  # per word. Five times as many for a frequent one
_ROWS = 32
_COLUMNS = 2048
_BINS = 4096


class LaplaceCurve:
    """The curve of the noise mechanism."""

    def __init__(self, table: NearestVector, ids: Ids, rng: np.random.Generator, threads: int | None = None) -> None:
        self._dimension = table.vectors.shape[1]
        distinct, self._which, counts = np.unique(ids, return_inverse=True, return_counts=True)
        self._shares = counts / len(ids)
        nearest = np.empty(len(distinct))
        self._reach: list[tuple[Ids, Floats]] = []  # places among the distinct words, l* by direction
        frequent = counts >= _DIRECTIONS
        for places, number in ((np.flatnonzero(~frequent), _DIRECTIONS), (np.flatnonzero(frequent), 5 * _DIRECTIONS)):
            reach, nearest[places] = self._measure(table, distinct[places], number, rng, threads)
            self._reach.append((places, reach))
        self.nearest = nearest[self._which]

    def _measure(
        self, table: NearestVector, ids: Ids, number: int, rng: np.random.Generator, threads: int | None
    ) -> tuple[Floats, Floats]:
        directions = rng.standard_normal((len(ids), number, self._dimension))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        blocks = [slice(start, start + _ROWS) for start in range(0, len(ids), _ROWS)]
        parts = list(sharded(lambda block: _reach(table, ids[block], directions[block]), blocks, threads))
        if not parts:
            return np.empty((0, number)), np.empty(0)
        return np.concatenate([reach for reach, _ in parts]), np.concatenate([nearest for _, nearest in parts])

    def unchanged(self, eta: float) -> Floats:
        chances = np.empty(len(self._shares))
        for places, reach in self._reach:
            chances[places] = gammainc(self._dimension, eta * reach).mean(axis=1)
        return np.asarray(chances[self._which])

    def error(self, eta: float) -> float:
        variance = 0.0
        for places, reach in self._reach:
            spread = gammainc(self._dimension, eta * reach).var(axis=1, ddof=1) / reach.shape[1]
            variance += float(np.sum(self._shares[places] ** 2 * spread))
        return math.sqrt(variance)


def _reach(table: NearestVector, ids: Ids, directions: Floats) -> tuple[Floats, Floats]:
    """Return l*, (words, directions), and the distance to the nearest other word."""
    points = table.vectors[ids]
    flat = directions.reshape(-1, directions.shape[2]).astype(np.float32)
    here = np.einsum("ikd,id->ik", directions, points).astype(np.float32)
    inverse = np.zeros(directions.shape[:2], dtype=np.float32)  # largest 1/l* so far
    nearest = np.full(len(ids), np.inf)
    for start in range(0, len(table.vectors), _COLUMNS):
        rows = slice(start, start + _COLUMNS)
        block = table.vectors[rows]
        apart = _squared(points, block, table.squares[ids], table.squares[rows])
        apart[:, ~table.allowed[rows]] = np.inf
        inside = np.flatnonzero((start <= ids) & (ids < start + len(block)))
        apart[inside, ids[inside] - start] = np.inf
        nearest = np.minimum(nearest, np.sqrt(apart.min(axis=1)))
        # Between words of one vector, the earlier one in the table wins every tie.
        same, other = np.divmod(np.flatnonzero(apart == 0), len(block))
        inverse[same[start + other < ids[same]]] = np.inf
        apart[same, other] = np.inf
        ahead = (flat @ block.T).reshape(*inverse.shape, -1)
        ahead -= here[:, :, None]
        ahead *= np.divide(np.float32(2.0), apart, out=apart)[:, None, :]
        inverse = np.maximum(inverse, ahead.max(axis=2))
    with np.errstate(divide="ignore"):
        return 1.0 / np.abs(inverse.astype(np.float64)), nearest  # a maximum of zeros may be -0.0


def _squared(
    points: NDArray[np.float32], block: NDArray[np.float32], here: Floats, there: Floats
) -> NDArray[np.float32]:
    squares = here.astype(np.float32)[:, None] + there.astype(np.float32)
    apart = points @ block.T
    apart *= -2
    apart += squares
    i, j = np.divmod(np.flatnonzero(apart < np.float32(1e-2) * squares), apart.shape[1])
    apart[i, j] = np.square(points[i] - block[j]).sum(axis=1)
    return apart


class ExponentialCurve:
    """The curve of the exponential mechanism, 1 / sum_w exp(-(eta/2) |x - w|)."""

    def __init__(
        self, table: NearestVector, ids: Ids, threads: int | None = None, *, others: Ids | None = None
    ) -> None:
        distinct = np.unique(ids if others is None else np.concatenate([ids, others]))
        self._ids, self._which = distinct, np.searchsorted(distinct, ids)
        width = 2.001 * float(np.sqrt(table.squares.max())) / _BINS
        blocks = [distinct[start : start + _ROWS] for start in range(0, len(distinct), _ROWS)]
        parts = list(sharded(lambda block: _histogram(table, block, width), blocks, threads))
        counts, means = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        used = np.flatnonzero(counts.any(axis=0))  # few pairs of words are near the largest distance
        self._counts, self._means = counts[:, used], means[:, used]
        self.nearest = np.concatenate([part[2] for part in parts])[self._which]

    def unchanged(self, eta: float) -> Floats:
        return np.asarray(np.exp(-self._log_norms(eta))[self._which])

    def log_norm(self, ids: Ids, eta: float) -> Floats:
        return np.asarray(self._log_norms(eta)[np.searchsorted(self._ids, ids)])

    def _log_norms(self, eta: float) -> Floats:
        return np.asarray(np.log1p((self._counts * np.exp((-eta / 2) * self._means)).sum(axis=1)))

    def error(self, eta: float) -> float:
        return 0.0


def _histogram(table: NearestVector, ids: Ids, width: float) -> tuple[Floats, Floats, Floats]:
    points = table.vectors[ids].astype(np.float64)
    shape = (len(ids), _BINS + 1)  # the last bin takes excluded words
    lines = np.arange(shape[0])[:, None] * shape[1]
    counts, sums = np.zeros(shape), np.zeros(shape)
    nearest = np.full(len(ids), np.inf)
    for start in range(0, len(table.vectors), _COLUMNS):
        rows = slice(start, start + _COLUMNS)
        apart = distances(table, points, rows)
        bins = np.minimum((apart / width).astype(np.int64), _BINS - 1)
        left_out = (ids[:, None] == np.arange(start, start + apart.shape[1])) | ~table.allowed[rows]
        bins[left_out] = _BINS
        nearest = np.minimum(nearest, apart.min(axis=1, where=~left_out, initial=np.inf))
        bins += lines
        flat, size = bins.reshape(-1), counts.size
        counts += np.bincount(flat, minlength=size).reshape(shape)
        sums += np.bincount(flat, weights=apart.reshape(-1), minlength=size).reshape(shape)
    counts, sums = counts[:, :_BINS], sums[:, :_BINS]
    return counts, sums / np.maximum(counts, 1), nearest
