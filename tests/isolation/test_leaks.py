"""The canary: private prompts inside a traced, logged, cached, called-back application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.asking import STYLES
from fakes.canary import CANARY, LeakSurfaces, leak_surfaces
from fakes.models import Chat, Completion, SyncChat, fail, log_and_warn
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_dp.isolation.model import IsolatedModel

PROMPTS = [[HumanMessage(f"{CANARY} one")], [HumanMessage(f"{CANARY} two")]]

Ask = Callable[[], object]
Chain = Runnable[str, Any]


def outer(ask: Callable[[], object], aask: Callable[[], Any]) -> Chain:
    """An application: a public question in, a public "ok" out, private calls in between."""

    def step(question: str) -> str:
        ask()
        return "ok"

    async def astep(question: str) -> str:
        await aask()
        return "ok"

    return RunnableLambda(str.strip) | RunnableLambda(step, astep) | StrOutputParser()


def around_quiet(model: Any) -> Chain:
    quiet = IsolatedModel(model)

    async def aask() -> object:
        return await quiet.abatch(PROMPTS)

    return outer(lambda: quiet.batch(PROMPTS), aask)


def around_bare(model: Any) -> Chain:
    async def aask() -> object:
        return await model.ainvoke(PROMPTS[0])

    return outer(lambda: model.invoke(PROMPTS[0]), aask)


def run(style: str, chain: Chain, surfaces: LeakSurfaces) -> str:
    """Run the chain and return all that the caller was given."""
    return repr(STYLES[style](chain, "q", {"callbacks": surfaces.handlers}))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("model", [Chat, SyncChat, Completion])
def test_no_call_style_of_the_outer_chain_sees_a_private_prompt(
    style: str, model: type[BaseLanguageModel[Any]], tmp_path: Path
) -> None:
    """If it fails, a tracer, handler, cache, log or event stream of the application receives private examples."""
    with leak_surfaces(tmp_path) as surfaces:
        chain = around_quiet(model(act=log_and_warn, verbose=True))
        given = run(style, chain, surfaces)
        assert "ok" in given
        assert CANARY not in given
        assert surfaces.where(CANARY) == set()
        # The application's own runs are still seen: nothing was switched off for it.
        assert surfaces.where("RunnableSequence") >= {"tracer"}
        assert surfaces.handler.seen
        assert surfaces.async_handler.seen


@pytest.mark.parametrize("style", STYLES)
def test_the_canary_sings_when_the_model_is_called_bare(style: str, tmp_path: Path) -> None:
    """If it fails, the surfaces are blind and the leak tests prove nothing."""
    with leak_surfaces(tmp_path) as surfaces:
        given = run(style, around_bare(Chat(act=log_and_warn)), surfaces)
        seen = surfaces.where(CANARY)
        assert seen == {"tracer", "handler", "async_handler", "cache", "log", "warnings"}
        assert (CANARY in given) == (style in ("astream_events", "astream_log"))


@pytest.mark.parametrize("style", ["invoke", "ainvoke", "astream_events"])
def test_a_failing_model_abstains_and_its_exception_goes_nowhere(style: str, tmp_path: Path) -> None:
    """If it fails, an exception that quotes the prompt reaches on_chain_error, the tracer or the log."""
    with leak_surfaces(tmp_path) as surfaces:
        given = run(style, around_quiet(Chat(act=fail)), surfaces)
        assert CANARY not in given
        assert surfaces.where(CANARY) == set()
        with pytest.raises(ValueError, match=CANARY):
            run("invoke", around_bare(Chat(act=fail)), surfaces)
        assert surfaces.where(f"context length exceeded by: {CANARY}") >= {"tracer", "handler"}


def test_the_models_own_handlers_and_cache_are_left_behind(tmp_path: Path) -> None:
    """If it fails, handlers or a cache set on the model itself, or bound around it, see private prompts."""
    with leak_surfaces(tmp_path) as surfaces:
        model = Chat(callbacks=surfaces.handlers, cache=surfaces.cache, verbose=True)
        bound = model.with_config(callbacks=surfaces.handlers).with_retry().with_fallbacks([model])
        listened = model.with_listeners(on_start=lambda run: surfaces.handler.seen.append(repr(run.inputs)))
        for part in (model, bound, listened, bound | StrOutputParser(), {"a": model, "b": bound} | StrOutputParser()):
            runnable = part if isinstance(part, Runnable) else RunnableLambda(part)
            IsolatedModel(runnable, trust_opaque_model=True).batch(PROMPTS)
        assert surfaces.where(CANARY) == set()
        assert len(model.calls) >= 8
        model.invoke(PROMPTS[0])
        assert surfaces.where(CANARY) >= {"handler", "async_handler", "cache", "tracer"}
        surfaces.handler.seen.clear()
        listened.invoke(PROMPTS[0])
        assert CANARY in "".join(surfaces.handler.seen)


def test_configurable_values_tags_and_metadata_stay_outside() -> None:
    """If it fails, the outer run's configurable values decide, or are traced with, what the inner model does."""
    configs: list[Any] = []

    def inner(prompt: Any, config: Any) -> str:
        configs.append({key: config.get(key) for key in ("configurable", "tags", "metadata", "run_name")})
        return "x"

    quiet = IsolatedModel(RunnableLambda(inner), trust_opaque_model=True)
    noise: Any = {"configurable": {"model": "other"}, "tags": ["t"], "metadata": {"m": 1}, "run_name": "r"}

    async def abatch(_: str) -> object:
        return await quiet.abatch(["p"])

    chain = RunnableLambda(lambda _: quiet.batch(["p"]), abatch)
    chain.invoke("q", noise)
    asyncio.run(chain.ainvoke("q", noise))
    clean = {"configurable": {}, "tags": [], "metadata": {}, "run_name": None}
    assert configs == [clean, clean]
    RunnableLambda(lambda _: RunnableLambda(inner).invoke("p")).invoke("q", noise)
    assert configs[2]["configurable"] == {"model": "other"}


def test_traceable_functions_inside_the_model_stay_silent(tmp_path: Path) -> None:
    """If it fails, a model that traces its own helpers with langsmith sends private prompts."""
    from langsmith import traceable

    model = Chat(act=traceable(lambda prompt: prompt, name="helper"))
    with leak_surfaces(tmp_path) as surfaces:
        around_quiet(model).invoke("q")
        asyncio.run(around_quiet(model).ainvoke("q"))
        assert surfaces.where(CANARY) == set()
        model.invoke(PROMPTS[0])
        assert "helper" in surfaces.server.traced()
        assert "tracer" in surfaces.where(CANARY)


def test_a_tracer_switched_on_in_code_stays_silent(tmp_path: Path) -> None:
    """If it fails, tracing_v2_enabled() or collect_runs() around the application collects private prompts."""
    from langchain_core.tracers.context import collect_runs, tracing_v2_enabled

    with leak_surfaces(tmp_path) as surfaces, tracing_v2_enabled(), collect_runs() as runs:
        IsolatedModel(Chat()).batch(PROMPTS)
        assert runs.traced_runs == []
        assert surfaces.where(CANARY) == set()
        Chat().invoke(PROMPTS[0])
        assert CANARY in repr(runs.traced_runs[0].inputs)


def test_a_manager_patched_by_an_instrumentation_is_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, instrumentations that add a handler to every new callback manager record private prompts."""
    from fakes.canary import RecordingHandler
    from langchain_core.callbacks.base import BaseCallbackManager

    spy = RecordingHandler()
    plain = BaseCallbackManager.__init__

    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.add_handler(spy)

    monkeypatch.setattr(BaseCallbackManager, "__init__", patched)
    IsolatedModel(Chat()).batch(PROMPTS)
    assert spy.seen == []
    Chat().invoke(PROMPTS[0])
    assert CANARY in "".join(spy.seen)
