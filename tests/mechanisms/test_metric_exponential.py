"""The exponential mechanism of metric privacy: exact chances, both steps, and the memory it keeps."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from audit_tools import ERROR_RATE
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langchain_dp.accounting import MetricEvent
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.mechanisms import metric_exponential as module
from langchain_dp.mechanisms._nearest import NearestVector
from langchain_dp.mechanisms.metric_exponential import MetricExponential

PUBLIC = np.random.default_rng(6)  # tables of these tests, never noise


def table(vectors: np.ndarray, never: tuple[int, ...] = ()) -> NearestVector:
    allowed = np.ones(len(vectors), dtype=bool)
    allowed[list(never)] = False
    return NearestVector(vectors, allowed)


def closed_form(public: NearestVector, point: np.ndarray, eta: float) -> np.ndarray:
    apart = np.where(public.allowed, np.linalg.norm(public.vectors.astype(float) - point, axis=1), np.inf)
    weight = np.exp(-eta / 2 * (apart - apart.min()))
    return weight / weight.sum()


def chances(mechanism: MetricExponential, public: NearestVector, points: np.ndarray) -> np.ndarray:
    """What the two steps of whole numbers really give, by enumeration: (points, rows)."""
    nearest, bounds = mechanism._bound(points)
    shares = bounds / bounds.sum(axis=1, keepdims=True, dtype=float)
    first = module._whole(shares, mechanism._open).astype(object)
    accepted = np.zeros((len(points), len(public.vectors)), dtype=object)
    for bucket in np.flatnonzero(mechanism._open).tolist():
        rows = slice(bucket * mechanism._size, (bucket + 1) * mechanism._size)
        share = mechanism._weights(mechanism._distances(bucket, points), nearest[:, None]) / bounds[:, [bucket]]
        second = module._whole(share, public.allowed[rows]).astype(object)
        assert (second.sum(axis=1) <= 2**63).all(), "a bound lies below the weight of its bucket"
        accepted[:, rows] = first[:, [bucket]] * second
    return (accepted / accepted.sum(axis=1, keepdims=True)).astype(float)


@pytest.fixture(autouse=True)
def _few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables in few buckets, so that both steps and a last bucket that is not full take part."""
    monkeypatch.setattr(module, "BUCKETS", 16)


@pytest.mark.parametrize("eta", [0.3, 3.0, 30.0])
def test_the_whole_numbers_keep_the_promise_for_every_pair_and_word(eta: float) -> None:
    """If it breaks, rounding, buckets or the half of eta cost more than eta times the distance. No chance involved.

    Three times the eta must break the promise for some pair: the enumeration has power.
    """
    vectors = PUBLIC.standard_normal((150, 3))
    public = table(vectors, (0, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 149))
    points = np.concatenate([vectors[:30], vectors[:10] + 1e-3, vectors[:1] + 5])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    for used, kept in [(eta, True), (3 * eta, False)]:
        exact = chances(MetricExponential(MetricEvent(used), public), public, points)
        assert exact.sum(axis=1) == pytest.approx(np.ones(len(points)), abs=1e-12)
        assert (exact[:, ~public.allowed] == 0).all()
        assert (exact[:, public.allowed] > 0).all(), "unequal supports"
        expected = np.array([closed_form(public, point, used) for point in points])
        assert exact == pytest.approx(expected, rel=1e-6, abs=1e-17)
        likely = expected > 1e-12
        both = likely[:, None] & likely[None]
        loss = np.log(np.where(both, exact[:, None], 1.0) / np.where(both, exact[None], 1.0)).max(axis=2)
        assert (loss <= eta * apart + 1e-6).all() == kept


@pytest.mark.parametrize("eta", [1e-9, 1e9])
def test_extreme_eta_gives_any_word_or_the_word(eta: float) -> None:
    """If it breaks, weights underflow to nothing and the draw fails or always gives one word."""
    vectors = PUBLIC.standard_normal((90, 3)) * 50
    keys = np.repeat(np.arange(90), 30)
    drawn = MetricExponential(MetricEvent(eta), table(vectors)).release(
        keys, lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(4)
    )
    assert (drawn == keys).all() if eta > 1 else len(set(drawn[keys == 0].tolist())) > 15


def test_words_that_are_never_written_never_come_out() -> None:
    """If it breaks, special tokens leave, also where a whole bucket of them is the nearest."""
    vectors = PUBLIC.standard_normal((200, 2))
    never = tuple(range(0, 64))
    for eta in (0.1, 10.0, 1e6):
        drawn = MetricExponential(MetricEvent(eta), table(vectors, never)).release(
            np.repeat(np.arange(64), 50), lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(5)
        )
        assert drawn.min() >= 64


def drawn_in_parts(mechanism: MetricExponential, keys: np.ndarray, vectors: np.ndarray) -> list[int]:
    rng = NotPrivateSeededRandomness(6)
    parts = (keys[start : start + 500] for start in range(0, len(keys), 500))
    return [int(x) for part in parts for x in mechanism.release(part, lambda ids: vectors[ids], rng=rng)]


def test_what_is_kept_changes_nothing() -> None:
    """If it breaks, a word that made room is drawn with another word's chances."""
    vectors = PUBLIC.standard_normal((700, 3))
    public, keys = table(vectors), PUBLIC.integers(0, 700, 3_000)
    some = (MetricExponential(MetricEvent(3.0), public, cache_bytes=size) for size in (0, 20_000, 2**27))
    drawn = [drawn_in_parts(mechanism, keys, vectors) for mechanism in some]
    assert drawn[0] == drawn[1] == drawn[2]


def test_memory_stays_below_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a row that is kept keeps those of its whole block with it, and a long text fills the memory."""
    monkeypatch.setattr(module, "BUCKETS", 512)
    vectors = PUBLIC.standard_normal((4_000, 3))
    public, keys = table(vectors), PUBLIC.permutation(4_000)
    mechanism = MetricExponential(MetricEvent(3.0), public, cache_bytes=2_000_000)
    mechanism.release(keys[:8], lambda ids: vectors[ids])  # what is loaded once
    tracemalloc.start()
    try:
        for start in range(0, 4_000, 250):
            mechanism.release(keys[start : start + 250], lambda ids: vectors[ids])
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 700 < len(mechanism._kept.words) < 900
    assert all(bound.base is None for _, bound in mechanism._kept.words.values())
    assert kept < 2_000_000


def awkward(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A table of clusters with words at their centres, duplicates and far outliers; and points on and beside words."""
    made = np.random.default_rng(seed)
    dimension, scale = int(made.integers(1, 12)), 10.0 ** made.integers(-3, 4)
    centres = made.standard_normal((6, dimension)) * scale
    near = centres[made.integers(0, 6, 120)] + made.standard_normal((120, dimension)) * scale * 1e-2
    far = made.standard_normal((3, dimension)) * scale * 1e5
    vectors = np.concatenate([centres, near, near[:10], far, np.zeros((1, dimension))]).astype(np.float32)
    vectors = vectors[made.permutation(len(vectors))].astype(float)
    beside = vectors[:10] * (1 + 1e-7) + scale * 1e-6
    between = (vectors[10:20] + vectors[20:30]) / 2
    return vectors, np.concatenate([vectors, beside, between])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-9, 1e-3, 0.3, 4.0, 60.0, 1e4, 1e9]))
def test_a_bound_lies_above_the_weight_of_its_bucket(seed: int, eta: float) -> None:
    """If it breaks, rounding puts a bound below the weight: the words of that bucket come out less often than due.

    Distances of single precision must be too short, all of them, and not by much; weights are taken in double
    precision, from differences of vectors.
    """
    vectors, points = awkward(seed)
    never = tuple(range(0, len(vectors), 7))
    public = table(vectors, never)
    exact = np.linalg.norm(points[:, None] - vectors[None], axis=2)
    for start, squares in public.below(points, len(vectors)):
        true = exact[:, start : start + squares.shape[1]] ** 2
        lengths = np.square(points).sum(axis=1)[:, None] + np.square(vectors[start : start + squares.shape[1]]).sum(1)
        assert (squares <= true)[:, public.allowed].all()
        assert (true - squares <= 4e-7 * (vectors.shape[1] + 8) * lengths)[:, public.allowed].all()
        assert (squares[:, ~public.allowed] > 1e30).all()
    mechanism = MetricExponential(MetricEvent(max(eta / float(exact.mean()), 1e-9)), public)
    exact[:, ~public.allowed] = np.inf
    weight = np.exp(-mechanism.event.eta / 2 * (exact - exact.min(axis=1, keepdims=True)))
    nearest, bounds = mechanism._bound(points)
    sums = np.add.reduceat(weight, np.arange(0, len(vectors), mechanism._size), axis=1)
    assert nearest == pytest.approx(exact.min(axis=1), rel=1e-9, abs=1e-30)
    assert (bounds >= sums * (1 - 1e-6)).all() if eta > 100 else (bounds >= sums).all()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("eta", [0.3, 8.0, 300.0])
def test_the_law_is_that_of_brute_force(seed: int, eta: float) -> None:
    """If it breaks, centres of clusters, duplicates or outliers are drawn by another law. No chance involved."""
    vectors, points = awkward(seed)
    public = table(vectors, (0, 5))
    scaled = eta / np.median(np.linalg.norm(points[:, None] - vectors[None], axis=2))
    expected = np.array([closed_form(public, point, scaled) for point in points])
    exact = chances(MetricExponential(MetricEvent(scaled), public), public, points)
    assert exact == pytest.approx(expected, rel=1e-6, abs=1e-17)
    wrong = chances(MetricExponential(MetricEvent(1.01 * scaled), public), public, points)
    assert wrong != pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.statistical
def test_refusals_do_not_change_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a draw that was refused leaves a trace in the chances (chi-square, error rate 1e-6).

    Bounds of every second bucket are made 40 times too high: most draws are refused at first, and bounds become tight.
    """
    real = MetricExponential._bound

    def looser(self: MetricExponential, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nearest, bounds = real(self, points)
        bounds[:, ::2] *= 40
        return nearest, bounds

    monkeypatch.setattr(MetricExponential, "_bound", looser)
    vectors = PUBLIC.standard_normal((100, 2))
    public = table(vectors, (3, 50))
    # Few draws a call and nothing kept: every call begins with bounds that are loose.
    mechanism, runs = MetricExponential(MetricEvent(4.0), public, cache_bytes=0), 4_000
    rng = NotPrivateSeededRandomness(12)
    drawn = [mechanism.release(np.full(5, 7), lambda ids: vectors[ids], rng=rng) for _ in range(runs // 5)]
    observed = np.bincount(np.concatenate(drawn), minlength=100)
    for eta, accepted in [(4.0, True), (4.0 * 2 / 3, False), (6.0, False)]:
        expected = closed_form(public, vectors[7].astype(np.float32), eta) * runs
        common = expected > 5
        gap = (observed[common] - expected[common]) ** 2 / expected[common]
        assert (stats.chi2.sf(gap.sum(), common.sum()) > ERROR_RATE) == accepted, eta


@pytest.mark.parametrize("length", [1e3, 1e14, 1e18])
def test_points_and_tables_of_any_length_are_drawn_for(length: float) -> None:
    """If it breaks, single precision overflows, or bounds that say nothing refuse draws for ever."""
    vectors = PUBLIC.standard_normal((200, 3))
    public = table(np.concatenate([vectors, length * vectors[:2]]))
    points = public.vectors.astype(float)
    drawn = MetricExponential(MetricEvent(1e6), public).release(
        np.arange(202), lambda ids: points[ids], rng=NotPrivateSeededRandomness(7)
    )
    assert (drawn == np.arange(202)).all()


def test_a_token_has_its_own_draw() -> None:
    """If it breaks, what one token becomes hangs on its neighbors in the batch, or on what was cached before."""
    vectors = PUBLIC.standard_normal((80, 3))
    mechanism = MetricExponential(MetricEvent(2.0), table(vectors), threads=2)
    first, other, second = (PUBLIC.integers(0, 80, 300) for _ in range(3))

    def run(*parts: np.ndarray) -> np.ndarray:
        return mechanism.release(np.concatenate(parts), lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(8))

    assert (run(first, second)[300:] == run(other, second)[300:]).all()
    assert (run(first, second) == run(first, second)).all()
    assert run(first[:0]).shape == (0,)
