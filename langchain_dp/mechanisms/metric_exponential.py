"""The exponential mechanism of metric privacy: a word of a public table, drawn by its distance to a private point.

P(w | x) is proportional to exp(-(eta/2) |x - w|). One half of eta pays for the score, the other for the normaliser, so
that the promise is that of the noise mechanism at the same eta; but the chances are spread over the words and not over
the space between them, which in many dimensions keeps a word at a far smaller eta.

A draw takes two steps, since a table of 400,000 chances per word would fill the memory: first a bucket of neighbouring
rows, from a table that is kept per word, then a row of the bucket, whose chances are worked out again.

References: McSherry and Talwar 2007, "Mechanism design via differential privacy"; Chatzikokolakis, Andrés, Bordenabe,
Palamidessi 2013, "Broadening the scope of differential privacy using metrics" (the metric).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from langchain_dp import _forks
from langchain_dp.mechanisms._bits import words
from langchain_dp.mechanisms._nearest import BUCKET, NearestVector, sharded
from langchain_dp.mechanisms.metric_laplace import checked, checked_eta
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

Ids = NDArray[np.int64]
Points = NDArray[np.float64]

CACHE_BYTES = 256 * 2**20
"""Memory for the tables of words that were drawn for, unless told otherwise."""
_BUCKETS = 12_800  # at most so many a word: 100 kB each
_TOGETHER = 32  # words whose tables are built in one matrix product, and in one thread
_GROUP = 4 * _TOGETHER  # words whose tables are held at once beside the cache
_COLUMNS = 4096
_STEP = 2**17  # numbers of buckets that are worked out at once: 1 MB, which stays in a core's cache
_WHOLE = float(2**63 - 2**40)  # chances are whole multiples of 1/_WHOLE; with rounding their sum stays below 2^63


class MetricExponential:
    """Draws words by their distance to a private point.

    Args:
        table: Public table, the same whatever the points are.
        eta: Privacy loss per unit of distance, at least 1e-9.
        cache_bytes: Memory for the tables of words seen before; the least recently used make room. How long a draw
            takes shows whether a word was seen before.
        threads: Threads to build tables with; by default as many as there are processors.

    Formal guarantee:
        For two inputs of the same number of points, the chance of any output changes by at most
        exp(eta * sum_i |x_i - x'_i|): one draw costs a ``MetricEvent(eta)``. It holds for real numbers. Here distances
        and chances are worked out in double precision, which moves them by about 1e-8 in relative terms, and are
        rounded to multiples of 2^-63 at both steps, which moves the chance of any set of words by at most
        (buckets + rows a bucket) * 2^-63, below 1e-15. Every row that may be written keeps a chance above 0 from
        every point, and the draw itself is exact: a uniform whole number against a cumulative table.
    """

    def __init__(
        self, table: NearestVector, eta: float, *, cache_bytes: int = CACHE_BYTES, threads: int | None = None
    ) -> None:
        self.eta = checked_eta(eta)
        self._table = table
        self._threads = threads
        rows = len(table.vectors)
        self._size = min(BUCKET, 1 << max(0, (-(-rows // _BUCKETS) - 1).bit_length()))
        self._lines, self._squares = table.buckets(self._size)
        self._allowed = np.zeros(self._squares.shape, dtype=bool)
        self._allowed.reshape(-1)[:rows] = table.allowed
        self._open: NDArray[np.bool_] = np.asarray(self._allowed.any(axis=1))
        self._most = max(_GROUP, cache_bytes // (8 * len(self._open)))
        self._cached: OrderedDict[int, NDArray[np.uint64]] = OrderedDict()
        self._lock = threading.Lock()
        _forks.renew_lock(self)

    def draw(self, keys: Ids, points: Callable[[Ids], NDArray[np.floating]], *, rng: Randomness | None = None) -> Ids:
        """One row of the table per key.

        Args:
            keys: Private; equal keys have equal points, now and in later calls.
            points: Points of keys, (k, d): called for each key once while its table is kept, and for every draw.
            rng: Source of randomness; operating-system entropy by default.

        Returns:
            One row number per key. Only these may leave.
        """
        source = rng or SystemRandomness()
        bits = words(source, len(keys), 2) >> np.uint64(1)
        distinct, which = np.unique(keys, return_inverse=True)
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(distinct)))
        buckets = np.empty(len(keys), dtype=np.int64)
        for number, cumulative in enumerate(self._tables(distinct, points)):
            drawn = order[ends[number - 1] if number else 0 : ends[number]]
            accepted = _below(bits[drawn, 0], cumulative[-1], source)
            buckets[drawn] = np.searchsorted(cumulative, accepted, side="right")
        rows = np.empty(len(keys), dtype=np.int64)
        # Half of the draws fall into the word's own bucket: each pair of a word and a bucket is worked out once.
        pairs, first, which = np.unique(which * len(self._open) + buckets, return_index=True, return_inverse=True)
        within = self._within(pairs % len(self._open), keys[first], points)
        step = max(1, _STEP // self._size)
        for start in range(0, len(keys), step):
            block = slice(start, start + step)
            cumulative = within[which[block]]
            accepted = _below(bits[block, 1], cumulative[:, -1], source)
            rows[block] = (cumulative <= accepted[:, None]).sum(axis=1)
        return buckets * self._size + rows

    def _tables(self, keys: Ids, points: Callable[[Ids], NDArray[np.floating]]) -> Iterator[NDArray[np.uint64]]:
        """Cumulative chances of the buckets for each key, from the cache or new."""
        for start in range(0, len(keys), _GROUP):
            group = keys[start : start + _GROUP].tolist()
            with self._lock:
                found = {key: self._cached[key] for key in group if key in self._cached}
                for key in found:
                    self._cached.move_to_end(key)
            missing = [key for key in group if key not in found]
            found.update(zip(missing, self._build(missing, points), strict=True))
            with self._lock:
                self._cached.update(found)
                while len(self._cached) > self._most:
                    self._cached.popitem(last=False)
            yield from (found[key] for key in group)

    def _build(
        self, keys: Sequence[int], points: Callable[[Ids], NDArray[np.floating]]
    ) -> Iterator[NDArray[np.uint64]]:
        def blocks() -> Iterator[Points]:
            for start in range(0, len(keys), _TOGETHER):
                asked = np.array(keys[start : start + _TOGETHER], dtype=np.int64)
                yield checked(points(asked), self._table)

        for masses in sharded(self._masses, blocks(), self._threads if len(keys) > _TOGETHER else 1):
            yield from np.cumsum(_whole(masses, self._open), axis=1)

    def _masses(self, points: Points) -> NDArray[np.float64]:
        """Sum of the weights of every bucket, for every point."""
        masses = np.zeros((len(points), len(self._open)))
        for start, weight in weights(self._table, points, self.eta):
            places = np.arange(0, weight.shape[1], self._size)
            first = start // self._size
            masses[:, first : first + len(places)] = np.add.reduceat(weight, places, axis=1)
        return masses

    def _within(self, buckets: Ids, keys: Ids, points: Callable[[Ids], NDArray[np.floating]]) -> NDArray[np.uint64]:
        """Cumulative chances of the rows of a bucket, for each pair of a bucket and a key."""
        cumulative = np.empty((len(buckets), self._size), dtype=np.uint64)
        step = max(1, _STEP // (self._size * self._lines.shape[2]))
        for start in range(0, len(buckets), step):
            block = slice(start, start + step)
            asked = checked(points(keys[block]), self._table)
            lines = self._lines[buckets[block]].astype(np.float64)
            squares = np.einsum("ij,ij->i", asked, asked)[:, None] + self._squares[buckets[block]]
            apart = squares - 2.0 * np.matmul(lines, asked[:, :, None])[:, :, 0]
            distance = _settled(apart, squares, lambda i, j: asked[i] - lines[i, j])  # noqa: B023  # called at once
            allowed = self._allowed[buckets[block]]
            distance[~allowed] = np.inf
            distance -= distance.min(axis=1, keepdims=True)
            distance *= -self.eta / 2
            cumulative[block] = np.cumsum(_whole(np.exp(distance), allowed), axis=1)
        return cumulative


def weights(table: NearestVector, points: Points, eta: float) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Weights exp(-(eta/2) (|x - w| - |x - nearest|)) of all rows, in blocks: (first row, (points, rows)).

    Rows that are never written have weight 0.
    """
    nearest = np.linalg.norm(points - table.vectors[table.find(points)], axis=1)
    for start in range(0, len(table.vectors), _COLUMNS):
        distance = distances(table, points, slice(start, start + _COLUMNS))
        distance[:, ~table.allowed[start : start + _COLUMNS]] = np.inf
        distance -= nearest[:, None]
        distance *= -eta / 2
        yield start, np.exp(distance, out=distance)


def distances(table: NearestVector, points: Points, rows: slice) -> NDArray[np.float64]:
    """Distances of points to a block of rows, (points, rows), in double precision, also where they are near 0."""
    block = table.vectors[rows].astype(np.float64)
    squares = np.einsum("ij,ij->i", points, points)[:, None] + table.squares[rows]
    apart = squares - 2.0 * (points @ block.T)
    return _settled(apart, squares, lambda i, j: points[i] - block[j])


def _settled(
    apart: NDArray[np.float64], squares: NDArray[np.float64], difference: Callable[[Ids, Ids], Points]
) -> NDArray[np.float64]:
    """Roots of squared distances that were found by subtraction, which leaves rounding only where they are near 0.

    There the difference of the vectors is taken first.
    """
    i, j = np.divmod(np.flatnonzero(apart < 1e-6 * squares), apart.shape[1])
    apart[i, j] = np.square(difference(i, j)).sum(axis=1)
    return np.sqrt(apart, out=apart)


def _whole(weight: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Weights of each line as whole numbers that add up to just below 2^63; at least 1 where allowed, 0 elsewhere."""
    share = weight / weight.sum(axis=1, keepdims=True) * _WHOLE
    return np.where(allowed, share.astype(np.uint64) + np.uint64(1), np.uint64(0))


def _below(bits: NDArray[np.uint64], totals: NDArray[np.uint64] | np.uint64, source: Randomness) -> NDArray[np.uint64]:
    """Uniform whole numbers below each total: 63 bits, drawn again in the rare case that they are not."""
    bits = bits.copy()
    while len(again := np.flatnonzero(bits >= totals)):
        bits[again] = words(source, len(again), 1)[:, 0] >> np.uint64(1)
    return bits
