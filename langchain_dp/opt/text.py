"""What released tokens spell, where a candidate ends, and which tokens may come next. Public functions all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from langchain_dp.ports import Decoding, Token, VotesNextToken


class Text:
    """Reads released tokens.

    Args:
        engine: Spells its tokens.
        decoding: How members take a token.
        stop: Strings that end a candidate.
        never_empty: The first token ends no text: for descriptions, of which an empty one is worth nothing.
    """

    def __init__(
        self, engine: VotesNextToken, decoding: Decoding, stop: Sequence[str], *, never_empty: bool = False
    ) -> None:
        self._engine = engine
        self._stop = tuple(stop)
        self._decoding = decoding
        self._opening: Decoding | None = None
        self._never_empty = never_empty

    def instruction(self, tokens: Sequence[Token]) -> str:
        """The instruction: up to the first stop string, white space at its ends removed."""
        text = self._spelt(tokens)
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        return text[: min(ends, default=len(text))].rstrip().rstrip("\ufffd")

    def stops(self, tokens: Sequence[Token]) -> bool:
        """Whether a stop string has come."""
        text = self._spelt(tokens)
        return any(stop in text for stop in self._stop)

    def decoding(self, written: Sequence[Token]) -> Decoding:
        """How the next token is taken: a candidate does not begin with a line break or a stop string.

        Models that were trained to begin an answer on a new line would otherwise end it there.
        """
        if written:
            return self._decoding
        if self._opening is None:
            self._opening = dataclasses.replace(
                self._decoding, banned=self._decoding.banned | self._blank() | self._ends()
            )
        return self._opening

    def _blank(self) -> frozenset[Token]:
        never = ("\n", *self._stop)
        tokens = list(range(self._engine.vocabulary_size)) if self._numbered() else ["\n", "\n\n", *self._stop]
        return frozenset(
            token for token in tokens if any(part in self._engine.detokenize([token]) for part in never)
        ) - frozenset(self._engine.end_tokens)

    def _ends(self) -> frozenset[Token]:
        return frozenset(self._engine.end_tokens) if self._never_empty else frozenset()

    def _numbered(self) -> bool:
        return all(isinstance(token, int) for token in self._engine.end_tokens)

    def _spelt(self, tokens: Sequence[Token]) -> str:
        return self._engine.detokenize(tokens).lstrip()
