"""The exponential mechanism of metric privacy: a word of a public table, drawn by its distance to a private point.

P(w | x) is proportional to exp(-(eta/2) |x - w|). One half of eta pays for the score, the other for the normalizer, so
that the promise is that of the noise mechanism at the same eta. But the chances are spread over the words and not over
the space between them, which in many dimensions keeps a word at a far smaller eta.

A draw takes two steps, since a table of 400,000 chances per word would fill the memory: first a bucket of neighbouring
rows, by an upper bound of its weight, then a row of the bucket, by its exact weight. What lies between the exact weight
and the bound is refused and drawn again. So only the bounds are kept, one number a bucket, and they may be rough:
single precision, rounded up, changes how often a draw is repeated (about once in 3,000 times) and never the law.

References: McSherry and Talwar 2007, "Mechanism design via differential privacy". Chatzikokolakis, Andrés, Bordenabe,
Palamidessi 2013, "Broadening the scope of differential privacy using metrics" (the metric).
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import forks, validate
from langchain_dp.accounting.events import MetricEvent
from langchain_dp.mechanisms._nearest import BUCKET, NearestVector, sharded
from langchain_dp.mechanisms.metric_noise import checked, checked_eta
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness, words

Ids = NDArray[np.int64]
Points = NDArray[np.float64]
Bounds = NDArray[np.float32]

CACHE_BYTES = 64 * 2**20
"""Default memory for the cache of words: some 32,000 words of a large table."""
BUCKETS = 512
"""Buckets of a table, at most. Of more than 524,288 rows one per 1,024. A word keeps a bound of 4 bytes of each."""
_BESIDE = 512  # bytes that keeping a word takes beside its bounds
_TOGETHER = 128  # words whose bounds are worked out in one matrix product, and in one thread
_GROUP = 1024  # words whose bounds are held at once beside the cache
_PAIRS = 128  # words whose chances within one bucket are worked out at once: 1 MB, which stays in a core's cache
_COLUMNS = 4096
_LEAST = 2.0**-100  # of a bound: a bucket of that weight counts as 1/_WHOLE
_WHOLE = float(2**63 - 2**40)  # chances are whole multiples of 1/_WHOLE. With rounding their sum stays below 2^63


@dataclasses.dataclass(frozen=True, eq=False)
class MetricExponential:
    """Draw words by their distance to a private point.

    Args:
        event: Cost of one draw. Its ``eta`` is the privacy loss per unit of distance, at least 1e-9.
        table: Public table, which does not depend on the points.
        cache_bytes: Memory for the cache of words, at least 0. The least recently used make room. How
            long a draw takes shows whether a word was seen before.
        threads: Threads to work with. By default as many as there are processors.

    Raises:
        InvalidParameter: A parameter is out of bounds.

    Formal guarantee:
        For two inputs of the same number of points, the chance of any output changes by at most
        exp(eta * sum_i |x_i - x'_i|): one draw costs ``event``. It holds for real numbers. Here distances
        and weights are worked out in double precision, which moves them by about 1e-8 in relative terms. At both steps
        a share is a quotient of doubles, scaled by a product: each of the four operations moves a chance by at most
        2^-53 in relative terms, and so does the sum over the chances that are left after a refusal, together at most
        2^-50. The rounding of the sum of the bounds is common to all buckets and cancels. Then shares are rounded to
        multiples of 2^-63, and raised by one, which moves the chance of any set of words by at most
        (buckets + rows a bucket) * 2^-63, below 1e-15. Every row that may be written keeps a chance above 0 from
        every point, and the draw itself is exact: uniform whole numbers against cumulative tables. A bound lies above
        the weight by more than rounding can move it, so that a refused draw says nothing and changes no chance. How
        often one is refused, like what is cached, shows in the time alone.

    Examples:
        >>> mechanism = MetricExponential(MetricEvent(1000.0), table)  # so large an eta hides nothing
        >>> ledger = MetricLedger()
        >>> ledger.spend(mechanism.event.eta, [Owner("letter 1", user="ann")], table="glove")  # charge first, then draw
        >>> mechanism.release(np.array([2, 0]), lambda ids: table.vectors[ids])
        array([2, 0])
    """

    event: MetricEvent
    table: NearestVector
    _: dataclasses.KW_ONLY
    cache_bytes: int = CACHE_BYTES
    threads: int | None = None
    _size: int = dataclasses.field(init=False, repr=False)  # rows of a bucket
    _open: NDArray[np.bool_] = dataclasses.field(init=False, repr=False)  # buckets with a row that may be written
    _kept: _Kept = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        checked_eta(self.event.eta)
        rows = len(self.table.vectors)
        size = min(BUCKET, 1 << max(0, (-(-rows // BUCKETS) - 1).bit_length()))
        usable = np.logical_or.reduceat(self.table.allowed, np.arange(0, rows, size))
        room = validate.integer("cache_bytes", self.cache_bytes, at_least=0) // (4 * len(usable) + _BESIDE)
        vars(self).update(_size=size, _open=usable, _kept=_Kept(room))  # frozen: the only way

    def release(
        self, keys: Ids, points: Callable[[Ids], NDArray[np.floating]], *, rng: Randomness | None = None
    ) -> Ids:
        """One row of the table per key. Only these may leave.

        Args:
            keys: Private. Equal keys have equal points, now and in later calls.
            points: Points of keys, (k, d): called once for the distinct keys of a call, some at a time.
            rng: Source of randomness. Operating-system entropy by default.

        Raises:
            InvalidParameter: The points do not fit the table.
        """
        source = rng or SystemRandomness()
        bits = _bits(source, len(keys))
        order = np.argsort(keys, kind="stable")
        distinct, first = np.unique(keys[order], return_index=True)
        ends = np.append(first, len(keys))
        rows = np.empty(len(keys), dtype=np.int64)
        for start in range(0, len(distinct), _GROUP):
            group = distinct[start : start + _GROUP]
            taken = order[first[start] : ends[start + len(group)]]
            asked = checked(points(group), self.table)
            nearest, bounds = self._bounded(group, asked)
            which = np.searchsorted(group, keys[taken])
            rows[taken] = self._drawn(asked, nearest, bounds, which, bits[taken], source)
            self._kept.keep(group, nearest, bounds)
        return rows

    def _bounded(self, keys: Ids, points: Points) -> tuple[Points, Bounds]:
        """For each point the distance to the nearest row, and bounds of the weights of the buckets: kept ones or new.

        The weight of a row is exp(-(eta/2) (|x - w| - |x - nearest|)). That of a bucket is the sum over its rows.
        """
        nearest, bounds = np.empty(len(keys)), np.empty((len(keys), len(self._open)), dtype=np.float32)
        missing = []
        for i, kept in enumerate(self._kept.of(keys)):
            if kept is None:
                missing.append(i)
            else:
                nearest[i], bounds[i] = kept
        blocks = [b.tolist() for b in np.array_split(missing, -(-len(missing) // _TOGETHER))] if missing else []
        found = sharded(lambda block: self._bound(points[block]), blocks, self.threads if len(blocks) > 1 else 1)
        for block, (distance, bound) in zip(blocks, found, strict=True):
            nearest[block], bounds[block] = distance, bound
        return nearest, bounds

    def _bound(self, points: Points) -> tuple[Points, Bounds]:
        """Distance to the nearest row, and bounds of all buckets, of every point. One pass over the table.

        Single precision gives distances that are too short, and their weights against the shortest of each bucket.
        Exponents are off by 3 * 2^-24 in relative terms, weights by a few units of 2^-24, and a sum of n terms by
        n * 2^-24 in whatever order it is made: ``slower`` and ``more`` are above all of it. ``_LEAST`` is above what is
        too small for single precision.
        """
        least = np.empty((len(points), len(self._open)), dtype=np.float32)
        sums = np.empty_like(least)
        slower = np.float32(-min(self.event.eta / 2, 1e30) * (1 - 2.0**-21))
        more = 1 + (self._size + 64) * 2.0**-23
        for start, squares in self.table.below(points, len(self._open) * self._size):
            apart = squares.reshape(len(points), -1, self._size)
            here = slice(start // self._size, start // self._size + apart.shape[1])
            np.sqrt(apart, out=apart)
            least[:, here] = apart.min(axis=2)
            apart -= least[:, here, None]
            with np.errstate(over="ignore"):  # to an exponent of minus infinity
                apart *= slower
            sums[:, here] = np.exp(apart, out=apart).sum(axis=2)
        least[:, ~self._open] = np.inf
        nearest, bounds = np.empty(len(points)), np.empty_like(least)
        for i, point in enumerate(points):
            first = int(least[i].argmin())
            exact = {first: self._distances(first, point[None])}
            # The nearest row may lie in another bucket, where rounding hides it: mostly there is none.
            for bucket in np.flatnonzero(least[i] < exact[first].min()).tolist():
                exact[bucket] = self._distances(bucket, point[None])
            nearest[i] = min(distance.min() for distance in exact.values())
            further = np.maximum(least[i].astype(np.float64) - nearest[i], 0.0)
            bounds[i] = np.maximum(np.exp(-self.event.eta / 2 * further) * sums[i] * more, _LEAST)
            for bucket, distance in exact.items():
                bounds[i, bucket] = _tight(self._weights(distance, nearest[i]))
        bounds[:, ~self._open] = 0
        return nearest, bounds

    def _distances(self, bucket: int, points: Points) -> Points:
        """Distances to the rows of a bucket, (points, rows). Infinite to those that are never written."""
        rows = slice(bucket * self._size, (bucket + 1) * self._size)
        distance = distances(self.table, points, rows)
        distance[:, ~self.table.allowed[rows]] = np.inf
        return distance

    def _weights(self, distance: Points, nearest: Points | float) -> Points:
        """Weights of rows at these distances, at most 1."""
        distance -= nearest
        np.maximum(distance, 0.0, out=distance)
        distance *= -self.event.eta / 2
        return np.exp(distance, out=distance)

    def _drawn(
        self, points: Points, nearest: Points, bounds: Bounds, which: Ids, bits: NDArray[np.uint64], source: Randomness
    ) -> Ids:
        """One row per draw. ``which`` says for which point. Bounds that refused a draw are tight afterwards."""
        rows = np.full(len(which), -1)
        left = np.arange(len(which))
        while len(left):
            few, places = np.unique(which[left], return_inverse=True)
            tighter = bounds[few]
            rows[left] = self._tried(points[few], nearest[few], tighter, places, bits[left])
            bounds[few] = tighter
            left = left[rows[left] < 0]
            bits[left] = _bits(source, len(left))
        return rows

    def _tried(self, points: Points, nearest: Points, bounds: Bounds, which: Ids, bits: NDArray[np.uint64]) -> Ids:
        """One row per draw, or -1 where it is refused."""
        shares = bounds / bounds.sum(axis=1, keepdims=True, dtype=np.float64)
        cumulative = np.cumsum(_whole(shares, self._open), axis=1)
        buckets = np.empty(len(which), dtype=np.int64)
        for line, drawn in zip(cumulative, _members(which, len(points)), strict=True):
            buckets[drawn] = np.searchsorted(line, bits[drawn, 0], side="right")
        inside = np.flatnonzero(buckets < len(self._open))  # all but one in 2^23
        # Half of the draws fall into the word's own bucket: each pair of a bucket and a word is worked out once.
        pairs, of = np.unique(buckets[inside] * len(points) + which[inside], return_inverse=True)
        drawn_of = [inside[members] for members in _members(of, len(pairs))]
        edges = {*range(0, len(pairs), _PAIRS), *np.flatnonzero(np.diff(pairs // len(points), prepend=-1)).tolist()}
        blocks = [slice(*edge) for edge in itertools.pairwise([*sorted(edges), len(pairs)])]

        def work(block: slice) -> None:
            bucket, few = int(pairs[block.start]) // len(points), pairs[block] % len(points)
            weight = self._weights(self._distances(bucket, points[few]), nearest[few, None])
            allowed = self.table.allowed[bucket * self._size : (bucket + 1) * self._size]
            chances = np.cumsum(_whole(weight / bounds[few, bucket, None].astype(np.float64), allowed), axis=1)
            for number, (line, drawn) in enumerate(zip(chances, drawn_of[block], strict=True)):
                places = np.searchsorted(line, bits[drawn, 1], side="right")
                rows[drawn] = np.where(places < len(allowed), bucket * self._size + places, -1)
                if places.max() == len(allowed):
                    bounds[few[number], bucket] = _tight(weight[number])

        rows = np.full(len(which), -1)
        list(sharded(work, blocks, self.threads if len(blocks) > 1 else 1))
        return rows


class _Kept:
    """Bounds of the words that were drawn for last. Copies: a view would keep the bounds of a whole group."""

    def __init__(self, most: int) -> None:
        self.words: OrderedDict[int, tuple[float, Bounds]] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()
        forks.renew_lock(self)

    def of(self, keys: Ids) -> list[tuple[float, Bounds] | None]:
        with self._lock:
            return [self.words.get(key) for key in keys.tolist()]

    def keep(self, keys: Ids, nearest: Points, bounds: Bounds) -> None:
        with self._lock:
            for key, distance, bound in zip(keys.tolist(), nearest.tolist(), bounds, strict=True):
                self.words[key] = distance, bound.copy()
                self.words.move_to_end(key)
            while len(self.words) > self._most:
                self.words.popitem(last=False)


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


def _whole(share: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Shares of 2^63 as whole numbers that add up to just below it. At least 1 where allowed, 0 elsewhere."""
    return np.where(allowed, (share * _WHOLE).astype(np.uint64) + np.uint64(1), np.uint64(0))


def _tight(weight: Points) -> np.float32:
    """A bound of the sum of weights of double precision, above what rounding can do to it."""
    return np.float32(max(weight.sum() * (1 + 2.0**-20), _LEAST))


def _bits(source: Randomness, count: int) -> NDArray[np.uint64]:
    """Two uniform numbers below 2^63 per draw."""
    return words(source, count, 2) >> np.uint64(1)


def _members(of: Ids, count: int) -> list[Ids]:
    """Return which places belong to each of so many groups."""
    return np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of, minlength=count))[:-1])
