"""Private answers as a chat model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from langchain_dp.ensemble.chat import PrivateChat, check_no_quotas, check_nothing_further, reply_metadata, stop_strings
from langchain_dp.errors import InvalidParameter
from langchain_dp.synth.answers import DPAnswerGenerator


class ChatDPGenerator(PrivateChat):
    """A chat model that answers in the manner of private examples, and streams each token as it is drawn.

    The question is the last human message. Earlier ones fill ``{history}``. Certificates are in
    ``response_metadata["dp"]``. ``stop`` cuts the released answer: the rest is written and paid for.

    Args:
        generator: The private generator that answers.

    Raises:
        InvalidParameter: There is no human message, ``stop`` is no list of strings, or the generator has ``quotas``.

    Formal guarantee:
        That of the generator. The chat model only renders released answers.

    Examples:
        >>> chat = ChatDPGenerator(generator=replies)
        >>> for chunk in chat.stream([("human", "My parcel has not come.")]):
        ...     print(chunk.text, end="")
    """

    _generator: DPAnswerGenerator = PrivateAttr()

    def __init__(self, *, generator: DPAnswerGenerator, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(generator, DPAnswerGenerator):
            raise InvalidParameter(f"Expected generator={type(generator).__name__} to be a DPAnswerGenerator.")
        check_no_quotas("generator", generator.quotas)
        self._generator = generator

    @property
    def generator(self) -> DPAnswerGenerator:
        """The generator that answers."""
        return self._generator

    @property
    def _llm_type(self) -> str:
        return "dp-answers"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        ends = stop_strings(stop)
        check_nothing_further(kwargs)
        answer = self._generator.invoke(messages, {"callbacks": []})
        message = AIMessage(content=_cut(answer, ends), **self._metadata(messages, answer))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        ends = stop_strings(stop)
        check_nothing_further(kwargs)
        answer = ""
        pieces = self._generator.stream(messages, {"callbacks": []})
        for piece in ["".join(pieces)] if ends else pieces:
            answer += piece
            if not (text := _cut(piece, ends)):
                continue
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        last = self._metadata(messages, answer)
        yield ChatGenerationChunk(message=AIMessageChunk(content="", **last, chunk_position="last"))

    def _metadata(self, messages: Sequence[BaseMessage], answer: str) -> dict[str, Any]:
        asked = self._generator.prompts.asked(messages)
        return reply_metadata(self._generator.certificate(), self._generator.count_tokens, asked=asked, said=answer)


def _cut(text: str, ends: tuple[str, ...]) -> str:
    return text[: min((text.find(end) for end in ends if end in text), default=len(text))]
