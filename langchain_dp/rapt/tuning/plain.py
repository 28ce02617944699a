"""The plain tokens: public words before every text, drawn by public coins and privatized like private ones.

They are public, so neither drawing nor privatizing them costs anything; that they are privatized with the same noise is
what makes reconstructing them teach the model something about the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.settings import PlainTokens
from langchain_dp.rapt.vocabulary import Vocabulary

Ids = NDArray[np.int64]

_COMMON = 30_000  # tables list common words first: rarer ones stand far from all text
_SHORTEST = 2


class PlainSource:
    """Draws rows of plain tokens.

    Args:
        vocabulary: The client's public table.
        settings: Which tokens, and how many.

    Raises:
        InvalidParameter: A given word is not in the table, or may not be written.
    """

    def __init__(self, vocabulary: Vocabulary, settings: PlainTokens) -> None:
        self.settings = settings
        coins = np.random.default_rng([settings.seed, 0])
        found = _candidates(vocabulary)
        size = min(settings.vocabulary, len(found))
        self.candidates: Ids = np.sort(coins.choice(found, size=size, replace=False))
        self.rows: Ids = coins.integers(0, size, size=(settings.rows, settings.length))
        if settings.words:
            self._give(vocabulary, settings.words)

    @classmethod
    def restored(
        cls, vocabulary: Vocabulary, settings: PlainTokens, candidates: Sequence[str], rows: Sequence[Sequence[int]]
    ) -> PlainSource:
        """Return the source that was described by :meth:`to_dict`.

        Raises:
            InvalidParameter: The description does not fit the table.
        """
        source = cls.__new__(cls)
        source.settings = settings
        source.candidates = _places(vocabulary, candidates)
        named = len(candidates) > 0 and all(0 <= one < len(candidates) for row in rows for one in row)
        if not named or len(rows) != settings.rows or any(len(row) != settings.length for row in rows):
            raise InvalidParameter(
                f"Expected {settings.rows} rows of {settings.length} plain tokens that name candidates: the "
                "description of the client is damaged. Save the client again."
            )
        source.rows = np.array(rows, dtype=np.int64).reshape(settings.rows, settings.length)
        return source

    def to_dict(self, vocabulary: Vocabulary) -> Mapping[str, Any]:
        """Public description: the words, not numbers that another version might draw differently."""
        return {"candidates": [vocabulary.words[i] for i in self.candidates.tolist()], "rows": self.rows.tolist()}

    def __len__(self) -> int:
        """Size |T| of the reconstruction head's vocabulary."""
        return len(self.candidates)

    def draw(self, count: int, coins: np.random.Generator, privatize: Callable[[Ids], Ids] | None) -> tuple[Ids, Ids]:
        """Rows for so many texts.

        Args:
            count: Number of texts.
            coins: Public coins.
            privatize: The mechanism M on ids of the table; None leaves the tokens as they are.

        Returns:
            What is to be reconstructed, as indices in T, and what is sent, as ids of the table: each (count, m).
        """
        length = self.settings.length
        if self.settings.choice == "fresh":
            targets = coins.integers(0, len(self.candidates), size=(count, length))
        else:
            targets = self.rows[coins.integers(0, len(self.rows), size=count)]
        ids: Ids = self.candidates[targets]
        if privatize is not None and ids.size:
            ids = privatize(ids.reshape(-1)).reshape(ids.shape)
        return targets, ids

    def _give(self, vocabulary: Vocabulary, words: Sequence[Sequence[str]]) -> None:
        """Use rows of chosen words; those that were not drawn as candidates replace some that were."""
        given = [_places(vocabulary, row) for row in words]
        wanted = np.unique(np.concatenate(given))
        others = np.setdiff1d(self.candidates, wanted)
        self.candidates = np.sort(np.concatenate([wanted, others[: max(0, len(self.candidates) - len(wanted))]]))
        self.rows = np.stack([np.searchsorted(self.candidates, row) for row in given])


def _candidates(vocabulary: Vocabulary) -> Ids:
    """Common words and pieces of letters, by a public rule; all that may be written where there are few."""
    allowed = np.flatnonzero(vocabulary.allowed)[:_COMMON]
    letters = [i for i in allowed.tolist() if _is_word(vocabulary.words[i])]
    return np.array(letters if len(letters) >= _SHORTEST else allowed, dtype=np.int64)


def _is_word(word: str) -> bool:
    core = word.removeprefix("##").removeprefix("\u2581").removeprefix("\u0120")
    return len(core) >= _SHORTEST and core.isascii() and core.isalpha()


def _places(vocabulary: Vocabulary, words: Sequence[str]) -> Ids:
    """Ids of words.

    Raises:
        InvalidParameter: A word is not in the table, or may not be written.
    """
    places = [vocabulary.index.get(word, -1) for word in words]
    for word, place in zip(words, places, strict=True):
        if place < 0 or not vocabulary.allowed[place]:
            raise InvalidParameter(
                f"Expected the plain token {word!r} to be a word of {vocabulary.name} that may be written. "
                "Give words of the client's table."
            )
    return np.array(places, dtype=np.int64)
