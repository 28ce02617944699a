"""Private answers with the face of a chat model: the last human message is the question, the answer streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from langchain_dp.ensemble.chat import PrivateChat, check_no_quotas, check_nothing_further, reply_metadata, stop_strings
from langchain_dp.ensemble.engine_calls import count_publicly
from langchain_dp.errors import InvalidParameter
from langchain_dp.synth.answers import DPAnswerGenerator


class ChatDPGenerator(PrivateChat):
    """A chat model that answers in the manner of private examples, token by token as they are drawn.

    The question is the text of the last human message; what was said before it is used where the generator's template
    names ``{history}``. Tools are refused. Every reply carries the certificate in ``response_metadata["dp"]`` as
    plain JSON values, of a stream with its last chunk. ``stop`` cuts the released answer, which is post-processing: the
    rest is written, paid for and kept all the same. A stream that is
    closed before its end goes on when the same question is asked again.

    Args:
        generator: The private generator that answers.

    Raises:
        InvalidParameter: There is no human message with text, or ``stop`` is none; or the generator has ``quotas``.

    Formal guarantee:
        That of the generator; the chat face only renders what was released.

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
    def _answers(self) -> DPAnswerGenerator:
        return self._generator

    @property
    def _llm_type(self) -> str:
        return "dp-answers"

    @property
    def _released_by(self) -> str:
        return self._generator.certificate_model

    def _count(self, text: str) -> int:
        return count_publicly(self._generator._engine, text)

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
        text = "".join(_until([answer], ends))
        message = AIMessage(content=text, **self._metadata(messages, answer))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        said: list[str] = []
        ends = stop_strings(stop)
        check_nothing_further(kwargs)

        def pieces() -> Iterator[str]:
            for piece in self._generator.stream(messages, {"callbacks": []}):
                said.append(piece)
                yield piece

        for text in _until(pieces(), ends):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        last = self._metadata(messages, "".join(said))
        yield ChatGenerationChunk(message=AIMessageChunk(content="", **last, chunk_position="last"))

    def _metadata(self, messages: Sequence[BaseMessage], answer: str) -> dict[str, Any]:
        asked = self._generator.prompts.asked(messages)
        return reply_metadata(self._generator.certificate(), self._count, asked=asked, said=answer)


def _until(pieces: Iterable[str], ends: tuple[str, ...]) -> Iterator[str]:
    """Pieces up to the first of some strings; all are taken, also those behind it.

    What may be the beginning of such a string is held back until it is known.
    """
    held, ended = "", False
    for piece in pieces:
        if ended:
            continue
        held += piece
        sure = next((at for at in range(len(held)) if _may_begin(held[at:], ends)), len(held))
        if sure:
            yield held[:sure]
        held = held[sure:]
        ended = held.startswith(ends)
    if held and not ended:
        yield held[: min((held.find(end) for end in ends if end in held), default=len(held))]


def _may_begin(text: str, ends: Sequence[str]) -> bool:
    return any(text.startswith(end) or end.startswith(text) for end in ends)
