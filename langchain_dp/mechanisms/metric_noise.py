"""The noise mechanism of metric privacy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.accounting.events import MetricEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms._nearest import ROWS, NearestVector, sharded
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness, Words

_STEP = 2**14  # numbers drawn at once: their bits and functions stay in a core's cache


@dataclasses.dataclass(frozen=True, eq=False)
class MetricLaplace:
    """Add noise to every point and report the nearest allowed row of a public table (Feyisetan et al. 2020).

    The noise z has density proportional to exp(-eta |z|) (Wu et al. 2017, Appendix E): a Gamma distributed length of
    shape d and scale 1/eta, in a uniform direction. (A direction from the unit ball would give no finite eta.)

    Args:
        event: Cost of one release. Its ``eta`` is the privacy loss per unit of distance, at least 1e-9.
        table: Public table, independent of the points.
        threads: Number of threads, by default one per processor.

    Formal guarantee:
        For two inputs of the same number of points, the chance of any output changes by at most a factor of exp(eta
        sum_i |x_i - x'_i|) (Chatzikokolakis, Andrés, Bordenabe and Palamidessi 2013). One release costs ``event``. This
        is proven for real numbers. In double precision, each noise number has 52 random bits, so noisy points have
        holes, and no noise is longer than 37/eta per dimension. Only the nearest row leaves. Its chance is off by about
        2^-52 per dimension, an estimate and no proof. An output less likely than that may never occur.

    Examples:
        >>> mechanism = MetricLaplace(MetricEvent(1000.0), table)  # so large an eta hides nothing
        >>> ledger = MetricLedger()
        >>> ledger.spend(mechanism.event.eta, [Owner("letter 1", user="ann")], table="glove")  # charge first, then draw
        >>> mechanism.release(table.vectors[[2, 0]])
        array([2, 0])
    """

    event: MetricEvent
    table: NearestVector
    _: dataclasses.KW_ONLY
    threads: int | None = None

    def __post_init__(self) -> None:
        checked_eta(self.event.eta)

    def release(self, points: NDArray[np.floating], *, rng: Randomness | None = None) -> NDArray[np.int64]:
        """Return one row number per private point, (m, d). Only these may leave."""
        points = checked(points, self.table)
        source = rng or SystemRandomness()

        def blocks() -> Iterator[tuple[NDArray[np.float64], Noise]]:
            for start in range(0, len(points), ROWS):
                block = points[start : start + ROWS]
                yield block, Noise(len(block), points.shape[1], self.event.eta, source)

        def nearest(block: tuple[NDArray[np.float64], Noise]) -> NDArray[np.int64]:
            private, unformed = block
            return self.table.find(private + unformed.vectors())

        found = list(sharded(nearest, blocks(), self.threads if len(points) > ROWS else 1))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


class Noise:
    """Independent vectors, (count, dimension), of density proportional to exp(-eta |z|).

    Gaussian pairs (Box and Muller 1958) give the direction. Their squared lengths are twice exponential variables,
    independent of the direction. ``dimension`` such variables add up to the Gamma distributed length.
    """

    def __init__(self, count: int, dimension: int, eta: float, rng: Randomness) -> None:
        self._shape = count, dimension
        self._eta = eta
        self._pairs = (dimension + 1) // 2
        self._words = Words(rng, count, dimension + self._pairs)

    def vectors(self) -> NDArray[np.float64]:
        """Return the vectors. A second call returns others."""
        count, dimension = self._shape
        drawn = np.empty(self._shape)
        step = max(1, _STEP // dimension)
        for start in range(0, count, step):
            stop = min(start + step, count)
            drawn[start:stop] = self._formed(self._words.uniforms(start, stop))
        return drawn

    def _formed(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        dimension, pairs = self._shape[1], self._pairs
        exponential = -np.log(uniform[:, :dimension])
        radius = np.sqrt(2.0 * exponential[:, :pairs])
        angle = 2.0 * np.pi * uniform[:, dimension:]
        direction = np.empty((len(uniform), 2 * pairs))
        np.multiply(radius, np.cos(angle), out=direction[:, :pairs])
        np.multiply(radius, np.sin(angle), out=direction[:, pairs:])
        direction = direction[:, :dimension]
        direction *= (exponential.sum(axis=1) / (self._eta * np.linalg.norm(direction, axis=1)))[:, None]
        return direction


def noise(count: int, dimension: int, eta: float, rng: Randomness) -> NDArray[np.float64]:
    return Noise(count, dimension, eta, rng).vectors()


def checked_eta(eta: float, *, at_most: float | None = None) -> float:
    remedy = "Calibrate it with langchain_dp.rapt.calibrate."
    return validate.number("eta", eta, at_least=1e-9, at_most=at_most, remedy=remedy)


def checked(points: NDArray[np.floating], table: NearestVector) -> NDArray[np.float64]:
    exact: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    dimension = table.vectors.shape[1]
    if exact.ndim != 2 or exact.shape[1] != dimension:
        raise InvalidParameter(f"Expected points of shape {points.shape} to be (tokens, {dimension}), as the table is.")
    if not np.isfinite(exact).all():
        raise InvalidParameter("Expected points to be finite, but some are NaN or infinite.")
    return exact
