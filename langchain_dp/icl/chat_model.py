"""DP-ICL with the face of a chat model: the last human message is the question, the reply is the label."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import Field, PrivateAttr

from langchain_dp._util.validate import no_further
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.answers import DPAnswer
from langchain_dp.icl.runnable import DPICLClassifier
from langchain_dp.records import label_name


class ChatDPICL(BaseChatModel):
    """A chat model that answers with one of the classifier's labels, and nothing else.

    The question is the text of the last human message; earlier messages, system messages and tools do not reach the
    vote. Every reply carries its certificate in ``response_metadata["dp"]`` as plain JSON values. ``stop`` cuts the
    released label, which is post-processing.

    Args:
        classifier: The private classifier that answers.

    Raises:
        InvalidParameter: There is no human message with text.

    Formal guarantee:
        That of the classifier; the chat face only renders what was released.

    Examples:
        >>> chat = ChatDPICL(classifier=chain)
        >>> reply = chat.invoke([("human", "Nobody called me back.")])
        >>> reply.content, reply.response_metadata["dp"]["epsilon"]
        ('complaint', 3.0)
    """

    # LangChain's caches cannot tell two classifiers apart, and would keep answers of forgotten records: the classifier
    # keeps its own.
    cache: BaseCache | bool | None = Field(default=False, exclude=True)

    _classifier: DPICLClassifier[Any] = PrivateAttr()

    def __init__(self, *, classifier: DPICLClassifier[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.cache is not False:
            raise InvalidParameter(
                "Expected cache=False: LangChain's caches mix classifiers; the classifier keeps its own."
            )
        if not isinstance(classifier, DPICLClassifier):
            raise InvalidParameter(f"Expected classifier={type(classifier).__name__} to be a DPICLClassifier.")
        self._classifier = classifier

    @property
    def classifier(self) -> DPICLClassifier[Any]:
        """The classifier that answers."""
        return self._classifier

    @property
    def _llm_type(self) -> str:
        return "dp-icl"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "langchain-dp"
        params["ls_model_name"] = self._classifier.certificate_model
        return params

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(**self._answer(messages, stop)))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(**await self._aanswer(messages, stop)))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        # One chunk: there is nothing to show before the noise is drawn.
        yield ChatGenerationChunk(message=AIMessageChunk(**self._answer(messages, stop), chunk_position="last"))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(**await self._aanswer(messages, stop), chunk_position="last"))

    def _answer(self, messages: Sequence[BaseMessage], stop: Sequence[str] | None) -> dict[str, Any]:
        question = _last_human_text(messages)
        return self._fields(self._classifier.invoke_with_certificate(question, {"callbacks": []}), question, stop)

    async def _aanswer(self, messages: Sequence[BaseMessage], stop: Sequence[str] | None) -> dict[str, Any]:
        question = _last_human_text(messages)
        answer = await self._classifier.ainvoke_with_certificate(question, {"callbacks": []})
        return await asyncio.to_thread(self._fields, answer, question, stop)

    def _fields(self, answer: DPAnswer[Any], question: str, stop: Sequence[str] | None) -> dict[str, Any]:
        """Fields of the reply, whole or as a chunk."""
        label = text = label_name(answer.label) or ""
        for end in filter(None, stop or ()):
            text = text.split(end)[0]
        asked, said = self._classifier.count_tokens(question), self._classifier.count_tokens(label)
        metadata: dict[str, Any] = {"dp": answer.certificate.to_dict(), "model_name": answer.certificate.model}
        if answer.shares is not None:
            metadata["vote_shares"] = {label_name(each): share for each, share in answer.shares.items()}
        # Usage counts the question and the label only: how many tokens the subsets held is private.
        usage = UsageMetadata(input_tokens=asked, output_tokens=said, total_tokens=asked + said)
        return {"content": text, "response_metadata": metadata, "usage_metadata": usage}

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Turn the released label into a member of an Enum or a value of a Literal over the labels.

        Args:
            schema: An ``enum.Enum`` subclass whose values are the labels, or a ``Literal`` of the labels.
            include_raw: Return {"raw", "parsed", "parsing_error"} instead of the parsed value.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The schema is of another kind, or its values are not the labels.
        """
        no_further(kwargs, remedy="Give the schema alone: a label is released, and no model asked for an object.")
        labels = set(self._classifier.labels)
        if isinstance(schema, type) and issubclass(schema, enum.Enum):
            values = {member.value for member in schema}
        elif get_origin(schema) is Literal:
            values = set(get_args(schema))
        else:
            raise InvalidParameter(
                f"Expected schema={schema!r} to be an Enum or a Literal of the labels {sorted(labels)}: this model can "
                "release a label and nothing else."
            )
        if values != labels:
            raise InvalidParameter(f"Expected the schema's values {sorted(map(str, values))} to be {sorted(labels)}.")

        def parse(message: AIMessage) -> Any:
            return schema(message.text) if isinstance(schema, type) else message.text

        if not include_raw:
            return self | RunnableLambda(parse)
        return self | RunnableLambda(lambda raw: {"raw": raw, "parsed": parse(raw), "parsing_error": None})


def _last_human_text(messages: Sequence[BaseMessage]) -> str:
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return str(message.text)
    raise InvalidParameter("Expected a human message with the question, but there is none. Add HumanMessage(question).")
