"""DP-ICL as a chat model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from langchain_dp.ensemble.chat import PrivateChat, check_no_quotas, check_nothing_further, reply_metadata, stop_strings
from langchain_dp.ensemble.questions import HISTORY, question_fields
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.release import DPAnswer
from langchain_dp.icl.runnable import DPICLClassifier
from langchain_dp.records import label_name


class ChatDPICL(PrivateChat):
    """A chat model that replies with one of the classifier's labels.

    The last human message is the question. Earlier messages count only if the classifier's template names ``history``.
    It takes no tools. ``response_metadata["dp"]`` of a reply holds its certificate. ``stop`` cuts the released label.

    Args:
        classifier: The private classifier that answers.

    Raises:
        InvalidParameter: No human message has text, the classifier has ``quotas``, or a conversation cannot fill its
            template.

    Formal guarantee:
        That of the classifier. The chat model only post-processes released labels.

    Examples:
        >>> chat = ChatDPICL(classifier=chain)
        >>> reply = chat.invoke([("human", "Nobody called me back.")])
        >>> reply.content, reply.response_metadata["dp"]["epsilon"]
        ('complaint', 3.0)
    """

    _classifier: DPICLClassifier[Any] = PrivateAttr()

    def __init__(self, *, classifier: DPICLClassifier[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(classifier, DPICLClassifier):
            raise InvalidParameter(f"Expected classifier={type(classifier).__name__} to be a DPICLClassifier.")
        check_no_quotas("classifier", classifier.quotas)
        needed = [name for name in classifier.prompt.variables if name != HISTORY]
        if len(needed) > 1:
            raise InvalidParameter(
                f"Expected classifier to have a template with one variable, beside {HISTORY!r}: a conversation does "
                f"not say which is which of {needed}. Ask the classifier itself, with a mapping."
            )
        self._classifier = classifier

    @property
    def classifier(self) -> DPICLClassifier[Any]:
        """The classifier that answers."""
        return self._classifier

    @property
    def _llm_type(self) -> str:
        return "dp-icl"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, **kwargs))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, **kwargs))

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        # One chunk: the noise is drawn once.
        check_nothing_further(kwargs)
        question, ends = _question_of(messages), stop_strings(stop)
        answer = self._classifier.invoke_with_certificate(messages, {"callbacks": []})
        yield self._chunk(answer, question, ends)

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        check_nothing_further(kwargs)
        question, ends = _question_of(messages), stop_strings(stop)
        answer = await self._classifier.ainvoke_with_certificate(messages, {"callbacks": []})
        yield await asyncio.to_thread(self._chunk, answer, question, ends)

    def _chunk(self, answer: DPAnswer[Any], question: str, ends: Sequence[str]) -> ChatGenerationChunk:
        label = text = label_name(answer.label) or ""
        for end in ends:
            text = text.split(end)[0]
        fields = reply_metadata(answer.certificate, self._classifier.count_tokens, asked=question, said=label)
        return ChatGenerationChunk(message=AIMessageChunk(content=text, **fields, chunk_position="last"))


def _question_of(messages: Sequence[BaseMessage]) -> str:
    return str(question_fields(messages, ["text"])["text"])
