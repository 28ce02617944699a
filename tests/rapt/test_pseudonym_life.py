"""One name in each of the places that an agent's life has: none leaves in clear by traces, spans, files or memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import langsmith
import pytest
from fakes.langsmith_server import LangSmithServer
from fakes.tool_callers import StreamingCaller
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langchain_core.tracers import LangChainTracer

from langchain_dp import Pseudonymizer
from langchain_dp.rapt.pseudonyms import PseudonymStore
from langchain_dp.redact import Redacted

pytest.importorskip("langchain.agents", reason="needs the extra agents")
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain.tools import ToolRuntime
from langgraph.types import Command, interrupt

from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware

IN_TRACES = (
    "system prompt", "input text", "input block", "input name", "input extra", "image address", "old call",
    "old result", "old answer", "state", "state key", "tool argument", "tool result", "tool artifact", "tool error",
    "answer", "memory", "subagent question", "subagent answer", "stop word", "metadata", "metadata key", "tag",
    "run name", "query", "document", "source", "exception", "template",
)  # fmt: skip
"""Places in which a name of its own stands, and which a raw trace shows."""

IN_FILES = (
    "input text", "input block", "input name", "input extra", "old call", "old result", "old answer", "state",
    "state key", "subagent question", "tool argument", "tool result", "tool artifact", "tool error", "answer",
    "metadata", "question to a person", "answer of a person",
)  # fmt: skip
"""Those that a raw checkpoint keeps. Media pass in clear by default, as a model must read them."""

IN_MEMORY = ("memory", "memory key", "memory place")
saving = pytest.importorskip("langgraph.checkpoint.sqlite")
storing = pytest.importorskip("langgraph.store.sqlite")
PLACES = dict.fromkeys((*IN_TRACES, *IN_FILES, *IN_MEMORY))
NAMES = {place: f"Zoe Quill{number:02}" for number, place in enumerate(PLACES)}
SETTINGS = Pseudonymizer(terms=dict.fromkeys(NAMES.values(), "person"))


class Notes(AgentState[Any]):
    """State with a key of its own."""

    notes: dict[str, str]


class Model(StreamingCaller):
    """Calls the tools that the last message names, each with what stands behind it; then repeats their results."""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        calls = re.findall(r"(\w+)=(.+)", messages[-1].text)
        if calls:
            return AIMessage("", tool_calls=[{"name": name, "args": {"who": who}, "id": name} for name, who in calls])
        results = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
        return AIMessage(f"I was told: {'; '.join(results)}")

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        whole = None
        for chunk in self.stream(*args, **kwargs):
            whole = chunk if whole is None else whole + chunk
        return AIMessage(whole.content, tool_calls=whole.tool_calls)


class Book(BaseRetriever):
    """Finds one document."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(NAMES["document"], metadata={"by": NAMES["source"]})]


@tool(response_format="content_and_artifact")
def find(who: str) -> tuple[str, dict[str, str]]:
    """Find a person."""
    return f"{who} knows {NAMES['tool result']}", {"raw": NAMES["tool artifact"]}


@tool
def fail(who: str) -> str:
    """Fail on a person."""
    raise ValueError(f"no {who}, {NAMES['tool error']}")


@tool
def remember(who: str, runtime: ToolRuntime) -> str:
    """Remember a person."""
    place = ("people", NAMES["memory place"])
    runtime.store.put(place, NAMES["memory key"], {"text": f"{who} likes tea"})
    item = runtime.store.get(place, NAMES["memory key"])
    return str(item.value["text"])


@tool
def delegate(who: str) -> str:
    """Ask another agent."""
    helper = create_agent(Model(), [], system_prompt=NAMES["subagent answer"])
    return str(helper.invoke({"messages": [("user", f"Greet {who}.")]})["messages"][-1].text)


@tool
def ask(who: str) -> str:
    """Ask a person."""
    return f"{who}: {interrupt(NAMES['question to a person'])}"


@wrap_tool_call
def forgiving(request: Any, handler: Any) -> Any:
    try:
        return handler(request)
    except (ValueError, Redacted) as error:  # an inside tool's error, whose text withheld
        return ToolMessage(str(error), tool_call_id=request.tool_call["id"])


TOOLS: list[BaseTool] = [find, fail, remember, delegate, ask]
HISTORY: list[BaseMessage] = [
    HumanMessage("Hello"),
    AIMessage(NAMES["old answer"], tool_calls=[{"name": "find", "args": {"who": NAMES["old call"]}, "id": "0"}]),
    ToolMessage(NAMES["old result"], tool_call_id="0"),
    HumanMessage(
        [
            {"type": "text", "text": NAMES["input block"]},
            {"type": "image", "url": f"https://example.org/{NAMES['image address'].replace(' ', '%20')}.png"},
        ],
        name=NAMES["input name"],
        additional_kwargs={"of": NAMES["input extra"]},
    ),
    HumanMessage(
        f"I am {NAMES['input text']}.\nfind={NAMES['tool argument']}\nfail={NAMES['answer']}\n"
        f"remember={NAMES['memory']}\ndelegate={NAMES['subagent question']}\nask=you"
    ),
]


def live(agent: Any, config: dict[str, Any]) -> None:
    """All turns of a conversation, in streams and whole."""
    config = {
        **config,
        "configurable": {"thread_id": "1"},
        "metadata": {"by": NAMES["metadata"], NAMES["metadata key"]: 1},
        "tags": [NAMES["tag"]],
        "run_name": NAMES["run name"],
    }
    notes = {"of": NAMES["state"], NAMES["state key"]: "a key"}
    assert list(agent.stream({"messages": HISTORY, "notes": notes}, config, stream_mode=["messages", "updates"]))
    assert agent.invoke(Command(resume=NAMES["answer of a person"]), config)["messages"][-1].text.startswith("I was")


def other_runs(config: dict[str, Any]) -> None:
    """Runs beside the agent: a prompt, a retriever, a model with settings, and a chain that fails."""
    template = ChatPromptTemplate.from_messages([("system", f"You know {NAMES['template']}."), ("user", "{q}")])
    (template | Model().bind(stop=[NAMES["stop word"]])).invoke({"q": "hello"}, config)
    Book().invoke(NAMES["query"], config)

    def broken(value: Any) -> Any:
        raise RuntimeError(NAMES["exception"])

    with contextlib.suppress(RuntimeError):
        RunnableLambda(broken).invoke("x", config)


@contextlib.contextmanager
def files(folder: Path, *, hidden: bool) -> Iterator[tuple[Any, Any]]:
    """A checkpointer and a store in files."""
    with (
        saving.SqliteSaver.from_conn_string(str(folder / "checkpoints")) as saver,
        storing.SqliteStore.from_conn_string(str(folder / "memory")) as store,
    ):
        store.setup()
        yield saver, PseudonymStore(store, SETTINGS) if hidden else store


def seen(where: bytes | str, places: Sequence[str]) -> list[str]:
    """Places whose name stands there in clear."""
    raw = where if isinstance(where, bytes) else where.encode()
    return [place for place in places if any(one in raw for one in forms(NAMES[place]))]


def forms(name: str) -> list[bytes]:
    return [name.encode(), name.replace(" ", "%20").encode()]


def agent_of(saver: Any, store: Any, *middleware: Any) -> Any:
    return create_agent(
        Model(), TOOLS, system_prompt=NAMES["system prompt"], middleware=[forgiving, *middleware], state_schema=Notes,
        checkpointer=saver, store=store,
    )  # fmt: skip


def traced(options: dict[str, Any], run: Callable[[dict[str, Any]], None]) -> str:
    """All that a client with these options sent of a run."""
    with LangSmithServer() as server:
        client = langsmith.Client(api_url=server.url, api_key="not-a-key", **options)
        run({"callbacks": [LangChainTracer(client=client, project_name="p")]})
        client.flush()
        text = server.text()
        client.cleanup()
    return text


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "raw"])
def test_no_name_of_an_agents_life_is_in_its_traces(hidden: bool, tmp_path: Path) -> None:
    """If it breaks, a trace shows a name; raw, it shows the name of every place, or the test looks at nothing."""

    def run(config: dict[str, Any]) -> None:
        with files(tmp_path, hidden=False) as (saver, store):
            live(agent_of(saver, store), config)
        other_runs(config)

    text = traced(SETTINGS.new_conversation().langsmith_options() if hidden else {}, run)
    assert seen(text, IN_TRACES) == ([] if hidden else list(IN_TRACES))


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "raw"])
def test_no_name_of_an_agents_life_is_in_its_files(hidden: bool, tmp_path: Path) -> None:
    """If it breaks, who copies the database of checkpoints or memories has the names; or the trace of a hidden run."""

    def run(config: dict[str, Any]) -> None:
        with files(tmp_path, hidden=hidden) as (saver, store):
            middleware = PseudonymMiddleware(SETTINGS, tools_inside="all")
            agent = agent_of(saver, store, *([middleware] if hidden else []))
            live(middleware.around(agent) if hidden else agent, config)

    text = traced({}, run)
    held = {kind: b"".join(one.read_bytes() for one in tmp_path.glob(f"{kind}*")) for kind in ("checkpoints", "memory")}
    assert seen(held["checkpoints"], IN_FILES) == ([] if hidden else list(IN_FILES))
    assert seen(held["memory"], IN_MEMORY) == ([] if hidden else list(IN_MEMORY))
    if hidden:
        assert b"PERSON_" in held["checkpoints"]
        assert b"PERSON_" in held["memory"]
        assert seen(held["checkpoints"] + held["memory"] + text.encode(), [*PLACES]) == ["image address"]
