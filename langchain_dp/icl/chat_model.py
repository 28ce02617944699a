"""DP-ICL with the face of a chat model: the last human message is the question, the reply is the label."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel, PrivateAttr

from langchain_dp._util.validate import no_further
from langchain_dp.ensemble.chat import PrivateChat, check_no_askers, reply_metadata, stop_strings
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.answers import DPAnswer
from langchain_dp.icl.runnable import DPICLClassifier
from langchain_dp.records import label_name

_KINDS = "an Enum or a Literal of the labels {}"


class ChatDPICL(PrivateChat):
    """A chat model that answers with one of the classifier's labels, and nothing else.

    The question is the text of the last human message; earlier messages, system messages and tools do not reach the
    vote. Every reply carries its certificate in ``response_metadata["dp"]`` as plain JSON values. ``stop`` cuts the
    released label, which is post-processing.

    Args:
        classifier: The private classifier that answers.

    Raises:
        InvalidParameter: There is no human message with text; or the classifier has ``askers``.

    Formal guarantee:
        That of the classifier; the chat face only renders what was released.

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
        check_no_askers("classifier", classifier.askers)
        self._classifier = classifier

    @property
    def classifier(self) -> DPICLClassifier[Any]:
        """The classifier that answers."""
        return self._classifier

    @property
    def _llm_type(self) -> str:
        return "dp-icl"

    @property
    def _released_by(self) -> str:
        return self._classifier.certificate_model

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
        question, ends = _last_human_text(messages), stop_strings(stop)
        return self._fields(self._classifier.invoke_with_certificate(question, {"callbacks": []}), question, ends)

    async def _aanswer(self, messages: Sequence[BaseMessage], stop: Sequence[str] | None) -> dict[str, Any]:
        question, ends = _last_human_text(messages), stop_strings(stop)
        answer = await self._classifier.ainvoke_with_certificate(question, {"callbacks": []})
        return await asyncio.to_thread(self._fields, answer, question, ends)

    def _fields(self, answer: DPAnswer[Any], question: str, ends: Sequence[str]) -> dict[str, Any]:
        """Fields of the reply, whole or as a chunk."""
        label = text = label_name(answer.label) or ""
        for end in ends:
            text = text.split(end)[0]
        count = self._classifier.count_tokens
        fields = reply_metadata(answer.certificate, asked=count(question), said=count(label))
        if answer.shares is not None:
            shares = {label_name(each): share for each, share in answer.shares.items()}
            fields["response_metadata"]["vote_shares"] = shares
        return {"content": text, **fields}

    def with_structured_output(
        self, schema: Any, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """Turn the released label into a member of an Enum, a value of a Literal, or a pydantic object with one.

        Args:
            schema: An ``enum.Enum`` subclass whose members are the labels or have them as values, a ``Literal`` of the
                labels, or a pydantic class with one field of such a type and defaults for all others.
            include_raw: Return {"raw", "parsed", "parsing_error"} instead of the parsed value.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The schema is of another kind, or its values are not the labels. Nothing was spent.
        """
        no_further(kwargs, remedy="Give the schema alone: a label is released, and no model asked for an object.")
        fill = _filler(schema, self._classifier.labels)

        def parse(message: AIMessage) -> Any:
            if message.text not in self._classifier.labels:
                raise InvalidParameter("Expected a whole label. Leave stop= out: it cuts labels. Asking again is free.")
            return fill(message.text)

        if not include_raw:
            return self | RunnableLambda(parse)
        return self | RunnableLambda(lambda raw: {"raw": raw, "parsed": parse(raw), "parsing_error": None})


def _last_human_text(messages: Sequence[BaseMessage]) -> str:
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return str(message.text)
    raise InvalidParameter("Expected a human message with the question, but there is none. Add HumanMessage(question).")


def _filler(schema: Any, labels: Sequence[str]) -> Callable[[str], Any]:
    """A function from the name of a label to what the schema makes of it: tried on every label, before any is paid for.

    Raises:
        InvalidParameter: There is no such function.
    """
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return _values(schema, labels).__getitem__
    fields = {name: field for name, field in schema.model_fields.items() if _is_choice(field.annotation)}
    if len(fields) != 1:
        raise InvalidParameter(
            f"Expected schema={schema!r} to have one field that is {_KINDS.format(sorted(labels))}, got {len(fields)}: "
            "this model can release a label and nothing else."
        )
    ((name, field),) = fields.items()
    values, key = _values(field.annotation, labels), field.alias or name

    def fill(label: str) -> BaseModel:
        return schema.model_validate({key: values[label]})

    try:
        for label in labels:
            fill(label)
    except ValueError as problem:  # pydantic's own is one
        raise InvalidParameter(
            f"Expected schema={schema!r} to take every label as {key!r} alone ({type(problem).__name__}). Give its "
            "other fields defaults."
        ) from None
    return fill


def _is_choice(annotation: Any) -> bool:
    is_enum = isinstance(annotation, type) and issubclass(annotation, enum.Enum)
    return is_enum or get_origin(annotation) is Literal


def _values(choice: Any, labels: Sequence[str]) -> dict[str, Any]:
    """The values of an Enum or a Literal, by the names of the labels."""
    if not _is_choice(choice):
        raise InvalidParameter(
            f"Expected schema={choice!r} to be {_KINDS.format(sorted(labels))}, or a pydantic class with one such "
            "field: this model can release a label and nothing else."
        )
    given = get_args(choice) or list(choice)
    by_value = {label_name(one.value if isinstance(one, enum.Enum) else one): one for one in given}
    by_name = {label_name(one): one for one in given}
    for found in (by_value, by_name):
        if set(found) == set(labels) and len(given) == len(labels):
            return {label: found[label] for label in labels}
    raise InvalidParameter(f"Expected the schema's values {sorted(map(str, by_value))} to be {sorted(labels)}.")
