"""Bounded whole-number vectors of texts. Below 2^53 float64 is exact, so no row changes another one."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.vector_sum import NORM, Whole, clip_to_norm

Floats = NDArray[np.float64]

_FINE = 1 << 19
_UNIT = 1 << 15
_AT_ONCE = 2000
MOST_DIMENSIONS = 1 << 14
"""Up to this length all products below are exact."""


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
    """Removes the mean and keeps principal components, in units of 2^-15."""

    mean: Whole
    components: Whole

    @classmethod
    def of(cls, texts: Floats, k: int, vocabulary: Floats | None = None) -> Self:
        """Return the first ``k`` components of rows. A ``vocabulary`` gives the mean, and adds its covariance."""
        unit = _unit(texts) / _UNIT
        mean = unit.mean(axis=0)
        if vocabulary is None and len(unit) <= unit.shape[1]:
            _, _, components = np.linalg.svd(unit - mean, full_matrices=False)
            return cls(_whole(mean * _UNIT), _whole(components[: min(k, len(unit) - 1)] * _UNIT))
        _, covariance = _moments(texts)
        if vocabulary is not None:
            mean, spread = _moments(vocabulary)
            covariance = covariance / max(np.trace(covariance), 1e-12) + spread / np.trace(spread)
        _, vectors = np.linalg.eigh(covariance)
        components = vectors[:, ::-1][:, :k].T
        return cls(_whole(mean * _UNIT), _whole(components * _UNIT))

    def first(self, k: int) -> Projection:
        return Projection(self.mean, self.components[:k])

    @property
    def k(self) -> int:
        return len(self.components)

    def vectors(self, rows: Floats) -> Whole:
        """Return vectors of at most 4096 grid steps, or zeros for NaN or infinity."""
        unit = _unit(rows)
        centered = (unit - self.mean.astype(np.float64)) * np.any(unit, axis=1, keepdims=True)
        projected = np.rint(centered @ self.components.T.astype(np.float64) / (2 * _UNIT))
        lengths = np.sqrt((projected * projected).sum(axis=1))  # exact sums below 2^53
        scale = np.divide(NORM, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return clip_to_norm(np.trunc(projected * scale[:, None]).astype(np.int64), NORM)

    def is_like(self, other: Projection) -> bool:
        """Return whether one encoder made both. A server's vectors round differently from day to day."""
        same = self.components.shape == other.components.shape
        return same and int(np.abs(self.mean - other.mean).max()) <= _UNIT // 256

    def to_dict(self) -> dict[str, Any]:
        numbers = np.vstack([self.mean[None], self.components]).astype("<i4")
        return {"shape": list(numbers.shape), "numbers": base64.b64encode(numbers.tobytes()).decode()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        numbers = np.frombuffer(base64.b64decode(fields["numbers"], validate=True), dtype="<i4")
        table = numbers.reshape(fields["shape"]).astype(np.int64)
        if table.ndim != 2 or len(table) < 2 or table.shape[1] > MOST_DIMENSIONS or np.abs(table).max() > _UNIT:
            raise ValueError  # larger numbers would not stay exact
        return cls(table[0], table[1:])


def _moments(rows: Floats) -> tuple[Floats, Floats]:
    total, products = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _AT_ONCE):
        part = _unit(rows[start : start + _AT_ONCE]) / _UNIT
        total += part.sum(axis=0)
        products += part.T @ part
    mean = total / len(rows)
    return mean, products / len(rows) - np.outer(mean, mean)


def _whole(values: Floats) -> Whole:
    return np.rint(values).astype(np.int64)


def _unit(rows: Floats) -> Floats:
    """Scale rows to unit length, in units of 2^-15, or to zeros."""
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2 or not 1 <= rows.shape[1] <= MOST_DIMENSIONS:
        raise InvalidParameter(
            f"Expected vectors of 1 to {MOST_DIMENSIONS:,} numbers, not an array of shape {rows.shape}. Use another "
            "encoder."
        )
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    rows = np.where(finite[:, None], rows, 0.0)
    largest = np.abs(rows).max(axis=1)
    rows = rows * np.divide(1.0, largest, out=np.zeros_like(largest), where=largest > 1e-200)[:, None]
    fine = np.rint(rows * _FINE)
    lengths = np.sqrt((fine * fine).sum(axis=1))  # exact sums below 2^53
    return np.asarray(np.rint(fine * np.divide(_UNIT, lengths, out=np.zeros_like(lengths), where=lengths > 0)[:, None]))
