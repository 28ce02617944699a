"""Conversations as private records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langchain_dp._util.callers import warn_caller
from langchain_dp.records import Examples, PrivateRecords, column_of_people
from langchain_dp.records.files import READING, fields_of, rows_of
from langchain_dp.records.private import id_of
from langchain_dp.redact import redact_errors

_LABEL = "conversation"
_SPEAKERS = {"human": "User", "user": "User", "ai": "Assistant", "assistant": "Assistant", "system": "System"}
_CLASSES = {"HumanMessage": "human", "AIMessage": "ai", "SystemMessage": "system", "ToolMessage": "tool"}


@redact_errors(READING)
def conversations(
    source: Examples,
    *,
    text_key: str = "text",
    user_key: str | None = None,
    records_per_user: int | None = None,
) -> PrivateRecords:
    """Read conversations as private records, one text each.

    Args:
        source: An iterable, a JSONL or CSV file, or a DataFrame, of texts, lists of messages, mappings with
            ``messages``, ``StateSnapshot`` objects, LangSmith runs, or rows. ``PrivateRecords`` pass unchanged.
        text_key: Column of the text or messages.
        user_key: User's id, in the row or its ``metadata``. The promise then covers all of a user's conversations.
        records_per_user: Most conversations of one user, the oldest first.

    Raises:
        InvalidParameter: A conversation has no text or no user. The message gives positions, never content.

    Examples:
        >>> chats = [{"messages": [("user", "Where is my parcel?"), ("assistant", "In Leeds.")], "user": "u7"}]
        >>> len(conversations(chats, user_key="user"))
        1
    """
    if isinstance(source, PrivateRecords):
        PrivateRecords(source, text_key=text_key, user_key=user_key, records_per_user=records_per_user)  # or refuse
        return source
    rows = _rows(source, text_key, user_key)
    return PrivateRecords(
        rows, label=_LABEL, user_key=None if user_key is None else "user", records_per_user=records_per_user
    )


def _rows(source: Examples, text_key: str, user_key: str | None) -> Iterator[dict[str, Any]]:
    for place, one in enumerate(rows_of(source)):
        if user_key is None and place == 0 and (people := column_of_people(fields_of(one) or ())):
            warn_caller(
                f"The conversations have a column {people!r}, and each conversation counts as a user of its own: "
                f"somebody with k of them has k times epsilon. Pass user_key={people!r}.",
                UserWarning,
            )
        row: dict[str, Any] = {"text": _text(one, text_key)}
        if user_key is not None:
            row["user"] = _user(one, user_key)
        yield row


def _text(one: Any, text_key: str) -> str | None:
    if isinstance(one, str):
        return one
    if isinstance(one, BaseMessage) or _is_list(one):
        return _joined([one] if isinstance(one, BaseMessage) else one)
    for name in ("values", "inputs"):  # a state snapshot, and a run of LangSmith
        held = getattr(one, name, None)
        if isinstance(held, Mapping):
            return _text(held, text_key) if name == "values" else _run_text(held, getattr(one, "outputs", None))
    fields = fields_of(one)
    if fields is None:
        return None
    for name in (text_key, "messages"):
        held = fields.get(name)
        if _is_list(parsed := _parsed(held)) and (text := _joined(parsed)):
            return text
        if isinstance(held, str):  # even if it is JSON
            return held
    if "inputs" in fields:
        return _run_text(_parsed(fields["inputs"]), _parsed(fields.get("outputs")))
    return None


def _run_text(inputs: Any, outputs: Any) -> str | None:
    """Join input with new messages of the output."""
    before = _spoken(inputs)
    known = {*before}
    after = [line for line in _spoken(outputs) if line not in known]
    return "\n".join([*before, *after]) or None


def _spoken(held: Any) -> list[str]:
    held = _parsed(held)
    if isinstance(held, str):
        return [held]
    if isinstance(held, BaseMessage):
        return _joined([held]).splitlines()
    if _is_list(held):
        return [line for part in held for line in _spoken(part)] if _is_nested(held) else _joined(held).splitlines()
    if not isinstance(held, Mapping):
        return []
    for name in ("messages", "generations", "message", "output", "input", "question", "answer", "text"):
        if name in held and (lines := _spoken(held[name])):
            return lines
    return _joined([held]).splitlines()


def _is_nested(held: Sequence[Any]) -> bool:
    return all(_is_list(part) or (isinstance(part, Mapping) and "message" in part) for part in held)


def _is_list(held: Any) -> bool:
    return isinstance(held, (list, tuple)) and not hasattr(held, "_fields")  # a named tuple is a row or a state


def _parsed(held: Any) -> Any:
    if isinstance(held, str) and held.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(held)
        except (ValueError, RecursionError):
            return held
    return held.tolist() if type(held).__module__ == "numpy" and hasattr(held, "tolist") else held


def _joined(messages: Sequence[Any]) -> str:
    spoken = [_speech(message) for message in messages]
    return "\n".join(f"{_SPEAKERS.get(speaker, speaker.title())}: {text}" for speaker, text in spoken if text)


def _speech(message: Any) -> tuple[str, str]:
    """Return speaker and text."""
    if isinstance(message, BaseMessage):
        return message.type, message.text.strip()
    if isinstance(message, str):
        return "user", message.strip()
    if _is_list(message) and len(message) == 2 and all(isinstance(part, str) for part in message):
        return message[0], message[1].strip()
    if not isinstance(message, Mapping):
        return "", ""
    inner = message.get("kwargs", message.get("data"))  # of a serialized message
    fields = {**message, **inner} if isinstance(inner, Mapping) else message
    kind = message.get("id")
    name = _CLASSES.get(str(kind[-1])) if _is_list(kind) and kind else None
    speaker = name or fields.get("role") or fields.get("type") or "user"
    content = fields.get("content", "")
    if _is_list(content):
        parts = [
            part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, (str, Mapping))
        ]
        content = " ".join(part for part in parts if isinstance(part, str))
    return str(speaker), content.strip() if isinstance(content, str) else ""


def _user(one: Any, user_key: str) -> Any:
    fields = fields_of(one) or {name: getattr(one, name, None) for name in ("metadata", "extra", "config")}
    places: list[Any] = [fields, _parsed(fields.get("metadata"))]
    for name, inner in (("extra", "metadata"), ("config", "configurable"), ("config", "metadata")):
        outer = _parsed(fields.get(name))
        places.append(outer.get(inner) if isinstance(outer, Mapping) else None)
    found = [place[user_key] for place in places if isinstance(place, Mapping) and user_key in place]
    return next((user for user in found if id_of(user) is not None), None)
