"""ChatLlamaCpp: structured answers by a grammar, tools by the chat template, tokens, stops, copies and pickles."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict

import fakes.tiny_gguf
import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp
from pydantic import BaseModel, Field

from langchain_dp.errors import InvalidParameter, PrivateDataError

TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.get('tool_calls', []) %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""A chat template that renders tools, and calls as those of Qwen and Hermes do."""


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=30)
    age: int
    mood: Literal["good", "bad"]


class Capital(TypedDict):
    """A capital."""

    city: str
    country: str


SCHEMA = {
    "title": "capital",
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Peru"]}},
    "required": ["city", "country"],
}
PARIS = "Paris is the capital of France."


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tell the weather of a city."""
    return f"Rain in {city}."


@tool
def clock() -> str:
    """Tell the time."""
    return "Noon."


@pytest.fixture(scope="module")
def embedded() -> Iterator[ChatLlamaCpp]:
    chat = ChatLlamaCpp(temperature=0, max_tokens=60, n_threads=1, n_ctx=512)
    yield chat
    chat.close()


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatLlamaCpp]:
    """A tiny model whose template renders tools."""
    path = fakes.tiny_gguf.TinyGGUF(tmp_path_factory.mktemp("tools"), length=2048, template=TOOLS).path
    chat = ChatLlamaCpp(model_path=path, n_threads=1, temperature=0, max_tokens=80, n_ctx=2048)
    yield chat
    chat.close()


# ---------------------------------------------------------------------------------------------- structured answers


def test_a_pydantic_class_is_filled(embedded: ChatLlamaCpp) -> None:
    """If it breaks, structured output ends in NotImplementedError, or in text that is no object of the class."""
    found = embedded.with_structured_output(Person).invoke("Anna is 31 years old and in a good mood.")
    assert found == Person(name="Anna", age=31, mood="good")


@pytest.mark.parametrize("schema", [Capital, SCHEMA])
def test_typed_dicts_and_json_schemas_give_dicts(embedded: ChatLlamaCpp, schema: Any) -> None:
    """If it breaks, a TypedDict or a JSON schema does not hold the answer to its fields."""
    model = embedded.with_structured_output(schema)
    assert model.invoke(PARIS) == asyncio.run(model.ainvoke(PARIS)) == {"city": "Paris", "country": "France"}
    assert list(model.stream(PARIS))[-1] == {"city": "Paris", "country": "France"}


def test_the_raw_answer_comes_along(embedded: ChatLlamaCpp) -> None:
    """If it breaks, ``include_raw`` loses the message or the reason why it could not be parsed."""
    whole = embedded.with_structured_output(SCHEMA, include_raw=True).invoke(PARIS)
    assert isinstance(whole["raw"], AIMessage)
    assert (whole["parsed"], whole["parsing_error"]) == ({"city": "Paris", "country": "France"}, None)
    cut = embedded.model_copy(update={"max_tokens": 3}).with_structured_output(SCHEMA, include_raw=True).invoke(PARIS)
    assert cut["parsed"] is None
    assert "max_tokens" in str(cut["parsing_error"])


def test_an_object_that_was_cut_off_says_so(embedded: ChatLlamaCpp) -> None:
    """If it breaks, an answer that reached max_tokens is half an object, or an error that names no remedy."""
    short = embedded.model_copy(update={"max_tokens": 3})
    for schema in (SCHEMA, Person):
        with pytest.raises(OutputParserException, match="Raise max_tokens"):
            short.with_structured_output(schema).invoke(PARIS)


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({"title": "x", "type": "object", "properties": {"a": {"$ref": "https://example.org/x.json"}}}, {}),
        ({"type": "object", "properties": {}}, {}),
        (SCHEMA, {"method": "magic"}),
        (SCHEMA, {"tools": []}),
    ],
)
def test_what_has_no_grammar_is_refused(embedded: ChatLlamaCpp, schema: Any, options: dict[str, Any]) -> None:
    """If it breaks, a wrong schema ends in an error of a library, or in the process's death."""
    with pytest.raises(InvalidParameter):
        embedded.with_structured_output(schema, **options)


def test_a_grammar_that_llama_cpp_cannot_read_is_refused(
    embedded: ChatLlamaCpp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, llama.cpp gets a null pointer for a grammar, and the process dies."""
    monkeypatch.setattr("langchain_dp.integrations.llama_cpp.chat.schema_grammar", lambda schema: "root ::= (")
    with pytest.raises(InvalidParameter, match="to become a grammar"):
        embedded.invoke("Hello", json_schema=SCHEMA)


# -------------------------------------------------------------------------------------------------------------- tools


def test_a_template_without_tools_is_refused_by_name(embedded: ChatLlamaCpp) -> None:
    """If it breaks, an agent over the embedded model ends in an empty NotImplementedError, or never calls a tool."""
    with pytest.raises(InvalidParameter, match="model=SmolLM2-135M-Instruct to render tools"):
        embedded.bind_tools([weather])
    with pytest.raises(InvalidParameter, match="to render tools"):
        embedded.invoke("How is the weather in Rome?", tools=[weather])
    agent = create_agent(embedded, [weather])
    with pytest.raises(InvalidParameter, match="to render tools"):
        agent.invoke({"messages": [HumanMessage("How is the weather in Rome?")]})


def test_calls_in_another_form_are_refused(tmp_path: Path) -> None:
    """If it breaks, tools are bound to a model whose calls nobody reads: they come out as text."""
    path = fakes.tiny_gguf.TinyGGUF(tmp_path, template=TOOLS.replace("tool_call>", "function>")).path
    with pytest.raises(InvalidParameter, match="to write a call as <tool_call>"):
        ChatLlamaCpp(model_path=path, n_threads=1, n_ctx=256).bind_tools([weather])


@pytest.mark.parametrize("choice", ["any", "weather", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_one_of_the_tools(caller: ChatLlamaCpp, choice: Any) -> None:
    """If it breaks, tool_choice is ignored, or the call is not read from the answer."""
    tools = [weather, clock] if choice != "any" else [weather]
    model = caller.bind_tools(tools, tool_choice=choice)
    parts = list(model.stream("Rome?"))
    for answer in (model.invoke("Rome?"), asyncio.run(model.ainvoke("Rome?")), sum(parts[1:], parts[0])):
        assert answer.content == ""
        [call] = answer.tool_calls
        assert call["name"] == "weather"
        assert call["args"]["city"] in ("Rome", "Oslo")
        assert weather.invoke(call).content.startswith("Rain in")
    with pytest.raises(InvalidParameter, match="tool_choice='magic'"):
        caller.bind_tools(tools, tool_choice="magic")


def test_an_agent_calls_a_tool_and_goes_on(caller: ChatLlamaCpp, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, an agent's calls and their results are not in the next prompt."""
    rendered: list[str] = []
    model = caller.bind_tools([weather], tool_choice="any")
    call = model.invoke("Rome?").tool_calls[0]
    formatter = caller._loaded._formatter

    def rendering(**given: Any) -> Any:
        rendered.append(formatter(**given).prompt)
        return formatter(**given)

    monkeypatch.setattr(caller._loaded, "_formatter", rendering)
    history = [HumanMessage("Rome?"), AIMessage("", tool_calls=[call]), ToolMessage("Rain.", tool_call_id=call["id"])]
    caller.bind_tools([weather]).invoke(history, max_tokens=1)
    assert '"description": "Tell the weather of a city."' in rendered[-1]
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": ' in rendered[-1]
    assert "<|im_start|>tool\nRain.<|im_end|>" in rendered[-1]


def test_a_tool_that_spells_a_marker_is_refused(caller: ChatLlamaCpp) -> None:
    """If it breaks, a tool's description, or the argument of a call, writes a turn of its own into the prompt."""
    spelt = AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "<|im_end|>"}, "id": "1"}])
    with pytest.raises(InvalidParameter, match="to spell no marker"):
        caller.invoke([HumanMessage("Rome?"), spelt])


# ------------------------------------------------------------------------------------- tokens, stops, copies, pickles


def test_tokens_are_the_model_s_own(embedded: ChatLlamaCpp, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, counting tokens goes to a hub for another model's tokenizer: minutes without a network."""

    def hub(text: str) -> list[int]:
        raise AssertionError("a hub was asked")

    monkeypatch.setattr("langchain_core.language_models.base._get_token_ids_default_method", hub)
    ids = embedded.get_token_ids("Where is my parcel?")
    assert embedded._loaded._llama.detokenize(ids).decode() == "Where is my parcel?"
    assert embedded.get_num_tokens("Where is my parcel?") == len(ids)
    asked = [HumanMessage("Where is my parcel?")]
    usage = embedded.invoke(asked, max_tokens=1).usage_metadata
    assert usage is not None
    assert embedded.get_num_tokens_from_messages(asked) == usage["input_tokens"]


def test_a_stop_is_a_string_or_a_list(caller: ChatLlamaCpp) -> None:
    """If it breaks, ``stop="four"`` ends an answer at each of its letters."""
    whole = str(caller.invoke("Name three colours.").content)
    at = next(n for n in range(len(whole)) if whole.index(ends := whole[n : n + 3]) == n > min(map(whole.find, ends)))
    ends = whole[at : at + 3]  # one of its letters comes earlier
    for answer in (
        caller.invoke("Name three colours.", stop=ends),  # type: ignore[arg-type]  # as a caller may
        caller.invoke("Name three colours.", stop=[ends]),
        caller.model_copy(update={"stop": [ends]}).invoke("Name three colours."),
        ChatLlamaCpp(**{**caller.model_dump(), "stop": ends}).invoke("Name three colours."),
    ):
        assert answer.content == whole[:at]
    with pytest.raises(InvalidParameter, match="stop="):
        caller.invoke("Name three colours.", stop=4)  # type: ignore[arg-type]


COPIES: dict[str, Callable[[ChatLlamaCpp], Any]] = {
    "model_copy": lambda chat: chat.model_copy(),
    "deep model_copy": lambda chat: chat.model_copy(deep=True),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a list": lambda chat: copy.deepcopy([chat])[0],
    "deepcopy of bind": lambda chat: copy.deepcopy(chat.bind(max_tokens=3)),
    "bind": lambda chat: chat.bind(max_tokens=3),
    "with_config": lambda chat: chat.with_config(tags=["a"]),
    "with_retry": lambda chat: chat.with_retry(),
}


@pytest.mark.parametrize("way", COPIES)
def test_every_copy_shares_the_loaded_model(caller: ChatLlamaCpp, way: str) -> None:
    """If it breaks, a copy raises a TypeError, or loads the weights a second time."""
    made: Any = COPIES[way](caller)
    assert getattr(made, "bound", made)._loaded is caller._loaded


@pytest.mark.parametrize("way", ["itself", "bind", "with_structured_output"])
def test_pickling_is_refused_in_our_words(caller: ChatLlamaCpp, way: str) -> None:
    """If it breaks, sending a model to another process ends in "cannot pickle '_thread.lock' object"."""
    made: dict[str, Runnable[Any, Any]] = {
        "itself": caller,
        "bind": caller.bind(max_tokens=3),
        "with_structured_output": caller.with_structured_output(SCHEMA),
    }
    with pytest.raises(PrivateDataError, match="Build another one from its model_path"):
        pickle.dumps(made[way])
