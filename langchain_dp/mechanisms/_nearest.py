"""Exact nearest neighbors: maximize x.w - |w|^2/2 in single precision, and check in double."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import forks
from langchain_dp._util.machine import processors
from langchain_dp._util.whole_files import whole

Points = NDArray[np.float64]
Ids = NDArray[np.int64]
S = TypeVar("S")
T = TypeVar("T")

BUCKET = 1024
ROWS = 512
_COLUMNS = 2048  # table rows per block: block x points is 4 MB, which stays in the caches of a core
_NEVER = np.float32(-1e38)  # last column of what is never the nearest: finite, so that no product makes it NaN
_FAR = 1e30  # products beyond this could overflow in single precision


class NearestVector:
    """A public table that finds its nearest ``allowed`` row. ``vectors`` is (n, d), finite, and copied."""

    def __init__(self, vectors: NDArray[np.floating], allowed: NDArray[np.bool_]) -> None:
        count, dimension = vectors.shape
        self._table = np.zeros((-(-count // BUCKET) * BUCKET, dimension + 1), dtype=np.float32)
        self._table[count:, -1] = _NEVER
        self._count = count
        self._squares = np.zeros(len(self._table))
        largest = 0.0
        for start in range(0, count, _COLUMNS):
            rows = slice(start, min(start + _COLUMNS, count))
            self._table[rows, :-1] = vectors[rows]
            squares = np.einsum("ij,ij->i", *[self._table[rows, :-1].astype(np.float64)] * 2)
            self._squares[rows] = squares
            self._table[rows, -1] = np.where(allowed[rows], -squares / 2, _NEVER)
            largest = max(largest, float(squares[allowed[rows]].max(initial=0.0)))
        self._table.setflags(write=False)
        self.allowed = allowed
        self._largest = largest**0.5

    def share(self, folder: Path) -> None:
        """Share memory between processes by a file in ``folder``, if possible."""
        path = folder / f"table-{hashlib.sha256(self._table.data).hexdigest()[:32]}.npy"
        for _ in range(2):
            with contextlib.suppress(OSError, ValueError):  # absent, or cut short
                mapped = np.load(path, mmap_mode="r", allow_pickle=False)
                same = mapped.shape == self._table.shape and mapped.dtype == self._table.dtype
                if same and np.array_equal(mapped.view(np.uint32), self._table.view(np.uint32)):
                    self._table = mapped
                    return
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with whole(path, owner_only=True) as file:
                    np.lib.format.write_array(file, self._table, allow_pickle=False)
            except OSError:  # it saves memory, and nothing else hangs on it
                return

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The table, (n, d)."""
        return self._table[: self._count, :-1]

    @property
    def squares(self) -> NDArray[np.float64]:
        return self._squares[: self._count]

    def below(self, points: Points, stop: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (first row, squared distances (m, rows)) per block, none above the true one. The array is reused.

        A squared distance is too short by at most 4e-7 * (d + 8) * (|x|^2 + |w|^2), and 0 where single precision could
        overflow.
        """
        count, dimension = points.shape
        # Rounding of the product and the sum, in any order, in units of 2^-24 (|x|^2 + |w|^2) >= 2^-24 * 2|x||w|.
        keep = 1 - 3 * (dimension + 8) * 2.0**-24
        squares = np.einsum("ij,ij->i", points, points)
        usable = (squares + self._largest**2 < _FAR)[:, None]
        asked = np.empty((count, dimension + 1), dtype=np.float32)
        asked[:, :-1] = np.where(usable, -2 * points, 0)
        asked[:, -1:] = np.where(usable, -2 * keep, 0)
        own = np.where(usable, keep * squares[:, None], 0).astype(np.float32)
        held = np.empty(count * _COLUMNS, dtype=np.float32)
        for start in range(0, stop, _COLUMNS):
            block = self._table[start : min(start + _COLUMNS, stop)]
            apart = held[: count * len(block)].reshape(count, len(block))
            np.matmul(asked, block.T, out=apart)
            apart += own
            np.maximum(apart, 0, out=apart)
            yield start, apart

    def find(self, points: Points) -> Ids:
        """Return a nearest allowed row per point, in double precision."""
        count, dimension = points.shape
        lengths = np.linalg.norm(points, axis=1)
        if lengths.max(initial=0.0) * self._largest > _FAR:
            return self._find_exactly(points)
        asked = np.ones((count, dimension + 1), dtype=np.float32)
        asked[:, :-1] = points
        # Rounding of a product of length d+1, in any order of summation, of the point and of the last column.
        bound = (dimension + 5) * 2.0**-24
        doubt = 2 * bound * (lengths * self._largest + self._largest**2 / 2)
        doubt = doubt.astype(np.float32)
        every = np.arange(count)
        best = np.full(count, -np.inf, dtype=np.float32)
        second = best.copy()
        winner = np.zeros(count, dtype=np.int64)
        scores = np.empty((count, min(_COLUMNS, len(self._table))), dtype=np.float32)
        tops = np.empty((count, -(-len(self._table) // _COLUMNS)), dtype=np.float32)
        for number in range(tops.shape[1]):
            start = number * _COLUMNS
            block = self._table[start : start + _COLUMNS]
            here = scores[:, : len(block)]
            np.matmul(asked, block.T, out=here)
            index = here.argmax(axis=1)
            top = here[every, index]
            tops[:, number] = top
            # Few rows beat, or nearly beat, their best after the first blocks.
            near = np.flatnonzero(top >= best - doubt)
            here[every, index] = -np.inf
            rest = here.max(axis=1)[near] if 4 * len(near) > count else here[near].max(axis=1)  # a copy costs more
            old = best[near]
            runner = np.maximum(np.minimum(old, top[near]), rest)
            second[near] = np.maximum(second[near], runner)
            better = near[top[near] > old]
            winner[better] = index[better] + start
            best[better] = top[better]
        for row in np.flatnonzero(second >= best - doubt):
            blocks = np.flatnonzero(tops[row] >= best[row] - doubt[row])
            winner[row] = self._settle(points[row], asked[row], blocks, float(best[row] - 2 * doubt[row]))
        return winner

    def _settle(self, point: Points, asked: NDArray[np.float32], blocks: Ids, least: float) -> int:
        candidates = [
            start + np.flatnonzero(self._table[start : start + _COLUMNS] @ asked >= least)
            for start in blocks * _COLUMNS
        ]
        rows = np.concatenate(candidates)
        rows = rows[rows < self._count]
        rows = rows[self.allowed[rows]]
        return int(rows[(self.vectors[rows].astype(np.float64) @ point - self.squares[rows] / 2).argmax()])

    def _find_exactly(self, points: Points) -> Ids:
        best = np.full(len(points), -np.inf)
        winner = np.zeros(len(points), dtype=np.int64)
        every = np.arange(len(points))
        for start in range(0, self._count, _COLUMNS):
            rows = slice(start, start + _COLUMNS)
            block = self.vectors[rows].astype(np.float64)
            scores = points @ block.T - self.squares[rows] / 2
            scores[:, ~self.allowed[rows]] = -np.inf
            index = scores.argmax(axis=1)
            top = scores[every, index]
            better = top > best
            winner[better] = index[better] + start
            best[better] = top[better]
        return winner


def sharded(work: Callable[[S], T], blocks: Iterable[S], threads: int | None) -> Iterator[T]:
    """Yield results in order, from threads with one BLAS thread each.

    The caller's thread takes the blocks, so draws keep their order.
    """
    threads = threads or processors()
    limited = _BLAS.at_one_thread() if threads > 1 else None
    if limited is None:
        yield from map(work, blocks)
        return
    with limited, ThreadPoolExecutor(threads, thread_name_prefix="langchain-dp-nearest") as pool:
        waiting: deque[Future[T]] = deque()
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Blas:
    """The process-wide number of BLAS threads, restored by the last holder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._holders = 0
        self._limits: Any = None

    def at_one_thread(self) -> contextlib.AbstractContextManager[None] | None:
        if "1" in (os.environ.get("OMP_NUM_THREADS"), os.environ.get("OPENBLAS_NUM_THREADS")):
            return contextlib.nullcontext()
        try:
            return self._held(importlib.import_module("threadpoolctl"))
        except ImportError:
            return None

    @contextlib.contextmanager
    def _held(self, threadpoolctl: Any) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._limits = threadpoolctl.threadpool_limits(1, user_api="blas")
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._limits.restore_original_limits()


_BLAS = _Blas()
