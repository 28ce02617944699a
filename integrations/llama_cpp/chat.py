"""A chat model over one local GGUF file."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Literal, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage, message_chunk_to_message
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration as Generation
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, Field, PrivateAttr, field_validator

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

from .chat_worker import CallAbandoned, ChatRequest, LoadedChat, Piece
from .tool_calls import forced_grammar, openai_tools, read_calls, schema_grammar

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_OPTIONS = ("temperature", "top_p", "max_tokens", "logprobs", "seed", "tools", "tool_choice", "json_schema")
_StreamItem = Piece | BaseException | None
_METHODS = ("json_schema", "function_calling", "json_mode")


class ChatLlamaCpp(BaseChatModel):
    """Chat with a GGUF model inside this process. Nothing leaves the machine.

    The first call loads the model, and copies share it. Calls run one at a time, so a private vote takes no timeout.
    Every call starts from an empty cache: an answer depends on no earlier prompt, to the last bit.

    Args:
        model_path: GGUF file. None is the embedded SmolLM2-135M-Instruct, prepared for this CPU on first use.
        n_ctx: Longest prompt and answer together, in tokens.
        n_gpu_layers: Layers to offload. -1 is all of them.
        n_threads: CPU threads. None leaves the choice to llama.cpp.
        temperature: 0 always takes the most probable token.
        top_p: Sample from the smallest set of tokens with this much probability.
        max_tokens: Longest answer in tokens.
        stop: Strings that end the answer.
        logprobs: Put log-probabilities into ``response_metadata["logprobs"]``.
        seed: Seed of the sampling. None draws a fresh one for every call.
        verbose_llama: Let llama.cpp write its log to standard error.

    Raises:
        InvalidParameter: On a call: the prompt does not fit into ``n_ctx``, or holds more than text.
        MissingExtra: On a call: llama-cpp-python or the embedded model is not installed.

    Examples:
        >>> llm = ChatLlamaCpp(temperature=0, max_tokens=20)  # the embedded model
        >>> llm.invoke("Name a fruit.").text
        >>> schema = {"title": "Fruit", "type": "object", "properties": {"name": {"enum": ["pear", "fig"]}}}
        >>> llm.with_structured_output(schema).invoke("Name a fruit.")
    """

    serializes_calls: ClassVar[bool] = True
    """Read by ``langchain_dp.isolation``."""

    model_path: str | None = None
    n_ctx: int = Field(default=2048, ge=8)
    n_gpu_layers: int = Field(default=0, ge=-1)
    n_threads: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=256, ge=1)
    stop: list[str] | None = None
    logprobs: bool = False
    seed: int | None = Field(default=None, ge=0)
    verbose_llama: bool = False

    # model_copy() shares this holder, so that weights load once.
    _loaded: LoadedChat = PrivateAttr(default_factory=LoadedChat)

    @property
    def _llm_type(self) -> str:
        return "llama-cpp"

    @property
    def model_name(self) -> str:
        """File name of the model without its ending."""
        if self.model_path is None:
            return "SmolLM2-135M-Instruct"
        return os.path.basename(self.model_path).removesuffix(".gguf")

    @property
    def _identifying_params(self) -> dict[str, Any]:
        names = ("model_name", "n_ctx", "temperature", "top_p", "max_tokens", "stop", "seed")
        return {name: getattr(self, name) for name in names}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(
            ls_provider="llama_cpp",
            ls_model_name=self.model_name,
            ls_model_type="chat",
            ls_temperature=kwargs.get("temperature", self.temperature),
            ls_max_tokens=kwargs.get("max_tokens", self.max_tokens),
        )
        if ends := stop or self.stop:
            params["ls_stop"] = ends
        return params

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop: object) -> object:
        return [stop] if isinstance(stop, str) else stop

    def get_token_ids(self, text: str) -> list[int]:
        """Return the tokens of a text. Loads the model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self._loaded.token_ids(text, self._request([], None, {}))

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Return the number of tokens in the model's chat template."""
        options = {"tools": openai_tools(tools)} if tools else {}
        return self._loaded.count(self._request(messages, None, options))

    def check_prompt(self, messages: list[BaseMessage]) -> None:
        """Raise InvalidParameter if a call would refuse these messages. Nothing is generated."""
        self._loaded.check_prompt(self._request(messages, None, {}))

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools, shown by the model's chat template. Answers then come in one piece.

        Args:
            tools: Functions, pydantic classes, JSON schemas or LangChain tools.
            tool_choice: "auto" or None: the model chooses. "any" or a tool's name: a grammar forces one call.
            **kwargs: Options of a call, such as ``max_tokens``.

        Raises:
            InvalidParameter: The chat template has no tools (as the embedded model's) or other calls, or there is no
                such tool.
        """
        described = openai_tools(tools)
        if described:
            self._loaded.check_tools(self._request([], None, {}))
            forced_grammar(described, tool_choice)
        return self.bind(tools=described, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: str = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return objects of a schema, forced by a grammar.

        The model sees field names, but no descriptions. Bound long strings (``maxLength``).

        Args:
            schema: A pydantic class, for an object of it, or a TypedDict or a JSON schema, for a dict.
            include_raw: Return a dict of "raw", "parsed" and "parsing_error" instead.
            method: "json_schema", "function_calling" or "json_mode", with the same effect.
            strict: No effect.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: The schema has no grammar, or there is another argument.
            OutputParserException: On a call: ``max_tokens`` cut the object off, or a validator refuses it.
        """
        del strict
        validate.reject_extra_kwargs(kwargs)
        validate.one_of("method", method, _METHODS)
        try:
            json_schema = convert_to_json_schema(schema)
        except (ValueError, TypeError) as error:
            raise InvalidParameter(
                f"Expected schema={schema!r} to be a pydantic class, a TypedDict or a JSON schema with a title "
                f"({type(error).__name__}: {error})."
            ) from None
        schema_grammar(json_schema)
        model = self.bind(
            json_schema=json_schema,
            ls_structured_output_format={"kwargs": {"method": "json_schema"}, "schema": json_schema},
        )
        parser: Any = _WholeObject()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = _WholePydantic(pydantic_object=schema)
        if not include_raw:
            return cast(Runnable[LanguageModelInput, Any], model | parser)
        parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        whole: Runnable[LanguageModelInput, Any] = RunnableMap(raw=model)
        return whole | parsed.with_fallbacks([failed], exception_key="parsing_error")

    def close(self) -> None:
        """Free the model, for all copies of this object. The next call loads it again."""
        self._loaded.close()

    def _request(
        self, messages: list[BaseMessage], stop: str | list[str] | None, options: dict[str, Any]
    ) -> ChatRequest:
        unknown = set(options) - set(_OPTIONS)
        if unknown:
            raise InvalidParameter(f"Expected options {sorted(unknown)} to be among {', '.join(_OPTIONS)}, stop.")
        ends = [stop] if isinstance(stop, str) else stop or self.stop or []
        if not isinstance(ends, (list, tuple)) or not all(isinstance(end, str) and end for end in ends):
            raise InvalidParameter("Expected stop= to be a string or a list of strings, none of them empty.")
        chosen = {
            name: options.get(name, getattr(self, name)) for name in ("temperature", "top_p", "max_tokens", "seed")
        }
        validate.number("temperature", chosen["temperature"], at_least=0.0)
        validate.number("top_p", chosen["top_p"], above=0.0, at_most=1.0)
        validate.integer("max_tokens", chosen["max_tokens"], at_least=1)
        if chosen["seed"] is not None:
            validate.integer("seed", chosen["seed"], at_least=0, at_most=2**32 - 1)
        return ChatRequest(
            model_path=self.model_path,
            n_ctx=self.n_ctx,
            n_gpu_layers=self.n_gpu_layers,
            n_threads=self.n_threads,
            verbose=self.verbose_llama,
            messages=[_as_dict(message) for message in messages],
            stop=tuple(ends),
            logprobs=options.get("logprobs", self.logprobs),
            **chosen,
            **_constraints(options),
        )

    def _chunk(self, piece: Piece) -> ChatGenerationChunk:
        metadata: dict[str, Any] = {}
        if piece.logprobs:
            metadata["logprobs"] = {"content": piece.logprobs}
        if piece.finish_reason is not None:
            metadata |= {"model_name": self.model_name, "finish_reason": piece.finish_reason}
        final: Literal["last"] | None = "last" if piece.finish_reason is not None else None
        message = AIMessageChunk(
            content=piece.text, response_metadata=metadata, usage_metadata=piece.usage, chunk_position=final
        )
        return ChatGenerationChunk(message=message)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        pieces: list[Piece] = []
        self._loaded.answer(request, pieces.append, CallAbandoned())
        message = cast(AIMessageChunk, self._whole(pieces, request).message)
        return ChatResult(generations=[Generation(message=message_chunk_to_message(message))])

    def _whole(self, pieces: list[Piece], request: ChatRequest) -> ChatGenerationChunk:
        chunk = self._chunk(Piece.joined(pieces))
        if request.tools:
            message = cast(AIMessageChunk, chunk.message)
            text, calls = read_calls(message.text)
            message = AIMessageChunk(**{**message.model_dump(), "content": text, "tool_call_chunks": calls})
            chunk = ChatGenerationChunk(message=message)
        return chunk

    def _next_chunk(self, piece: Piece, kept: list[Piece], request: ChatRequest) -> ChatGenerationChunk | None:
        kept.append(piece)
        if not request.tools:
            return self._chunk(piece)
        return None if piece.finish_reason is None else self._whole(kept, request)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        call_abandoned = CallAbandoned()
        pieces: queue.SimpleQueue[_StreamItem] = queue.SimpleQueue()
        kept: list[Piece] = []
        # In a thread: a reader that asks the same model between two tokens must wait, not deadlock.
        worker = threading.Thread(target=self._work, args=(request, pieces.put, call_abandoned), daemon=True)
        worker.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                if (chunk := self._next_chunk(piece, kept, request)) is None:
                    continue
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        finally:
            call_abandoned.set()
            worker.join()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        call_abandoned, loop = CallAbandoned(), asyncio.get_running_loop()
        pieces: asyncio.Queue[_StreamItem] = asyncio.Queue()
        kept: list[Piece] = []

        def put(piece: _StreamItem) -> None:
            try:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)
            except RuntimeError:  # the loop is closed: nobody reads on
                call_abandoned.set()

        # In a thread of its own: waiting calls would fill the event loop's.
        threading.Thread(target=self._work, args=(request, put, call_abandoned), daemon=True).start()
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                if (chunk := self._next_chunk(piece, kept, request)) is None:
                    continue
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        finally:
            call_abandoned.set()

    def _work(self, request: ChatRequest, put: Callable[[_StreamItem], None], call_abandoned: CallAbandoned) -> None:
        try:
            self._loaded.answer(request, put, call_abandoned)
            put(None)
        except BaseException as problem:  # handed to the reader's thread, which raises it
            put(problem)


class _CompleteAnswer:
    """Refuses an object that was cut off."""

    def parse_result(self, result: list[Any], *, partial: bool = False) -> Any:
        message = getattr(result[0], "message", None)
        if not partial and message is not None and message.response_metadata.get("finish_reason") == "length":
            raise OutputParserException(
                "Expected max_tokens to hold the whole object, but it was cut off there. Raise max_tokens, or bound "
                "the schema's strings and lists (maxLength, maxItems)."
            )
        return super().parse_result(result, partial=partial)  # type: ignore[misc]


class _WholeObject(_CompleteAnswer, JsonOutputParser):
    """Parses an object."""


class _WholePydantic(_CompleteAnswer, PydanticOutputParser[BaseModel]):
    """Parses an object of a pydantic class."""


def _constraints(options: Mapping[str, Any]) -> dict[str, Any]:
    tools, choice, schema = options.get("tools"), options.get("tool_choice"), options.get("json_schema")
    if schema is not None:
        if tools:
            raise InvalidParameter("Expected tools or a json_schema, not both. Unbind one of them.")
        return {"grammar": schema_grammar(schema)}
    if not tools or choice == "none":
        return {}
    described = openai_tools(tools)
    return {"tools": described, "grammar": forced_grammar(described, choice)}


def _as_dict(message: BaseMessage) -> dict[str, Any]:
    role = message.role if message.type == "chat" else _ROLES.get(message.type)  # type: ignore[attr-defined]  # of ChatMessage
    if role is not None and not re.fullmatch(r"[\w-]{1,32}", role):
        raise InvalidParameter(
            f"Expected a message of type {message.type!r} to have a role of 1 to 32 letters, digits, _ or -. The "
            "prompt holds it unchanged. Give such a role."
        )
    if role is None:
        raise InvalidParameter(f"Expected a message of type {message.type!r} to be one of {sorted(_ROLES)}.")
    blocks = [message.content] if isinstance(message.content, str) else message.content
    texts = []
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    for block in blocks:
        if calls and isinstance(block, dict) and block.get("type") in ("tool_use", "tool_call"):
            continue  # it is among the message's calls
        if isinstance(block, str):
            texts.append(block)
        elif block.get("type") == "text":
            texts.append(str(block.get("text", "")))
        else:
            raise InvalidParameter(
                f"Expected content of type {block.get('type')!r} to be text, all that this model reads."
            )
    said: dict[str, Any] = {"role": role, "content": "".join(texts)}
    if calls:
        said["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
            for call in calls
        ]
    if isinstance(message, ToolMessage):
        said["tool_call_id"] = message.tool_call_id
    return said
