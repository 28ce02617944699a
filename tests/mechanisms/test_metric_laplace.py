"""The noise mechanism of metric privacy: its law, its promise, and the nearest word to the last digit."""

from __future__ import annotations

import math
import sys
import threading
import types

import numpy as np
import pytest
from audit_tools import ERROR_RATE
from scipy import stats

from langchain_dp.accounting import MetricEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import MetricLaplace, NotPrivateSeededRandomness
from langchain_dp.mechanisms import _nearest as nearest_module
from langchain_dp.mechanisms._nearest import ROWS, NearestVector
from langchain_dp.mechanisms.metric_noise import noise
from langchain_dp.mechanisms.randomness import Words

PUBLIC = np.random.default_rng(5)  # tables and points of these tests, never noise


def table(vectors: np.ndarray, never: tuple[int, ...] = ()) -> NearestVector:
    allowed = np.ones(len(vectors), dtype=bool)
    allowed[list(never)] = False
    return NearestVector(vectors, allowed)


def metric_laplace(points: np.ndarray, public: NearestVector, eta: float, *, threads: int = 1, seed: int | None = None):  # type: ignore[no-untyped-def]
    """One release; without a seed by the operating system's entropy."""
    rng = None if seed is None else NotPrivateSeededRandomness(seed)
    return MetricLaplace(MetricEvent(eta), public, threads=threads).release(points, rng=rng)


@pytest.mark.statistical
@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_the_direction_of_the_noise_is_uniform_and_apart_from_its_length(dimension: int) -> None:
    """If it breaks, some directions get less noise (Kolmogorov-Smirnov, error rate 1e-6); a cube's are rejected."""
    drawn = noise(60_000, dimension, 1.0, NotPrivateSeededRandomness(3))
    length = np.linalg.norm(drawn, axis=1)
    law = stats.beta(0.5, (dimension - 1) / 2).cdf
    cube = PUBLIC.uniform(-1, 1, (60_000, dimension))
    for axis in (0, dimension - 1):
        share = (drawn[:, axis] / length) ** 2
        assert stats.kstest(share, law).pvalue > ERROR_RATE
        assert stats.kstest(share[length > np.median(length)], law).pvalue > ERROR_RATE
        assert stats.kstest((cube[:, axis] / np.linalg.norm(cube, axis=1)) ** 2, law).pvalue < ERROR_RATE
        assert stats.binomtest(int((drawn[:, axis] > 0).sum()), 60_000).pvalue > ERROR_RATE


def brute(points: np.ndarray, vectors: np.ndarray, never: tuple[int, ...] = ()) -> np.ndarray:
    wide = vectors.astype(np.float32).astype(np.float64)
    scores = points @ wide.T - (wide**2).sum(axis=1) / 2
    scores[:, list(never)] = -np.inf
    return scores.argmax(axis=1)


def test_the_nearest_word_equals_double_precision_on_10_000_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, rounding picks the word. Pairs of words 1e-4 apart show that single precision alone would."""
    monkeypatch.setattr(nearest_module, "_COLUMNS", 256)  # several blocks
    vectors = PUBLIC.standard_normal((700, 24)) * 3
    vectors[1::2] = vectors[::2] + PUBLIC.standard_normal((350, 24)) * 1e-4
    never = (0, 17, 699)
    points = vectors[PUBLIC.integers(0, 700, 10_000)] + PUBLIC.standard_normal((10_000, 24)) * 1e-4
    found = np.concatenate([table(vectors, never).find(points[i : i + 500]) for i in range(0, 10_000, 500)])
    expected = brute(points, vectors, never)
    assert (found == expected).all()
    narrow = vectors.astype(np.float32)
    single = points.astype(np.float32) @ narrow.T - (narrow**2).sum(axis=1) / 2
    assert (single.argmax(axis=1) != expected).mean() > 0.01


def test_equal_words_share_a_place() -> None:
    """If it breaks, equal vectors make a search fail, or the one that may be written hides behind one that may not."""
    vectors = np.tile(PUBLIC.standard_normal((3, 5)), (3_000, 1))
    points = PUBLIC.standard_normal((200, 5))
    assert (table(vectors).find(points) % 3 == brute(points, vectors[:3])).all()
    assert set(table(vectors[:5], (1,)).find(vectors[[1, 4]])) == {4}


def test_words_that_are_never_written_never_come_out() -> None:
    """If it breaks, special tokens leave: whether they do would hang on the input."""
    vectors = PUBLIC.standard_normal((300, 4))
    never = tuple(range(0, 300, 3))
    points = np.repeat(vectors[list(never)], 100, axis=0)
    for eta in (0.5, 5.0, 1e9):
        found = metric_laplace(points, table(vectors, never), eta, seed=1)
        assert not set(found.tolist()) & set(never)
    assert len(set(found.tolist())) > 1


@pytest.mark.parametrize("eta", [1e-9, 1e-4, 1e12, 1e300])
def test_extreme_noise_finds_a_word(eta: float) -> None:
    """If it breaks, huge noise overflows to NaN and always gives the first word, or no noise moves a word."""
    vectors = PUBLIC.standard_normal((50, 6))
    found = metric_laplace(np.repeat(vectors, 20, axis=0), table(vectors), eta, seed=2)
    assert len(set(found.tolist())) > 20
    if eta > 1:
        assert (found == np.repeat(np.arange(50), 20)).all()


def test_a_point_has_its_own_noise() -> None:
    """If it breaks, what one token becomes hangs on its neighbors in the batch.

    Under a seed the second half keeps its noise when the first half changes, also across blocks and threads, and is
    the same noise further on when more points stand before it.
    """
    vectors = PUBLIC.standard_normal((200, 3))
    public = table(vectors)
    first, other, second = (vectors[PUBLIC.integers(0, 200, n)] for n in (700, 700, 900))

    def run(*parts: np.ndarray, threads: int = 1) -> np.ndarray:
        return metric_laplace(np.concatenate(parts), public, 1.5, seed=9, threads=threads)

    assert (run(first, second)[700:] == run(other, second)[700:]).all()
    assert (run(first, second) == run(first, second, threads=3)).all()
    assert (run(first, second)[:700] == run(first)).all()
    shifted, alone = run(second[:1], second)[1:], run(second)
    assert (shifted != alone).any(), "noise must follow the place, not the content"


def test_the_noise_follows_the_operating_system_only_and_blocks_have_their_own() -> None:
    """If it breaks, NumPy's global seed removes the noise, or one block of a thread tells the noise of the other."""
    vectors = PUBLIC.standard_normal((100, 3))
    outputs = []
    for _ in range(2):
        np.random.seed(0)  # what a user's notebook does
        outputs.append(metric_laplace(vectors, table(vectors), 1.0).tolist())
    assert outputs[0] != outputs[1]
    vectors = PUBLIC.standard_normal((200, 3))
    found = metric_laplace(np.repeat(vectors[:1], 2 * ROWS, axis=0), table(vectors), 0.5, threads=2)
    assert (found[:ROWS] != found[ROWS:]).any()


def test_uniform_numbers_never_reach_an_end() -> None:
    """If it breaks, a logarithm of 0 or a length of 0 comes out for extreme bits."""

    class Extreme:
        private = False

        def __init__(self, bits: int) -> None:
            self._bits = bits

        def randbelow(self, upper: int) -> int:
            return (upper - 1) * self._bits

    low, high = (float(Words(Extreme(bits), 1, 1).uniforms(0, 1)[0, 0]) for bits in (0, 1))
    assert 0 < low < 1e-15
    assert 1 - 1e-15 < high < 1
    assert np.isfinite(noise(1, 3, 1.0, Extreme(0))).all()
    assert np.isfinite(noise(1, 3, 1.0, Extreme(1))).all()


def test_blas_threads_are_put_back_by_the_last_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, two searches at once leave the whole process at one BLAS thread for good."""
    state = {"threads": 8}

    class Limits:
        def __init__(self, limits: int, user_api: str) -> None:
            self._before = state["threads"]
            state["threads"] = limits

        def restore_original_limits(self) -> None:
            state["threads"] = self._before

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setitem(sys.modules, "threadpoolctl", types.SimpleNamespace(threadpool_limits=Limits))
    blas = nearest_module._Blas()
    one, two = blas.at_one_thread(), blas.at_one_thread()
    assert one is not None
    assert two is not None
    with one:
        two.__enter__()
        assert state["threads"] == 1
    assert state["threads"] == 1, "the second still works"
    two.__exit__(None, None, None)
    assert state["threads"] == 8


def test_without_threadpoolctl_blocks_run_in_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a missing optional package stops the search or makes BLAS threads fight each other."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    seen = []
    results = list(nearest_module.sharded(lambda x: seen.append(threading.current_thread()) or x, [1, 2, 3], 4))
    assert results == [1, 2, 3]
    assert set(seen) == {threading.current_thread()}


@pytest.mark.parametrize("eta", [0.0, -1.0, math.nan, math.inf, True, "1", 1e-10])
def test_bad_eta_is_named(eta: object) -> None:
    """If it breaks, text leaves with no noise, or with noise of no meaning."""
    with pytest.raises(InvalidParameter, match="eta="):
        metric_laplace(np.zeros((1, 2)), table(np.eye(2)), eta)  # type: ignore[arg-type]  # the point of the test


def test_points_that_do_not_fit_are_refused_without_their_values() -> None:
    """If it breaks, a wrong table or a NaN gives words that mean nothing, or private numbers reach a log."""
    with pytest.raises(InvalidParameter, match=r"\(tokens, 2\)"):
        metric_laplace(np.full((1, 3), 0.123), table(np.eye(2)), 1.0)
    with pytest.raises(InvalidParameter, match="finite") as caught:
        metric_laplace(np.array([[0.123, math.nan]]), table(np.eye(2)), 1.0)
    assert "0.123" not in str(caught.value)
    assert metric_laplace(np.zeros((0, 2)), table(np.eye(2)), 1.0).shape == (0,)
