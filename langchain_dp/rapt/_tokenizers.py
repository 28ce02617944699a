"""How the two kinds of vocabularies cut a text into ids, and what a foreign tokenizer must offer."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import EmbedsSubwords
from langchain_dp.rapt import tokenize

UNKNOWN = -1
"""Id of every word that a vocabulary does not hold."""
PAD = -2
"""Id of what fills a text up to a fixed length."""


class Tokenizer(Protocol):
    """Cuts a text into ids of a vocabulary, and writes ids as pieces of a text."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text; ``UNKNOWN`` where the vocabulary has none."""
        ...

    def surfaces(self, text: str) -> list[str]:
        """What stood in the text for each id of :meth:`encode`, for its casing."""
        ...

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Pieces of text for :func:`langchain_dp.rapt.tokenize.join`."""
        ...


class WordTokenizer:
    """Words of a table of whole words, looked up in lower case unless the table holds the casing of the text."""

    def __init__(self, words: Sequence[str], index: dict[str, int]) -> None:
        self._words = words
        self._index = index

    def encode(self, text: str) -> list[int]:
        """Ids of the words, numbers and marks of a text."""
        return [found for found, _ in self._tokens(text)]

    def surfaces(self, text: str) -> list[str]:
        """Each word as it stood in the text."""
        return [surface for _, surface in self._tokens(text)]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The words themselves."""
        return [self._words[i] for i in ids]

    def _tokens(self, text: str) -> list[tuple[int, str]]:
        tokens: list[tuple[int, str]] = []
        for feature in tokenize.features(text, code=False):
            surface = text[feature.start : feature.end]
            found = self._find(surface)
            if found < 0 and feature.kind == "word":
                tokens += [(self._find(piece), piece) for piece in self._pieces(surface)]
            else:
                tokens.append((found, surface))
        return tokens

    def _pieces(self, surface: str) -> list[str]:
        """Smaller words of a word that the table does not hold."""
        pieces: list[str] = []
        for part in tokenize.ending(surface):
            pieces += [part] if self._find(part) >= 0 else tokenize.joints(part)
        return pieces

    def _find(self, surface: str) -> int:
        exact = self._index.get(surface)
        return self._index.get(tokenize.normal(surface), UNKNOWN) if exact is None else exact


class WordPieceTokenizer:
    """The tokenizer of a BERT-like model, from its ``tokenizer.json``.

    Its own cutting to a longest text and padding are switched off: every token is privatized, none dropped unseen.

    Raises:
        MissingExtra: The package tokenizers is not installed.
    """

    def __init__(self, path: Path, words: Sequence[str], unknown: int | None) -> None:
        self._words = words
        self._unknown = unknown
        with needs("rapt", "tokenizers", why=", which cuts texts into subwords"):
            tokenizers: Any = importlib.import_module("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception:  # the package raises no type of its own
            raise InvalidParameter(f"Expected {str(path)!r} to be a tokenizer's file. Fetch the model again.") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        """Ids of the subwords of a text."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [UNKNOWN if i == self._unknown else i for i in ids]

    def surfaces(self, text: str) -> list[str]:
        """Each subword as it stood in the text."""
        return [text[a:b] for a, b in self._tokenizer.encode(text, add_special_tokens=False).offsets]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The subwords; one that the table begins with ``##`` continues the one before."""
        words = (self._words[i] for i in ids)
        return [tokenize.GLUE + word[2:] if word.startswith("##") and len(word) > 2 else word for word in words]


class ForeignTokenizer:
    """Whatever cuts texts for an object that the user gives: byte pairs, sentence pieces."""

    def __init__(self, embeds: EmbedsSubwords, size: int) -> None:
        self.embeds = embeds
        self._size = size

    def encode(self, text: str) -> list[int]:
        """Ids of a text, checked to lie in the table."""
        ids, failure = [], ""
        try:
            ids = [int(i) for i in self.embeds.encode(text)]
        except Exception as error:  # raised again below, without its text and without this context
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

    def surfaces(self, text: str) -> list[str]:
        """Refused: a foreign tokenizer does not say where its pieces stood."""
        raise InvalidParameter(
            "Expected casing=True with a table of words or of WordPiece tokens; this tokenizer does not say where its "
            "pieces stood. Give casing=False."
        )

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Released ids as one piece of text."""
        text = tokenize.clean(self.embeds.decode(ids)).strip()
        return [text] if text else []


def never_written(words: Sequence[str]) -> list[int]:
    """Ids of special and unused tokens of a WordPiece vocabulary, by their brackets."""
    special = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]")
    return [i for i, word in enumerate(words) if special.fullmatch(word)]
