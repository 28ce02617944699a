"""A masked language model of counts: which words stand between which neighbours in public texts. No download."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.attacks import _given
from langchain_dp.attacks._result import texts_of
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt._attack import known_words
from langchain_dp.rapt.vocabulary import Vocabulary

Floats = NDArray[np.float64]


class NeighborsMasked:
    """Guesses a masked word from the word before and the word after; a ``PredictsMasked``.

    The chance of x between l and r is proportional to P(x | l) P(r | x), each the share in the texts mixed with the
    plain frequencies as if these had been seen ``strength`` times (a Dirichlet prior). It stands in where no masked
    model is at hand; a real one reads more than two neighbours, and guesses better.

    Args:
        vocabulary: Public table.
        texts: PUBLIC texts like those to attack.
        strength: Weight of the plain frequencies, above 0.

    Raises:
        InvalidParameter: The texts hold no two neighbouring words of the table, or ``strength`` is out of bounds.
    """

    name = "neighbours in public texts"

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str], *, strength: float = 20.0) -> None:
        _given.table(vocabulary)
        self._strength = validate.number("strength", strength, above=0.0)
        size = len(vocabulary)
        lines = [known_words(vocabulary, [text]) for text in texts_of("texts", texts)]
        before = np.concatenate([line[:-1] for line in lines])
        after = np.concatenate([line[1:] for line in lines])
        if not len(before):
            raise InvalidParameter("Expected texts to hold two neighbouring words of the table, got none. Give more.")
        # A word that may be written has some chance, however rare: half a count.
        self._plain = np.bincount(np.concatenate(lines), minlength=size) + 0.5 * vocabulary.allowed
        self._plain /= self._plain.sum()
        pairs, counts = np.unique(before * size + after, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._before, self._after = pairs // size, pairs % size
        self._by_after = np.argsort(self._after, kind="stable")
        self._followed = np.bincount(before, minlength=size).astype(np.float64)

    def log_probabilities(self, ids: Sequence[int], places: Sequence[int]) -> Floats:
        """Log-probability of every word at each place; -inf for a word that is never written."""
        found = np.empty((len(places), len(self._plain)))
        for row, place in enumerate(places):
            left = ids[place - 1] if place else None
            right = ids[place + 1] if place + 1 < len(ids) else None
            weight = self._follows(left) * self._precedes(right)
            with np.errstate(divide="ignore"):
                found[row] = np.log(weight / weight.sum())
        return found

    def _follows(self, left: int | None) -> Floats:
        """P(x | left) for every x."""
        if left is None:
            return self._plain
        weight = self._strength * self._plain
        some = slice(*np.searchsorted(self._before, [left, left + 1]))
        weight[self._after[some]] += self._counts[some]
        return np.asarray(weight / (self._followed[left] + self._strength))

    def _precedes(self, right: int | None) -> Floats:
        """P(right | x) for every x."""
        if right is None:
            return np.ones_like(self._plain)
        weight = np.full_like(self._plain, self._strength * self._plain[right])
        ends = np.searchsorted(self._after[self._by_after], [right, right + 1])
        some = self._by_after[ends[0] : ends[1]]
        weight[self._before[some]] += self._counts[some]
        return np.asarray(weight / (self._followed + self._strength))
