"""One walk over a model: whatever memory or cache it can reach, wherever it sits, shows no call another's prompt."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from fakes.canary import CANARY
from fakes.models import Chat, Completion, SyncChat
from langchain_core.caches import InMemoryCache
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableWithMessageHistory

from langchain_dp.errors import InvalidParameter, UnsafeEnvironment
from langchain_dp.quiet import context, reach
from langchain_dp.quiet.model import QuietModel

pytest.importorskip("langgraph")  # comes with the extra agents
from fakes.structures import STRUCTURES, adapted, as_text, forget, graph, module_global, two_deep
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
from langgraph.store.memory import InMemoryStore

PROMPTS = [f"{CANARY} {number}" for number in range(4)]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget()
    set_llm_cache(None)


def asked(how: str, quiet: QuietModel) -> list[Any]:
    answers = quiet.batch(PROMPTS) if how == "sync" else asyncio.run(quiet.abatch(PROMPTS))
    return [answer if answer is None else as_text(answer) for answer in answers]


@pytest.mark.parametrize("place", STRUCTURES)
def test_a_memory_is_found_wherever_it_sits(place: str) -> None:
    """If it breaks, each vote reads the prompts of all votes before it: one record moves more than one vote."""
    seen: list[int] = []

    def answer(state: MessagesState) -> dict[str, Any]:
        seen.append(len(state["messages"]))
        return {"messages": [AIMessage("x")]}

    llm = STRUCTURES[place](adapted(graph(answer, checkpointer=InMemorySaver())))
    with pytest.raises(UnsafeEnvironment, match=r"has a checkpointer.*Compile the graph without one\."):
        QuietModel(llm)
    assert not seen
    # It is a memory: asked without the seal it shows one call what another was told. (In a node of a graph that has
    # none, LangGraph of today leaves it out.)
    llm.invoke(PROMPTS[0])
    llm.invoke(PROMPTS[1])
    assert seen == [1, 1 if "node" in place else 3]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("place", STRUCTURES)
def test_a_cache_is_bypassed_wherever_it_sits(place: str, how: str) -> None:
    """If it breaks, private prompts are kept in a model's cache or the global one, and answered from there."""
    own, everybodys = InMemoryCache(), InMemoryCache()
    set_llm_cache(everybodys)
    one, other, plain = Chat(cache=own), Chat(), Completion()
    inner = one | StrOutputParser() | other.bind() | StrOutputParser() | plain
    llm = STRUCTURES[place](inner)
    llm.invoke(PROMPTS[0])
    # The caches are live: asked without the seal they hold the prompt.
    assert CANARY in repr(own._cache)
    assert repr(everybodys._cache).count(CANARY) >= 2
    own.clear()
    everybodys.clear()
    one.calls.clear()
    other.calls.clear()
    for _ in range(2):
        assert asked(how, QuietModel(llm)) == PROMPTS
    assert own._cache == everybodys._cache == {}
    assert len(one.calls) == len(other.calls) == 2 * len(PROMPTS)  # nobody was answered from a cache


@pytest.mark.parametrize("how", ["sync", "async"])
def test_code_that_asks_for_the_global_cache_by_itself_finds_it_empty_and_deaf(how: str) -> None:
    """If it breaks, a model class with a way of its own to use the global cache keeps private prompts there."""
    cache = InMemoryCache()

    def ask(prompt: str) -> str:
        found = get_llm_cache()
        assert found is not None
        assert found.lookup("public", "") is None
        found.update(prompt, "", [])
        return prompt

    async def aask(prompt: str) -> str:
        found = get_llm_cache()
        assert found is not None
        assert await found.alookup("public", "") is None
        await found.aupdate(prompt, "", [])
        return prompt

    cache.update("public", "", [])
    set_llm_cache(cache)
    assert asked(how, QuietModel(RunnableLambda(ask, aask))) == PROMPTS
    assert list(cache._cache) == [("public", "")]
    assert get_llm_cache() is cache


@pytest.mark.parametrize("place", STRUCTURES)
def test_a_model_without_memory_is_taken_wherever_it_sits(place: str) -> None:
    """If it breaks, ordinary models are refused, and the tests above prove nothing."""
    quiet = QuietModel(STRUCTURES[place](Chat() | StrOutputParser()), trust_opaque_model=False)
    assert asked("sync", quiet) == PROMPTS
    quiet.check_environment()
    assert quiet.notes == ()


def of_this_thread(part: Any) -> threading.local:
    """Where an application keeps what each thread has of its own."""
    kept = threading.local()
    kept.part = part
    return kept


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (
            lambda: RunnableWithMessageHistory(Chat(), lambda _: InMemoryChatMessageHistory()),
            "RunnableWithMessageHistory stores them .*Pass the model inside it",
        ),
        (InMemoryChatMessageHistory, "InMemoryChatMessageHistory stores them"),
        (InMemorySaver, "InMemorySaver stores them"),
        (lambda: of_this_thread(InMemorySaver()), "InMemorySaver stores them"),
        (lambda: [*[{"row": 1}] * 1_500, InMemorySaver(), *[{"row": 2}] * 1_500], "InMemorySaver stores them"),
        (InMemoryStore, "InMemoryStore stores them"),
        (lambda: graph(lambda state: state, store=InMemoryStore()), "has a store"),
        (lambda: graph(lambda state: state, checkpointer=True), "has a checkpointer"),
    ],
)
def test_each_kind_of_memory_is_refused_in_a_function(memory: Callable[[], Any], message: str) -> None:
    """If it breaks, a function with a history, or one that compiles a graph anew, shows votes each other's prompts."""
    kept = memory()
    with pytest.raises(UnsafeEnvironment, match=f"{message}.*"):
        QuietModel(RunnableLambda(lambda prompt: (kept, prompt)[1]))


def test_a_memory_of_the_older_langchain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a chain with a conversation memory shows votes each other's prompts."""
    older = types.ModuleType("langchain_classic.base_memory")  # stands for a package that is not installed here
    older.__dict__["BaseMemory"] = type("BaseMemory", (), {})
    monkeypatch.setitem(sys.modules, older.__name__, older)
    kept = type("ConversationBufferMemory", (older.__dict__["BaseMemory"],), {})()
    with pytest.raises(UnsafeEnvironment, match="ConversationBufferMemory stores them"):
        QuietModel(RunnableLambda(lambda prompt: (kept, prompt)[1]))


def test_a_memory_that_is_made_with_the_first_call_is_found_before_the_next_batch() -> None:
    """If it breaks, a graph that is built on first use remembers every vote."""
    made: list[Any] = []

    def ask(prompt: Any) -> str:
        if not made:
            made.append(adapted(graph(lambda state: {"messages": [AIMessage("x")]}, checkpointer=InMemorySaver())))
        return str(made[0].invoke(prompt))

    quiet = QuietModel(RunnableLambda(ask))
    quiet.probe("public")
    for _ in range(2):
        with pytest.raises(UnsafeEnvironment, match="has a checkpointer"):
            quiet.check_environment()
        with pytest.raises(UnsafeEnvironment, match="has a checkpointer"):
            quiet.batch(PROMPTS)
    assert CANARY not in repr(list(made[0].steps[1].checkpointer.list(None)))


def test_what_the_function_does_not_name_is_not_held_against_it() -> None:
    """If it breaks, a chat page with a memory of its own in the same module makes a plain model unusable."""
    other = adapted(graph(lambda state: state, checkpointer=InMemorySaver()))
    llm = module_global(Chat() | StrOutputParser(), "def ask(prompt):\n    return inner.invoke(prompt)")
    llm.func.__globals__["page"] = other
    assert asked("sync", QuietModel(llm)) == PROMPTS


@pytest.mark.parametrize("uses", ["langgraph", "json"])
def test_an_installed_package_is_opened_where_it_uses_langgraph(uses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a memory in a chain that comes as a package is missed, or all of every package is read."""
    package = types.ModuleType(f"acme_{uses}")
    package.__file__ = f"/x/site-packages/acme_{uses}/__init__.py"
    package.__dict__["tool"] = sys.modules[uses]
    package.__dict__["made"] = [InMemorySaver()] if uses == "langgraph" else [compiled()]
    exec("def ask(prompt):\n    return made and prompt", package.__dict__)
    monkeypatch.setitem(sys.modules, f"acme_{uses}", package)
    llm = RunnableLambda(package.__dict__["ask"])
    if uses == "langgraph":
        with pytest.raises(UnsafeEnvironment, match="InMemorySaver stores them"):
            QuietModel(llm)
    else:
        assert asked("sync", QuietModel(llm)) == PROMPTS


def compiled() -> Any:
    """A function without code to read, from a package that is not known: as Cython makes them."""
    function = [].append
    function.__module__ = "acme_compiled"
    return RunnableLambda(lambda prompt, ask=function: str(ask(prompt)))


def test_what_cannot_be_read_is_refused_or_taken_at_the_callers_word() -> None:
    """If it breaks, compiled code with a memory passes unsaid, or its owner cannot use it at all."""
    with pytest.raises(UnsafeEnvironment, match=r"not acme_compiled\.append.*trust_opaque_model=True"):
        QuietModel(compiled())
    quiet = QuietModel(compiled(), trust_opaque_model=True)
    assert quiet.batch(["p"]) == ["None"]
    assert quiet.notes[0].startswith("trust_opaque_model=True: ")
    assert quiet.notes[0].endswith("acme_compiled.append")
    with pytest.raises(UnsafeEnvironment, match="InMemorySaver"):
        QuietModel(compiled().bind(kept=InMemorySaver()), trust_opaque_model=True)


def test_a_model_too_large_to_walk_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, what lies beyond the last object that was opened passes unsaid."""
    monkeypatch.setattr(reach, "_MOST", 20)
    chain: Any = RunnableLambda(str)
    for _ in range(20):
        chain = two_deep(chain)
    with pytest.raises(UnsafeEnvironment, match=r"RunnableLambda \(more than 20 objects\)"):
        QuietModel(chain)


def test_a_proxy_is_not_asked_for_what_it_stands_for() -> None:
    """If it breaks, looking at a model loads modules, opens connections, or fails as the proxy does."""

    class Proxy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError("not connected")

    held = Proxy()
    QuietModel(RunnableLambda(lambda prompt: (held, prompt)[1]))


@pytest.mark.parametrize("place", ["a closure two deep", "a private attribute", "a node of a subgraph"])
def test_a_model_that_answers_one_call_after_the_other_is_found(place: str) -> None:
    """If it breaks, a timeout is taken for such a model, and one long prompt lets other calls expire."""

    class Serial(SyncChat):
        serializes_calls: ClassVar[bool] = True

    quiet = QuietModel(STRUCTURES[place](Serial() | StrOutputParser()))
    with pytest.raises(InvalidParameter, match="Serial answers one call after the other"):
        quiet.check_timeout(1.0)


def test_a_class_that_stands_before_the_gate_of_caches_is_refused() -> None:
    """If it breaks, a model class whose cache is a property keeps private prompts."""
    cache = InMemoryCache()

    class Stubborn(Chat):
        pass

    Stubborn.cache = property(lambda self: cache)  # type: ignore[assignment]
    model = Stubborn()
    with pytest.raises(UnsafeEnvironment, match=r"Stubborn has an attribute cache of its own making.*Make it a field"):
        QuietModel(RunnableLambda(lambda prompt: model.invoke(prompt)))


@pytest.mark.parametrize("method", ["generate", "agenerate"])
@pytest.mark.parametrize("kind", ["BaseChatModel", "BaseLLM"])
def test_a_langchain_that_passes_the_gate_of_caches_by_is_refused(
    method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, another langchain-core that looks for caches elsewhere keeps private prompts."""
    owner = getattr(context, kind)
    plain = getattr(owner, method)

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["cache"].update("prompt", "model", [])
        return plain(self, *args, **kwargs)

    quiet = QuietModel(Chat())
    quiet.batch(["p"])
    monkeypatch.setattr(owner, method, generate)
    with pytest.raises(UnsafeEnvironment, match=f"no model to ask its cache inside a quiet call, but {kind} does"):
        quiet.batch(["p"])


def test_the_gate_of_caches_changes_nothing_outside() -> None:
    """If it breaks, models outside of quiet calls lose their cache, or cannot be changed, copied or subclassed."""
    QuietModel(Chat()).batch(["p"])

    class Later(Chat):
        cache: Any = True

    model = Later()
    assert model.cache is True
    model.cache = None
    assert (model.cache, model.model_copy(update={"cache": False}).cache, Chat().cache) == (None, False, None)
    assert Later.model_fields["cache"].default is True
    with pytest.raises(AttributeError):
        _ = Later.cache


def test_a_bare_llama_context_is_asked_one_call_after_the_other() -> None:
    """If it breaks, threads enter one llama.cpp context together, which ends the process; or nothing says so."""
    context = type("Llama", (), {"__module__": "llama_cpp.llama"})

    class Bare(Chat):
        client: Any = None

    class Guarded(Bare):
        serializes_calls: ClassVar[bool] = True

    bare, guarded = (QuietModel(kind(client=context()), max_concurrency=16) for kind in (Bare, Guarded))
    assert (bare._places.count, guarded._places.count, QuietModel(Bare())._places.count > 1) == (1, 16, True)
    assert "is one llama.cpp context, asked one call after the other" in " ".join(bare.notes)
    assert not guarded.notes
    with pytest.raises(InvalidParameter, match="answers one call after the other"):
        bare.check_timeout(1.0)
