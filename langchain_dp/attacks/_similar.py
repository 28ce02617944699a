"""Which row is most like a text: exact search, by character n-grams or by an embedding of the caller's."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from langchain_dp.attacks import _given
from langchain_dp.errors import InvalidParameter

Embed = Callable[[Sequence[str]], npt.ArrayLike]
"""Texts to one vector each."""

Matrix = npt.NDArray[np.float64]
_SIZES = (3, 4)


def similarities(texts: Sequence[str], rows: Sequence[str], embed: Embed | None) -> Matrix:
    """Cosine similarity of every text to every row.

    Args:
        texts: Folded texts.
        rows: Folded rows.
        embed: Embedding; None counts character n-grams within words, weighted by how rare they are among the rows.

    Raises:
        InvalidParameter: The embedding does not give one finite vector a text.
    """
    return _by_letters(texts, rows) if embed is None else _unit(embed, texts) @ _unit(embed, rows).T


def _unit(embed: Embed, texts: Sequence[str]) -> Matrix:
    vectors = _given.numbers("what embed returned", embed(list(texts)))
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise InvalidParameter(
            f"Expected embed to give one finite vector for each of {len(texts)} texts, but it gave an array of shape "
            f"{vectors.shape}."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _letters(text: str) -> Counter[str]:
    padded = [f" {word} " for word in text.split()]
    return Counter(word[i : i + size] for word in padded for size in _SIZES for i in range(len(word) - size + 1))


def _by_letters(texts: Sequence[str], rows: Sequence[str]) -> Matrix:
    counted = [_letters(row) for row in rows]
    found = Counter(gram for row in counted for gram in row)
    weight = {gram: math.log((1 + len(rows)) / (1 + count)) + 1 for gram, count in found.items()}
    rarest = math.log(1 + len(rows)) + 1  # of what no row has
    index: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, text in enumerate(texts):
        values = {gram: math.sqrt(count) * weight.get(gram, rarest) for gram, count in _letters(text).items()}
        length = math.sqrt(sum(value**2 for value in values.values())) or 1.0
        for gram, value in values.items():
            index[gram].append((place, value / length))
    table = np.zeros((len(texts), len(rows)))
    for column, row in enumerate(counted):
        squares = 0.0
        for gram, count in row.items():
            value = math.sqrt(count) * weight[gram]
            squares += value**2
            for place, share in index.get(gram, ()):
                table[place, column] += share * value
        table[:, column] /= math.sqrt(squares) or 1.0
    return table
