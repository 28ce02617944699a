"""Messages taken apart and put together: nothing of the original stays but what is named here.

A sanitised message is built anew, field by field, so that a field nobody thought of cannot carry the raw text on. What
stays as it was: the role, the order, the number of blocks, names of tools, keys of their arguments and of the JSON that
they answer with, ids of tool calls, a message id of the random kind, and what :class:`MessageRules` lets pass. What is
dropped: ``additional_kwargs``,
``response_metadata`` and token counts, artifacts of tools, names of people, reasoning, errors that quote arguments.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langchain_core.messages.tool import tool_call_chunk

from langchain_dp import _validate
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.structured import Swap, has_keys, structured, text_or_json

Note = Callable[[str], None]

_TEXT = {"text", "input_text", "output_text"}
_THOUGHTS = {"reasoning", "thinking", "redacted_thinking", "reasoning_content"}
_CALLS = {"tool_use": "input", "tool_call": "args", "server_tool_use": "input", "server_tool_call": "args"}
_MEDIA = {
    "image_url", "image", "input_image", "audio", "input_audio", "video", "video_url", "file", "input_file", "document",
    "media", "text-plain",
}  # fmt: skip
_KEYS = "the keys of JSON in a result of a tool passed in clear"
_RANDOM_ID = re.compile(r"(?:(?:lc_)?run-{1,2})?[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}(?:-\d+)?")

_PLAIN: tuple[type[BaseMessage], ...] = (
    HumanMessageChunk, HumanMessage, SystemMessageChunk, SystemMessage, ChatMessageChunk, ChatMessage,
    FunctionMessageChunk, FunctionMessage, ToolMessageChunk, ToolMessage,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MessageRules:
    """What of a message passes in clear.

    Args:
        system: "keep": system messages are the developer's text and stay; "sanitize": they are treated as all others.
        media: Images, audio, files. "keep": they pass untouched and are named in the report; "drop": they are left
            out; "refuse": a message that holds one is refused.
    """

    system: Literal["keep", "sanitize"] = "keep"
    media: Literal["keep", "drop", "refuse"] = "keep"

    def __post_init__(self) -> None:
        _validate.one_of("system", self.system, ("keep", "sanitize"))
        _validate.one_of("media", self.media, ("keep", "drop", "refuse"))


def kept_id(given: str | None) -> str | None:
    """An id of the random kind that LangChain makes; any other may say something and is dropped."""
    return given if given is not None and _RANDOM_ID.fullmatch(given) else None


def rebuild(message: BaseMessage, rules: MessageRules, swap: Swap, note: Note) -> BaseMessage:
    """Return a new message whose texts went through ``swap``; ``note`` is told what passed in clear or was dropped.

    Raises:
        InvalidParameter: A message class, or a block, that cannot be taken apart safely; or media that are refused.
    """
    if isinstance(message, RemoveMessage):
        return RemoveMessage(id=message.id or "")
    if isinstance(message, SystemMessage) and rules.system == "keep":
        note("a system message passed in clear")
        return message
    if isinstance(message, AIMessage):
        return _ai(message, rules, swap, note)
    kind = next((kind for kind in _PLAIN if isinstance(message, kind)), None)
    if kind is None:
        raise InvalidParameter(
            f"Expected messages of langchain_core, not {type(message).__name__}: it may hold text that nobody knows of."
        )
    _note_dropped(message, note)
    return kind(**_fields(message, rules, swap, note))


def _fields(message: BaseMessage, rules: MessageRules, swap: Swap, note: Note) -> dict[str, Any]:
    tool = isinstance(message, (ToolMessage, FunctionMessage))
    if isinstance(message.content, str):
        content: Any = text_or_json(message.content, swap) if tool else swap(message.content)
        if tool and has_keys(message.content):
            note(_KEYS)
    else:
        content = _blocks(message.content, {}, rules, swap, note)
    fields: dict[str, Any] = {"content": content, "id": kept_id(message.id)}
    if tool:
        fields["name"] = message.name
    elif message.name:
        note("the name of a message was dropped")
    if isinstance(message, ToolMessage):
        fields |= {"tool_call_id": message.tool_call_id, "status": message.status}
        if message.artifact is not None:
            note("the artifact of a tool was dropped")
    if isinstance(message, ChatMessage):
        fields["role"] = message.role
    return fields


def _ai(message: AIMessage, rules: MessageRules, swap: Swap, note: Note) -> AIMessage:
    _note_dropped(message, note)
    if message.name:
        note("the name of a message was dropped")
    calls = [{**_call(call), "args": structured(call["args"], swap)} for call in message.tool_calls]
    invalid = [
        {**_call(call), "args": text_or_json(call["args"] or "", swap), "error": None}
        for call in message.invalid_tool_calls
    ]
    # The same arguments once more in the content: the very same release, or they would be paid for twice.
    known = {call["id"]: call["args"] for call in calls if call["id"] is not None}
    content = message.content
    fields: dict[str, Any] = {
        "content": swap(content) if isinstance(content, str) else _blocks(content, known, rules, swap, note),
        "id": kept_id(message.id),
        "additional_kwargs": {} if calls or invalid else _function_call(message, swap),
    }
    if isinstance(message, AIMessageChunk):
        # A chunk parses its calls from chunks; whole JSON is a chunk too.
        chunks = [
            tool_call_chunk(name=call["name"], args=_dumped(call["args"]), id=call["id"], index=index)
            for index, call in enumerate([*calls, *invalid])
        ]
        return AIMessageChunk(**fields, tool_call_chunks=chunks, chunk_position=message.chunk_position)
    return AIMessage(**fields, tool_calls=calls, invalid_tool_calls=invalid)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["name"], "id": call["id"]}


def _function_call(message: AIMessage, swap: Swap) -> dict[str, Any]:
    """The one thing in ``additional_kwargs`` that a conversation needs: a call in the oldest form."""
    call = message.additional_kwargs.get("function_call")
    if not isinstance(call, Mapping):
        return {}
    arguments = text_or_json(str(call.get("arguments", "")), swap)
    return {"function_call": {"name": str(call.get("name", "")), "arguments": arguments}}


def _note_dropped(message: BaseMessage, note: Note) -> None:
    for name in ("additional_kwargs", "response_metadata"):
        if set(getattr(message, name)) - {"function_call", "rapt", "rapt_reply"}:
            note(f"{name} were dropped" if name.endswith("s") else f"{name} was dropped")


def _blocks(
    content: Sequence[str | dict[Any, Any]], known: Mapping[Any, Any], rules: MessageRules, swap: Swap, note: Note
) -> list[str | dict[Any, Any]]:
    blocks = [swap(block) if isinstance(block, str) else _block(block, known, rules, swap, note) for block in content]
    return [block for block in blocks if block is not None]


def _block(
    block: Mapping[str, Any], known: Mapping[Any, Any], rules: MessageRules, swap: Swap, note: Note
) -> dict[str, Any] | None:
    kind = str(block.get("type", ""))
    if kind in _TEXT:
        return {"type": kind, "text": swap(_text(block, "text"))}
    if kind == "refusal":
        return {"type": kind, "refusal": swap(_text(block, "refusal"))}
    if kind in _CALLS:
        place, call_id = _CALLS[kind], block.get("id")
        args = known[call_id] if call_id in known else structured(block.get(place), swap)
        return {"type": kind, "id": call_id, "name": block.get("name"), place: args}
    if kind == "function_call":
        call_id = block.get("call_id")
        args = _dumped(known[call_id]) if call_id in known else text_or_json(str(block.get("arguments", "")), swap)
        return {"type": kind, "call_id": call_id, "name": block.get("name"), "arguments": args}
    if kind == "tool_result":
        inner = block.get("content")
        told = {"type": kind, "tool_use_id": block.get("tool_use_id")}
        if isinstance(inner, list):
            return {**told, "content": _blocks(inner, {}, rules, swap, note)}
        rebuilt = structured(inner, swap)
        if has_keys(inner):  # nesting too deep was refused by then
            note(_KEYS)
        return {**told, "content": rebuilt}
    if kind == "text-plain" and isinstance(block.get("text"), str):
        return {"type": kind, "mime_type": "text/plain", "text": swap(block["text"])}
    source = block.get("source")
    if kind == "document" and isinstance(source, Mapping) and source.get("type") == "text":
        data = {"type": "text", "media_type": "text/plain", "data": swap(_text(source, "data"))}
        return {"type": kind, "source": data}
    if kind in _MEDIA:
        return _media(kind, block, rules, note)
    note(f"a block of {'thoughts' if kind in _THOUGHTS else 'an unknown kind'} was dropped")
    return None


def _media(kind: str, block: Mapping[str, Any], rules: MessageRules, note: Note) -> dict[str, Any] | None:
    if rules.media == "refuse":
        raise InvalidParameter(
            f"Expected messages without media, found a block of type {kind!r}: only text can be sanitised. "
            'Leave it out, or let it pass in clear with media="keep".'
        )
    if rules.media == "drop":
        note(f"a block of type {kind} was dropped")
        return None
    note(f"a block of type {kind} passed in clear")
    return dict(block)


def _text(block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidParameter(
            f"Expected a block of type {block.get('type')!r} to hold a string under {name!r}, "
            f"not {type(value).__name__}."
        )
    return value


def _dumped(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
