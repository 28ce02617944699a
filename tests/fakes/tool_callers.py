"""Chat models for agents: they take tools, keep every message they were told, and answer by a rule of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field


class ToolCaller(BaseChatModel):
    """Answers what ``answer`` returns, which each kind writes for itself."""

    told: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "tool-caller"

    def bind_tools(self, tools: Any, **_: Any) -> BaseChatModel:
        return self

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        raise NotImplementedError

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        self.told.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])


class StreamingCaller(ToolCaller):
    """The same, mark by mark where it is streamed."""

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.told.append(messages)
        answer = self.answer(messages)
        chunks = [AIMessageChunk(content=mark) for mark in str(answer.content)]
        for place, call in enumerate(answer.tool_calls):
            head = {"name": call["name"], "id": call["id"], "index": place, "args": ""}
            rest = [{"name": None, "id": None, "index": place, "args": mark} for mark in json.dumps(call["args"])]
            chunks += [AIMessageChunk(content="", tool_call_chunks=[one]) for one in (head, *rest)]
        for chunk in [*chunks, AIMessageChunk("", chunk_position="last")]:
            made = ChatGenerationChunk(message=chunk)
            if run_manager:
                run_manager.on_llm_new_token(str(chunk.content), chunk=made)
            yield made


class Scripted(GenericFakeChatModel):
    """Says one message after the other, whatever it is told."""

    told: list[list[BaseMessage]] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        self.told.append(messages)
        return super()._generate(messages, *given, **more)

    def bind_tools(self, tools: Any, **_: Any) -> BaseChatModel:
        return self
