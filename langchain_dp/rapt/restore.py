"""Replaces placeholders by originals, inside the trust boundary."""

# LangChain names the parameter ``input``:
# ruff: noqa: A002

from __future__ import annotations

import copy
import dataclasses
import datetime
import enum
import functools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import AddableDict, Runnable, RunnableConfig
from pydantic import BaseModel

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.addresses import AddressScanner
from langchain_dp.rapt.placeholders import PlaceholderMap

WITHHELD = "<withheld: the output of a restorer>"
_SCALARS = (type(None), bool, int, float, enum.Enum, datetime.date, datetime.time)


class TextRestorer:
    """Restores one text in pieces."""

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders
        self._rest = ""
        self._scanner = AddressScanner()

    def push(self, text: str) -> str:
        text = self._rest + text
        start = text.rfind("<")
        ready = text[:start] if start >= 0 and self._map.begins(text[start:]) else text
        self._rest = text[len(ready) :]
        return self._map.restore(ready, scanner=self._scanner)

    def finish(self) -> str:
        rest, self._rest = self._rest, ""
        return rest


class JsonRestorer:
    """Restores JSON in pieces: only a whole string shows an address."""

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders
        self._rest = ""

    def push(self, text: str) -> str:
        inside = self._rest[:1] == '"'
        self._rest += text
        if inside and '"' not in text:
            return ""
        parts, position = [], 0
        while match := _JSON_PART.match(self._rest, position):
            parts.append(self._restored(match[0]))
            position = match.end()
        self._rest = self._rest[position:]
        return "".join(parts)

    def finish(self) -> str:
        rest, self._rest = self._rest, ""
        return self._map.restore(rest[:1], in_json) + self._map.restore(rest[1:], in_json, value=True)

    def _restored(self, part: str) -> str:
        if part[0] != '"':
            return part
        try:
            text = json.loads(part)
        except ValueError:
            return part[0] + self._map.restore(part[1:], in_json, value=True)
        restored = self._map.restore(text, value=True)
        return part if restored == text else json.dumps(restored, ensure_ascii=False)


_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*+"|[^"]+', re.DOTALL)


class ChunkRestorer:
    """Restores one message in chunks."""

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders
        self._texts: dict[tuple[str, Any], TextRestorer | JsonRestorer] = {}

    def push(self, chunk: AIMessageChunk) -> AIMessageChunk:
        """Restore a chunk, the last with the rest."""
        content: Any = chunk.content
        if isinstance(content, str):
            content = self._push(("text", None), content)
        else:
            content = [self._block(block, place) for place, block in enumerate(content)]
        calls: Any = [
            {**call, "args": call["args"] and self._push(("args", call.get("index")), call["args"])}
            for call in chunk.tool_call_chunks
        ]
        fields = {name: getattr(chunk, name) for name in _CHUNK_FIELDS}
        # A new chunk parses its calls from the restored arguments.
        restored = AIMessageChunk(content=content, tool_call_chunks=calls, **fields)
        rest = self.finish(chunk.id) if chunk.chunk_position == "last" else None
        return restored if rest is None else restored + rest

    def finish(self, message_id: str | None = None) -> AIMessageChunk | None:
        rests = {place: rest for place, text in self._texts.items() if (rest := text.finish())}
        if not rests:
            return None
        content: Any = rests.pop(("text", None), "")
        blocks: list[Any] = []
        calls: list[Any] = []
        for (kind, index), rest in rests.items():
            if kind == "args":
                calls.append({"name": None, "id": None, "index": index, "args": rest})
            else:
                blocks.append({"type": "text", "text": rest, **({} if index is None else {"index": index})})
        return AIMessageChunk(content=blocks or content, tool_call_chunks=calls, id=message_id)

    def _block(self, block: Any, place: int) -> Any:
        if isinstance(block, str):
            return self._push(("text", None), block)
        if isinstance(block.get("text"), str):
            return {**block, "text": self._push(("block", block.get("index", place)), block["text"])}
        return each_text(block, functools.partial(self._map.restore, value=True))

    def _push(self, place: tuple[str, Any], text: str) -> str:
        if place not in self._texts:
            self._texts[place] = (JsonRestorer if place[0] == "args" else TextRestorer)(self._map)
        return self._texts[place].push(text)


_CHUNK_FIELDS = ("id", "name", "response_metadata", "usage_metadata", "chunk_position")


def in_json(original: str) -> str:
    return json.dumps(original, ensure_ascii=False)[1:-1]


def each_text(value: Any, change: Callable[[Any], Any], *, keys: bool = False) -> Any:
    """Change each text, message and document in a value. Other objects stay."""

    def inside(value: Any) -> Any:
        return each_text(value, change, keys=keys)

    if isinstance(value, (str, BaseMessage, Document)):
        changed = change(value)
        return value if changed == value else changed
    if isinstance(value, dict):
        return {inside(key) if keys else key: inside(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [inside(inner) for inner in value]
    if isinstance(value, tuple):
        changed = [inside(inner) for inner in value]
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if isinstance(value, BaseModel):
        return value.model_copy(update={key: inside(inner) for key, inner in value if key in value.model_fields_set})
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(copied, field.name, inside(getattr(value, field.name)))  # it may be frozen
        return copied
    return value


class Restorer(Runnable[Any, Any]):
    """Restores originals, also in streams. Callbacks of its own run never see them."""

    name = "Restorer"

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders

    def __repr__(self) -> str:
        return "Restorer(<private>)"

    def restore(self, value: Any) -> Any:
        """Return a copy with the originals."""
        structured = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if structured or isinstance(value, (str, list, tuple, dict, BaseModel, *_SCALARS)):
            return self.inside(value)
        raise InvalidParameter(
            "Expected a str, messages, a prompt value, documents or a structured answer to restore, not "
            f"{type(value).__name__}."
        )

    def inside(self, value: Any, *, arguments: bool = False) -> Any:
        """Restore a part of a value, also a tool's argument."""
        return each_text(value, functools.partial(self._one, arguments=arguments), keys=True)

    def _one(self, value: Any, *, arguments: bool) -> Any:
        if isinstance(value, str):
            return self._map.restore(value, value=arguments)
        if isinstance(value, Document):
            metadata = self.inside(value.metadata)
            return Document(page_content=self._map.restore(value.page_content), metadata=metadata, id=value.id)
        content = value.content
        changed: dict[str, Any] = {
            "content": self._map.restore(content) if isinstance(content, str) else [*map(self._block, content)]
        }
        for calls in ("tool_calls", "invalid_tool_calls", "tool_call_chunks"):
            if old := getattr(value, calls, None):
                changed[calls] = [{**call, "args": self.inside(call["args"], arguments=True)} for call in old]
        return value.model_copy(update=changed)

    def _block(self, block: Any) -> Any:
        if isinstance(block, str):
            return self._map.restore(block)
        if isinstance(block.get("text"), str):
            others = {key: inner for key, inner in block.items() if key != "text"}
            return {**self.inside(others, arguments=True), "text": self._map.restore(block["text"])}
        return self.inside(block, arguments=True)

    def pushing(self, *, inside: bool = False) -> tuple[Callable[[Any], list[Any]], Callable[[], list[Any]]]:
        text, chunks = TextRestorer(self._map), ChunkRestorer(self._map)
        last: list[str | None] = [None]
        keys: dict[str, tuple[Callable[[Any], list[Any]], Callable[[], list[Any]]]] = {}

        def push(chunk: Any) -> list[Any]:
            if isinstance(chunk, str):
                return [restored for restored in [text.push(chunk)] if restored]
            if isinstance(chunk, AIMessageChunk):
                last[0] = chunk.id
                return [chunks.push(chunk)]
            if isinstance(chunk, AddableDict):
                for key in chunk:
                    keys.setdefault(key, self.pushing(inside=True))
                return [AddableDict({key: part}) for key, value in chunk.items() for part in keys[key][0](value)]
            return [self.inside(chunk) if inside else self.restore(chunk)]

        def finish() -> list[Any]:
            under = [AddableDict({key: rest}) for key, (_, end) in keys.items() for rest in end()]
            return [*(rest for rest in (text.finish(), chunks.finish(last[0])) if rest), *under]

        return push, finish

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        restored: list[Any] = []

        def run(value: Any) -> str:
            restored.append(self.restore(value))
            return WITHHELD

        self._call_with_config(run, input, config)
        return restored[0]

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Restore chunks as they come, without a run."""
        push, finish = self.pushing()
        for chunk in input:
            yield from push(chunk)
        yield from finish()

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        push, finish = self.pushing()
        async for chunk in input:
            for restored in push(chunk):
                yield restored
        for rest in finish():
            yield rest
