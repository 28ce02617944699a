"""Public tables of embeddings, fixed before any private text is seen."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langchain_dp._util import validate
from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms._nearest import NearestVector
from langchain_dp.ports import EmbedsSubwords
from langchain_dp.rapt import tokenize

UNKNOWN = -1
"""Word outside the vocabulary."""
PAD = -2
"""Fills a text up."""

_NAMED = 60
_ROWS = 8192


class Tokenizer(Protocol):
    """Cuts a text into ids, or ``UNKNOWN``, and writes ids as pieces."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> list[str]: ...


class WordTokenizer:
    """Looks up whole words."""

    def __init__(self, words: Sequence[str], index: dict[str, int]) -> None:
        self._words = words
        self._index = index

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for feature in tokenize.features(text, code=False):
            surface = text[feature.start : feature.end]
            pieces = [surface]
            if feature.kind == "word" and self._find(surface) < 0:
                parts = tokenize.ending(surface)
                pieces = [one for part in parts for one in ([part] if self._find(part) >= 0 else tokenize.joints(part))]
            ids += map(self._find, pieces)
        return ids

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self._words[i] for i in ids]

    def _find(self, surface: str) -> int:
        exact = self._index.get(surface)
        return self._index.get(tokenize.normal(surface), UNKNOWN) if exact is None else exact


class WordPieceTokenizer:
    """The tokenizer of a BERT-like model, without truncation."""

    def __init__(self, path: Path, words: Sequence[str], unknown: int | None) -> None:
        self._words = words
        self._unknown = unknown
        with needs("rapt", "tokenizers", why=", which cuts texts into subwords"):
            tokenizers: Any = importlib.import_module("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception:  # the package has no error type
            raise InvalidParameter(f"Expected {str(path)!r} to be a tokenizer's file. Fetch the model again.") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [UNKNOWN if i == self._unknown else i for i in ids]

    def decode(self, ids: Sequence[int]) -> list[str]:
        words = (self._words[i] for i in ids)
        return [tokenize.GLUE + word[2:] if word.startswith("##") and len(word) > 2 else word for word in words]


class ForeignTokenizer:
    """A user's tokenizer."""

    def __init__(self, embeds: EmbedsSubwords, size: int) -> None:
        self.embeds = embeds
        self._size = size

    def encode(self, text: str) -> list[int]:
        ids, failure = [], ""
        try:
            ids = [int(i) for i in self.embeds.encode(text)]
        except Exception as error:  # raised below, without text and context
            failure = type(error).__name__
        if failure:
            raise InvalidParameter(f"Expected embeddings.encode to cut a text, but it raised {failure}.")
        unknown = self.embeds.unknown_id
        if any(not 0 <= i < self._size for i in ids):
            raise InvalidParameter(
                f"Expected embeddings.encode to give ids from 0 to {self._size - 1}, got one outside. "
                "Use the tokenizer that belongs to the vectors."
            )
        return [UNKNOWN if i == unknown else i for i in ids]

    def decode(self, ids: Sequence[int]) -> list[str]:
        text = tokenize.clean(self.embeds.decode(ids)).strip()
        return [text] if text else []


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """A public table of words and vectors.

    Args:
        words: Words or subwords, each once.
        vectors: Their vectors, (n, d), finite, as float32.
        name: Name of the table.
        unknown: Public vector of every word outside the table. None: the mean of the allowed vectors.
        pad: Public vector of pads. None: ``unknown``.
        never: Ids that are never written out, such as special tokens.
        tokenizer: Cuts a text. None: into whole words.
        kind: "word" or "subword".

    Raises:
        InvalidParameter: Words and vectors do not match, a word occurs twice, or a vector holds NaN.

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
    encode: Callable[[str], list[int]] = dataclasses.field(init=False)
    """Ids of a text. Private."""
    decode: Callable[[Sequence[int]], list[str]] = dataclasses.field(init=False)
    """Text of released ids."""

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
        mean: NDArray[np.float32] = table.vectors.mean(axis=0, dtype=np.float64, where=allowed[:, None])
        unknown = _vector("unknown", self.unknown, mean, vectors.shape[1])
        tokenizer = self.tokenizer or WordTokenizer(words, index)
        for name, value in {
            "words": words,
            "index": index,
            "table": table,
            "vectors": table.vectors,
            "unknown": unknown,
            "pad": _vector("pad", self.pad, unknown, vectors.shape[1]),
            "never": tuple(self.never),
            "tokenizer": tokenizer,
            "encode": tokenizer.encode,
            "decode": tokenizer.decode,
        }.items():
            object.__setattr__(self, name, value)  # frozen: the only way

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({self.name!r}, {len(self)} {self.kind}s of {self.dimension} numbers)"

    @property
    def dimension(self) -> int:
        """Length d."""
        return int(self.vectors.shape[1])

    def share(self, folder: Path) -> None:
        """Map the vectors from a file that processes share."""
        self.table.share(folder)
        object.__setattr__(self, "vectors", self.table.vectors)

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Mask of allowed ids."""
        return self.table.allowed

    def points(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return vectors of ids, also special ones."""
        points = self.vectors[np.maximum(ids, 0)].astype(np.float64)
        for special, vector in ((UNKNOWN, self.unknown), (PAD, self.pad)):
            points[ids == special] = vector
        return points


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


def _matrix(words: Sequence[str], values: ArrayLike) -> NDArray[np.floating]:
    try:
        vectors = np.asanyarray(values)
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


def _vector(
    name: str, value: NDArray[np.float32] | None, default: NDArray[np.float32], dimension: int
) -> NDArray[np.float32]:
    vector = np.array(default if value is None else value, dtype=np.float32)
    if vector.shape != (dimension,) or not np.isfinite(vector).all():
        raise InvalidParameter(f"Expected {name} of shape {vector.shape} to be {dimension} finite numbers.")
    vector.setflags(write=False)
    return vector


def table_name(vocabulary: Vocabulary) -> str:
    """Name a metric, with a digest of words and vectors."""
    digest = hashlib.sha256()
    for start in range(0, len(vocabulary), _ROWS):
        digest.update(np.ascontiguousarray(vocabulary.vectors[start : start + _ROWS]).tobytes())
    digest.update("\0".join(vocabulary.words).encode("utf-8", "surrogatepass"))
    name = "".join(letter if letter.isprintable() else "?" for letter in vocabulary.name)[:_NAMED]
    return f"{name} ({len(vocabulary):,} x {vocabulary.dimension}, {digest.hexdigest()[:8]})"
