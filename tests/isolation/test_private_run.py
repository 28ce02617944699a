"""private_run: a whole chain unseen, from the root run on, and everything as before afterwards."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.asking import STYLES
from fakes.canary import CANARY, RecordingHandler, leak_surfaces
from fakes.models import Chat, log_and_warn
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import CallbackManager
from langchain_core.globals import get_llm_cache, set_debug, set_llm_cache
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langsmith.run_helpers import get_tracing_context

from langchain_dp.errors import UnsafeEnvironment
from langchain_dp.isolation.model import IsolatedModel
from langchain_dp.isolation.run import check_environment, private_run


def chain(**model: Any) -> Any:
    return ChatPromptTemplate.from_template("{x}") | Chat(**model) | RunnableLambda(lambda message: message.content)


@pytest.mark.parametrize("style", STYLES)
def test_nothing_of_a_private_run_is_seen(style: str, tmp_path: Path) -> None:
    """If it fails, root run, cache or a handler (in config, on the model, bound to the chain) get the input."""
    with leak_surfaces(tmp_path) as surfaces:
        model = {"callbacks": surfaces.handlers, "verbose": True}
        bound = chain(**model).with_config(callbacks=surfaces.handlers)
        with private_run():
            given = STYLES[style](bound, {"x": CANARY}, {"callbacks": surfaces.handlers})
        assert CANARY in repr(given)  # the caller gets its own answer, also as events
        assert surfaces.where(CANARY) == set()
        STYLES[style](bound, {"x": CANARY}, {"callbacks": surfaces.handlers})
        cached = set() if "stream" in style else {"cache"}  # LangChain does not cache streams
        assert surfaces.where(CANARY) == {"tracer", "handler", "async_handler"} | cached


def test_a_private_run_inside_a_running_chain_hides_from_it(tmp_path: Path) -> None:
    """If it fails, a private step inherits the handlers of the chain around it."""

    def step(_: str) -> str:
        with private_run():
            chain().invoke({"x": CANARY})
        return "ok"

    with leak_surfaces(tmp_path) as surfaces:
        RunnableLambda(step).invoke("q", {"callbacks": surfaces.handlers})
        assert surfaces.where(CANARY) == set()
        assert "'ok'" in "".join(surfaces.handler.seen)


def state() -> tuple[Any, ...]:
    context = get_tracing_context()
    handlers = CallbackManager.configure([RecordingHandler()]).handlers
    return context["enabled"], context["parent"], var_child_runnable_config.get(), get_llm_cache(), len(handlers)


@pytest.mark.parametrize("kind", [None, ValueError, KeyboardInterrupt])
def test_everything_is_restored_also_after_exceptions_and_nesting(kind: type[BaseException] | None) -> None:
    """If it fails, tracing, callbacks or the cache stay off in the application after a private run."""
    set_llm_cache(cache := InMemoryCache())
    before = state()
    try:
        with private_run():
            outer = state()
            with private_run():
                inner = state()
            assert state() == outer == inner
            assert outer[:3] == (False, None, None)
            assert outer[4] == 0
            if kind:
                raise kind
    except (ValueError, KeyboardInterrupt):
        pass
    assert state() == before
    assert get_llm_cache() is cache


def test_other_threads_and_tasks_are_not_affected() -> None:
    """If it fails, one private run silences or uncaches the whole application."""
    set_llm_cache(cache := InMemoryCache())
    seen: list[tuple[Any, ...]] = []

    def elsewhere() -> None:
        handler = RecordingHandler()
        chain().invoke({"x": "public"}, {"callbacks": [handler]})
        seen.append((bool(handler.seen), len(cache._cache)))

    async def main() -> None:
        entered, done = asyncio.Event(), asyncio.Event()

        async def private() -> None:
            with private_run():
                await chain().ainvoke({"x": CANARY})
                entered.set()
                await done.wait()

        task = asyncio.create_task(private())
        await entered.wait()
        assert len(cache._cache) == 0
        elsewhere()
        await chain().ainvoke({"x": "other"})
        done.set()
        await task

    asyncio.run(main())
    with private_run():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == [(True, 1), (True, 2)]
    assert CANARY not in repr(cache._cache)


def test_one_object_may_be_entered_by_many_threads() -> None:
    """If it fails, a shared private_run object restores another thread's state."""
    shared = private_run()
    step = threading.Barrier(2)
    states: list[Any] = []

    def enter(first: bool) -> None:
        with shared:
            step.wait(30)
            if not first:
                step.wait(30)
        states.append(state())
        if first:
            step.wait(30)

    threads = [threading.Thread(target=enter, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry[:3] for entry in states] == [(None, None, None)] * 2


def test_an_async_generator_closed_elsewhere_does_not_break() -> None:
    """If it fails, a private stream that its reader abandons raises at clean-up, or leaves the cache blind."""

    async def stream() -> AsyncIterator[int]:
        with private_run():
            yield 1
            yield 2

    async def main() -> None:
        reader = stream()
        await asyncio.create_task(anext(reader))  # type: ignore[arg-type]
        await reader.aclose()  # type: ignore[attr-defined]

    set_llm_cache(cache := InMemoryCache())
    asyncio.run(main())
    assert get_llm_cache() is cache


def _steps() -> Iterator[int]:
    with private_run():
        yield 1
        yield 2


def test_a_generator_closed_elsewhere_leaves_the_run_around_it_sealed() -> None:
    """If it breaks, a stream that its reader leaves opens the private run around it, and what follows is traced."""
    before = state()
    with private_run():
        inside = state()
        reader = _steps()
        contextvars.copy_context().run(next, reader)  # as LangChain does with a stream's steps
        reader.close()
        assert state() == inside
    assert state() == before


def test_of_two_runs_the_one_that_is_over_first_opens_nothing() -> None:
    """If it breaks, a stream that ends opens the context in which another one is still read."""
    before = state()
    first, second = _steps(), _steps()
    next(first)
    inside = state()
    next(second)
    first.close()
    assert state() == inside
    second.close()
    assert state() == before
    assert inside != before


def test_debug_mode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, set_debug(True) prints a private run to the terminal."""
    set_debug(True)
    with pytest.raises(UnsafeEnvironment, match=r"set_debug\(False\)"), private_run():
        pass
    with pytest.raises(UnsafeEnvironment):
        check_environment()
    Chat().invoke(CANARY)
    assert CANARY in capsys.readouterr().out
    set_debug(False)
    check_environment()


def test_a_file_of_tls_keys_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If it fails, whoever reads the file of SSLKEYLOGFILE reads private prompts off the network."""
    quiet = IsolatedModel(Chat())
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    for call in (check_environment, lambda: quiet.batch(["p"]), private_run().__enter__):
        with pytest.raises(UnsafeEnvironment, match="SSLKEYLOGFILE to be unset"):
            call()
    monkeypatch.setenv("SSLKEYLOGFILE", "")
    check_environment()


@pytest.mark.parametrize("name", ["LANGCHAIN_TRACING", "LANGCHAIN_HANDLER"])
def test_tracers_that_are_gone_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, every model call raises inside langchain-core, and all subsets abstain without a word."""
    monkeypatch.setenv(name, "true")
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "true")
    with pytest.raises(UnsafeEnvironment, match=f"{name} to be unset"):
        IsolatedModel(Chat()).batch(["p"])


def test_a_replaced_gate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, a library that adds handlers in CallbackManager.configure records private prompts."""
    check_environment()
    gated = CallbackManager.configure

    def configure(cls: Any, *args: Any, **kwargs: Any) -> Any:
        manager = gated(*args, **kwargs)
        manager.add_handler(RecordingHandler())
        return manager

    configure._langchain_dp_gated = True  # type: ignore[attr-defined]  # as functools.wraps would copy it
    monkeypatch.setattr(CallbackManager, "configure", classmethod(configure))
    with pytest.raises(UnsafeEnvironment, match=r"CallbackManager\.configure.*instrumentation"):
        IsolatedModel(Chat()).batch(["p"])


def test_outer_config_is_back_after_a_quiet_call_in_the_same_context() -> None:
    """If it fails, what follows a private step in the application loses its callbacks and tags."""
    configs: list[Any] = []

    def step(_: str) -> str:
        before = ensure_config()
        check_environment()
        IsolatedModel(Chat()).batch(["p"])
        configs.append((before["tags"], ensure_config()["tags"]))
        return "ok"

    RunnableLambda(step).invoke("q", {"tags": ["mine"]})
    assert configs == [(["mine"], ["mine"])]


def test_no_trace_of_the_outer_run_reaches_inside(tmp_path: Path) -> None:
    """If it fails, code inside can hang private runs onto the outer trace, or send them with the outer tracer."""
    from langchain_core.tracers.context import tracing_v2_callback_var, tracing_v2_enabled

    seen: list[Any] = []

    def step(_: str) -> str:
        seen.append((get_tracing_context()["parent"] is None, tracing_v2_callback_var.get() is None))
        with private_run():
            seen.append((get_tracing_context()["parent"] is None, tracing_v2_callback_var.get() is None))
        seen.append((get_tracing_context()["parent"] is None, tracing_v2_callback_var.get() is None))
        return "ok"

    with leak_surfaces(tmp_path), tracing_v2_enabled():
        RunnableLambda(step).invoke("q")
    assert seen == [(False, False), (True, True), (False, False)]


@pytest.mark.parametrize("whose", ["everybody's", "the model's own"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_private_run_neither_reads_nor_fills_a_cache(how: str, whose: str) -> None:
    """If it fails, a fast answer shows that somebody asked the same private question before, or the cache keeps it."""
    cache = InMemoryCache()
    model = Chat(cache=cache if whose == "the model's own" else None)

    def ask(prompt: str) -> None:
        _ = model.invoke(prompt) if how == "sync" else asyncio.run(model.ainvoke(prompt))

    set_llm_cache(cache if whose == "everybody's" else None)
    ask("x")
    ask("x")
    assert len(model.calls) == 1
    with private_run():
        ask("x")
        ask(CANARY)
    assert len(model.calls) == 3
    assert CANARY not in repr(cache._cache)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_cache_that_is_set_meanwhile_gets_nothing(how: str) -> None:
    """If it fails, a cache that another thread sets up late keeps the prompts of private runs under way."""
    model, cache = Chat(), InMemoryCache()
    with private_run():
        late = threading.Thread(target=set_llm_cache, args=(cache,))
        late.start()
        late.join()
        _ = model.invoke(CANARY) if how == "sync" else asyncio.run(model.ainvoke(CANARY))
    assert CANARY not in repr(cache._cache)
    assert get_llm_cache() is cache
    model.invoke("public")
    assert "public" in repr(cache._cache)


def test_a_private_run_inside_a_quiet_call_keeps_it_quiet(tmp_path: Path) -> None:
    """If it fails, a model that protects itself with private_run opens the log again."""

    def act(prompt: str) -> None:
        with private_run():
            log_and_warn(prompt)

    with leak_surfaces(tmp_path) as surfaces:
        IsolatedModel(Chat(act=act)).batch([CANARY])
        assert surfaces.where(CANARY) == set()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["events", "log"])
async def test_whoever_reads_the_stream_of_the_run_around_sees_nothing(how: str) -> None:
    """If it breaks, a node that passes its config on sends the private block's prompts to the reader of the graph."""

    async def node(question: str, config: RunnableConfig) -> str:
        with private_run():
            inner = [event async for event in chain().astream_events({"x": CANARY}, version="v2")]
            assert CANARY in repr(inner), "the reader inside the block still sees its own"
            await chain().ainvoke({"x": CANARY}, config)
        return "public"

    outer = RunnableLambda(node)
    if how == "events":
        seen: list[Any] = [event async for event in outer.astream_events("hello", version="v2")]
    else:
        seen = [patch async for patch in outer.astream_log("hello")]
    assert "public" in repr(seen)
    assert CANARY not in repr(seen)


def test_the_applications_own_cache_stays_what_it_is() -> None:
    """If it breaks, another thread finds a cache without its own methods while a quiet call runs."""

    class Mine(InMemoryCache):
        def stats(self) -> str:
            return "mine"

    set_llm_cache(Mine())
    with private_run():
        assert get_llm_cache().stats() == "mine"  # type: ignore[union-attr]  # the class above


@pytest.mark.asyncio
async def test_callbacks_of_the_loop_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """If it breaks, what a callback of a private call raises is logged with its text; or the application's is not."""
    public: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: public.append(context))

    async def model(prompt: str) -> str:
        async def nothing() -> None: ...

        def failing(*_: Any) -> None:
            raise ValueError(f"cannot parse {prompt}")

        task = asyncio.create_task(nothing())
        task.add_done_callback(failing)
        asyncio.get_running_loop().call_soon(failing, prompt)
        await task
        await asyncio.sleep(0)
        return "a"

    def own() -> None:
        raise ValueError("of the application")

    async def beside() -> None:
        asyncio.get_running_loop().call_soon(own)

    quiet = IsolatedModel(RunnableLambda(model), trust_opaque_model=True)
    answers, _ = await asyncio.gather(quiet.abatch([CANARY]), beside())
    assert answers == ["a"]
    assert [str(context["exception"]) for context in public] == ["of the application"]
    assert CANARY not in caplog.text


async def test_what_a_graph_asks_in_a_private_run_reaches_no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, LangGraph's own handlers get what an interrupted graph asks: a tool's arguments, for instance."""
    graphs = pytest.importorskip("langgraph.graph")  # comes with the extra agents
    callbacks = pytest.importorskip("langgraph.callbacks")  # as does this, from LangGraph 1.2 on
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import interrupt

    seen: list[str] = []

    class Handler(callbacks.GraphCallbackHandler):  # type: ignore[misc,name-defined]
        def on_interrupt(self, event: Any) -> None:
            seen.append(repr(event))

    def node(state: Any) -> Any:
        return {"messages": interrupt(state["messages"][-1].text)}

    graph = graphs.StateGraph(graphs.MessagesState).add_node("ask", node).add_edge("__start__", "ask")
    chat = graph.compile(checkpointer=InMemorySaver()).with_config(callbacks=[Handler()])
    asked = {"messages": [("human", CANARY)]}
    configs: list[RunnableConfig] = [{"configurable": {"thread_id": str(each)}} for each in range(3)]
    with private_run():
        chat.invoke(asked, configs[0])
        await chat.ainvoke(asked, configs[1])
    assert not seen
    chat.invoke(asked, configs[2])
    assert CANARY in seen[0]
    for name in ("get_sync_graph_callback_manager_for_config", "get_async_graph_callback_manager_for_config"):
        with monkeypatch.context() as patched:
            patched.setattr(callbacks, name, lambda config: CallbackManager(config.get("callbacks", [])))
            with pytest.raises(UnsafeEnvironment, match="to give no handlers inside an isolated call"):
                check_environment()
    check_environment()
