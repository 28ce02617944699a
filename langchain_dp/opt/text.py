"""Public text of released tokens, and the tokens that may follow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from langchain_dp.opt.filters import Echo
from langchain_dp.ports import Decoding, NextTokenVoter, Token

_LOOKED_AT = 120


class Text:
    """Reads released tokens. Members never vote to repeat ``never``."""

    def __init__(
        self, engine: NextTokenVoter, decoding: Decoding, stop: Sequence[str], *, never: Echo | None = None
    ) -> None:  # fmt: skip
        self._engine = engine
        self._stop = tuple(stop)
        self._decoding = decoding
        self._never = never or Echo()
        self._opening: Decoding | None = None

    def instruction(self, tokens: Sequence[Token]) -> str:
        text = self._spelt(tokens)
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        return text[: min(ends, default=len(text))].rstrip().rstrip("\ufffd")

    def stops(self, tokens: Sequence[Token]) -> bool:
        text = self._spelt(tokens)
        return any(stop in text for stop in self._stop)

    def decoding(self, written: Sequence[Token]) -> Decoding:
        """Ban repetitions and, first, line breaks and stop strings."""
        if written:
            return self._banning(self._repeating(self._spelt(written)))
        if self._opening is None:
            self._opening = self._banning(self._blank())
        return self._opening

    def _banning(self, tokens: frozenset[Token]) -> Decoding:
        if not tokens:
            return self._decoding
        return dataclasses.replace(self._decoding, banned=self._decoding.banned | tokens)

    def _repeating(self, text: str) -> frozenset[Token]:
        """Empty for string tokens."""
        if not self._numbered() or not self._never.near(text) or self._never(text):
            return frozenset()
        end = text[-_LOOKED_AT:]
        return frozenset(token for token, spelt in enumerate(self._vocabulary) if self._never(end + spelt))

    @functools.cached_property
    def _vocabulary(self) -> list[str]:
        return [self._engine.detokenize([token]) for token in range(self._engine.vocabulary_size)]

    def _blank(self) -> frozenset[Token]:
        openings = ("\n", *self._stop)
        tokens: Iterable[tuple[Token, str]] = (
            enumerate(self._vocabulary)
            if self._numbered()
            else ((text, self._engine.detokenize([text])) for text in ("\n", "\n\n", *self._stop))
        )
        banned = frozenset(token for token, text in tokens if any(opening in text for opening in openings))
        return banned - frozenset(self._engine.end_tokens)

    def _numbered(self) -> bool:
        return all(isinstance(token, int) for token in self._engine.end_tokens)

    def _spelt(self, tokens: Sequence[Token]) -> str:
        return self._engine.detokenize(tokens).lstrip()
