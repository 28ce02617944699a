"""How likely a mechanism is to show what was seen, for every word that may have stood there.

Each channel answers in logarithms, up to a constant for each thing seen: enough for a posterior.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from langchain_dp import _validate
from langchain_dp.attacks import _given
from langchain_dp.attacks._result import texts_of
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms._nearest import ROWS
from langchain_dp.mechanisms.metric_exponential import weights
from langchain_dp.mechanisms.metric_laplace import noise
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness
from langchain_dp.rapt import tokenise
from langchain_dp.rapt.vocabulary import Vocabulary

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_SEED = 20232
_FITTED = 1_000  # simulated releases by which the shape of a channel is fitted
_SLOPES = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.16, 0.25, 0.5)
_BONUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
_PSEUDO = 64.0  # simulated vectors that the fitted shape is worth


@dataclasses.dataclass(frozen=True, eq=False)
class UnigramPrior:
    """Words that may have stood there, with how likely each is before anything is seen.

    Args:
        ids: Their ids in the vocabulary, distinct.
        log: Logarithms of their chances, which add up to 1.
    """

    ids: Ids = dataclasses.field(repr=False)
    log: Floats = dataclasses.field(repr=False)

    @property
    def likeliest(self) -> int:
        """Id of the most frequent word."""
        return int(self.ids[self.log.argmax()])


def unigram_prior(vocabulary: Vocabulary, texts: Sequence[str], *, smoothing: float = 0.0) -> UnigramPrior:
    """What an attacker knows of the language: how often each word occurs in PUBLIC texts like the private ones.

    Args:
        vocabulary: Public table, from :func:`langchain_dp.rapt.load`.
        texts: Public texts.
        smoothing: Added to the count of every word that may be written. 0: words that the texts do not hold are never
            guessed. Above 0 every word of the table is a candidate, which takes time in proportion.

    Raises:
        InvalidParameter: ``vocabulary`` is none, the texts hold no word of the table, or ``smoothing`` is below 0.
    """
    _validate.number("smoothing", smoothing, at_least=0.0)
    counts = np.bincount(known_words(vocabulary, texts_of("texts", texts)), minlength=len(vocabulary)).astype(float)
    if not counts.any():
        raise InvalidParameter(
            "Expected texts to hold a word of the table, got none. Give public texts of its language."
        )
    counts[vocabulary.allowed] += smoothing
    ids = np.flatnonzero(counts)
    return UnigramPrior(ids, np.log(counts[ids] / counts.sum()))


def known_words(vocabulary: Vocabulary, texts: Sequence[str]) -> Ids:
    """Ids of the running words that the table holds and may write: what an attacker can guess at all."""
    _given.table(vocabulary)
    ids = np.array([i for text in texts for i in vocabulary.encode(tokenise.clean(text))], dtype=np.int64)
    ids = ids[ids >= 0]
    return np.asarray(ids[vocabulary.allowed[ids]])


class Channel(Protocol):
    """Log-likelihoods of the candidates."""

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        """Of each thing seen under each candidate, (seen, candidates), up to a constant for each row."""
        ...


class VectorChannel:
    """The noisy vector itself, exactly: its density falls as exp(-eta |x - seen|)."""

    def __init__(self, vocabulary: Vocabulary, prior: UnigramPrior, eta: float) -> None:
        self._vectors = vocabulary.points(prior.ids)
        self._squares = np.einsum("ij,ij->i", self._vectors, self._vectors)
        self._eta = eta

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        """``seen`` are noisy vectors, (m, d)."""
        return -self._eta * self.distances(np.asarray(seen, dtype=np.float64))

    def distances(self, points: Floats) -> Floats:
        """Of each point to each candidate."""
        apart = self._squares + np.einsum("ij,ij->i", points, points)[:, None] - 2 * (points @ self._vectors.T)
        return np.asarray(np.sqrt(np.maximum(apart, 0.0)))


class ExponentialChannel:
    """A word released by the exponential mechanism, exactly: exp(-(eta/2) |x - w|) over its sum for x."""

    def __init__(self, vocabulary: Vocabulary, prior: UnigramPrior, eta: float) -> None:
        self._vocabulary = vocabulary
        self._eta = eta
        self._vectors = VectorChannel(vocabulary, prior, eta)
        self._norm = np.empty(len(prior.ids))
        for start in range(0, len(prior.ids), ROWS):
            points = vocabulary.points(prior.ids[start : start + ROWS])
            total = sum(block.sum(axis=1) for _, block in weights(vocabulary.table, points, eta))
            nearest = vocabulary.vectors[vocabulary.table.find(points)]
            # The weights leave out the nearest row's own factor.
            self._norm[start : start + ROWS] = np.log(total) - eta / 2 * np.linalg.norm(points - nearest, axis=1)

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        """``seen`` are ids of released words, (m,)."""
        points = self._vocabulary.points(np.asarray(seen, dtype=np.int64))
        return -self._eta / 2 * self._vectors.distances(points) - self._norm


class LaplaceChannel:
    """A word released by the noise mechanism: the chance that noise ends in its cell, which has no closed form.

    The posterior given a word is the mean of the exact posteriors given the noisy vectors that end in its cell. It is
    estimated from simulated releases of words of the prior, and tends to the exact one as ``draws`` grows. For words
    that few draws end in, a fitted shape fills in, b [x = w] - c eta |x - w|, which is worth 64 draws: b and c make
    simulated releases likeliest. In high dimension, with tens of thousands of words, that shape is nearly all there is.

    Args:
        vocabulary: Public table.
        prior: Candidates.
        eta: Privacy loss per unit of distance.
        draws: Number of simulated releases. Seeded: it is the attacker's own simulation of public things.
    """

    def __init__(self, vocabulary: Vocabulary, prior: UnigramPrior, eta: float, draws: int) -> None:
        self._vocabulary = vocabulary
        self._prior = prior
        self._eta = eta
        self._vectors = VectorChannel(vocabulary, prior, eta)
        rng, coins = NotPrivateSeededRandomness(_SEED), np.random.default_rng(_SEED)
        self._slope, self._bonus = self._fitted(*self._simulated(_FITTED, rng, coins)[:2])
        _, self._released, self._noisy = self._simulated(draws, rng, coins)

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        """``seen`` are ids of released words, (m,)."""
        released, which = np.unique(np.asarray(seen, dtype=np.int64), return_inverse=True)
        total = _PSEUDO * self._shape(released)
        for word in np.flatnonzero(np.isin(released, self._released)):
            behind = self._noisy[self._released == released[word]]
            total[word] += _posterior(self._vectors.log_likelihood(behind), self._prior).sum(axis=0)
        likelihood = np.log(np.maximum(total, 1e-300)) - self._prior.log
        return np.asarray(likelihood[which])

    def _simulated(
        self, count: int, rng: NotPrivateSeededRandomness, coins: np.random.Generator
    ) -> tuple[Ids, Ids, Floats]:
        """Places of the words among the candidates, what came out, and the noisy vectors between."""
        true = coins.choice(len(self._prior.ids), count, p=np.exp(self._prior.log))
        released = np.empty(count, dtype=np.int64)
        vectors = np.empty((count, self._vocabulary.dimension))
        for start in range(0, count, ROWS):
            block = slice(start, start + ROWS)
            points = self._vocabulary.points(self._prior.ids[true[block]])
            vectors[block] = points + noise(len(points), self._vocabulary.dimension, self._eta, rng)
            released[block] = self._vocabulary.table.find(vectors[block])
        return true, released, vectors

    def _shape(self, released: Ids) -> Floats:
        """Posterior of the fitted shape."""
        log = -self._slope * self._eta * self._vectors.distances(self._vocabulary.points(released))
        log += self._bonus * (released[:, None] == self._prior.ids)
        return _posterior(log, self._prior)

    def _fitted(self, true: Ids, released: Ids) -> tuple[float, float]:
        apart = self._vectors.distances(self._vocabulary.points(released))
        same = released[:, None] == self._prior.ids
        every = np.arange(len(true))
        best, found = -np.inf, (_SLOPES[0], 0.0)
        for slope in _SLOPES:
            log = self._prior.log - slope * self._eta * apart
            base = logsumexp(log, axis=1)
            # The bonus changes one entry of a row: its sum need not be done again.
            own = np.where(same.any(axis=1), log[every, same.argmax(axis=1)], -np.inf)
            for bonus in _BONUSES:
                norm = np.logaddexp(base, own + np.log(np.expm1(bonus))) if bonus else base
                fit = float((log[every, true] + bonus * same[every, true] - norm).mean())
                if fit > best:
                    best, found = fit, (slope, bonus)
        return found


def _posterior(log_likelihood: Floats, prior: UnigramPrior) -> Floats:
    log = log_likelihood + prior.log
    log -= log.max(axis=1, keepdims=True)
    np.exp(log, out=log)
    log /= log.sum(axis=1, keepdims=True)
    return log
