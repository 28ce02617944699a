"""Contextual inversion: a masked model guesses a word from the released text around it, and from the word itself.

After the mask-token inference attack of Yue et al. 2021, "Differential privacy for text analytics via natural text
sanitization". Further rounds read the guesses of the round before. The model never sees the true words.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from langchain_dp.attacks.embedding_inversion import InversionResult, word_channel, words_guessed
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness
from langchain_dp.rapt.posterior import Channel, Floats, Ids, LaplaceChannel, UnigramPrior, known_words, likeliest
from langchain_dp.rapt.privatize import Mechanism, TextPrivatizer
from langchain_dp.rapt.vocabulary import Vocabulary


class NeighborsMasked:
    """Guesses a word from the word before and the word after, by counts in PUBLIC texts.

    The chance of x between l and r is proportional to P(x | l) P(r | x), each the share in the texts mixed with the
    plain frequencies as if these had been seen ``strength`` times (a Dirichlet prior).
    """

    name = "neighbors in public texts"

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str], *, strength: float = 20.0) -> None:
        self._strength = strength
        size = len(vocabulary)
        lines = [known_words(vocabulary, [text]) for text in texts]
        before = np.concatenate([line[:-1] for line in lines])
        after = np.concatenate([line[1:] for line in lines])
        # Every allowed word has some chance, however rare: half a count.
        self._plain = np.bincount(np.concatenate(lines), minlength=size) + 0.5 * vocabulary.allowed
        self._plain /= self._plain.sum()
        pairs, counts = np.unique(before * size + after, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._before, self._after = pairs // size, pairs % size
        self._by_after = np.argsort(self._after, kind="stable")
        self._followed = np.bincount(before, minlength=size).astype(np.float64)

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> Floats:
        """Return the log-probability of every word at each place; -inf for a word that is never written."""
        table = np.empty((len(places), len(self._plain)))
        for row, place in enumerate(places):
            left = ids[place - 1] if place else None
            right = ids[place + 1] if place + 1 < len(ids) else None
            weight = self._follows(left) * self._precedes(right)
            with np.errstate(divide="ignore"):
                table[row] = np.log(weight / weight.sum())
        return table

    def _follows(self, left: int | None) -> Floats:
        """Return P(x | left) for every x."""
        if left is None:
            return self._plain
        weight = self._strength * self._plain
        some = slice(*np.searchsorted(self._before, [left, left + 1]))
        weight[self._after[some]] += self._counts[some]
        return np.asarray(weight / (self._followed[left] + self._strength))

    def _precedes(self, right: int | None) -> Floats:
        """Return P(right | x) for every x."""
        if right is None:
            return np.ones_like(self._plain)
        weight = np.full_like(self._plain, self._strength * self._plain[right])
        ends = np.searchsorted(self._after[self._by_after], [right, right + 1])
        some = self._by_after[ends[0] : ends[1]]
        weight[self._before[some]] += self._counts[some]
        return np.asarray(weight / (self._followed + self._strength))


def invert_in_context(
    texts: Sequence[str],
    *,
    vocabulary: Vocabulary,
    eta: float,
    model: Any,
    prior: UnigramPrior,
    mechanism: Mechanism = "laplace",
    weight: float = 0.5,
    rounds: int = 1,
    draws: int = 5_000,
    rng: Randomness | None = None,
) -> InversionResult:
    """Release the words of texts and guess them back from the released words and the context.

    ``weight`` is that of the model's log-probability against the frequencies: a model that reads noise is too
    confident. The rate is that of the guesses or, if they are worse, of the released words themselves;
    ``settings["without_context"]`` is the rate of ``invert_words`` on the same releases.
    """
    lines = [line for text in texts if len(line := known_words(vocabulary, [text]))]
    true = np.concatenate(lines)
    released = TextPrivatizer(vocabulary, eta, mechanism=mechanism, rng=rng or SystemRandomness()).release(true)
    prior = prior.including(released, vocabulary)
    channel = word_channel(vocabulary, prior, eta, mechanism, draws)
    alone = likeliest(channel, prior, released)
    ends = np.cumsum([len(line) for line in lines])
    weighed = copy.copy(channel)
    if isinstance(weighed, LaplaceChannel):  # the likeliest shape, not that of most hits
        weighed.slope, weighed.bonus = max(weighed.fits, key=lambda one: one[1])[2]
    attack = _Context(weighed, prior, model, weight, rounds)
    guesses = np.concatenate([attack.guess(line) for line in np.split(released, ends[:-1])])
    without = max(float((guess == true).mean()) for guess in (alone, released))
    return words_guessed(
        f"inversion in context ({mechanism})", vocabulary, true, released, {"context": guesses, "nearest": released},
        prior, eta=float(eta), mechanism=mechanism, model=model.name, weight=float(weight), see_word=True,
        rounds=rounds, without_context=without,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Context:
    channel: Channel
    prior: UnigramPrior
    model: Any
    weight: float
    rounds: int

    def guess(self, released: Ids) -> Ids:
        """Return the words of one text."""
        known = self.channel.log_likelihood(released) + (1 - self.weight) * self.prior.log
        context = released
        for _ in range(self.rounds):
            total = known
            if self.weight:
                rows = np.asarray(self.model.log_probabilities(context.tolist(), range(len(context))))
                total = known + self.weight * np.maximum(rows[:, self.prior.ids], -1e4)
            context = np.asarray(self.prior.ids[total.argmax(axis=1)])
        return context
