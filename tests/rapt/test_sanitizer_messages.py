"""Messages: every place in which a raw word may hide, and what is deliberately left."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from fakes.rapt import CLOSE, FAR, sanitizer
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


@pytest.mark.parametrize("place", HIDING)
def test_no_place_of_a_message_keeps_a_raw_word(place: str) -> None:
    """If it breaks, a raw word survives in a field of a message that goes out."""
    before = HIDING[place]
    assert RAW in repr(before) + repr(before.additional_kwargs) + repr(before.model_dump()), "the test hides nothing"
    after = sanitizer(system="sanitize").invoke(before)
    assert type(after) is type(before)
    assert RAW not in repr(after) + repr(after.model_dump()) + repr(after.content_blocks) + after.model_dump_json()
    assert RAW in repr(before) + repr(before.model_dump()), "the message given must not be changed"


def test_the_structure_of_a_call_stays() -> None:
    """If it breaks, a model cannot match results with calls, or arguments lose their keys."""
    call = {"name": "f", "args": {"q": "old", "n": 47, "yes": True, "none": None, "in": {"k": ["old"]}}, "id": "c1"}
    made = sanitizer(eta=FAR)
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


def test_a_history_that_grows_costs_every_message_once() -> None:
    """If it breaks, turn n of a conversation pays n times for its first message, and shows n draws of it."""
    made = sanitizer()
    history: list[BaseMessage] = []
    told: list[list[Any]] = []
    for turn in range(4):
        history += [HumanMessage(f"question {turn} about pain"), AIMessage("yes")]  # an equal answer in each turn
        told.append([message.content for message in made.invoke(history, user="u")])
    for shorter, longer in itertools.pairwise(told):
        assert longer[: len(shorter)] == shorter
    assert made.ledger.spent(user="u") == pytest.approx(8 * CLOSE)


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
    answer = sanitizer().invoke_with_certificate([only_image, mixed])
    assert answer.value[0].content == [IMAGE]
    assert answer.value[1].content[1:] == blocks
    assert answer.value[0].response_metadata["rapt"]["notes"] == ["a block of type image_url passed in clear"]
    assert any("a block of type image_url passed in clear (2 x)" in note for note in answer.certificate.notes)
    assert RAW not in repr(answer.value)
    assert [message.content for message in sanitizer(media="drop").invoke([only_image])] == [[]]
    made = sanitizer(media="refuse")
    with pytest.raises(InvalidParameter, match="image_url"):
        made.invoke([mixed, only_image])
    assert made.certificate().releases == 0


def test_a_message_says_what_was_done_to_it() -> None:
    """If it breaks, nobody downstream can tell sanitised messages from raw ones, or what they lost."""
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
        [{"type": "text"}],
        [{"type": "tool_result", "tool_use_id": "c", "content": b"raw"}],
        [{"type": "tool_use", "id": "c", "name": "f", "input": {"q": b"raw"}}],
    ],
)
def test_blocks_without_text_where_text_belongs_are_refused(content: list[Any]) -> None:
    """If it breaks, a malformed block passes in clear, or fails with its content in the message."""
    with pytest.raises(InvalidParameter, match="Expected"):
        sanitizer().invoke(HumanMessage(content))


def test_arguments_nested_without_end_are_refused() -> None:
    """If it breaks, a hostile tool call ends the process, or is let through."""
    args: dict[str, Any] = {"q": "a"}
    for _ in range(5000):
        args = {"a": args}
    with pytest.raises(InvalidParameter, match="levels"):
        sanitizer().invoke([AIMessage.model_construct(content="", tool_calls=[{"name": "f", "args": args, "id": "c"}])])
    deep = "[" * 100_000
    assert isinstance(sanitizer().invoke(ToolMessage(deep, tool_call_id="c")).content, str)


@pytest.mark.parametrize(
    "message",
    [
        ToolMessage(json.dumps({RAW: {"positive": "the"}}), tool_call_id="c"),
        ToolMessage(json.dumps(["the", {RAW: "the"}]), tool_call_id="c"),
        FunctionMessage(content=json.dumps({RAW: 1}), name="f"),
        HumanMessage([{"type": "tool_result", "tool_use_id": "c", "content": json.dumps({RAW: "the"})}]),
    ],
    ids=["object", "list", "function", "block"],
)
def test_keys_of_what_a_tool_answers_are_said_to_be_in_clear(message: BaseMessage) -> None:
    """If it breaks, the names under which a tool answers leave, and neither message nor certificate says so."""
    made = sanitizer()
    released = made.sanitize(message)
    assert RAW in str(released.content)  # a structure without its keys would be none
    assert released.response_metadata["rapt"]["notes"] == [
        "the keys of JSON in a result of a tool passed in clear",
    ]
    assert any("of the JSON they answer with" in note for note in made.certificate().notes)
    plain = made.sanitize(ToolMessage("[the patient] has {pain}", tool_call_id="c"))
    assert plain.response_metadata["rapt"]["notes"] == []
