"""The exponential mechanism of metric privacy.

A draw takes a bucket by an upper bound of its weight, then a row by its exact weight, and repeats draws between weight
and bound. So rough bounds change the time and not the law.
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
BUCKETS = 512
_BESIDE = 512  # bytes that keeping a word takes beside its bounds
_TOGETHER = 128  # words whose bounds are worked out in one matrix product, and in one thread
_GROUP = 1024  # words whose bounds are held at once beside the cache
_PAIRS = 128  # words whose chances within one bucket are worked out at once: 1 MB, which stays in a core's cache
_COLUMNS = 4096
_LEAST = 2.0**-100  # of a bound: a bucket of that weight counts as 1/_WHOLE
_WHOLE = float(2**63 - 2**40)  # chances are whole multiples of 1/_WHOLE. With rounding their sum stays below 2^63


@dataclasses.dataclass(frozen=True, eq=False)
class MetricExponential:
    """Draw words w of a public table by their distance to a private point x.

    P(w | x) is proportional to exp(-(eta/2) |x - w|) (McSherry and Talwar 2007, Chatzikokolakis, Andrés, Bordenabe and
    Palamidessi 2013). Half of eta pays for the score, half for the normalizer.

    Args:
        event: Cost of one draw. Its ``eta`` is the privacy loss per unit of distance, at least 1e-9.
        table: Public table, independent of the points.
        cache_bytes: Memory for the cache of words. The time of a draw shows if a word was seen before.
        threads: Number of threads, by default one per processor.

    Formal guarantee:
        For two inputs of the same number of points, the chance of any output changes by at most a factor of exp(eta
        sum_i |x_i - x'_i|). One draw costs ``event``. This holds for real numbers. Double precision moves weights by
        about 1e-8 and shares by at most 2^-50, in relative terms. Rounding shares up to multiples of 2^-63 moves the
        chance of any set of words by less than 1e-15. Every allowed row keeps a chance above 0. Given the shares, the
        draw is exact. Bounds exceed weights by more than rounding, so refused draws change no chance.

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
        """Return one row number per key. Only these may leave.

        Args:
            keys: Private. Equal keys have equal points in all calls.
            points: Returns the points of distinct keys, (k, d).
            rng: Source of randomness.
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
        """Return distances to the nearest rows, and bounds of the buckets' weights.

        A row weighs exp(-(eta/2) (|x - w| - |x - nearest|)), a bucket the sum of its rows.
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
        """Return the distance to the nearest row and the bounds of all buckets, in one pass.

        ``slower`` and ``more`` exceed the errors of single precision: 3 * 2^-24 in exponents, and n * 2^-24 in sums.
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
        rows = slice(bucket * self._size, (bucket + 1) * self._size)
        distance = distances(self.table, points, rows)
        distance[:, ~self.table.allowed[rows]] = np.inf
        return distance

    def _weights(self, distance: Points, nearest: Points | float) -> Points:
        distance -= nearest
        np.maximum(distance, 0.0, out=distance)
        distance *= -self.event.eta / 2
        return np.exp(distance, out=distance)

    def _drawn(
        self, points: Points, nearest: Points, bounds: Bounds, which: Ids, bits: NDArray[np.uint64], source: Randomness
    ) -> Ids:
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
        """Draw a row each, or -1 for a refusal."""
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
    """Bounds of recent words. Copies, because views hold whole groups."""

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
    nearest = np.linalg.norm(points - table.vectors[table.find(points)], axis=1)
    for start in range(0, len(table.vectors), _COLUMNS):
        distance = distances(table, points, slice(start, start + _COLUMNS))
        distance[:, ~table.allowed[start : start + _COLUMNS]] = np.inf
        distance -= nearest[:, None]
        distance *= -eta / 2
        yield start, np.exp(distance, out=distance)


def distances(table: NearestVector, points: Points, rows: slice) -> NDArray[np.float64]:
    block = table.vectors[rows].astype(np.float64)
    squares = np.einsum("ij,ij->i", points, points)[:, None] + table.squares[rows]
    apart = squares - 2.0 * (points @ block.T)
    i, j = np.divmod(np.flatnonzero(apart < 1e-6 * squares), apart.shape[1])  # where only rounding is left
    apart[i, j] = np.square(points[i] - block[j]).sum(axis=1)
    return np.asarray(np.sqrt(apart, out=apart))


def _whole(share: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return shares of almost 2^63, at least 1 where allowed."""
    return np.where(allowed, (share * _WHOLE).astype(np.uint64) + np.uint64(1), np.uint64(0))


def _tight(weight: Points) -> np.float32:
    return np.float32(max(weight.sum() * (1 + 2.0**-20), _LEAST))


def _bits(source: Randomness, count: int) -> NDArray[np.uint64]:
    return words(source, count, 2) >> np.uint64(1)


def _members(of: Ids, count: int) -> list[Ids]:
    return np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of, minlength=count))[:-1])
