"""The allow-list of models: what is on it, what is refused, and what is trusted at somebody's word."""

from __future__ import annotations

import asyncio
import importlib
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from fakes.canary import CANARY
from fakes.models import Chat, Completion, SyncChat
from langchain_core.caches import InMemoryCache
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import FakeListChatModel, FakeListLLM, GenericFakeChatModel, ParrotFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import (
    ConfigurableField,
    RunnableLambda,
    RunnablePassthrough,
    RunnableWithMessageHistory,
)
from pydantic import BaseModel, field_validator

from langchain_dp.errors import InvalidParameter, UnsafeEnvironment
from langchain_dp.isolation import context
from langchain_dp.isolation.model import IsolatedModel

pytest.importorskip("langgraph")  # comes with the extra agents
from fakes.structures import STRUCTURES, DelegatingLLM, WithField, adapted, as_text, forget, graph
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
from langgraph.store.memory import InMemoryStore

PROMPTS = [f"{CANARY} {number}" for number in range(4)]
OPEN = ("itself", "a binding", "a retry")  # structures without code of the user's own


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget()
    set_llm_cache(None)


def parrot(**fields: Any) -> ParrotFakeChatModel:
    return ParrotFakeChatModel(**fields)


class Label(BaseModel):
    label: Literal["up", "down"]


class Checked(Label):
    @field_validator("label")
    @classmethod
    def check(cls, label: str) -> str:
        return label


class Nested(BaseModel):
    inner: Checked


def openai(**fields: Any) -> Any:
    module = pytest.importorskip("langchain_openai")
    return module.ChatOpenAI(**{"model": "gpt-x", "api_key": "not-a-key", **fields})


ACCEPTED: dict[str, Callable[[], Any]] = {
    "a chat model": parrot,
    "a completion model": lambda: FakeListLLM(responses=["x"]),
    "a fake with answers": lambda: FakeListChatModel(responses=["x"]),
    "a client of a provider": openai,
    "a client with a rate limiter": lambda: openai(rate_limiter=InMemoryRateLimiter()),
    "a prompt and a parser": lambda: ChatPromptTemplate.from_messages(["x", ("placeholder", "{y}")]) | parrot(),
    "a parser of a class": lambda: parrot() | PydanticOutputParser(pydantic_object=Label),
    "a binding": lambda: parrot().bind(stop=["x"]).with_config(tags=["a"], metadata={"a": 1}),
    "a retry with fallbacks": lambda: parrot().with_retry().with_fallbacks([parrot()]),
    "listeners, which are silenced": lambda: parrot().with_listeners(on_start=print),
    "a field that is configurable": lambda: parrot().configurable_fields(name=ConfigurableField(id="name")),
    "alternatives": lambda: parrot().configurable_alternatives(ConfigurableField(id="one"), other=parrot()),
    "a parallel": lambda: RunnablePassthrough.assign(a=parrot()) | operator.itemgetter("a"),
    "an answer by a schema": lambda: openai().with_structured_output(Label),
    "an answer beside the raw one": lambda: openai().with_structured_output(Label, include_raw=True),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_known_models_are_accepted_without_a_word(name: str) -> None:
    """If it breaks, ordinary models need trust_opaque_model=True, and nobody heeds it any more."""
    assert IsolatedModel(ACCEPTED[name]()).notes == ()


class OwnLimiter(InMemoryRateLimiter):
    pass


class Undeclared(SyncChat):
    """Its base declares that it keeps nothing, but that does not speak for this class."""


OPAQUE: dict[str, tuple[Callable[[], Any], str]] = {
    "a function": (lambda: RunnableLambda(lambda prompt: prompt), r"func of RunnableLambda \(a function\)"),
    "a function after the model": (lambda: parrot() | (lambda answer: answer), "func of RunnableLambda"),
    "a method of a list": (lambda: RunnableLambda([].count), "func of RunnableLambda"),
    "a class of the user's own": (Undeclared, "Undeclared"),
    "a graph": (lambda: graph(lambda state: state), "CompiledStateGraph"),
    "a value of a prompt": (
        lambda: ChatPromptTemplate.from_template("{x}").partial(x=lambda: "y") | parrot(),
        "partial_variables of ChatPromptTemplate",
    ),
    "a generator": (
        lambda: GenericFakeChatModel(messages=(AIMessage(text) for text in "ab")),
        "messages of GenericFakeChatModel",
    ),
    "a count of tokens": (lambda: openai(custom_get_token_ids=lambda _: []), "custom_get_token_ids of ChatOpenAI"),
    "a rate limiter": (lambda: openai(rate_limiter=OwnLimiter()), "rate_limiter of ChatOpenAI"),
    "a hook of the HTTP client": (lambda: openai(http_client=hooked()), "http_client of ChatOpenAI"),
    "a key": (lambda: openai(api_key=lambda: "key"), "openai_api_key of ChatOpenAI"),
    "a validator": (lambda: openai().with_structured_output(Checked, method="json_mode"), "PydanticOutputParser"),
    "a validator inside": (lambda: parrot() | PydanticOutputParser(pydantic_object=Nested), "pydantic_object of"),
    "a method that was replaced": (lambda: replaced(parrot()), r"invoke of ParrotFakeChatModel \(a function\)"),
}


def hooked() -> Any:
    httpx = pytest.importorskip("httpx")
    return httpx.Client(event_hooks={"request": [lambda request: None]})


def replaced(model: Any) -> Any:
    model.__dict__["invoke"] = lambda prompt, config: "x"
    return model


@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_not_known_is_refused_or_trusted(name: str) -> None:
    """If it breaks, code of the user's own may show votes each other's prompts, or its owner cannot use it at all."""
    make, part = OPAQUE[name]
    with pytest.raises(UnsafeEnvironment, match=f"not on the list of known models: .*{part}.*trust_opaque_model=True"):
        IsolatedModel(make())
    [note] = IsolatedModel(make(), trust_opaque_model=True).notes
    assert note.startswith("trust_opaque_model=True: the model is opaque.")


@pytest.mark.parametrize("place", STRUCTURES)
def test_a_memory_is_refused_wherever_it_sits(place: str) -> None:
    """If it breaks, each vote reads the prompts of all votes before it: one record moves more than one vote."""
    seen: list[int] = []

    def answer(state: MessagesState) -> dict[str, Any]:
        seen.append(len(state["messages"]))
        return {"messages": [AIMessage("x")]}

    if place not in OPEN:  # refused whatever it holds
        with pytest.raises(UnsafeEnvironment, match="not on the list of known models"):
            IsolatedModel(STRUCTURES[place](parrot() | StrOutputParser()))
    model = STRUCTURES[place](adapted(graph(answer, checkpointer=InMemorySaver())))
    with pytest.raises(UnsafeEnvironment, match=r"not on the list of known models|has a checkpointer"):
        IsolatedModel(model)
    assert not seen
    # It is a memory: asked without the seal it shows one call what another was told. (In a node of a graph that has
    # none, LangGraph of today leaves it out.)
    model.invoke(PROMPTS[0])
    model.invoke(PROMPTS[1])
    assert seen == [1, 1 if "node" in place else 3]


MEMORIES: dict[str, tuple[Callable[[], Any], str]] = {
    "a history": (
        lambda: RunnableWithMessageHistory(Chat(), lambda _: InMemoryChatMessageHistory()),
        "RunnableWithMessageHistory stores them. Pass the model inside it",
    ),
    "a checkpointer": (
        lambda: graph(lambda state: state, checkpointer=InMemorySaver()),
        "has a checkpointer. Compile the graph without one",
    ),
    "a checkpointer of the graph around": (lambda: graph(lambda state: state, checkpointer=True), "has a checkpointer"),
    "a store": (lambda: graph(lambda state: state, store=InMemoryStore()), "has a store"),
    "a graph that prints": (lambda: graph(lambda state: state, debug=True), "without debug=True"),
    "a saver in a field": (lambda: WithField(part=[InMemorySaver()]), "InMemorySaver stores them. Leave it out"),
    "a history in a binding": (lambda: parrot().bind(kept=InMemoryChatMessageHistory()), "InMemoryChatMessageHistory"),
    "a graph in a field": (
        lambda: DelegatingLLM(part=graph(lambda state: state, checkpointer=InMemorySaver())),
        "has a checkpointer",
    ),
}


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize(
    "inside", [lambda model: model, lambda model: RunnablePassthrough() | model.with_config(tags=["a"])]
)
def test_a_memory_in_a_field_is_refused_whoever_trusts_it(name: str, inside: Callable[[Any], Any]) -> None:
    """If it breaks, trust_opaque_model=True hides a memory that stands in plain sight."""
    make, message = MEMORIES[name]
    with pytest.raises(UnsafeEnvironment, match=f"keep nothing of its prompts, but .*{message}"):
        IsolatedModel(inside(make()), trust_opaque_model=True)


def test_a_memory_of_the_older_langchain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a chain with a conversation memory shows votes each other's prompts."""
    older = types.ModuleType("langchain_classic.base_memory")  # stands for a package that is not installed here
    older.__dict__["BaseMemory"] = type("BaseMemory", (), {})
    monkeypatch.setitem(sys.modules, older.__name__, older)
    kept = type("ConversationBufferMemory", (older.__dict__["BaseMemory"],), {})()
    with pytest.raises(UnsafeEnvironment, match="ConversationBufferMemory stores them"):
        IsolatedModel(WithField(part=kept), trust_opaque_model=True)


CHAT = "from langchain_core.language_models import ParrotFakeChatModel\nclass Acme(ParrotFakeChatModel): pass\n"
DECISION = """
from typing import Any
from langchain_core.decisions import BaseDecisionModel
class Acme(BaseDecisionModel):
    model: str = "acme-1"
    client: Any = None
    _provider = "acme"
    def _classify(self, state, questions): return None
"""


def acme(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class of a module named as a provider's package, in a folder."""
    folder.mkdir()
    (folder / "langchain_acme.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    try:
        made = importlib.import_module("langchain_acme").Acme
    finally:
        module = sys.modules.pop("langchain_acme")
    monkeypatch.setitem(sys.modules, "langchain_acme", module)
    return made


@pytest.mark.parametrize("code", [CHAT, DECISION], ids=["chat", "decision"])
@pytest.mark.parametrize(("folder", "accepted"), [("site-packages", True), ("app", False)])
def test_a_package_of_a_provider_must_be_installed(
    code: str, folder: str, accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a file of the user's own passes for a provider's package, or a real provider is refused."""
    if code == DECISION:
        pytest.importorskip("langchain_core.decisions", reason="needs the extra decisions")
    model = acme(code, tmp_path / folder, monkeypatch)()
    if accepted:
        assert IsolatedModel(model).notes == ()
    else:
        with pytest.raises(UnsafeEnvironment, match="known models: Acme"):
            IsolatedModel(model)


def test_a_decision_model_is_named_and_its_client_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a certificate names no decision model, or one whose client runs code of the user's is accepted."""
    pytest.importorskip("langchain_core.decisions", reason="needs the extra decisions")
    decision = acme(DECISION, tmp_path / "site-packages", monkeypatch)
    httpx = pytest.importorskip("httpx")
    model = decision(client=httpx.Client()) | StrOutputParser()
    assert (IsolatedModel(model).name, IsolatedModel(model).notes) == ("acme-1", ())
    with pytest.raises(UnsafeEnvironment, match="client of Acme"):
        IsolatedModel(decision(client=hooked()))


def test_a_class_that_declares_that_it_keeps_nothing_is_accepted_and_named() -> None:
    """If it breaks, a well-behaved class of one's own needs trust at every use, or a certificate calls it checked."""
    [note] = IsolatedModel(Chat(act=lambda prompt: None) | StrOutputParser()).notes
    assert note.startswith("keeps_no_prompts=True: ")
    assert note.endswith("Not checked: Chat")

    class Wrapping(WithField):
        keeps_no_prompts: ClassVar[bool] = True

    assert len(IsolatedModel(Wrapping(part=parrot())).notes) == 1
    with pytest.raises(UnsafeEnvironment, match="func of RunnableLambda"):  # another's code, for which it cannot speak
        IsolatedModel(Wrapping(part=[RunnableLambda(lambda prompt: prompt)]))


def asked(how: str, quiet: IsolatedModel) -> list[Any]:
    answers = quiet.batch(PROMPTS) if how == "sync" else asyncio.run(quiet.abatch(PROMPTS))
    return [answer if answer is None else as_text(answer) for answer in answers]


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("place", STRUCTURES)
def test_a_cache_is_bypassed_wherever_it_sits(place: str, how: str) -> None:
    """If it breaks, private prompts are kept in a model's cache or the global one, and answered from there."""
    own, everybodys = InMemoryCache(), InMemoryCache()
    set_llm_cache(everybodys)
    one, other, plain = Chat(cache=own), Chat(), Completion()
    inner = one | StrOutputParser() | other.bind() | StrOutputParser() | plain
    model = STRUCTURES[place](inner)
    model.invoke(PROMPTS[0])
    # The caches are live: asked without the seal they hold the prompt.
    assert CANARY in repr(own._cache)
    assert repr(everybodys._cache).count(CANARY) >= 2
    own.clear()
    everybodys.clear()
    one.calls.clear()
    other.calls.clear()
    for _ in range(2):
        assert asked(how, IsolatedModel(model, trust_opaque_model=True)) == PROMPTS
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
    assert asked(how, IsolatedModel(RunnableLambda(ask, aask), trust_opaque_model=True)) == PROMPTS
    assert list(cache._cache) == [("public", "")]
    assert get_llm_cache() is cache


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_call_that_outlives_its_batch_still_finds_no_cache(how: str) -> None:
    """If it breaks, a call that was given up fills the application's cache with its private prompt."""
    cache, batch_is_over, asked_late = InMemoryCache(), threading.Event(), threading.Event()

    def ask(prompt: str) -> str:
        batch_is_over.wait(60)
        found = get_llm_cache()
        assert found is not None
        found.update(prompt, "", [])
        asked_late.set()
        return prompt

    set_llm_cache(cache)
    model = IsolatedModel(RunnableLambda(ask), trust_opaque_model=True)
    if how == "sync":
        assert model.batch(PROMPTS[:1], timeout=0.01) == [None]
    else:
        assert asyncio.run(model.abatch(PROMPTS[:1], timeout=0.01)) == [None]
    batch_is_over.set()
    assert asked_late.wait(60)
    assert list(cache._cache) == []


@pytest.mark.parametrize("place", ["itself", "a field", "a binding", "a runnable class of one's own"])
def test_a_model_that_answers_one_call_after_the_other_is_found(place: str) -> None:
    """If it breaks, a timeout is taken for such a model, and one long prompt lets other calls expire."""

    class Serial(SyncChat):
        serializes_calls: ClassVar[bool] = True

    quiet = IsolatedModel(STRUCTURES[place](Serial() | StrOutputParser()), trust_opaque_model=True)
    with pytest.raises(InvalidParameter, match="Serial answers one call after the other"):
        quiet.check_timeout(1.0)


def test_a_class_that_stands_before_the_gate_of_caches_is_refused() -> None:
    """If it breaks, a model class whose cache is a property keeps private prompts."""
    cache = InMemoryCache()

    class Stubborn(Chat):
        keeps_no_prompts: ClassVar[bool] = True

    Stubborn.cache = property(lambda self: cache)  # type: ignore[assignment]
    with pytest.raises(UnsafeEnvironment, match=r"Stubborn defines its own attribute cache.*Make it a field"):
        IsolatedModel(Stubborn().bind())


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

    quiet = IsolatedModel(Chat())
    quiet.batch(["p"])
    monkeypatch.setattr(owner, method, generate)
    with pytest.raises(UnsafeEnvironment, match=f"no model to ask its cache inside an isolated call, but {kind} does"):
        quiet.batch(["p"])


def test_the_gate_of_caches_changes_nothing_outside() -> None:
    """If it breaks, models outside of quiet calls lose their cache, or cannot be changed, copied or subclassed."""
    IsolatedModel(Chat()).batch(["p"])

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
    llama = type("Llama", (), {"__module__": "llama_cpp.llama"})

    class Bare(Chat):
        keeps_no_prompts: ClassVar[bool] = True
        client: Any = None

    class Guarded(Bare):
        keeps_no_prompts: ClassVar[bool] = True
        serializes_calls: ClassVar[bool] = True

    bare, guarded = (IsolatedModel(kind(client=llama()), max_concurrency=16) for kind in (Bare, Guarded))
    assert (bare.at_once, guarded._places.count, IsolatedModel(Bare()).at_once > 1) == (1, 16, True)
    assert "is one llama.cpp context that reuses the common start" in " ".join(bare.notes)
    assert "llama.cpp" not in " ".join(guarded.notes)
    with pytest.raises(InvalidParameter, match="answers one call after the other"):
        bare.check_timeout(1.0)
