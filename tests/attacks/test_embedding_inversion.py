"""Embedding inversion against closed forms: posteriors by hand, success by summing over everything."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import vocabularies
from scipy.special import logsumexp

from langchain_dp.attacks import invert_vectors, invert_words, unigram_prior
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.rapt import Vocabulary
from langchain_dp.rapt.posterior import ExponentialChannel, LaplaceChannel, UnigramPrior, VectorChannel, likeliest

SMALL = vocabularies.small()
SENTENCE = "the doctor and the nurse was at the house. the dog, the cat and the bird in the garden of paris!"
TEXTS = [SENTENCE] * 40
PRIOR = unigram_prior(SMALL, TEXTS)


def posterior(log_likelihood: np.ndarray, prior: UnigramPrior) -> np.ndarray:
    log = log_likelihood + prior.log
    return np.exp(log - logsumexp(log, axis=1, keepdims=True))


def table_of_chances(eta: float) -> np.ndarray:
    """P(released w | x) of the exponential mechanism, candidates by words, from its definition."""
    points = SMALL.vectors.astype(np.float64)
    apart = np.linalg.norm(points[PRIOR.ids][:, None] - points[None], axis=2)
    weight = np.exp(-eta / 2 * apart)
    return weight / weight.sum(axis=1, keepdims=True)


def test_the_posterior_of_the_exponential_mechanism_is_exact() -> None:
    """If it breaks, the norm of each candidate is left out or wrong, and the attacker guesses worse than it could."""
    # One candidate is a word that is never written: it has no nearest word at distance 0.
    table = Vocabulary(SMALL.words, SMALL.vectors, never=[SMALL.index["doctor"]])
    for vocabulary in (SMALL, table):
        channel = ExponentialChannel(vocabulary, PRIOR, 2.0)
        chances = table_of_chances(2.0) * vocabulary.allowed
        chances = (chances / chances.sum(axis=1, keepdims=True)).T[vocabulary.allowed] * np.exp(PRIOR.log)
        found = posterior(channel.log_likelihood(np.flatnonzero(vocabulary.allowed)), PRIOR)
        assert found == pytest.approx(chances / chances.sum(axis=1, keepdims=True), rel=1e-5)


def test_the_posterior_of_a_noisy_vector_is_exact() -> None:
    """If it breaks, the warning about noisy vectors understates what they betray."""
    points = np.random.default_rng(0).normal(size=(20, SMALL.dimension))
    apart = np.linalg.norm(points[:, None] - SMALL.vectors[PRIOR.ids], axis=2)
    log = VectorChannel(SMALL, PRIOR, 3.0).log_likelihood(points)
    assert log == pytest.approx(-3.0 * apart, rel=1e-5)


def test_the_posterior_of_a_word_under_noise_tends_to_the_exact_one() -> None:
    """If it breaks, simulation against the noise mechanism converges to something else.

    On a line every chance is known: the noise is two-sided exponential and a word's cell ends half way to the next
    ones. 40,000 draws leave errors below 0.006; a channel for another eta must be off by more.
    """
    places = np.array([0.0, 0.4, 1.0, 2.0, 2.5])
    line = Vocabulary(tuple("abcde"), places[:, None])
    prior = UnigramPrior(np.arange(5), np.log(np.array([0.1, 0.2, 0.3, 0.3, 0.1])))
    eta = 3.0
    ends = np.concatenate([[-np.inf], (places[1:] + places[:-1]) / 2, [np.inf]])
    below = ends[None] - places[:, None]
    cumulative = np.where(
        below < 0, np.exp(eta * np.minimum(below, 0)) / 2, 1 - np.exp(-eta * np.maximum(below, 0)) / 2
    )
    joint = np.diff(cumulative, axis=1).T * np.exp(prior.log)
    exact = joint / joint.sum(axis=1, keepdims=True)
    found = posterior(LaplaceChannel(line, prior, eta, 40_000).log_likelihood(np.arange(5)), prior)
    assert np.abs(found - exact).max() < 0.006
    wrong = posterior(LaplaceChannel(line, prior, eta / 1.3, 40_000).log_likelihood(np.arange(5)), prior)
    assert np.abs(wrong - exact).max() > 0.02


def test_without_draws_the_fitted_shape_stands_in() -> None:
    """If it breaks, a word that no simulated release ended in is guessed at random."""
    channel = LaplaceChannel(SMALL, PRIOR, 6.0, 0)
    seen = SMALL.index["doctor"]
    assert likeliest(channel, PRIOR, np.array([seen])) == [seen]
    # A word that no text holds is guessed as one that texts hold and that is near.
    cancer = SMALL.index["cancer"]
    assert likeliest(channel, PRIOR, np.array([cancer]))[0] in PRIOR.ids


def test_noisy_vectors_betray_more_than_their_words() -> None:
    """If it breaks, the attack on vectors throws away what the vectors tell beyond the nearest word."""
    rng = NotPrivateSeededRandomness
    vectors = invert_vectors(TEXTS, vocabulary=SMALL, eta=3.0, prior=PRIOR, rng=rng(1))
    words = invert_words(TEXTS, vocabulary=SMALL, eta=3.0, prior=PRIOR, rng=rng(1))
    nearest = invert_vectors(TEXTS, vocabulary=SMALL, eta=3.0, rng=rng(1))
    assert vectors.interval[0] > words.interval[1]
    assert words.interval[0] > nearest.interval[1]
    assert nearest.rate == pytest.approx(1 - nearest.replaced)
    assert words.baseline == pytest.approx(np.exp(PRIOR.log.max()))


def test_a_word_that_the_frequencies_lack_is_read_where_it_came_out() -> None:
    """If it breaks, names pass for protected: the attacker never guesses a word that no public text holds."""
    other = unigram_prior(SMALL, ["the cancer was in paris"] * 3)
    for mechanism in ("laplace", "exponential"):
        given = {"vocabulary": SMALL, "mechanism": mechanism, "prior": other, "rng": NotPrivateSeededRandomness(1)}
        done = invert_words(TEXTS[:2], eta=200.0, **given)
        assert (done.replaced, done.rate, done.settings["better"]) == (0.0, 1.0, "map")
    done = invert_vectors(TEXTS[:2], vocabulary=SMALL, eta=200.0, prior=other, rng=NotPrivateSeededRandomness(1))
    assert (done.rate, done.settings["better"]) == (1.0, "map")


def test_no_attacker_is_weaker_than_reading_the_released_words() -> None:
    """If it breaks, frequencies of other texts make a release look safer than it reads.

    These frequencies are sure of one word. The interval holds for both attackers, of whom the better was picked.
    """
    sure = UnigramPrior(np.array([SMALL.index["cancer"]]), np.zeros(1))
    for attack in (invert_words, invert_vectors):
        given = {"vocabulary": SMALL, "eta": 6.0, "prior": sure}
        done = attack(TEXTS, **given, rng=NotPrivateSeededRandomness(1))  # type: ignore[operator]  # two of one kind
        assert done.rate == 1 - done.replaced > 0.3
        assert done.settings["better"] == "nearest"
        alone = attack(TEXTS, **given | {"prior": None}, rng=NotPrivateSeededRandomness(1))  # type: ignore[operator]
        assert done.rate == alone.rate
        assert done.interval[0] < alone.interval[0] < alone.interval[1] < done.interval[1]


def test_words_never_seen_have_the_share_of_those_seen_once() -> None:
    """If it breaks, a new word is as likely as a frequent one, or the chances no longer add up to 1."""
    prior = unigram_prior(SMALL, ["the the the dog cat"])
    assert prior.unseen == pytest.approx(2 / 6)
    seen = np.array([SMALL.index["the"], SMALL.index["paris"], SMALL.index["paris"]])
    wider = prior.including(seen, SMALL)
    assert wider.ids.tolist() == [*prior.ids, SMALL.index["paris"]]
    assert np.exp(wider.log).sum() == pytest.approx(1)
    odds = np.exp(wider.log[-1] - wider.log[wider.ids == SMALL.index["the"]])
    assert odds == pytest.approx(2 / 6 / (len(SMALL) - 3) / 0.6)


def test_words_are_shown_on_request_only() -> None:
    """If it breaks, a log that prints a result repeats the private words."""
    done = invert_words(["the doctor"], vocabulary=SMALL, eta=100.0, prior=PRIOR)
    assert done.words == (("the", "the", "the"), ("doctor", "doctor", "doctor"))
    assert "doctor" in done.side_by_side()
    assert not any("doctor" in shown for shown in (repr(done), str(done), str(done.to_dict())))


def test_unknown_and_special_words_are_left_out() -> None:
    """If it breaks, words that nobody could guess lower the rate."""
    done = invert_words(["zyzzyva the qwerty"], vocabulary=SMALL, eta=50.0, prior=PRIOR)
    assert (done.n, done.rate) == (1, 1.0)
