"""Rebuilds messages field by field, so that an unknown field cannot carry raw text on."""

from __future__ import annotations

import dataclasses
import hmac
import json
import mimetypes
import os.path
import re
import secrets
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

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

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

Swap = Callable[[str], str]
T = TypeVar("T")


def texts_in(walk: Callable[[Swap], object]) -> tuple[str, ...]:
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    walk(collect)
    return tuple(texts)


def with_texts(walk: Callable[[Swap], T], released: Sequence[str]) -> T:
    left = iter(released)
    rebuilt = walk(lambda _: next(left))
    assert next(left, None) is None  # both walks see the same texts
    return rebuilt


def structured(value: Any, swap: Swap, keys: Collection[str]) -> Any:
    """Swap every leaf and key of a JSON-like value. Nesting, lengths and nulls stay."""
    try:
        return _structured(value, swap, keys)
    except RecursionError:
        pass
    raise InvalidParameter("Expected nested values of at most some hundred levels. Flatten them first.")


def text_or_json(text: str, swap: Swap, keys: Collection[str]) -> str:
    inner = json_container(text)
    return swap(text) if inner is None else json.dumps(structured(inner, swap, keys), ensure_ascii=False)


def _structured(value: Any, swap: Swap, keys: Collection[str]) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        inner = json_container(value)
        return swap(value) if inner is None else json.dumps(_structured(inner, swap, keys), ensure_ascii=False)
    if isinstance(value, Mapping):
        return _object(value, swap, keys)
    if isinstance(value, (set, frozenset)):
        # Sorted texts let a retry find the earlier release. The order of unsorted releases would compare them.
        return sorted((_structured(inner, swap, keys) for inner in sorted(value, key=_stable_text)), key=str)
    if isinstance(value, (list, tuple)):
        return [_structured(inner, swap, keys) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidParameter("Expected text, found bytes. Decode them, or leave them out.")
    if isinstance(value, (bool, int, float)):
        return swap(json.dumps(value))
    return swap(str(value))


def _stable_text(value: Any) -> str:
    """Return the same text in every process, where sets have another order."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_stable_text, value)))}}}"
    return f"[{', '.join(map(_stable_text, value))}]" if isinstance(value, (list, tuple)) else str(value)


def _object(value: Mapping[Any, Any], swap: Swap, keys: Collection[str]) -> dict[str, Any]:
    rebuilt: dict[str, Any] = {}
    declared = {str(key) for key in value} & set(keys)
    for key, inner in value.items():
        name = str(key)
        if name not in declared:
            name = drawn = swap(name)
            times = 1
            while name in rebuilt or name in declared:  # two keys became one word. Keep both values
                times += 1
                name = f"{drawn} {times}"
        rebuilt[name] = _structured(inner, swap, keys)
    return rebuilt


def json_container(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


Note = Callable[[str], None]

REMOVE_ALL = "__remove_all__"

IN_CLEAR = "passed in clear"

_TEXT = {"text", "input_text", "output_text"}
_THOUGHTS = {"reasoning", "thinking", "redacted_thinking", "reasoning_content"}
_CALLS = {"tool_use": "input", "tool_call": "args", "server_tool_use": "input", "server_tool_call": "args"}
_MEDIA = {
    "image_url", "image", "input_image", "audio", "input_audio", "video", "video_url", "file", "input_file", "document",
    "media", "text-plain",
}  # fmt: skip
# Fields with the kind and location of a medium. Other fields are text, or unknown.
_MEDIUM = {
    "type", "source_type", "url", "base64", "data", "bytes", "file_id", "mime_type", "media_type", "detail",
    "format", "image_url", "video_url", "input_audio", "audio", "file", "file_data", "file_url", "source", "image",
    "cache_control", "ttl", "citations", "enabled",
}  # fmt: skip
_SENSES = _MEDIA - {"file", "input_file", "document", "media", "text-plain"}
_BYTES = re.compile(r"data:\s*;base64,", re.IGNORECASE)
_DETAILS = {"low", "high", "auto", "original"}
_KINDS = {"type", "source_type", "mime_type", "media_type", "format", "ttl"}
_KIND = re.compile(
    r"[\w.+-]+(?:/(?:\*|[\w.+-]+))?(?:;\s?[\w.+-]+=(?:[\w.+-]+|\"[\w.+-]+(?:,\s?[\w.+-]+)*\"))*", re.ASCII
)
_CAPTIONS = {"title", "context", "caption", "description", "alt", "alt_text", "transcript", "text"}
_FILE_NAMES = {"filename", "file_name", "name"}
_TEXTUAL = re.compile(
    r"data:\s*(?=[,;])|(?:data:)?\s*(?:text/|message/|image/svg|[\w.-]+/[\w.-]+\+(?:xml|json|yaml)\b"
    r"|application/(?:x-)?(?:json|ndjson|jsonl|xml|yaml|toml|csv|rtf|sql|javascript|ecmascript|sh|tex|latex)\b)",
    re.IGNORECASE,
)
# Whole random UUIDs: version 4, or 7 with a recent time. Others (3 and 5 digest a name, as indexing digests contents),
# and bare digests, can be tested against a guess.
_UUID = r"(?:[0-9a-f]{8}-[0-9a-f]{4}-4|0[12][0-9a-f]{6}-[0-9a-f]{4}-7)[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_RANDOM_ID = re.compile(rf"{_UUID}|(?:lc_)?run-{{1,2}}{_UUID}(?:-\d{{1,2}})?")

_PLAIN: tuple[type[BaseMessage], ...] = (
    HumanMessageChunk, HumanMessage, SystemMessageChunk, SystemMessage, ChatMessageChunk, ChatMessage,
    FunctionMessageChunk, FunctionMessage, ToolMessageChunk, ToolMessage,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MessageRules:
    """Rules for the parts of a message that pass in clear. Public.

    Args:
        system: "keep": system messages, the developer's own text, pass in clear. "sanitize": they are sanitized.
        media: "keep": images, audio and files pass in clear, except titles and names. A file with text is refused.
            "drop": all are dropped.
        keys_keep: Keys of JSON objects that pass in clear, also in metadata.

    Examples:
        >>> MessageRules(media="drop", keys_keep=["rows"]).keys_keep
        frozenset({'rows'})
    """

    system: Literal["keep", "sanitize"] = "keep"
    media: Literal["keep", "drop"] = "keep"
    keys_keep: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        validate.one_of("system", self.system, ("keep", "sanitize"))
        validate.one_of("media", self.media, ("keep", "drop"))
        object.__setattr__(self, "keys_keep", checked_keys(self.keys_keep))


def checked_keys(keys: Collection[str]) -> frozenset[str]:
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise InvalidParameter(f"Expected keys_keep={keys!r} to be a list of keys.")
    return frozenset(keys)


def passing_id(given: str | None) -> str | None:
    """Keep a random UUID. Any other id may hold text."""
    return given if given is None or _RANDOM_ID.fullmatch(given) else str(uuid.uuid4())


def _message_id(message: BaseMessage, note: Note) -> str | None:
    """Apply :func:`passing_id` with one substitute per id, which other messages use."""
    given = message.id
    if given is None or _RANDOM_ID.fullmatch(given):
        return given
    note("the id of a message was replaced by a random one")
    return str(uuid.UUID(bytes=hmac.digest(_IDS, given.encode("utf-8", "surrogatepass"), "sha256")[:16], version=4))


_IDS = secrets.token_bytes(32)  # key of this process, so that nobody can test a guess at an id


def rebuild(message: BaseMessage, rules: MessageRules, swap: Swap, note: Note) -> BaseMessage:
    """Swap a message's texts. ``note`` gets parts in clear or dropped."""
    if isinstance(message, RemoveMessage):
        everything = message.id == REMOVE_ALL
        return RemoveMessage(id=REMOVE_ALL if everything else _message_id(message, note) or "")
    if isinstance(message, SystemMessage) and rules.system == "keep":
        note(f"a system message {IN_CLEAR}")
        return message
    if isinstance(message, AIMessage):
        return _ai(message, rules, swap, note)
    kind = next((kind for kind in _PLAIN if isinstance(message, kind)), None)
    if kind is None:
        raise InvalidParameter(
            f"Expected messages of langchain_core, not {type(message).__name__}: it may hold text that nobody knows of."
        )
    return kind(**_fields(message, rules, swap, note))


def _fields(message: BaseMessage, rules: MessageRules, swap: Swap, note: Note) -> dict[str, Any]:
    _note_dropped(message, note)
    tool = isinstance(message, (ToolMessage, FunctionMessage))
    if isinstance(message.content, str):
        content: Any = text_or_json(message.content, swap, rules.keys_keep) if tool else swap(message.content)
    else:
        content = _blocks(message.content, {}, rules, swap, note)
    fields: dict[str, Any] = {"content": content, "id": _message_id(message, note)}
    if tool:
        fields["name"] = message.name
    if isinstance(message, ToolMessage):
        fields |= {"tool_call_id": message.tool_call_id, "status": message.status}
        if message.artifact is not None:
            note("the artifact of a tool was dropped")
    if isinstance(message, ChatMessage):
        fields["role"] = message.role
    return fields


def _ai(message: AIMessage, rules: MessageRules, swap: Swap, note: Note) -> AIMessage:
    _note_dropped(message, note)
    keys = rules.keys_keep
    calls = [{**_call(call), "args": structured(call["args"], swap, keys)} for call in message.tool_calls]
    invalid = [
        {**_call(call), "args": text_or_json(call["args"] or "", swap, keys), "error": None}
        for call in message.invalid_tool_calls
    ]
    # Arguments that are repeated in the content reuse the release, which is paid once.
    known = {call["id"]: call["args"] for call in calls if call["id"] is not None}
    content = message.content
    fields: dict[str, Any] = {
        "content": swap(content) if isinstance(content, str) else _blocks(content, known, rules, swap, note),
        "id": _message_id(message, note),
        "additional_kwargs": {} if calls or invalid else _function_call(message, rules, swap),
    }
    if isinstance(message, AIMessageChunk):
        chunks = [
            tool_call_chunk(name=call["name"], args=_dumped(call["args"]), id=call["id"], index=index)
            for index, call in enumerate([*calls, *invalid])
        ]
        return AIMessageChunk(**fields, tool_call_chunks=chunks, chunk_position=message.chunk_position)
    return AIMessage(**fields, tool_calls=calls, invalid_tool_calls=invalid)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["name"], "id": call["id"]}


def _function_call(message: AIMessage, rules: MessageRules, swap: Swap) -> dict[str, Any]:
    call = message.additional_kwargs.get("function_call")
    if not isinstance(call, Mapping):
        return {}
    arguments = text_or_json(str(call.get("arguments", "")), swap, rules.keys_keep)
    return {"function_call": {"name": str(call.get("name", "")), "arguments": arguments}}


def _note_dropped(message: BaseMessage, note: Note) -> None:
    for name, verb in (("additional_kwargs", "were"), ("response_metadata", "was")):
        if set(getattr(message, name)) - {"function_call", "rapt", "rapt_reply"}:
            note(f"{name} {verb} dropped")
    if message.name and not isinstance(message, (ToolMessage, FunctionMessage)):
        note("the name of a message was dropped")


def _blocks(
    content: Sequence[str | dict[Any, Any]], known: Mapping[Any, Any], rules: MessageRules, swap: Swap, note: Note
) -> list[str | dict[Any, Any]]:
    blocks = [swap(block) if isinstance(block, str) else _block(block, known, rules, swap, note) for block in content]
    return [block for block in blocks if block is not None]


def _block(
    block: Mapping[str, Any], known: Mapping[Any, Any], rules: MessageRules, swap: Swap, note: Note
) -> dict[str, Any] | None:
    if not isinstance(block, Mapping):
        raise InvalidParameter(f"Expected blocks of a message to be strings or mappings, not {type(block).__name__}.")
    kind = str(block.get("type", ""))
    if kind in _TEXT:
        return {"type": kind, "text": swap(_text(block, "text"))}
    if kind == "refusal":
        return {"type": kind, "refusal": swap(_text(block, "refusal"))}
    if kind in _CALLS:
        place, call_id = _CALLS[kind], _named(block, "id")
        args = known[call_id] if call_id in known else structured(block.get(place), swap, rules.keys_keep)
        return {"type": kind, "id": call_id, "name": _named(block, "name"), place: args}
    if kind == "function_call":
        call_id = _named(block, "call_id")
        given = str(block.get("arguments", ""))
        args = _dumped(known[call_id]) if call_id in known else text_or_json(given, swap, rules.keys_keep)
        return {"type": kind, "call_id": call_id, "name": _named(block, "name"), "arguments": args}
    if kind == "tool_result":
        inner, keys = block.get("content"), rules.keys_keep
        content = _blocks(inner, {}, rules, swap, note) if isinstance(inner, list) else structured(inner, swap, keys)
        return {"type": kind, "tool_use_id": _named(block, "tool_use_id"), "content": content}
    if kind in _MEDIA:
        return _text_file(kind, block, rules, swap, note) or _media(kind, block, rules, swap, note)
    note(f"a block of {'thoughts' if kind in _THOUGHTS else 'an unknown kind'} was dropped")
    return None


def _text_file(
    kind: str, block: Mapping[str, Any], rules: MessageRules, swap: Swap, note: Note
) -> dict[str, Any] | None:
    if kind in ("text-plain", "file") and isinstance(block.get("text"), str):
        source_type = {"source_type": "text"} if kind == "file" else {}
        return {"type": kind, **source_type, "mime_type": "text/plain", "text": swap(block["text"])}
    source = block.get("source")
    if kind != "document" or not isinstance(source, Mapping):
        return None
    if source.get("type") == "text":
        data = swap(_text(source, "data"))
        return {"type": kind, "source": {"type": "text", "media_type": "text/plain", "data": data}}
    if source.get("type") == "content":
        inner = source.get("content")
        content = _blocks(inner, {}, rules, swap, note) if isinstance(inner, list) else swap(_text(source, "content"))
        return {"type": kind, "source": {"type": "content", "content": content}}
    return None


def _media(kind: str, block: Mapping[str, Any], rules: MessageRules, swap: Swap, note: Note) -> dict[str, Any] | None:
    if rules.media == "drop":
        note(f"a block of type {kind} was dropped")
        return None
    if kind == "text-plain" or _is_textual(block, kind in _SENSES):
        raise InvalidParameter(
            f"Expected text in a block of text, found it in one of type {kind!r}: the content of a file is not "
            "sanitized. Give it as {'type': 'text', 'text': ...}, or leave files out with media=\"drop\"."
        )
    note(f"a block of type {kind} {IN_CLEAR}")
    return _medium(block, swap, note)


def _is_textual(value: Mapping[str, Any], sense: bool) -> bool:
    return any(
        _is_textual(inner, sense)
        if isinstance(inner, Mapping)
        else isinstance(inner, str) and _declares_text(str(key), inner, sense)
        for key, inner in value.items()
    )


def _declares_text(key: str, value: str, sense: bool) -> bool:
    if key in ("type", "source_type"):
        return value == "text"
    if key in _FILE_NAMES and _TEXTUAL.match(mimetypes.guess_type(value)[0] or ""):
        return True
    if key == "format" and "/" not in value:
        value = mimetypes.guess_type(f"file.{value}")[0] or ""
    elif key != "format" and not key.endswith("_type") and value.lstrip()[:5].lower() != "data:":
        return False
    if sense and _BYTES.match(value.lstrip()):
        return False
    return _TEXTUAL.match(value.lstrip()) is not None


def _medium(block: Mapping[str, Any], swap: Swap, note: Note) -> dict[str, Any]:
    rebuilt: dict[str, Any] = {}
    for key, value in block.items():
        if key in _CAPTIONS and isinstance(value, str):
            rebuilt[key] = swap(value)
        elif key in _FILE_NAMES and isinstance(value, str):
            ending = os.path.splitext(value)[1].lower()
            rebuilt[key] = f"file{ending}" if ending in mimetypes.types_map else "file"
        elif key in _MEDIUM and isinstance(value, Mapping):
            rebuilt[key] = _medium(value, swap, note)
        elif key in _MEDIUM and not isinstance(value, (list, tuple, set)) and _is_public(key, value):
            rebuilt[key] = value
        else:
            note("a field of media was dropped")
    return rebuilt


def _is_public(key: str, value: Any) -> bool:
    if key == "detail" and isinstance(value, str):
        return value in _DETAILS
    return key not in _KINDS or not isinstance(value, str) or _KIND.fullmatch(value) is not None


def _named(block: Mapping[str, Any], place: str) -> str | None:
    value = block.get(place)
    if value is not None and not isinstance(value, str):
        raise InvalidParameter(
            f"Expected a block of type {block.get('type')!r} to hold a string under {place!r}, "
            f"not {type(value).__name__}."
        )
    return value


def _text(block: Mapping[str, Any], name: str) -> str:
    value = _named(block, name)
    if value is None:
        raise InvalidParameter(f"Expected a block of type {block.get('type')!r} to hold a string under {name!r}.")
    return value


def _dumped(args: Any) -> str:
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
