"""The noise mechanism of metric privacy: a public vector plus noise, and out comes the nearest word of a public table.

Noise z has density proportional to exp(-eta |z|) in d dimensions: its length follows a Gamma law of shape d and scale
1/eta, its direction is uniform on the unit SPHERE. (A direction drawn from the unit ball, as one paper has it, gives a
density without bound at 0 and no finite eta.)

References: Chatzikokolakis, Andrés, Bordenabe, Palamidessi 2013, "Broadening the scope of differential privacy using
metrics". Wu et al. 2017, "Bolt-on differential privacy", Appendix E (the noise). Feyisetan, Balle, Drake, Diethe 2020,
"Privacy- and utility-preserving textual analysis via calibrated multivariate perturbations" (words).
"""

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
    """Add noise to every point and report the nearest allowed row of a public table.

    Args:
        event: Cost of one release. Its ``eta`` is the privacy loss per unit of distance, at least 1e-9.
        table: Public table, which does not depend on the points.
        threads: Threads to search with. By default as many as there are processors.

    Raises:
        InvalidParameter: eta is out of bounds.

    Formal guarantee:
        For two inputs of the same number of points, the chance of any output changes by at most
        exp(eta * sum_i |x_i - x'_i|): one release costs ``event``. This is proven for real numbers. Here the
        noise is drawn in double precision from 52 random bits a number, so that noisy points have holes and no noise
        is longer than 37/eta a dimension. The noisy points never leave: the nearest row sums them up to cells far
        larger than the holes, whose chances are off by an amount of the order of 2^-52 a dimension. That is an
        estimate and no proof. An output less likely than that may never come out. Exact sampling, as for the votes, is
        not known in many dimensions.

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
        """One row number per point. Only these may leave. Neither the points nor the noisy points may.

        Args:
            points: Private points, (m, d): one per token.
            rng: Source of randomness. Operating-system entropy by default.

        Raises:
            InvalidParameter: The points do not fit the table.
        """
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
    """Independent vectors, (count, dimension), of density proportional to exp(-eta |z|), formed by whichever thread.

    The direction is that of a Gaussian vector, made of pairs (Box and Muller 1958): each pair's squared length is twice
    an exponential variable. A Gaussian vector's length is independent of its direction, so these variables serve a
    second time: with as many further ones as make ``dimension``, their sum is the length, exactly Gamma distributed. In
    odd dimensions the last pair's second number, independent of the others, is left out of the direction. Every row
    uses its own bits, and a fixed number of them.
    """

    def __init__(self, count: int, dimension: int, eta: float, rng: Randomness) -> None:
        self._shape = count, dimension
        self._eta = eta
        self._pairs = (dimension + 1) // 2
        self._words = Words(rng, count, dimension + self._pairs)

    def vectors(self) -> NDArray[np.float64]:
        """The vectors. To be called once: operating-system entropy gives others the second time."""
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
    """Independent vectors, (count, dimension), of density proportional to exp(-eta |z|): see :class:`Noise`."""
    return Noise(count, dimension, eta, rng).vectors()


LEAST_ETA = 1e-9
"""Below it even double precision could overflow."""


def checked_eta(eta: float, *, at_most: float | None = None) -> float:
    """A usable privacy parameter."""
    remedy = "Calibrate it with langchain_dp.rapt.calibrate."
    return validate.number("eta", eta, at_least=LEAST_ETA, at_most=at_most, remedy=remedy)


def checked(points: NDArray[np.floating], table: NearestVector) -> NDArray[np.float64]:
    """The points in double precision, if they fit the table."""
    exact: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    dimension = table.vectors.shape[1]
    if exact.ndim != 2 or exact.shape[1] != dimension:
        raise InvalidParameter(f"Expected points of shape {points.shape} to be (tokens, {dimension}), as the table is.")
    if not np.isfinite(exact).all():
        raise InvalidParameter("Expected points to be finite, but some are NaN or infinite.")
    return exact
