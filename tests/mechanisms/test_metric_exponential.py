"""The exponential mechanism of metric privacy: exact chances, both steps, and the memory it keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from audit_tools import ERROR_RATE, violates
from scipy import stats

from langchain_dp.errors import InvalidParameter
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
    weight = np.exp(-eta / 2 * np.linalg.norm(public.vectors.astype(float) - point, axis=1)) * public.allowed
    return weight / weight.sum()


def chances(mechanism: MetricExponential, public: NearestVector, points: np.ndarray) -> np.ndarray:
    """What the two tables of whole numbers really give, by enumeration: (points, rows)."""
    keys = np.arange(len(points))
    first = np.array(list(mechanism._tables(keys, lambda ids: points[ids])))
    buckets = first.shape[1]
    inside = np.flatnonzero(mechanism._open)
    coarse = np.diff(first.astype(object), prepend=0, axis=1) / first[:, -1:].astype(object)
    pairs = np.stack(np.meshgrid(keys, inside, indexing="ij")).reshape(2, -1)
    second = mechanism._within(pairs[1], pairs[0], lambda ids: points[ids]).astype(object)
    fine = np.zeros((len(points), buckets, mechanism._size))
    fine[:, inside] = (np.diff(second, prepend=0, axis=1) / second[:, -1:]).reshape(len(points), -1, mechanism._size)
    return (coarse[:, :, None] * fine).reshape(len(points), -1)[:, : len(public.vectors)].astype(float)


@pytest.fixture(autouse=True)
def _few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables in few buckets, so that both steps and a last bucket that is not full take part."""
    monkeypatch.setattr(module, "_BUCKETS", 16)


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
        exact = chances(MetricExponential(public, used), public, points)
        assert exact.sum(axis=1) == pytest.approx(np.ones(len(points)), abs=1e-12)
        assert (exact[:, ~public.allowed] == 0).all()
        assert (exact[:, public.allowed] > 0).all(), "unequal supports"
        expected = np.array([closed_form(public, point, used) for point in points])
        assert exact == pytest.approx(expected, rel=1e-6, abs=1e-17)
        likely = expected > 1e-12
        both = likely[:, None] & likely[None]
        loss = np.log(np.where(both, exact[:, None], 1.0) / np.where(both, exact[None], 1.0)).max(axis=2)
        assert (loss <= eta * apart + 1e-6).all() == kept


@pytest.mark.statistical
def test_draws_follow_the_closed_form() -> None:
    """If it breaks, words are drawn with other chances than those of the tables (chi-square, error rate 1e-6)."""
    vectors = PUBLIC.standard_normal((100, 2))
    public = table(vectors, (3, 50))
    keys = np.repeat([7, 99], 20_000)
    drawn = MetricExponential(public, 4.0).draw(keys, lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(1))
    for key in (7, 99):
        observed = np.bincount(drawn[keys == key], minlength=100)
        for eta, accepted in [(4.0, True), (4.0 * 2 / 3, False), (6.0, False)]:
            expected = closed_form(public, vectors[key].astype(np.float32), eta) * 20_000
            common = expected > 5
            gap = (observed[common] - expected[common]) ** 2 / expected[common]
            assert (stats.chi2.sf(gap.sum(), common.sum()) > ERROR_RATE) == accepted, eta


@pytest.mark.statistical
def test_audit_of_a_lone_word_beside_a_crowd() -> None:
    """If it breaks, the normaliser is not paid for (error rate 1e-6).

    A hundred words stand together, 2/eta from a lone one: no chance may change by more than e^2, and leaving out the
    half of eta for the normaliser gives e^4.
    """
    eta, runs = 4.0, 20_000
    public = table(np.concatenate([[[0.0]], 2 / eta + 1e-6 * np.arange(100)[:, None]]))
    points = np.array([[0.0], [2 / eta]])
    for used, disproved in [(eta, False), (2 * eta, True)]:
        drawn = MetricExponential(public, used).draw(
            np.repeat([0, 1], runs), lambda ids: points[ids], rng=NotPrivateSeededRandomness(2)
        )
        hits = [int((drawn[:runs] == 0).sum()), int((drawn[runs:] == 0).sum())]
        assert violates(hits[0], hits[1], runs, epsilon=2.0, delta=0.0) == disproved, hits


@pytest.mark.parametrize("eta", [1e-9, 1e9])
def test_extreme_eta_gives_any_word_or_the_word(eta: float) -> None:
    """If it breaks, weights underflow to nothing and the draw fails or always gives one word."""
    vectors = PUBLIC.standard_normal((90, 3)) * 50
    keys = np.repeat(np.arange(90), 30)
    drawn = MetricExponential(table(vectors), eta).draw(
        keys, lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(4)
    )
    assert (drawn == keys).all() if eta > 1 else len(set(drawn[keys == 0].tolist())) > 15


def test_words_that_are_never_written_never_come_out() -> None:
    """If it breaks, special tokens leave, also where a whole bucket of them is the nearest."""
    vectors = PUBLIC.standard_normal((200, 2))
    never = tuple(range(0, 64))
    for eta in (0.1, 10.0, 1e6):
        drawn = MetricExponential(table(vectors, never), eta).draw(
            np.repeat(np.arange(64), 50), lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(5)
        )
        assert drawn.min() >= 64


def test_the_cache_stays_small_and_changes_nothing() -> None:
    """If it breaks, a long run fills the memory, or a word that made room is drawn with another word's chances."""
    vectors = PUBLIC.standard_normal((700, 3))
    public, keys = table(vectors), PUBLIC.integers(0, 700, 3_000)

    def run(mechanism: MetricExponential) -> list[int]:
        rng = NotPrivateSeededRandomness(6)
        return [
            int(x)
            for start in range(0, 3_000, 500)
            for x in mechanism.draw(keys[start : start + 500], lambda ids: vectors[ids], rng=rng)
        ]

    small, large = MetricExponential(public, 3.0, cache_bytes=0), MetricExponential(public, 3.0)
    assert run(small) == run(large)
    assert len(small._cached) == module._GROUP < len(large._cached)


def test_a_token_has_its_own_draw() -> None:
    """If it breaks, what one token becomes hangs on its neighbours in the batch, or on what was cached before."""
    vectors = PUBLIC.standard_normal((80, 3))
    mechanism = MetricExponential(table(vectors), 2.0, threads=2)
    first, other, second = (PUBLIC.integers(0, 80, 300) for _ in range(3))

    def run(*parts: np.ndarray) -> np.ndarray:
        return mechanism.draw(np.concatenate(parts), lambda ids: vectors[ids], rng=NotPrivateSeededRandomness(8))

    assert (run(first, second)[300:] == run(other, second)[300:]).all()
    assert (run(first, second) == run(first, second)).all()


def test_the_operating_system_draws_anew() -> None:
    """If it breaks, two releases of one text are the same although nobody gave a seed."""
    vectors = PUBLIC.standard_normal((80, 3))
    mechanism = MetricExponential(table(vectors), 1.0)
    assert len({tuple(mechanism.draw(np.arange(80), lambda ids: vectors[ids]).tolist()) for _ in range(2)}) == 2
    assert mechanism.draw(np.zeros(0, dtype=np.int64), lambda ids: vectors[ids]).shape == (0,)


@pytest.mark.parametrize("eta", [0.0, -2.0, math.nan, math.inf])
def test_bad_eta_is_named(eta: float) -> None:
    """If it breaks, words are drawn by no law at all."""
    with pytest.raises(InvalidParameter, match="eta="):
        MetricExponential(table(np.eye(3)), eta)
