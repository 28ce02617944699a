"""Public tables of embeddings: the words, their vectors, and how a text is cut into them.

Everything in a vocabulary is public and fixed before any private text is seen. That is what makes the nearest word free
post-processing of a noisy vector.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms._nearest import NearestVector
from langchain_dp.rapt._tokenizers import PAD, UNKNOWN, Tokenizer, WordTokenizer

_NAMED = 60
_ROWS = 8192


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """A public table of words and vectors.

    Args:
        words: Words or subwords, each once.
        vectors: Their vectors, (n, d), finite. Kept as float32; the attribute is read-only.
        name: Name of the table, for certificates.
        unknown: Public vector of every word outside the table; the mean of the vectors that may be written by default.
        pad: Public vector of what fills a text up to a fixed length; ``unknown`` by default.
        never: Ids that are never written out (special and unused tokens), whatever the input.
        tokenizer: How a text is cut; whole words by default.
        kind: "word" or "subword".

    Raises:
        InvalidParameter: Words and vectors do not match, a word stands there twice, a vector holds NaN, or fewer than
            two words may be written.

    Examples:
        >>> vocabulary = Vocabulary(["fever", "cough", "rash"], [[0.0, 1.0], [0.2, 0.9], [1.0, 0.0]])
        >>> vocabulary
        Vocabulary('vectors', 3 words of 2 numbers)
        >>> RAPTSanitizer(vocabulary, eta=5.0)
    """

    words: Sequence[str]
    vectors: NDArray[np.float32]
    name: str = "vectors"
    unknown: NDArray[np.float32] | None = None
    pad: NDArray[np.float32] | None = None
    never: Sequence[int] = ()
    tokenizer: Tokenizer | None = None
    kind: Literal["word", "subword"] = "word"
    table: NearestVector = dataclasses.field(init=False)
    index: dict[str, int] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        words = tuple(self.words)
        index = _index(words)
        vectors = _matrix(words, self.vectors)
        allowed = np.ones(len(words), dtype=bool)
        for number in self.never:
            allowed[validate.integer("never", number, at_least=0, at_most=len(words) - 1)] = False
        if allowed.sum() < 2:
            raise InvalidParameter(
                f"Expected words to hold at least two that may be written, got {int(allowed.sum())} of {len(words)}."
            )
        table = NearestVector(vectors, allowed)
        unknown = _vector("unknown", self.unknown, _mean(table), vectors.shape[1])
        for name, value in {
            "words": words,
            "index": index,
            "table": table,
            "vectors": table.vectors,
            "unknown": unknown,
            "pad": _vector("pad", self.pad, unknown, vectors.shape[1]),
            "never": tuple(self.never),
            "tokenizer": self.tokenizer or WordTokenizer(words, index),
        }.items():
            object.__setattr__(self, name, value)  # frozen: the only way

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({self.name!r}, {len(self)} {self.kind}s of {self.dimension} numbers)"

    @property
    def dimension(self) -> int:
        """Length d of the vectors."""
        return int(self.vectors.shape[1])

    def share(self, folder: Path) -> None:
        """Keep the vectors in a file in ``folder`` that all processes of a machine which do so map, read-only.

        Args:
            folder: Writable by its owner alone; made if absent. Where it cannot be written, nothing changes.
        """
        self.table.share(folder)
        object.__setattr__(self, "vectors", self.table.vectors)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of words and vectors: two tables under one name measure other distances."""
        digest = hashlib.sha256("\0".join(self.words).encode("utf-8", "surrogatepass"))
        for start in range(0, len(self), 4096):
            digest.update(self.vectors[start : start + 4096].astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may be written out: all but special and unused ones."""
        return self.table.allowed

    def points(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Vectors of ids, in double precision, with the public vectors of ``UNKNOWN`` and ``PAD``."""
        points = self.vectors[np.maximum(ids, 0)].astype(np.float64)
        for special, vector in ((UNKNOWN, self.unknown), (PAD, self.pad)):
            points[ids == special] = vector
        return points

    def encode(self, text: str) -> list[int]:
        """Ids of a text; private, like the text."""
        assert self.tokenizer is not None  # __post_init__
        return self.tokenizer.encode(text)

    def surfaces(self, text: str) -> list[str]:
        """What stood in the text for each id of :meth:`encode`."""
        assert self.tokenizer is not None  # __post_init__
        return self.tokenizer.surfaces(text)

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Pieces of text of released ids."""
        assert self.tokenizer is not None  # __post_init__
        return self.tokenizer.decode(ids)


def _index(words: Sequence[str]) -> dict[str, int]:
    wrong = next((kind for kind in set(map(type, words)) if not issubclass(kind, str)), None)
    if wrong is not None:
        raise InvalidParameter(f"Expected words to be strings, got one of type {wrong.__name__}.")
    index = dict(zip(words, range(len(words)), strict=True))
    if len(index) < len(words):
        twice = next(word for i, word in enumerate(words) if index[word] != i)
        raise InvalidParameter(
            f"Expected words to hold each word once, but {len(words) - len(index)} are there again, {twice!r} among "
            "them. Give each word one vector."
        )
    return index


def _matrix(words: Sequence[str], given: ArrayLike) -> NDArray[np.floating]:
    try:
        vectors = np.asanyarray(given)
    except ValueError:
        raise InvalidParameter("Expected vectors to be a matrix, but its rows differ in length.") from None
    if vectors.ndim != 2 or vectors.shape[1] < 1 or vectors.dtype.kind not in "iuf":
        raise InvalidParameter(
            f"Expected vectors of shape {vectors.shape} and type {vectors.dtype} to be a matrix of floats, one row a "
            "word."
        )
    if len(words) != len(vectors):
        raise InvalidParameter(
            f"Expected as many words as vectors, got {len(words)} words and {len(vectors)} vectors. "
            "Give one vector a word, in the same order."
        )
    for start in range(0, len(words), 4096):
        bad = np.flatnonzero(~(np.abs(vectors[start : start + 4096].astype(np.float64)) < 1e15).all(axis=1))
        if len(bad):
            row = start + int(bad[0])
            raise InvalidParameter(
                f"Expected vectors to be finite and below 1e15, but row {row} ({words[row]!r}) is not. Leave it out."
            )
    return vectors


def _mean(table: NearestVector) -> NDArray[np.float32]:
    mean: NDArray[np.float32] = table.vectors.mean(axis=0, dtype=np.float64, where=table.allowed[:, None])
    return mean


def _vector(
    name: str, given: NDArray[np.float32] | None, otherwise: NDArray[np.float32], dimension: int
) -> NDArray[np.float32]:
    vector = np.array(otherwise if given is None else given, dtype=np.float32)
    if vector.shape != (dimension,) or not np.isfinite(vector).all():
        raise InvalidParameter(f"Expected {name} of shape {vector.shape} to be {dimension} finite numbers.")
    vector.setflags(write=False)
    return vector


def table_name(vocabulary: Vocabulary) -> str:
    """Name of a metric: two tables with one name and other vectors measure other distances."""
    digest = hashlib.sha256()
    for start in range(0, len(vocabulary), _ROWS):
        digest.update(np.ascontiguousarray(vocabulary.vectors[start : start + _ROWS]).tobytes())
    digest.update("\0".join(vocabulary.words).encode("utf-8", "surrogatepass"))
    name = "".join(letter if letter.isprintable() else "?" for letter in vocabulary.name)[:_NAMED]
    return f"{name} ({len(vocabulary):,} x {vocabulary.dimension}, {digest.hexdigest()[:8]})"
