"""What a model makes of text: its tokens, those that end a text, its chat template."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter

from .context import LlamaContext

_SENTINEL = "langchain-dp-user-turn"


class GGUFTexts:
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
        """What the model's chat template puts around a user's turn."""
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


@dataclasses.dataclass(frozen=True)
class ChatParts:
    """Public text around a user's turn, in which special tokens are meant as such."""

    before: str
    after: str


def chat_parts(template: str | None, *, begin: str, end: str) -> ChatParts:
    """Render the template once around a stand-in and cut it there: what a turn says can then not change the frame."""
    if template is None:
        raise InvalidParameter(
            "Expected the GGUF file to hold a chat template. Use chat=False, or an instruction-tuned model."
        )
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    try:
        formatter = Jinja2ChatFormatter(template=template, eos_token=end, bos_token=begin)
        rendered = formatter(messages=[{"role": "user", "content": _SENTINEL}]).prompt
        before, after = rendered.split(_SENTINEL)
    except Exception as problem:  # a template is a program, and may fail in any way
        raise InvalidParameter(
            f"Expected the chat template of the GGUF file to take one user turn ({type(problem).__name__}). "
            "Use chat=False."
        ) from None
    return ChatParts(before, after)
