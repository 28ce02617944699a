"""What a model's chat template puts before and after the one turn of a user."""

from __future__ import annotations

import dataclasses

from langchain_dp.errors import InvalidParameter

_SENTINEL = "langchain-dp-user-turn"


@dataclasses.dataclass(frozen=True)
class ChatParts:
    """Public text around a user's turn, in which special tokens are meant as such."""

    before: str
    after: str


def chat_parts(template: str | None, *, begin: str, end: str) -> ChatParts:
    """Render the template once around a stand-in and cut it there: what a turn says can then not change the frame.

    Args:
        template: Jinja source, as the model carries it.
        begin: How the model spells its token of beginning.
        end: How it spells its token of end.

    Raises:
        InvalidParameter: There is no template, or it does not repeat one user turn word by word.
    """
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
