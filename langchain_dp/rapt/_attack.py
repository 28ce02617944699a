"""What an attacker makes of released words: how often it guesses the word that stood there, and how many could.

Everything here is simulated on public texts with a fixed seed: the same numbers for the same table on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from langchain_dp.mechanisms._nearest import ROWS, sharded
from langchain_dp.mechanisms.metric_exponential import MetricExponential
from langchain_dp.mechanisms.metric_laplace import noise
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness
from langchain_dp.rapt.vocabulary import Vocabulary

Ids = NDArray[np.int64]
Release = Callable[[Ids, float], Ids]

_SHARPNESS = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
_SEED = 20231


def simulated(vocabulary: Vocabulary, mechanism: str, threads: int | None) -> Release:
    """The mechanism as a function of words and eta, with the same coins for every eta."""

    def laplace(ids: Ids, eta: float) -> Ids:
        rng = NotPrivateSeededRandomness(_SEED)
        blocks = [ids[start : start + ROWS] for start in range(0, len(ids), ROWS)]
        noisy = (vocabulary.points(block) + noise(len(block), vocabulary.dimension, eta, rng) for block in blocks)
        return np.concatenate(list(sharded(vocabulary.table.find, noisy, threads)))

    def exponential(ids: Ids, eta: float) -> Ids:
        drawn = MetricExponential(vocabulary.table, eta, cache_bytes=0, threads=threads)
        return drawn.draw(ids, vocabulary.points, rng=NotPrivateSeededRandomness(_SEED))

    return laplace if mechanism == "laplace" else exponential


class Inversion:
    """Attackers that see a released word, know table, mechanism and eta, and how frequent each word is in the texts.

    One guesses the released word itself (the nearest neighbour of its vector). Others guess the word x that maximises
    log frequency(x) - c |x - released|, for several c up to eta; c = 0 ignores the release. The most successful counts.

    Args:
        vocabulary: Public table.
        population: Words of the texts, as often as they occur.
        sample: Words to be guessed.
        release: The mechanism.
    """

    def __init__(self, vocabulary: Vocabulary, population: Ids, sample: Ids, release: Release) -> None:
        self._candidates, counts = np.unique(population, return_counts=True)
        self._prior = np.log(counts / counts.sum())
        self._vectors = vocabulary.points(self._candidates)
        self._vocabulary = vocabulary
        self._sample = sample
        self._release = release

    @property
    def blind(self) -> float:
        """Success of always guessing the most frequent word."""
        return float(np.mean(self._sample == self._candidates[self._prior.argmax()]))

    def hits(self, eta: float) -> int:
        """Words of the sample that the most successful attacker guesses."""
        released = self._release(self._sample, eta)
        hits = [int((released == self._sample).sum()), *[0] * len(_SHARPNESS)]
        squares = np.einsum("ij,ij->i", self._vectors, self._vectors)
        for start in range(0, len(released), ROWS):
            block = slice(start, start + ROWS)
            seen = self._vocabulary.points(released[block])
            apart = squares + np.einsum("ij,ij->i", seen, seen)[:, None] - 2 * seen @ self._vectors.T
            apart = np.sqrt(np.maximum(apart, 0))
            for i, sharpness in enumerate(_SHARPNESS, start=1):
                guess = self._candidates[(self._prior - eta * sharpness * apart).argmax(axis=1)]
                hits[i] += int((guess == self._sample[block]).sum())
        return max(hits)


def distinct_outputs(words: Ids, releases: int, release: Release, eta: float) -> float:
    """Mean number of distinct words that come out in this many releases of one word."""
    out = release(np.repeat(words, releases), eta).reshape(len(words), releases)
    return float(np.mean([len(np.unique(line)) for line in out]))
