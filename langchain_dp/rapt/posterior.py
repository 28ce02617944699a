"""The attacker: guesses a private word from its release by the largest posterior."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from langchain_dp.mechanisms._nearest import ROWS, sharded
from langchain_dp.mechanisms.metric_exponential import weights
from langchain_dp.mechanisms.metric_noise import noise
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness
from langchain_dp.rapt import tokenize
from langchain_dp.rapt.vocabulary import Vocabulary

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

DRAWS = 1_000
_RELEASES = 20231  # seed of the attacked releases
_SIMULATED = 20232  # seed of the attacker's own simulations
_SLOPES = (0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.25, 0.35, 0.5, 0.7, 1.0)
_BONUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
_REPEATS = 2  # releases of each word of the sample
_PSEUDO = 64.0  # weight of the fitted shape, in simulated vectors


@dataclasses.dataclass(frozen=True, eq=False)
class UnigramPrior:
    """Candidates of a guess.

    Args:
        ids: The candidates, each once.
        log: Their log-probabilities.
        unseen: Probability of all others.
    """

    ids: Ids = dataclasses.field(repr=False)
    log: Floats = dataclasses.field(repr=False)
    unseen: float = 0.0

    @property
    def likeliest(self) -> int:
        return int(self.ids[self.log.argmax()])

    def including(self, seen: Ids, vocabulary: Vocabulary) -> UnigramPrior:
        """Add released words, each as likely as any unseen one."""
        new = np.setdiff1d(seen, self.ids)
        if not (self.unseen and len(new)):
            return self
        each = np.log(self.unseen / (int(vocabulary.allowed.sum()) - np.count_nonzero(vocabulary.allowed[self.ids])))
        log = np.concatenate([self.log, np.full(len(new), each)])
        return UnigramPrior(np.concatenate([self.ids, new]), log - logsumexp(log))


def running_words(vocabulary: Vocabulary, texts: Sequence[str]) -> Ids:
    return np.array([i for text in texts for i in vocabulary.encode(tokenize.clean(text))], dtype=np.int64)


def known_words(vocabulary: Vocabulary, texts: Sequence[str]) -> Ids:
    return guessable(vocabulary, running_words(vocabulary, texts))


def guessable(vocabulary: Vocabulary, ids: Ids) -> Ids:
    ids = ids[ids >= 0]
    return np.asarray(ids[vocabulary.allowed[ids]])


class Channel(Protocol):
    """Log-likelihoods of the candidates."""

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        """Return (seen, candidates), up to a constant per row."""


class VectorChannel:
    """Noisy vectors, (m, d), exactly: density falls as exp(-eta |x - seen|)."""

    def __init__(self, vocabulary: Vocabulary, prior: UnigramPrior, eta: float) -> None:
        self._vectors = vocabulary.points(prior.ids)
        self._squares = np.einsum("ij,ij->i", self._vectors, self._vectors)
        self._eta = eta

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        return -self._eta * self.distances(np.asarray(seen, dtype=np.float64))

    def distances(self, points: Floats) -> Floats:
        squares = self._squares + np.einsum("ij,ij->i", points, points)[:, None]
        apart = squares - 2 * (points @ self._vectors.T)
        i, j = np.nonzero(apart < 1e-6 * squares)  # where only rounding is left
        apart[i, j] = np.square(points[i] - self._vectors[j]).sum(axis=1)
        return np.asarray(np.sqrt(apart, out=apart))


class ExponentialChannel:
    """The exponential mechanism, exactly: exp(-(eta/2) |x - w|) over its sum for x."""

    def __init__(self, vocabulary: Vocabulary, prior: UnigramPrior, eta: float, *, norm: Floats | None = None) -> None:
        self._vocabulary = vocabulary
        self._eta = eta
        self._vectors = VectorChannel(vocabulary, prior, eta)
        if norm is not None:
            self._norm = norm
            return
        self._norm = np.empty(len(prior.ids))
        for start in range(0, len(prior.ids), ROWS):
            points = vocabulary.points(prior.ids[start : start + ROWS])
            total = sum(block.sum(axis=1) for _, block in weights(vocabulary.table, points, eta))
            nearest = vocabulary.vectors[vocabulary.table.find(points)]
            # The weights leave out the nearest row's factor.
            self._norm[start : start + ROWS] = np.log(total) - eta / 2 * np.linalg.norm(points - nearest, axis=1)

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        points = self._vocabulary.points(np.asarray(seen, dtype=np.int64))
        return -self._eta / 2 * self._vectors.distances(points) - self._norm


class LaplaceChannel:
    """The noise mechanism: averages the posteriors of seeded noisy vectors in a word's cell.

    A fitted shape, b [x = w] - c eta |x - w|, weighs 64 draws.
    """

    def __init__(
        self, vocabulary: Vocabulary, prior: UnigramPrior, eta: float, draws: int, *, threads: int | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._threads = threads
        self._prior = prior
        self._eta = eta
        self._vectors = VectorChannel(vocabulary, prior, eta)
        true, released, noisy = self._simulated(max(draws, DRAWS))
        self.fits = self._fitted(true[:DRAWS], released[:DRAWS])
        self.slope, self.bonus = max(self.fits)[2]
        self._released, self._noisy = released[:draws], noisy[:draws]

    def log_likelihood(self, seen: NDArray[np.generic]) -> Floats:
        released, which = np.unique(np.asarray(seen, dtype=np.int64), return_inverse=True)
        total = _PSEUDO * self._shape(released)
        for word in np.flatnonzero(np.isin(released, self._released)):
            behind = self._noisy[self._released == released[word]]
            total[word] += _posterior(self._vectors.log_likelihood(behind), self._prior).sum(axis=0)
        likelihood = np.log(np.maximum(total, 1e-300)) - self._prior.log
        return np.asarray(likelihood[which])

    def _simulated(self, count: int) -> tuple[Ids, Ids, Floats]:
        rng, coins = NotPrivateSeededRandomness(_SIMULATED), np.random.default_rng(_SIMULATED)
        true = coins.choice(len(self._prior.ids), count, p=np.exp(self._prior.log))
        points = (
            self._vocabulary.points(self._prior.ids[true[start : start + ROWS]]) for start in range(0, count, ROWS)
        )
        noisy = [block + noise(len(block), self._vocabulary.dimension, self._eta, rng) for block in points]
        released = np.concatenate(list(sharded(self._vocabulary.table.find, noisy, self._threads)))
        return true, released, np.concatenate(noisy)

    def _shape(self, released: Ids) -> Floats:
        log = -self.slope * self._eta * self._vectors.distances(self._vocabulary.points(released))
        log += self.bonus * (released[:, None] == self._prior.ids)
        return _posterior(log, self._prior)

    def _fitted(self, true: Ids, released: Ids) -> list[tuple[int, float, tuple[float, float]]]:
        """Return hits, mean log-likelihood, and (slope, bonus), of every shape."""
        apart = self._vectors.distances(self._vocabulary.points(released))
        same = released[:, None] == self._prior.ids
        every, own = np.arange(len(true)), same.argmax(axis=1)
        known = same[every, own]
        fits = []
        for slope in _SLOPES:
            log = self._prior.log - slope * self._eta * apart
            guess, norm = log.argmax(axis=1), logsumexp(log, axis=1)
            here = log[every, own]
            for bonus in _BONUSES:  # a bonus changes one entry per row, so guesses and norms are updated
                shown = np.where(known & (here + bonus > log[every, guess]), own, guess)
                total = np.where(known, np.logaddexp(norm, here + np.log(np.expm1(bonus))), norm) if bonus else norm
                fit = float((log[every, true] + bonus * same[every, true] - total).mean())
                fits.append((int((shown == true).sum()), fit, (slope, bonus)))
        return fits


def _posterior(log_likelihood: Floats, prior: UnigramPrior) -> Floats:
    log = log_likelihood + prior.log
    log -= log.max(axis=1, keepdims=True)
    np.exp(log, out=log)
    log /= log.sum(axis=1, keepdims=True)
    return log


def simulated(ids: Ids, vocabulary: Vocabulary, eta: float, threads: int | None) -> Ids:
    rng = NotPrivateSeededRandomness(_RELEASES)
    blocks = [ids[start : start + ROWS] for start in range(0, len(ids), ROWS)]
    noisy = (vocabulary.points(block) + noise(len(block), vocabulary.dimension, eta, rng) for block in blocks)
    return np.concatenate(list(sharded(vocabulary.table.find, noisy, threads)))


def likeliest(channel: Channel, prior: UnigramPrior, seen: np.ndarray) -> Ids:
    if seen.ndim > 1:
        return np.asarray(prior.ids[(channel.log_likelihood(seen) + prior.log).argmax(axis=1)])
    distinct, which = np.unique(seen, return_inverse=True)
    blocks = np.array_split(distinct, -(-len(distinct) // ROWS))
    best = np.concatenate([(channel.log_likelihood(block) + prior.log).argmax(axis=1) for block in blocks])
    return np.asarray(prior.ids[best[which]])


class Inversion:
    """Success of an attacker who knows the word frequencies."""

    def __init__(self, population: Ids) -> None:
        ids, self._which, counts = np.unique(population, return_inverse=True, return_counts=True)
        self.prior = UnigramPrior(ids, np.log(counts / counts.sum()))

    @property
    def blind(self) -> float:
        return float(np.exp(self.prior.log.max()))


class ExactInversion(Inversion):
    """Success of the best attacker on the exponential mechanism."""

    def __init__(
        self, population: Ids, vocabulary: Vocabulary, log_norm: Callable[[Ids, float], Floats], threads: int | None
    ) -> None:
        super().__init__(population)
        self._vocabulary = vocabulary
        self._log_norm = log_norm
        self._threads = threads

    def guessed(self, eta: float) -> Floats:
        norm = self._log_norm(self.prior.ids, eta)
        channel = ExponentialChannel(self._vocabulary, self.prior, eta, norm=norm)
        words = np.flatnonzero(self._vocabulary.allowed)

        def best(released: Ids) -> Floats:
            log = channel.log_likelihood(released) + self.prior.log
            guess = log.argmax(axis=1)
            chances = np.exp(log[np.arange(len(guess)), guess] - self.prior.log[guess])
            return np.bincount(guess, weights=chances, minlength=len(norm)).astype(np.float64)

        blocks = np.array_split(words, -(-len(words) // ROWS))
        return np.asarray(sum(sharded(best, blocks, self._threads), np.zeros(len(norm)))[self._which])


class SimulatedInversion(Inversion):
    """The better guess on the noise mechanism."""

    def __init__(self, population: Ids, sample: Ids, vocabulary: Vocabulary, threads: int | None) -> None:
        super().__init__(population)
        self._sample = np.repeat(sample, _REPEATS)
        self._vocabulary = vocabulary
        self._threads = threads

    def guessed(self, eta: float) -> Floats:
        released = simulated(self._sample, self._vocabulary, eta, self._threads)
        channel = LaplaceChannel(self._vocabulary, self.prior, eta, DRAWS, threads=self._threads)
        tried = (released, likeliest(channel, self.prior, released))
        hits = max((guess == self._sample for guess in tried), key=np.count_nonzero)
        return np.asarray(hits.reshape(-1, _REPEATS).mean(axis=1))
