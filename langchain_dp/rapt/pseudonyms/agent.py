"""An agent under pseudonyms: hides its input, and restores its output."""

# LangChain names the parameter ``input``:
# ruff: noqa: A002

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import hmac
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from langchain_core.messages import AIMessageChunk, BaseMessage, RemoveMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.parts import message_list
from langchain_dp.rapt.pseudonyms.keeping import Conversation, Conversations
from langchain_dp.rapt.restore import ChunkRestorer, Restorer, each_text
from langchain_dp.redact import HeldInputs, PrivateArgs, hold_arguments, run_redacted

PARTS = "pseudonyms"
"""Names the conversation."""

STAMP = "pseudonyms"
"""Marks messages without originals."""

M = TypeVar("M", bound=BaseMessage)
Config = RunnableConfig | None


def stamped(conversation: Conversation, message: M) -> M:
    """Mark a message with placeholders only. Any change voids the mark."""
    metadata = {**message.response_metadata, STAMP: conversation.mark(message)}
    return message.model_copy(update={"response_metadata": metadata})


def _is_stamped(conversation: Conversation, message: BaseMessage) -> bool:
    mark = message.response_metadata.get(STAMP)
    return isinstance(mark, str) and hmac.compare_digest(
        mark.encode(errors="surrogatepass"), conversation.mark(message).encode()
    )


def hidden_messages(conversation: Conversation, messages: Sequence[BaseMessage], **whose: bool) -> list[BaseMessage]:
    return [
        message
        if isinstance(message, RemoveMessage) or _is_stamped(conversation, message)
        else stamped(conversation, conversation.pseudonymizer.sanitize(message, **whose))
        for message in messages
    ]


class PseudonymousAgent(HeldInputs, Runnable[Any, Any]):
    """An agent for its users, from :meth:`PseudonymMiddleware.around`."""

    name = "PseudonymousAgent"

    def __init__(self, agent: Any, conversations: Conversations) -> None:
        self.agent = agent
        self._conversations = conversations

    def __repr__(self) -> str:
        return "PseudonymousAgent(NOT PRIVATE: no epsilon)"

    @hold_arguments("input")
    def invoke(self, input: Any, config: Config = None, **kwargs: Any) -> Any:
        """Run the agent on hidden messages."""
        conversation, hidden, config = self._begin(PrivateArgs.of(input), self._parts(config), config)
        return _Restored(conversation).whole(self.agent.invoke(hidden, config, **kwargs))

    @hold_arguments("input")
    async def ainvoke(self, input: Any, config: Config = None, **kwargs: Any) -> Any:
        """Async twin of :meth:`invoke`."""
        parts = await self._aparts(config)
        conversation, hidden, config = await asyncio.to_thread(self._begin, PrivateArgs.of(input), parts, config)
        return _Restored(conversation).whole(await self.agent.ainvoke(hidden, config, **kwargs))

    @hold_arguments("input")
    def stream(self, input: Any, config: Config = None, **kwargs: Any) -> Iterator[Any]:
        """Stream with the originals."""
        conversation, hidden, config = self._begin(PrivateArgs.of(input), self._parts(config), config)
        restored = _Restored(conversation)
        for part in self.agent.stream(hidden, config, **kwargs):
            yield restored.part(part)
        yield from restored.rest()

    @hold_arguments("input")
    async def astream(self, input: Any, config: Config = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Async twin of :meth:`stream`."""
        parts = await self._aparts(config)
        conversation, hidden, config = await asyncio.to_thread(self._begin, PrivateArgs.of(input), parts, config)
        restored = _Restored(conversation)
        async for part in self.agent.astream(hidden, config, **kwargs):
            yield restored.part(part)
        for rest in restored.rest():
            yield rest

    def get_state(self, config: RunnableConfig, **kwargs: Any) -> Any:
        """Return the restored state."""
        return self._restored_state(self.agent.get_state(config, **kwargs))

    async def aget_state(self, config: RunnableConfig, **kwargs: Any) -> Any:
        """Async twin of :meth:`get_state`."""
        return await asyncio.to_thread(self._restored_state, await self.agent.aget_state(config, **kwargs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[Any]:
        """Yield the restored states."""
        yield from map(self._restored_state, self.agent.get_state_history(config, **kwargs))

    async def aget_state_history(self, config: RunnableConfig, **kwargs: Any) -> AsyncIterator[Any]:
        """Async twin of :meth:`get_state_history`."""
        async for snapshot in self.agent.aget_state_history(config, **kwargs):
            yield await asyncio.to_thread(self._restored_state, snapshot)

    def _restored_state(self, snapshot: Any) -> Any:
        parts = list(snapshot.values.get(PARTS) or ())
        if not parts:
            return snapshot
        restored = _Restored(self._conversations.open(parts))
        return snapshot._replace(
            **{name: restored.whole(getattr(snapshot, name)) for name in ("values", "tasks", "interrupts")}
        )

    def astream_events(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: events hold placeholders."""
        raise InvalidParameter(
            "Expected astream(..., stream_mode=...) in place of astream_events: events are those of the graph, which "
            "holds placeholders. To see these, ask agent.agent."
        )

    def _begin(self, input: PrivateArgs, parts: list[str], config: Config) -> tuple[Conversation, Any, Config]:
        conversation = self._conversations.open(parts)
        config = run_redacted(_hidden_config, PrivateArgs(conversation, config))
        return conversation, run_redacted(_hidden, PrivateArgs(conversation, *input.values, parts)), config

    def _parts(self, config: Config) -> list[str]:
        return list(self.agent.get_state(config).values.get(PARTS) or ()) if self._is_stored(config) else []

    async def _aparts(self, config: Config) -> list[str]:
        return list((await self.agent.aget_state(config)).values.get(PARTS) or ()) if self._is_stored(config) else []

    def _is_stored(self, config: Config) -> bool:
        return bool(getattr(self.agent, "checkpointer", None)) and "thread_id" in (config or {}).get("configurable", {})


def _hidden_config(conversation: Conversation, config: Config) -> Config:
    hide: Any = conversation.pseudonymizer.sanitize
    shown: Any = {key: config[key] for key in ("metadata", "tags", "run_name") if config.get(key)} if config else {}
    return {**config, **each_text(shown, hide, keys=True)} if config else config


def _hidden(conversation: Conversation, value: Any, parts: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {**_hidden_state(conversation, value), PARTS: conversation.news(parts)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _hidden_command(conversation, value, parts)
    if value is not None:  # None resumes an interrupted run
        raise InvalidParameter(
            f"Expected the input of an agent to be a mapping such as {{'messages': [('user', text)]}}, or a Command, "
            f"got {type(value).__name__}. Nothing was sent."
        )
    return value


def _hidden_state(conversation: Conversation, state: dict[str, Any], **whose: bool) -> dict[str, Any]:
    hide = functools.partial(conversation.pseudonymizer.sanitize, **whose)
    hidden = {key: each_text(value, hide, keys=True) for key, value in state.items() if key not in ("messages", PARTS)}
    if "messages" in state:
        hidden["messages"] = hidden_messages(conversation, _bare(message_list(state["messages"])), **whose)
    return hidden


def _hidden_command(conversation: Conversation, command: Any, parts: Sequence[str]) -> Any:
    hide, update = conversation.pseudonymizer.sanitize, getattr(command, "update", None)
    changed: dict[str, Any] = {"resume": _resumed(getattr(command, "resume", None), hide)}
    if isinstance(update, dict):
        changed["update"] = _hidden(conversation, update, parts)
    elif isinstance(update, (list, tuple)) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in update):
        changed["update"] = [pair for one in update for pair in _hidden(conversation, dict([one]), parts).items()]
    elif update is not None:
        raise InvalidParameter(
            f"Expected the update of a Command to be a mapping or a list of pairs, got {type(update).__name__}. "
            "Nothing was sent."
        )
    changed["goto"] = hidden_goto(conversation, getattr(command, "goto", ()), parts)
    return dataclasses.replace(command, **changed)


_DECISIONS = ("approve", "edit", "reject", "respond", "ignore", "accept", "response")


def _resumed(value: Any, hide: Callable[[Any], Any]) -> Any:
    """Hide a resume value, except decisions and tools' names, which are public."""
    if isinstance(value, list):
        return [_resumed(inner, hide) for inner in value]
    if not isinstance(value, dict):
        return each_text(value, hide)
    hidden = {key: _resumed(inner, hide) for key, inner in value.items()}
    if value.get("type") in _DECISIONS:
        hidden["type"] = value["type"]
    edited = value.get("edited_action")
    if isinstance(edited, dict) and isinstance(edited.get("name"), str):
        hidden["edited_action"] = {**hidden["edited_action"], "name": edited["name"]}
    return hidden


def hidden_goto(conversation: Conversation, goto: Any, parts: Sequence[str], **whose: bool) -> list[Any]:
    targets = []
    for target in goto if isinstance(goto, (list, tuple)) else [goto]:
        if hasattr(target, "arg"):
            sent = copy.copy(target)
            if isinstance(sent.arg, dict):
                hidden = _hidden_state(conversation, sent.arg, **whose)
                sent.arg = {**hidden, PARTS: [*parts, *conversation.news(parts)]}
            else:
                sent.arg = each_text(sent.arg, functools.partial(conversation.pseudonymizer.sanitize, **whose))
            target = sent
        targets.append(target)
    return targets


def _bare(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    return [
        message.model_copy(
            update={"response_metadata": {k: v for k, v in message.response_metadata.items() if k != STAMP}}
        )
        for message in messages
    ]


class _Restored:
    def __init__(self, conversation: Conversation) -> None:
        self._map = conversation.pseudonymizer.placeholders
        self._restorer = Restorer(self._map)
        self._chunks: dict[str | None, tuple[ChunkRestorer, Any]] = {}

    def whole(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._restorer.inside(key): self.whole(inner) for key, inner in value.items() if key != PARTS}
        if isinstance(value, list):
            return [self.whole(inner) for inner in value]
        if type(value) is tuple:
            return tuple(self.whole(inner) for inner in value)
        return self._restorer.inside(value)

    def part(self, part: Any) -> Any:
        return self._streamed(part, lambda inner: inner)

    def _streamed(self, part: Any, around: Any) -> Any:
        if isinstance(part, AIMessageChunk):
            restorer, _ = self._chunks.setdefault(part.id, (ChunkRestorer(self._map), None))
            self._chunks[part.id] = restorer, around
            return restorer.push(part)
        if type(part) is tuple:
            for place, inner in enumerate(part):
                if isinstance(inner, AIMessageChunk) or (type(inner) is tuple and place == len(part) - 1):
                    head, tail = part[:place], part[place + 1 :]
                    return (*head, self._streamed(inner, lambda x, h=head, t=tail: around((*h, x, *t))), *tail)
        if isinstance(part, dict) and part.get("type") == "messages" and type(part.get("data")) is tuple:
            return {**part, "data": self._streamed(part["data"], lambda x: around({**part, "data": x}))}
        return self.whole(part)

    def rest(self) -> Iterator[Any]:
        for message_id, (restorer, around) in self._chunks.items():
            chunk = restorer.finish(message_id)
            if chunk is not None:
                yield around(chunk)
