"""Models whose every move is known: they repeat the prompt, log it, warn of it, fail with it, or hang."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

from langchain_core.language_models import LLM, BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

CLIENT_LOG = "openai._base_client"


class SyncChat(BaseChatModel):
    """Repeats the last message. Has no async methods of its own.

    Fields: ``act`` is called with the prompt first, and may raise; ``threads`` holds the names of the threads that
    asked.
    """

    keeps_no_prompts: ClassVar[bool] = True
    model_name: str = "parrot-1"
    act: Callable[[str], object] = lambda prompt: None
    calls: list[str] = Field(default_factory=list)
    threads: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _say(self, messages: list[BaseMessage], how: str) -> str:
        prompt = str(messages[-1].content)
        self.calls.append(how)
        self.threads.append(threading.current_thread().name)
        self.act(prompt)
        return prompt

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self._say(messages, "sync")))])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(self._say(messages, "stream")))


class Chat(SyncChat):
    """The same with async methods."""

    keeps_no_prompts: ClassVar[bool] = True
    aact: Callable[[str], Any] | None = None

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        if self.aact is not None:
            await self.aact(str(messages[-1].content))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self._say(messages, "async")))])

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(self._say(messages, "astream")))


class Completion(LLM):
    """A plain text model that repeats its prompt."""

    keeps_no_prompts: ClassVar[bool] = True
    act: Callable[[str], object] = lambda prompt: None

    @property
    def _llm_type(self) -> str:
        return "parrot-llm"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
        self.act(prompt)
        return prompt

    async def _acall(self, prompt: str, stop: Any = None, run_manager: Any = None, **_: Any) -> str:
        self.act(prompt)
        return prompt


def log_and_warn(prompt: str) -> None:
    """Do what provider clients do: log the request body at DEBUG, an error at WARNING, and warn."""
    logging.getLogger(CLIENT_LOG).debug("Request options: %s", {"json_data": prompt})
    logging.getLogger("langchain_provider").warning("Retrying after %s", ValueError(prompt), extra={"body": prompt})
    warnings.warn(f"Unexpected token in {prompt}", stacklevel=1)


def fail(prompt: str) -> None:
    """Raise an exception that quotes the prompt."""
    raise ValueError(f"context length exceeded by: {prompt}")
