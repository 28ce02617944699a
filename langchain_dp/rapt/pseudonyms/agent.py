"""The two ends of an agent under pseudonyms: what goes in is hidden before it, what comes out put back behind it."""

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
"""Key of the state under which the conversation is named."""

STAMP = "pseudonyms"
"""Key of ``response_metadata`` under which a message is marked that holds placeholders only."""

M = TypeVar("M", bound=BaseMessage)


def stamped(conversation: Conversation, message: M) -> M:
    """The message, marked as one that holds placeholders only; any change to what it says voids the mark."""
    metadata = {**message.response_metadata, STAMP: conversation.mark(message)}
    return message.model_copy(update={"response_metadata": metadata})


def _is_stamped(conversation: Conversation, message: BaseMessage) -> bool:
    mark = message.response_metadata.get(STAMP)
    return isinstance(mark, str) and hmac.compare_digest(
        mark.encode(errors="surrogatepass"), conversation.mark(message).encode()
    )


def hidden_messages(conversation: Conversation, messages: Sequence[BaseMessage], **whose: bool) -> list[BaseMessage]:
    """Messages with their entities hidden; those that were hidden in this conversation are the same objects.

    Args:
        conversation: Its placeholders.
        messages: Of system messages the rules of messages say whether they pass. One that was changed since is hidden
            again.
        **whose: ``hidden`` or ``named``, as of :meth:`Pseudonymizer.sanitize`.
    """
    told = []
    for message in messages:
        if isinstance(message, RemoveMessage) or _is_stamped(conversation, message):
            told.append(message)
        else:
            told.append(stamped(conversation, conversation.pseudonymizer.sanitize(message, **whose)))
    return told


class PseudonymousAgent(HeldInputs, Runnable[Any, Any]):
    """An agent as its users call it; made by :meth:`PseudonymMiddleware.around`. It has no run of its own.

    Args:
        agent: The graph.
        conversations: Those of its middleware.
    """

    name = "PseudonymousAgent"

    def __init__(self, agent: Any, conversations: Conversations) -> None:
        self.agent = agent
        self._conversations = conversations

    def __repr__(self) -> str:
        return "PseudonymousAgent(NOT PRIVATE: no epsilon)"

    @hold_arguments("input")
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the agent on hidden messages and return its state with the originals put back."""
        conversation, told = self._begun(PrivateArgs.of(input), self._parts(config))
        return _Restored(conversation).whole(self.agent.invoke(told, config, **kwargs))

    @hold_arguments("input")
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Async twin of :meth:`invoke`."""
        conversation, told = await asyncio.to_thread(self._begun, PrivateArgs.of(input), await self._aparts(config))
        return _Restored(conversation).whole(await self.agent.ainvoke(told, config, **kwargs))

    @hold_arguments("input")
    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        """Run the agent on hidden messages and yield what it streams, in any mode, with the originals put back."""
        conversation, told = self._begun(PrivateArgs.of(input), self._parts(config))
        restored = _Restored(conversation)
        for part in self.agent.stream(told, config, **kwargs):
            yield restored.part(part)
        yield from restored.rest()

    @hold_arguments("input")
    async def astream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Async twin of :meth:`stream`."""
        conversation, told = await asyncio.to_thread(self._begun, PrivateArgs.of(input), await self._aparts(config))
        restored = _Restored(conversation)
        async for part in self.agent.astream(told, config, **kwargs):
            yield restored.part(part)
        for rest in restored.rest():
            yield rest

    def get_state(self, config: RunnableConfig, **kwargs: Any) -> Any:
        """What the graph keeps of a conversation, with the originals put back: to show it again, for example."""
        return self._put_back(self.agent.get_state(config, **kwargs))

    async def aget_state(self, config: RunnableConfig, **kwargs: Any) -> Any:
        """Async twin of :meth:`get_state`."""
        return await asyncio.to_thread(self._put_back, await self.agent.aget_state(config, **kwargs))

    def get_state_history(self, config: RunnableConfig, **kwargs: Any) -> Iterator[Any]:
        """The graph's states of a conversation, newest first, each with the originals put back."""
        yield from map(self._put_back, self.agent.get_state_history(config, **kwargs))

    async def aget_state_history(self, config: RunnableConfig, **kwargs: Any) -> AsyncIterator[Any]:
        """Async twin of :meth:`get_state_history`."""
        async for snapshot in self.agent.aget_state_history(config, **kwargs):
            yield await asyncio.to_thread(self._put_back, snapshot)

    def _put_back(self, snapshot: Any) -> Any:
        parts = list(snapshot.values.get(PARTS) or ())
        if not parts:
            return snapshot
        restored = _Restored(self._conversations.open(parts))
        return snapshot._replace(
            **{name: restored.whole(getattr(snapshot, name)) for name in ("values", "tasks", "interrupts")}
        )

    def astream_events(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: events are the graph's own, and hold placeholders."""
        raise InvalidParameter(
            "Expected astream(..., stream_mode=...) in place of astream_events: events are those of the graph, which "
            "holds placeholders. To see these, ask agent.agent."
        )

    def _begun(self, given: PrivateArgs, parts: list[str]) -> tuple[Conversation, Any]:
        conversation = self._conversations.open(parts)
        return conversation, run_redacted(_hidden, PrivateArgs(conversation, *given.values, parts))

    def _parts(self, config: RunnableConfig | None) -> list[str]:
        if not self._keeps(config):
            return []
        return list(self.agent.get_state(config).values.get(PARTS) or ())

    async def _aparts(self, config: RunnableConfig | None) -> list[str]:
        if not self._keeps(config):
            return []
        return list((await self.agent.aget_state(config)).values.get(PARTS) or ())

    def _keeps(self, config: RunnableConfig | None) -> bool:
        return bool(getattr(self.agent, "checkpointer", None)) and "thread_id" in (config or {}).get("configurable", {})


def _hidden(conversation: Conversation, given: Any, parts: Sequence[str]) -> Any:
    """What a graph is given, with every text hidden: messages as such, all else text by text."""
    if isinstance(given, dict):
        return {**_hidden_state(conversation, given), PARTS: conversation.news(parts)}
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return _hidden_command(conversation, given, parts)
    if given is not None:  # which goes on with an interrupted run
        raise InvalidParameter(
            f"Expected the input of an agent to be a mapping such as {{'messages': [('user', text)]}}, or a Command, "
            f"got {type(given).__name__}. Nothing was sent."
        )
    return given


def _hidden_state(conversation: Conversation, state: dict[str, Any], **whose: bool) -> dict[str, Any]:
    """What a node is given, without the name of its conversation: messages as such, all else text by text."""
    hide = functools.partial(conversation.pseudonymizer.sanitize, **whose)
    told = {key: each_text(value, hide) for key, value in state.items() if key not in ("messages", PARTS)}
    if "messages" in state:
        told["messages"] = hidden_messages(conversation, _bare(message_list(state["messages"])), **whose)
    return told


def _hidden_command(conversation: Conversation, command: Any, parts: Sequence[str]) -> Any:
    """A ``Command`` with what it resumes with, puts into the state and sends to nodes hidden."""
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
"""What a person decides of a call, as LangChain names it: no text of anybody's."""


def _resumed(value: Any, hide: Callable[[Any], Any]) -> Any:
    """What a run resumes with, hidden, but for the decisions in it and the names of tools that an edited call has."""
    if isinstance(value, list):
        return [_resumed(inner, hide) for inner in value]
    if not isinstance(value, dict):
        return each_text(value, hide)
    told = {key: _resumed(inner, hide) for key, inner in value.items()}
    if value.get("type") in _DECISIONS:
        told["type"] = value["type"]
    edited = value.get("edited_action")
    if isinstance(edited, dict) and isinstance(edited.get("name"), str):
        told["edited_action"] = {**told["edited_action"], "name": edited["name"]}
    return told


def hidden_goto(conversation: Conversation, goto: Any, parts: Sequence[str], **whose: bool) -> list[Any]:
    """Where a ``Command`` goes, with the state that it sends to nodes hidden; that names the conversation, too."""
    found = []
    for one in goto if isinstance(goto, (list, tuple)) else [goto]:
        if not hasattr(one, "arg"):
            found.append(one)
            continue
        sent = copy.copy(one)
        if isinstance(one.arg, dict):
            told = _hidden_state(conversation, one.arg, **whose)
            sent.arg = {**told, PARTS: [*parts, *conversation.news(parts)]}
        else:
            sent.arg = each_text(one.arg, functools.partial(conversation.pseudonymizer.sanitize, **whose))
        found.append(sent)
    return found


def _bare(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Without stamps: what comes from outside was hidden by nobody."""
    return [
        message.model_copy(
            update={"response_metadata": {k: v for k, v in message.response_metadata.items() if k != STAMP}}
        )
        for message in messages
    ]


class _Restored:
    """What a graph gives, with the originals put back. One object a run."""

    def __init__(self, conversation: Conversation) -> None:
        self._map = conversation.pseudonymizer.placeholders
        self._restorer = Restorer(self._map)
        self._chunks: dict[str | None, tuple[ChunkRestorer, Any]] = {}

    def whole(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.whole(inner) for key, inner in value.items() if key != PARTS}
        if isinstance(value, list):
            return [self.whole(inner) for inner in value]
        if type(value) is tuple:
            return tuple(self.whole(inner) for inner in value)
        return self._restorer.inside(value)

    def part(self, part: Any) -> Any:
        """One part of a stream: a chunk of a message has the rest of a placeholder before it, or waits for it."""
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
        """What still waits when the stream ends without a last chunk."""
        for given, (restorer, around) in self._chunks.items():
            chunk = restorer.finish(given)
            if chunk is not None:
                yield around(chunk)
