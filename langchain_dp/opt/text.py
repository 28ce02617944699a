"""Public text of released tokens, and the tokens that may follow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence, Set

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

    def instruction(self, tokens: Sequence[Token]) -> str:
        text = self._spelt(tokens)
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        return text[: min(ends, default=len(text))].rstrip().rstrip("\ufffd")

    def stops(self, tokens: Sequence[Token]) -> bool:
        text = self._spelt(tokens)
        return any(stop in text for stop in self._stop)

    def decoding(self, written: Sequence[Token]) -> Decoding:
        """Ban repetitions and, first, line breaks and stop strings."""
        if not written:
            return self._opening
        text = self._spelt(written)
        if not self._numbered() or not self._never.near(text) or self._never(text):
            return self._decoding
        end = text[-_LOOKED_AT:]
        return self._banning({token for token, spelt in enumerate(self._vocabulary) if self._never(end + spelt)})

    def _banning(self, tokens: Set[Token]) -> Decoding:
        return dataclasses.replace(self._decoding, banned=self._decoding.banned | tokens)

    @functools.cached_property
    def _vocabulary(self) -> list[str]:
        return [self._engine.detokenize([token]) for token in range(self._engine.vocabulary_size)]

    @functools.cached_property
    def _opening(self) -> Decoding:
        openings = ("\n", *self._stop)
        tokens: Iterable[tuple[Token, str]] = (
            enumerate(self._vocabulary)
            if self._numbered()
            else ((text, self._engine.detokenize([text])) for text in ("\n", "\n\n", *self._stop))
        )
        banned = {token for token, text in tokens if any(opening in text for opening in openings)}
        return self._banning(banned - self._engine.end_tokens)

    def _numbered(self) -> bool:
        return all(isinstance(token, int) for token in self._engine.end_tokens)

    def _spelt(self, tokens: Sequence[Token]) -> str:
        return self._engine.detokenize(tokens).lstrip()
