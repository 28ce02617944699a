"""Puts the originals back where placeholders stand: the last step of a reversible chain, inside the trust boundary."""

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
"""What a structured answer may be that holds no placeholder."""


class TextRestorer:
    """One text in pieces, restored as it comes. What may be the beginning of a placeholder waits for its end.

    So nothing waits that is as long as the longest placeholder.
    """

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders
        self._held = ""
        self._scanner = AddressScanner()

    def push(self, text: str) -> str:
        """Take the next piece and return what can be said by now."""
        text = self._held + text
        ready = _ready(text, self._map)
        self._held = text[len(ready) :]
        return self._map.restore(ready, scanner=self._scanner)

    def finish(self) -> str:
        """Return the rest."""
        rest, self._held = self._held, ""
        return rest


class JsonRestorer:
    """JSON in pieces, restored string by string: a string that is an address shows it in its whole form only."""

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece and return what is complete by now."""
        inside = self._held[:1] == '"'
        self._held += text
        if inside and '"' not in text:
            return ""
        done, position = [], 0
        while match := _JSON_PART.match(self._held, position):
            done.append(self._string(match[0]))
            position = match.end()
        self._held = self._held[position:]
        return "".join(done)

    def finish(self) -> str:
        """Return the rest."""
        rest, self._held = self._held, ""
        return self._map.restore(rest[:1], in_json) + self._map.restore(rest[1:], in_json, value=True)

    def _string(self, part: str) -> str:
        if part[0] != '"':
            return part
        try:
            text = json.loads(part)
        except ValueError:
            return part[0] + self._map.restore(part[1:], in_json, value=True)
        changed = self._map.restore(text, value=True)
        return part if changed == text else json.dumps(changed, ensure_ascii=False)


_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*+"|[^"]+', re.DOTALL)


def _ready(text: str, placeholders: PlaceholderMap) -> str:
    """A text without what at its end may be the beginning of a placeholder."""
    start = text.rfind("<")
    return text[:start] if start >= 0 and placeholders.begins(text[start:]) else text


class ChunkRestorer:
    """One message in chunks, restored as they come: its text, its blocks of text, and the arguments of its calls."""

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders
        self._texts: dict[tuple[str, Any], TextRestorer | JsonRestorer] = {}

    def push(self, chunk: AIMessageChunk) -> AIMessageChunk:
        """Restore one chunk; the last one brings what waited."""
        last = chunk.chunk_position == "last"
        content: Any = chunk.content
        if isinstance(content, str):
            content = self._said(("text", None), content)
        else:
            content = [self._block(block, place) for place, block in enumerate(content)]
        calls: Any = [
            {**call, "args": call["args"] and self._said(("args", call.get("index")), call["args"])}
            for call in chunk.tool_call_chunks
        ]
        restored = AIMessageChunk(  # a chunk anew, so that its calls are parsed again from what is in it now
            content=content,
            tool_call_chunks=calls,
            id=chunk.id,
            name=chunk.name,
            response_metadata=chunk.response_metadata,
            usage_metadata=chunk.usage_metadata,
            chunk_position=chunk.chunk_position,
        )
        rest = self.finish(chunk.id) if last else None
        return restored if rest is None else restored + rest

    def finish(self, given: str | None = None) -> AIMessageChunk | None:
        """What still waits, as a chunk of the message of this id; None if nothing does."""
        said = {place: rest for place, text in self._texts.items() if (rest := text.finish())}
        if not said:
            return None
        content: Any = said.pop(("text", None), "")
        blocks: list[Any] = []
        calls: list[Any] = []
        for (kind, index), rest in said.items():
            if kind == "args":
                calls.append({"name": None, "id": None, "index": index, "args": rest})
            else:
                blocks.append({"type": "text", "text": rest, **({} if index is None else {"index": index})})
        return AIMessageChunk(content=blocks or content, tool_call_chunks=calls, id=given)

    def _block(self, block: Any, place: int) -> Any:
        if isinstance(block, str):
            return self._said(("text", None), block)
        if isinstance(block.get("text"), str):
            return {**block, "text": self._said(("block", block.get("index", place)), block["text"])}
        return each_text(block, functools.partial(self._map.restore, value=True))

    def _said(self, place: tuple[str, Any], text: str) -> str:
        if place not in self._texts:
            self._texts[place] = (JsonRestorer if place[0] == "args" else TextRestorer)(self._map)
        return self._texts[place].push(text)


def _grew(before: Any, after: Any) -> bool:
    """Whether a structured answer may be the beginning of another."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(key in after and _grew(inner, after[key]) for key, inner in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) <= len(after) and all(map(_grew, before, after))
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    return before is None or bool(before == after)


class WholeRestorer:
    """A structured answer that grows, each chunk the whole by now, as a parser of JSON streams it.

    A string in it that ends as a placeholder may begin is shown without that end, until it goes on. Where the next one
    is no longer the same answer, what was held back of the last one is shown first.
    """

    def __init__(self, restore: Callable[[Any], Any], placeholders: PlaceholderMap) -> None:
        self._restore = restore
        self._map = placeholders
        self._last: Any = None
        self._said: Any = None

    def push(self, chunk: Any) -> list[Any]:
        """Restore what it is by now."""

        def ready(value: Any) -> Any:
            return _ready(value, self._map) if isinstance(value, str) else value

        before = [] if _grew(self._last, chunk) else self.finish()
        self._last, self._said = chunk, self._restore(each_text(chunk, ready))
        return [*before, self._said]

    def finish(self) -> list[Any]:
        """The whole once more, if something in it was not shown."""
        whole = self._restore(self._last)
        return [] if whole == self._said else [whole]


def in_json(original: str) -> str:
    """Escape an original for the inside of a JSON string."""
    return json.dumps(original, ensure_ascii=False)[1:-1]


def each_text(value: Any, change: Callable[[Any], Any], *, keys: bool = False) -> Any:
    """A nested value with each string, message and document in it changed; numbers and other objects stay.

    Keys of mappings stay too, unless ``keys``. Pydantic models and dataclasses, as structured answers are, are copied.
    """

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
        given = {name: inside(inner) for name, inner in value if name in value.model_fields_set}
        return value.model_copy(update=given)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, inside(getattr(value, field.name)))  # it may be frozen
        return made
    return value


class Restorer(Runnable[Any, Any]):
    """Restores what a sanitizer's placeholders stand for. Its own run shows callbacks what it is given only.

    The run around it, of the whole chain, shows the outcome all the same: use ``with private_run():``.
    A stream of texts, of chunks of one message, of mappings of these as parallel steps give them, or of an answer in
    JSON that grows, is restored as it comes, wherever it is cut; others piece by piece.
    """

    name = "Restorer"

    def __init__(self, placeholders: PlaceholderMap) -> None:
        self._map = placeholders

    def __repr__(self) -> str:
        return "Restorer(<private>)"

    def restore(self, value: Any) -> Any:
        """Return a copy of a str, messages, a prompt value or documents with the originals put back.

        Also of a structured answer: a mapping, a list, a pydantic model (which is not validated anew), a dataclass. A
        number, a date, an Enum's member or None is returned as it is.
        """
        structured = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if structured or isinstance(value, (str, list, tuple, dict, BaseModel, *_SCALARS)):
            return self.inside(value)
        raise InvalidParameter(
            "Expected a str, messages, a prompt value, documents or a structured answer to restore, not "
            f"{type(value).__name__}."
        )

    def inside(self, value: Any, *, arguments: bool = False) -> Any:
        """A part of a value with the originals put back: what is of another type stays as it is.

        Of the ``arguments`` of a tool, or a block that is no text, a string that begins with an address is one.
        """
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
            if found := getattr(value, calls, None):
                changed[calls] = [{**call, "args": self.inside(call["args"], arguments=True)} for call in found]
        return value.model_copy(update=changed)

    def _block(self, block: Any) -> Any:
        if isinstance(block, str):
            return self._map.restore(block)
        if isinstance(block.get("text"), str):
            others = {key: inner for key, inner in block.items() if key != "text"}
            return {**self.inside(others, arguments=True), "text": self._map.restore(block["text"])}
        return self.inside(block, arguments=True)

    def pushing(self, *, inside: bool = False) -> tuple[Callable[[Any], list[Any]], Callable[[], list[Any]]]:
        """For one stream: what returns what may be said after the next chunk, and what returns the rest at the end."""
        text, chunks = TextRestorer(self._map), ChunkRestorer(self._map)
        whole = WholeRestorer(self.inside if inside else self.restore, self._map)
        last: list[str | None] = [None]
        keys: dict[str, tuple[Callable[[Any], list[Any]], Callable[[], list[Any]]]] = {}

        def push(chunk: Any) -> list[Any]:
            if isinstance(chunk, str):
                return [said for said in [text.push(chunk)] if said]
            if isinstance(chunk, AIMessageChunk):
                last[0] = chunk.id
                return [chunks.push(chunk)]
            if isinstance(chunk, AddableDict):
                for key in chunk:
                    keys.setdefault(key, self.pushing(inside=True))
                return [AddableDict({key: said}) for key, value in chunk.items() for said in keys[key][0](value)]
            return whole.push(chunk)

        def finish() -> list[Any]:
            under = [AddableDict({key: rest}) for key, (_, end) in keys.items() for rest in end()]
            return [*(rest for rest in (text.finish(), chunks.finish(last[0])) if rest), *whole.finish(), *under]

        return push, finish

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Restore one value."""
        held: list[Any] = []

        def run(value: Any) -> str:
            held.append(self.restore(value))
            return WITHHELD

        self._call_with_config(run, input, config)
        return held[0]

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Restore one value."""
        held: list[Any] = []

        async def run(value: Any) -> str:
            held.append(self.restore(value))
            return WITHHELD

        await self._acall_with_config(run, input, config)
        return held[0]

    def transform(
        self,
        input: Iterator[Any],  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Restore what arrives in chunks, as it comes. Callbacks are told nothing of it: it has no run of its own."""
        push, finish = self.pushing()
        for chunk in input:
            yield from push(chunk)
        yield from finish()

    async def atransform(
        self,
        input: AsyncIterator[Any],  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Async twin of :meth:`transform`."""
        push, finish = self.pushing()
        async for chunk in input:
            for restored in push(chunk):
                yield restored
        for rest in finish():
            yield rest
