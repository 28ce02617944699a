"""What a model makes of text: its tokens, those that end a text, its chat template."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Token

from .._choice import is_token
from .chat_parts import ChatParts, chat_parts
from .context import LlamaContext


class Texts:
    """Public facts of one model's vocabulary, found when first needed."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._chat: ChatParts | None = None
        self._chat_tokens: int | None = None
        self._special: tuple[frozenset[int], npt.NDArray[np.bool_]] | None = None

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        return self._found()[0]

    @property
    def never(self) -> npt.NDArray[np.bool_]:
        """Per token, whether it is never taken: control tokens that end nothing."""
        return self._found()[1]

    def _found(self) -> tuple[frozenset[int], npt.NDArray[np.bool_]]:
        if self._special is None:
            ends = self._context.end_tokens()
            never = np.zeros(self._context.vocabulary, dtype=bool)
            never[sorted(self._context.control_tokens() - ends)] = True
            self._special = ends, never
        return self._special

    def chat(self) -> ChatParts:
        """What the model's chat template puts around a user's turn.

        Raises:
            InvalidParameter: The model has no chat template, or none that takes one turn of a user.
        """
        if self._chat is None:
            begin, end = self._context.special_text()
            self._chat = chat_parts(self._context.chat_template(), begin=begin, end=end)
        return self._chat

    @property
    def chat_tokens(self) -> int:
        """Tokens of the chat template's own; 0 without a usable one."""
        if self._chat_tokens is None:
            try:
                chat = self.chat()
            except InvalidParameter:
                self._chat_tokens = 0
            else:
                self._chat_tokens = sum(
                    len(self._context.tokenize(part, special=True)) for part in (chat.before, chat.after)
                )
        return self._chat_tokens

    def spelt(self, tokens: Sequence[Token]) -> str:
        """Text of tokens; control tokens are no text, broken UTF-8 becomes U+FFFD."""
        if not all(is_token(token, self._context.vocabulary) for token in tokens):
            raise InvalidParameter(
                f"Expected tokens to be whole numbers in [0, {self._context.vocabulary - 1}]. "
                "Take them from the engine that wrote them."
            )
        return self._context.pieces([int(token) for token in tokens]).decode(errors="replace")
