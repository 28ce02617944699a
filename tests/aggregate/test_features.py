"""From an encoder's vectors to whole numbers: no row depends on another one, and none is longer than the norm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_dp.aggregate.features import MOST_DIMENSIONS, Projection
from langchain_dp.errors import InvalidParameter
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
