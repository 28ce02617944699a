"""From an encoder's vectors to whole numbers: no row depends on another one, and none is longer than the norm."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.aggregate.features import MOST_DIMENSIONS, Floats, Projection
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import clip_to_norm
from langchain_dp.mechanisms.vector_sum import NORM

RNG = np.random.default_rng(7)
PROJECTION = Projection.of(RNG.normal(size=(300, 24)) * np.linspace(3, 0.1, 24) + 0.5, k=12)
ODD: list[list[float]] = [
    [np.nan] * 24,
    [np.inf, *[0.0] * 23],
    [1e308] * 24,
    [-1e308, 1e308] * 12,
    [5e-324] * 24,
    [1e-200, *[1e-320] * 23],
    [0.0] * 24,
    [1e300, *[1e-300] * 23],
]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.one_of(
            st.lists(st.floats(width=64), min_size=24, max_size=24),
            st.lists(st.floats(-1, 1), min_size=24, max_size=24),
            st.sampled_from(ODD),
        ),
        min_size=1,
        max_size=9,
    ),
    seed=st.integers(0, 99),
)
def test_a_row_is_the_same_alone_and_in_any_company(rows: list[list[float]], seed: int) -> None:
    """If it breaks, one record moves the vectors of others, and the sum by more than is charged."""
    table = np.array(rows)
    together = PROJECTION.vectors(table)
    assert ((together**2).sum(axis=1) <= NORM**2).all()
    order = np.random.default_rng(seed).permutation(len(table))
    for layout in (np.ascontiguousarray, np.asfortranarray):
        assert (PROJECTION.vectors(layout(table[order])) == together[order]).all()
        for place, row in enumerate(table):
            assert (PROJECTION.vectors(layout(row[None])) == together[place]).all()


@pytest.mark.parametrize("dimensions", [1, 2, 255, 256, 1024, 3072])
def test_batches_of_every_size_agree_to_the_last_bit(dimensions: int) -> None:
    """If it breaks, matrix products that the processor splits differently round a row beside others differently."""
    rows = RNG.normal(size=(67, dimensions)) * 10.0 ** RNG.integers(-6, 6, size=(67, 1))
    numbers = RNG.integers(-300, 300, size=(min(dimensions, 64) + 1, dimensions))
    projection = Projection(numbers[0], numbers[1:])
    whole = projection.vectors(rows)
    for size in (1, 2, 3, 7, 16, 33):
        parts = [projection.vectors(rows[start : start + size]) for start in range(0, len(rows), size)]
        assert (np.vstack(parts) == whole).all()


def test_rows_keep_their_direction_and_nearly_all_of_the_norm() -> None:
    """If it breaks, vectors are sound and worthless: too short, or not those of the texts."""
    rows = RNG.normal(size=(50, 24))
    vectors = PROJECTION.vectors(rows)
    lengths = np.linalg.norm(vectors, axis=1)
    assert NORM - 8 < lengths.min() <= lengths.max() <= NORM
    assert np.abs(PROJECTION.vectors(rows * 37.5) - vectors).max() <= 1, "a vector's length says nothing"


def test_a_row_that_is_no_vector_adds_nothing() -> None:
    """If it breaks, every text on which the encoder fails pulls its label towards one and the same point."""
    assert not PROJECTION.vectors(np.array([ODD[0], ODD[1], ODD[6]])).any()


@pytest.mark.parametrize(
    "damage",
    [
        {"shape": [13, 23]},
        {"shape": [13 * 24]},
        {"shape": [1, 13 * 24]},
        {"shape": "x"},
        {"numbers": "?"},
        {"numbers": "AAAA"},
        {"numbers": Projection(np.array([1 << 20]), np.array([[1]])).to_dict()["numbers"], "shape": [2, 1]},
    ],
)
def test_a_damaged_projection_is_refused(damage: dict[str, object]) -> None:
    """If it breaks, numbers too large for exact sums, or of another shape, come back from a file."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        Projection.from_dict({**PROJECTION.to_dict(), **damage})


@pytest.mark.parametrize("shape", [(3, 0), (3, MOST_DIMENSIONS + 1), (24,), (2, 3, 4)])
def test_vectors_beyond_what_is_exact_are_refused(shape: tuple[int, ...]) -> None:
    """If it breaks, sums leave the whole numbers that a float holds exactly."""
    with pytest.raises(InvalidParameter, match="Use another encoder"):
        Projection.of(np.zeros(shape), k=1)


def test_few_texts_have_the_components_of_many_dimensions() -> None:
    """If it breaks, an encoder of more dimensions than public texts gets other coordinates, or takes a minute."""
    texts = np.random.default_rng(0).normal(size=(20, 30)) * np.linspace(3, 1, 30)
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    _, vectors = np.linalg.eigh(np.cov(unit.T))
    found = Projection.of(texts, 5).components / 2**15
    overlap = np.abs(found @ vectors[:, ::-1][:, :5])
    assert np.allclose(overlap, np.eye(5), atol=0.01)


def in_whole_numbers(row: Floats) -> list[int]:
    """The vector of a row, all products and sums in Python's numbers."""
    fine = np.rint(row / np.abs(row).max() * 2**19)
    unit = [int(x) for x in np.rint(fine * (2**15 / np.sqrt(sum(int(x) ** 2 for x in fine))))]
    centered = [x - int(m) for x, m in zip(unit, PROJECTION.mean, strict=True)]
    dots = [sum(int(c) * x for c, x in zip(each, centered, strict=True)) for each in PROJECTION.components]
    projected = [round(Fraction(dot, 2**16)) for dot in dots]
    scale = NORM / math.sqrt(sum(x * x for x in projected))
    found: list[int] = clip_to_norm(np.array([[int(x * scale) for x in projected]]), NORM)[0].tolist()
    return found


def test_products_are_those_of_whole_numbers() -> None:
    """If it breaks, products are rounded, and the rows beside them decide how."""
    rows = RNG.normal(size=(300, 24))
    assert PROJECTION.vectors(rows).tolist() == [in_whole_numbers(row) for row in rows]
