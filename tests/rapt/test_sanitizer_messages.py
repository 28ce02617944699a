"""Messages: every place in which a raw word may hide, and what is deliberately left."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
import warnings
from typing import Any

import pytest
from fakes.rapt import CLOSE, FAR, sanitizer
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_dp.errors import InvalidParameter

RAW = "quetzal"
TEXT = f"the patient {RAW}"
UUID = "0b6fe3ab-8c4f-4c41-9df5-0a1a6cf5b7f5"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

HIDING: dict[str, BaseMessage] = {
    "content": HumanMessage(TEXT),
    "name": HumanMessage("a", name=RAW),
    "id": HumanMessage("a", id=RAW),
    "list of texts": HumanMessage([TEXT, {"type": "text", "text": TEXT, "annotations": [{"cited_text": RAW}]}]),
    "unknown field": HumanMessage("a", note=RAW),
    "extra of a block": HumanMessage([{"type": "text", "text": "a", "extras": {"raw": RAW}}]),
    "plain text file": HumanMessage([{"type": "text-plain", "text": TEXT, "title": RAW, "context": RAW}]),
    "text document": HumanMessage(
        [{"type": "document", "title": RAW, "source": {"type": "text", "media_type": "text/plain", "data": TEXT}}]
    ),
    "text as content": HumanMessage(
        [{"type": "document", "title": RAW, "source": {"type": "content", "content": TEXT}}]
    ),
    "blocks as content": HumanMessage(
        [{"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": TEXT}]}}]
    ),
    "input": HumanMessage([{"type": "input_text", "text": TEXT}]),
    "unknown block": HumanMessage([{"type": "memory", "value": RAW}, {"type": "text", "text": "a"}]),
    "block without a type": HumanMessage([{"value": RAW}]),
    "tool result block": HumanMessage(
        [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": TEXT}]}]
    ),
    "tool result text": HumanMessage([{"type": "tool_result", "tool_use_id": "c", "content": TEXT}]),
    "kwargs": AIMessage("a", additional_kwargs={"reasoning_content": RAW, "audio": {"transcript": RAW}}),
    "raw tool calls": AIMessage(
        "",
        additional_kwargs={
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{"q": "{RAW}"}}'}}]
        },
    ),
    "old function call": AIMessage(
        "", additional_kwargs={"function_call": {"name": "f", "arguments": f'{{"q": "{RAW}"}}'}}
    ),
    "metadata": AIMessage("a", response_metadata={"logprobs": [{"token": RAW}], "headers": RAW}),
    "tool call": AIMessage("", tool_calls=[{"name": "f", "args": {"q": TEXT}, "id": "c"}]),
    "nested arguments": AIMessage("", tool_calls=[{"name": "f", "args": {"a": {"b": [{"c": TEXT}]}}, "id": "c"}]),
    "json in arguments": AIMessage(
        "", tool_calls=[{"name": "f", "args": {"body": json.dumps({"who": json.dumps([RAW])})}, "id": "c"}]
    ),
    "other objects": AIMessage("", tool_calls=[{"name": "f", "args": {"a": {RAW}, "b": ValueError(RAW)}, "id": "c"}]),
    "broken tool call": AIMessage(
        "", invalid_tool_calls=[{"name": "f", "args": f'{{"q": "{RAW}', "id": "c", "error": f"bad: {RAW}"}]
    ),
    "call in content": AIMessage([{"type": "tool_use", "id": "c", "name": "f", "input": {"q": RAW}}]),
    "call in content, responses": AIMessage(
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": f'{{"q": "{RAW}"}}'}]
    ),
    "reasoning": AIMessage([{"type": "reasoning", "reasoning": RAW}, {"type": "thinking", "thinking": RAW}, "a"]),
    "refusal": AIMessage([{"type": "refusal", "refusal": TEXT}]),
    "standard blocks": AIMessage(content_blocks=[{"type": "tool_call", "name": "f", "args": {"q": RAW}, "id": "c"}]),
    "chunk": AIMessageChunk("", tool_call_chunks=[{"name": "f", "args": f'{{"q": "{RAW}"}}', "id": "c", "index": 0}]),
    "broken chunk": AIMessageChunk(
        "", tool_call_chunks=[{"name": "f", "args": f'{{"q": "{RAW}', "id": "c", "index": 0}]
    ),
    "human chunk": HumanMessageChunk(TEXT),
    "tool result": ToolMessage(TEXT, tool_call_id="c", name="f", artifact={"raw": RAW}),
    "tool result as json": ToolMessage(json.dumps({"rows": [{"name": RAW}]}), tool_call_id="c"),
    "tool blocks": ToolMessage([{"type": "text", "text": TEXT}], tool_call_id="c"),
    "function": FunctionMessage(TEXT, name="f"),
    "other role": ChatMessage(TEXT, role="critic"),
}


@pytest.mark.parametrize("media", ["keep", "drop"])
@pytest.mark.parametrize("place", HIDING)
def test_no_place_of_a_message_keeps_a_raw_word(place: str, media: Any) -> None:
    """If it breaks, a raw word survives in a field of a message that goes out, or a text is dropped as a medium."""
    before = HIDING[place]
    assert RAW in repr(before) + repr(before.additional_kwargs) + repr(before.model_dump()), "the test hides nothing"
    after = sanitizer(system="sanitize", media=media).invoke(before)
    assert type(after) is type(before)
    if "unknown" not in place and place not in ("block without a type", "reasoning"):
        assert len(after.content) == len(before.content) or isinstance(after.content, str)
    assert RAW not in repr(after) + repr(after.model_dump()) + repr(after.content_blocks) + after.model_dump_json()
    assert RAW in repr(before) + repr(before.model_dump()), "the message given must not be changed"


def test_the_structure_of_a_call_stays() -> None:
    """If it breaks, a model cannot match results with calls, or arguments lose their keys."""
    call = {"name": "f", "args": {"q": "old", "n": 47, "yes": True, "none": None, "in": {"k": ["old"]}}, "id": "c1"}
    made = sanitizer(eta=FAR, keys_keep=["q", "n", "yes", "none", "in", "k", "a"])
    ai, tool = made.invoke(
        [
            AIMessage("one", tool_calls=[call], id=UUID),
            ToolMessage('{"a": ["old", 3]}', tool_call_id="c1", name="f", status="error"),
        ]
    )
    assert isinstance(ai, AIMessage)
    assert isinstance(tool, ToolMessage)
    args = ai.tool_calls[0]["args"]
    assert (ai.tool_calls[0]["name"], ai.tool_calls[0]["id"], ai.id) == ("f", "c1", UUID)
    assert list(args) == ["q", "n", "yes", "none", "in"]
    assert (args["q"], args["in"], args["none"]) == ("old", {"k": ["old"]}, None)
    # A number and a truth value are words like others: they tell as much.
    assert isinstance(args["n"], str)
    assert "47" not in args["n"]
    assert isinstance(args["yes"], str)
    assert (tool.tool_call_id, tool.name, tool.status) == ("c1", "f", "error")
    assert json.loads(str(tool.content))["a"][0] == "old"


def test_arguments_that_stand_in_a_message_twice_are_released_once() -> None:
    """If it breaks, a reader has two draws of the same arguments and one charge."""
    args = {"q": "the patient has severe pain in the left arm"}
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": args}
    old = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": json.dumps(args)}
    before = AIMessage([use, old], tool_calls=[{"name": "f", "args": args, "id": "c1"}])
    after: Any = sanitizer().invoke(before)
    assert after.content[0]["input"] == after.tool_calls[0]["args"] == json.loads(after.content[1]["arguments"])


def test_system_messages_are_the_developers_own() -> None:
    """If it breaks, the default garbles instructions, or the option leaves a user's text in a system message."""
    message = SystemMessage(TEXT)
    assert sanitizer().invoke([message]) == [message]
    made = sanitizer(system="sanitize").invoke([message])[0]
    assert isinstance(made, SystemMessage)
    assert RAW not in str(made)


def test_media_pass_by_name_or_not_at_all() -> None:
    """If it breaks, an image passes unnoticed, or an option to stop it does not."""
    blocks: list[Any] = [IMAGE, {"type": "audio", "base64": "AAAA"}, {"type": "file", "file_id": "f"}]
    only_image, mixed = HumanMessage([IMAGE]), HumanMessage([{"type": "text", "text": TEXT}, *blocks])
    released = sanitizer().invoke([only_image, mixed])
    assert released[0].content == [IMAGE]
    assert released[1].content[1:] == blocks
    assert released[0].response_metadata["rapt"]["notes"] == ["a block of type image_url passed in clear"]
    assert released[0].response_metadata["rapt"]["private"] is False
    assert RAW not in repr(released)
    dropping, file = sanitizer(media="drop"), {"type": "file", "source_type": "text", "text": TEXT}
    assert [message.content for message in dropping.invoke([only_image])] == [[]]
    assert "Images, audio and files" not in str(dropping.certificate())
    for made in (sanitizer(), dropping):  # a text is no medium
        assert RAW not in repr(block := made.invoke(HumanMessage([file])).content[0])
        assert block["type"] == "file"


def test_a_message_says_what_was_done_to_it() -> None:
    """If it breaks, nobody downstream can tell sanitized messages from raw ones, or what they lost."""
    after = sanitizer().invoke(AIMessage([{"type": "reasoning", "reasoning": RAW}, "a"], response_metadata={"a": 1}))
    said = after.response_metadata["rapt"]
    assert (said["private"], said["eta"], said["mechanism"]) == (True, CLOSE, "exponential")
    assert said["notes"] == ["a block of thoughts was dropped", "response_metadata was dropped"]
    again = sanitizer().invoke(after)
    assert again.response_metadata["rapt"]["notes"] == []


class _Odd(HumanMessage):
    """A message class with a text of its own."""

    secret: str = RAW


class _Alien(BaseMessage):
    type: str = "alien"


def test_foreign_message_classes() -> None:
    """If it breaks, a subclass carries its own fields out, or an unknown class is taken for harmless."""
    after = sanitizer().invoke([_Odd(TEXT)])[0]
    assert type(after) is HumanMessage
    assert RAW not in repr(after.model_dump())
    with pytest.raises(InvalidParameter, match="_Alien"):
        sanitizer().invoke([_Alien(content=TEXT)])
    removal = RemoveMessage(id=UUID)
    assert sanitizer().invoke(removal).id == UUID


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": 7}],
        [{"type": "tool_result", "tool_use_id": "c", "content": [["raw"]]}],
        [{"type": "text"}],
        [{"type": "tool_result", "tool_use_id": "c", "content": b"raw"}],
        [{"type": "tool_use", "id": "c", "name": "f", "input": {"q": b"raw"}}],
        [{"type": "tool_use", "id": "c", "name": {"first": RAW}, "input": {}}],
        [{"type": "tool_use", "id": [RAW], "name": "f", "input": {}}],
        [{"type": "function_call", "call_id": "c", "name": [RAW], "arguments": "{}"}],
        [{"type": "tool_result", "tool_use_id": {RAW: 1}, "content": "a"}],
    ],
)
def test_blocks_of_another_form_are_refused(content: list[Any]) -> None:
    """If it breaks, a malformed block, or a structure in the place of a name, passes in clear, or is in the error."""
    with pytest.raises(InvalidParameter, match="Expected") as refused:
        sanitizer().invoke(HumanMessage(content))
    assert RAW not in str(refused.value)


def test_arguments_nested_without_end_are_refused() -> None:
    """If it breaks, a hostile tool call ends the process, or is let through."""
    args: dict[str, Any] = {"q": "a"}
    for _ in range(5000):
        args = {"a": args}
    with pytest.raises(InvalidParameter, match="levels"):
        sanitizer().invoke([AIMessage.model_construct(content="", tool_calls=[{"name": "f", "args": args, "id": "c"}])])
    deep = "[" * 100_000
    assert isinstance(sanitizer().invoke(ToolMessage(deep, tool_call_id="c")).content, str)


ANSWERS: dict[str, BaseMessage] = {
    "arguments": AIMessage("", tool_calls=[{"name": "f", "args": {RAW: {RAW: None}}, "id": "c"}]),
    "broken arguments": AIMessage("", invalid_tool_calls=[{"name": "f", "args": f'{{"{RAW}": 1}}', "id": "c"}]),
    "old call": AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": f'{{"{RAW}": 1}}'}}),
    "call in content": AIMessage([{"type": "tool_use", "id": "c", "name": "f", "input": {RAW: 1}}]),
    "responses": AIMessage([{"type": "function_call", "call_id": "c", "name": "f", "arguments": f'{{"{RAW}": 1}}'}]),
    "object": ToolMessage(json.dumps({RAW: {"positive": "the"}}), tool_call_id="c"),
    "list": ToolMessage(json.dumps(["the", {RAW: "the"}]), tool_call_id="c"),
    "function": FunctionMessage(content=json.dumps({RAW: 1}), name="f"),
    "block": HumanMessage([{"type": "tool_result", "tool_use_id": "c", "content": json.dumps({RAW: "the"})}]),
    "json in json": ToolMessage(json.dumps({"rows": json.dumps([{RAW: 1}])}), tool_call_id="c"),
}


@pytest.mark.parametrize("place", ANSWERS)
def test_keys_that_nobody_declared_are_sanitized(place: str) -> None:
    """If it breaks, a name that stands as a key of JSON leaves in clear."""
    message = ANSWERS[place]
    assert RAW in repr(sanitizer(keys_keep=[RAW]).sanitize(message)), "what is declared stays"
    assert RAW in repr(sanitizer().sanitize(message, keys_keep=[RAW]))
    made = sanitizer()
    assert RAW not in repr(made.sanitize(message)) + repr(made.sanitize(message).additional_kwargs)
    assert made.certificate().releases == 1


def test_the_certificate_says_what_of_a_structure_is_in_clear() -> None:
    """If it breaks, lengths of lists, nulls, names of tools or declared keys leave unsaid."""
    said = " ".join(sanitizer(keys_keep=["rows", "name"]).certificate().notes)
    for clear in ("nesting", "how many entries", "nulls", "which texts hold JSON", "but for name, rows and", "names of "
                  "tools", "ids of their calls", "version 4 or 7"):  # fmt: skip
        assert clear in said


def test_no_value_is_lost_where_two_keys_become_one_word() -> None:
    """If it breaks, an object loses an entry whenever two of its keys are drawn alike, or a declared key is taken."""
    given = {f"unknown{i}": "old" for i in range(40)} | {"old": "man"}
    for keys_keep in ([], ["old"]):
        released = sanitizer(eta=FAR, keys_keep=keys_keep).sanitize(
            AIMessage("", tool_calls=[{"name": "f", "args": given, "id": "c"}])
        )
        args = released.tool_calls[0]["args"]
        assert len(args) == 41
        assert list(args.values()) == [*["old"] * 40, "man"]
    assert args["old"] == "man"


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (UUID, True),
        (f"lc_run--{UUID}-0", True),
        (f"run-{UUID}", True),
        ("01a207a3-d839-7246-a3a2-07e843472ed9", True),
        (str(uuid.uuid5(uuid.NAMESPACE_URL, TEXT)), False),
        (str(uuid.uuid3(uuid.NAMESPACE_URL, TEXT)), False),
        ("d3c22ecc-e71d-11f1-8001-000000000001", False),  # version 1
        (UUID.replace("-", ""), False),
        (hashlib.md5(TEXT.encode()).hexdigest(), False),
        (UUID[:19] + "c" + UUID[20:], False),  # another variant
        ("f1a207a3-d839-7246-a3a2-07e843472ed9", False),  # version 7, of another age
        (f"{UUID}-123456789", False),
        (f"run-{UUID}-123456789", False),
        (f"{UUID} {RAW}", False),
        (RAW, False),
    ],
)
def test_only_whole_random_ids_of_messages_pass(given: str, passes: bool) -> None:
    """If it breaks, an id that is made of the content confirms a guess at it, or an id says a word."""
    for message in (HumanMessage("a", id=given), AIMessage("a", id=given), RemoveMessage(id=given)):
        released = sanitizer().sanitize(message)
        assert (released.id == given) is passes
        assert uuid.UUID(str(released.id)[-36:] if not passes else UUID).version == 4
    assert sanitizer().sanitize(HumanMessage("a")).id is None
    assert sanitizer().sanitize(RemoveMessage(id="__remove_all__")).id == "__remove_all__"


def test_what_removes_a_message_still_finds_it() -> None:
    """If it breaks, a message that a graph removes stays in the history, or comes twice: its substitute changes."""
    told = sanitizer().sanitize([HumanMessage("a", id="m1"), RemoveMessage(id="m1"), HumanMessage("b", id="m2")])
    first, removed, second = (message.id for message in told)
    assert first == removed != second
    assert sanitizer().sanitize(HumanMessage("a", id="m1")).id == first


_CODED = base64.b64encode(TEXT.encode()).decode()
HIDDEN_FILES: dict[str, dict[str, Any]] = {
    "coded document": {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": _CODED}},
    "openai": {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{_CODED}"}},
    "responses": {"type": "input_file", "filename": "notes.md", "file_data": _CODED},
    "standard": {"type": "file", "mime_type": "application/json", "base64": _CODED},
    "google": {"type": "media", "mime_type": "Text/CSV", "data": TEXT.encode()},
    "plain without its text": {"type": "text-plain", "base64": _CODED},
    "text elsewhere": {"type": "file", "source_type": "text", "data": TEXT},
    "drawing": {"type": "image", "mime_type": "image/svg+xml", "base64": _CODED},
    "kind as a format": {"type": "file", "file": {"file_data": _CODED, "format": "text/plain"}},
    "no kind of bytes": {"type": "file", "file": {"file_data": f"data:;base64,{_CODED}"}},
    "no kind": {"type": "file", "file": {"file_data": f"data:,{TEXT}"}},
    "no kind but a setting": {"type": "image_url", "image_url": {"url": f" data:;charset=utf-8,{TEXT}"}},
    "format": {"type": "document", "format": "html", "source": {"data": TEXT}},
}


@pytest.mark.parametrize("kind", HIDDEN_FILES)
def test_a_file_that_hides_a_text_is_refused(kind: str) -> None:
    """If it breaks, a text passes in clear because its bytes are coded, or stand where nobody looks."""
    message = HumanMessage([HIDDEN_FILES[kind]])
    made = sanitizer()
    with pytest.raises(InvalidParameter, match="Expected text in a block of text") as refused:
        made.sanitize(message)
    assert RAW not in str(refused.value)
    assert made.certificate().releases == 0
    assert sanitizer(media="drop").sanitize(message).content == []


def test_what_is_said_about_media_is_sanitized() -> None:
    """If it breaks, the title, the name or a note of a file leaves in clear beside it."""
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    given: list[Any] = [
        {"type": "document", "source": pdf, "title": TEXT, "context": TEXT, "citations": {"enabled": True}},
        {"type": "file", "file": {"file_id": "f", "filename": f"{RAW}.pdf"}, "extras": {"note": RAW}},
        {"type": "image", "url": "https://example.org/a.png", "metadata": {RAW: RAW}, "source": [TEXT], "id": RAW},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": TEXT}},
        {"type": "input_audio", "mime_type": "audio/pcm;rate=16000", "input_audio": {"data": "AAAA", "format": TEXT}},
        {"type": "video_url", "video_url": {"url": "data:;base64,AAAA", "detail": RAW}},
        {"type": "audio", "base64": "AAAA", "mime_type": 'audio/webm; codecs="opus, vp9.1"'},
    ]
    released = sanitizer().sanitize(HumanMessage(given))
    assert RAW not in repr(released)
    assert released.content[0]["source"] == pdf
    assert released.content[0]["citations"] == {"enabled": True}
    assert released.content[1] == {"type": "file", "file": {"file_id": "f", "filename": "file.pdf"}}
    assert released.content[2] == {"type": "image", "url": "https://example.org/a.png"}
    assert released.content[3] == {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    audio = {"type": "input_audio", "mime_type": "audio/pcm;rate=16000", "input_audio": {"data": "AAAA"}}
    assert released.content[4] == audio
    assert released.content[5] == {"type": "video_url", "video_url": {"url": "data:;base64,AAAA"}}
    assert released.content[6] == given[6]


def test_an_id_that_is_replaced_is_said_where_a_graph_would_keep_both() -> None:
    """If it breaks, a node that sanitizes leaves the raw message in the state, and the model behind it reads it."""
    made = sanitizer(eta=FAR)

    def asked(*ids: str | None) -> Any:
        return made.invoke([HumanMessage("the patient", id=name) for name in ids])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked(None, UUID, f"run--{UUID}")
        made.invoke([Document("the", id="file-1")])
    with pytest.warns(UserWarning, match="REMOVE_ALL_MESSAGES"):
        asked(UUID, "msg-1")
