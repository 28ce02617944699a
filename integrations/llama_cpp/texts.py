"""A model's end tokens and chat template."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter

from .context import LlamaContext

_SENTINEL = "langchain-dp-user-turn"


class GGUFTexts:
    """Public facts of one model's vocabulary."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context

    @functools.cached_property
    def ends(self) -> frozenset[int]:
        return self._context.end_tokens()

    @functools.cached_property
    def never(self) -> npt.NDArray[np.bool_]:
        never = np.zeros(self._context.vocabulary, dtype=bool)
        never[sorted(self._context.control_tokens() - self.ends)] = True
        return never

    @functools.cached_property
    def chat(self) -> tuple[str, str]:
        begin, end = self._context.special_text()
        return chat_parts(self._context.chat_template(), begin=begin, end=end)

    @functools.cached_property
    def chat_tokens(self) -> int:
        with contextlib.suppress(InvalidParameter):
            return sum(len(self._context.tokenize(part, special=True)) for part in self.chat)
        return 0


def chat_parts(template: str | None, *, begin: str, end: str) -> tuple[str, str]:
    """Return the public text before and after a user's turn. No turn can change it."""
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
    return before, after
