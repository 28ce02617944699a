"""The sealed context: nothing inside it is traced, called back or inherited from the run around it.

Six things carry a prompt out of a LangChain call. Each is closed here, in the current context only:

- handlers of the outer run, and its ``configurable`` values: the inherited config is emptied
- tracers switched on by environment variables, by ``langsmith.configure`` or by a parent run: tracing is disabled
- ``@traceable`` functions inside the model: the same
- handlers from elsewhere (passed in config, bound to a chain, a field of the model, a configure hook, put there by an
  instrumentation that patches the callback manager): a gate on ``CallbackManager.configure`` takes them out again, and
  one on LangGraph's managers of its own
- a cache, the model's own or the global one: ``model.cache``, which every model of langchain-core asks for leave to
  cache, reads False inside
- the global cache in code that asks for it by itself: a stand-in answers "not cached" inside, and passes on outside

The gates stand in public places of langchain-core, a class method and a field. They do nothing outside a sealed
context, and :func:`find_problem` tries them before each use: a gate that someone replaced, or that another
langchain-core passes by, is a refusal and not a leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, BaseCallbackManager, CallbackManager
from langchain_core.globals import get_debug, get_llm_cache, set_llm_cache
from langchain_core.language_models import (
    BaseChatModel,
    BaseLanguageModel,
    BaseLLM,
    FakeListLLM,
    ParrotFakeChatModel,
    chat_models,
    llms,
)
from langchain_core.messages import HumanMessage
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config

from langchain_dp._util import forks
from langchain_dp.isolation import filters
from langchain_dp.isolation.filters import Level, level

_MANAGERS: tuple[Any, ...] = (CallbackManager, AsyncCallbackManager)
_GRAPHS = "langgraph.callbacks"
_GATED = "_langchain_dp_gated"
_LOCK = threading.Lock()
_CACHING = (BaseLanguageModel, BaseChatModel, BaseLLM, chat_models, llms)
forks.renew_lock(sys.modules[__name__], "_LOCK")
_outside: contextvars.ContextVar[tuple[BaseCallbackHandler, ...]] = contextvars.ContextVar("outside", default=())
_OLD_TRACERS = ("LANGCHAIN_TRACING", "LANGCHAIN_HANDLER")


@contextlib.contextmanager
def sealed(depth: Level) -> Iterator[None]:
    """Seal the block to ``depth``. Restores everything on exit; nests; other threads and tasks are not affected."""
    stack = seal(depth)
    try:
        yield
    finally:
        stack.close()


def seal(depth: Level) -> contextlib.ExitStack:
    """Seal the current context and return the stack whose ``close`` opens it again."""
    # Imported here: langsmith costs 0.1 s, which `import langchain_dp` need not pay.
    from langchain_core.tracers.context import tracing_v2_callback_var
    from langsmith.run_helpers import tracing_context

    _install_gates()
    filters.install()
    stack = contextlib.ExitStack()
    outer = var_child_runnable_config.get()
    # Values are set back, not reset by token: a generator may be closed in another context than it was opened in.
    for variable in (level, var_child_runnable_config, _outside, tracing_v2_callback_var):
        stack.callback(variable.set, variable.get())  # type: ignore[arg-type]  # its own value
    bypass_cache()
    stack.callback(restore_cache)
    # Handlers of the run around carry to a reader of its streams.
    handlers = (outer or {}).get("callbacks") or []
    if not isinstance(handlers, list):
        handlers = [*handlers.handlers, *handlers.inheritable_handlers]
    _outside.set((*_outside.get(), *handlers))
    level.set(max(level.get(), depth))
    var_child_runnable_config.set(None)
    tracing_v2_callback_var.set(None)
    stack.enter_context(tracing_context(enabled=False, parent=False))
    return stack


@contextlib.contextmanager
def sealed_copy() -> Iterator[contextvars.Context]:
    """Copy this context and seal the copy: calls run in copies of it, each inside :func:`hooked`."""
    context = contextvars.copy_context()
    stack = context.run(seal, Level.QUIET)
    try:
        yield context
    finally:
        context.run(stack.close)


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    """Renew the hooks of the process, and bypass the global cache until the block ends.

    A call that ran out of time may outlive the context that :func:`sealed_copy` made.
    """
    _install_gates()
    filters.install()
    bypass_cache()
    try:
        yield
    finally:
        restore_cache()


def find_problem(*, try_gate: bool = True) -> str | None:
    """Return why private prompts would be printed or handed out in this process now, or None.

    Args:
        try_gate: Also make a callback manager and see that it stays empty, and ask models with a cache and see that it
            is left alone (0.3 ms; once a batch is enough).
    """
    if get_debug():
        return (
            "Expected langchain debug=True to be False: it prints every prompt, whatever the callbacks. "
            "Call langchain_core.globals.set_debug(False)."
        )
    for name in _OLD_TRACERS:
        # langchain-core raises on every run when these are set and the present tracer is off, as it is here.
        if os.environ.get(name, "") not in ("", "0", "false", "False"):
            return f"Expected {name} to be unset: this tracer is gone from langchain-core. Unset it."
    if os.environ.get("SSLKEYLOGFILE"):
        return (
            "Expected SSLKEYLOGFILE to be unset: whoever reads that file can decrypt every prompt on its way to a "
            "model. Unset it, and build the model anew."
        )
    if not try_gate:
        return None
    with sealed(Level.QUIET):
        managers = [kind.configure(inheritable_callbacks=[BaseCallbackHandler()]) for kind in _MANAGERS]
        graphs = sys.modules.get(_GRAPHS)
        managers += [make({"callbacks": [graphs.GraphCallbackHandler()]}) for make in _graph_managers(graphs)]  # type: ignore[union-attr]  # none without it
        for manager in managers:
            if manager.handlers:
                return (
                    f"Expected {type(manager).__name__}.configure to give no handlers inside a quiet call: another "
                    "library has replaced it since, or adds handlers of its own. Remove its LangChain instrumentation."
                )
    if asked := _asked_cache():
        return (
            f"Expected no model to ask its cache inside a quiet call, but {asked} does: another library has replaced "
            "a method of langchain-core, or this version of it caches in a new way. Remove the library, or install "
            "another version."
        )
    return None


def _install_gates() -> None:
    # Asked outside of the lock, which a gate that stands already would ask for.
    kinds = (*_MANAGERS, *_graph_kinds(sys.modules.get(_GRAPHS)))
    with _LOCK:
        for manager in kinds:
            inner = manager.__dict__["configure"].__func__
            if not hasattr(inner, _GATED):
                manager.configure = classmethod(_gated(inner))
        if not isinstance(BaseLanguageModel.__dict__.get("cache"), CacheGate):
            BaseLanguageModel.cache = CacheGate()  # type: ignore[assignment]  # a field, whose values lie in each model


def _graph_managers(graphs: types.ModuleType | None) -> list[Callable[[RunnableConfig], BaseCallbackManager]]:
    """LangGraph's own makers of managers: they tell of a graph's interrupts, with what is asked."""
    names = (f"get_{kind}_graph_callback_manager_for_config" for kind in ("sync", "async"))
    return [getattr(graphs, name) for name in names if hasattr(graphs, name)]


@functools.cache
def _graph_kinds(graphs: types.ModuleType | None) -> tuple[Any, ...]:
    """Classes of LangGraph's managers. Each is made in an empty context: a gate would ask for this function."""
    return tuple(type(contextvars.Context().run(make, {})) for make in _graph_managers(graphs))


def _gated(inner: Callable[..., BaseCallbackManager]) -> Callable[..., BaseCallbackManager]:
    @functools.wraps(inner)
    def configure(cls: type[BaseCallbackManager], *args: Any, **kwargs: Any) -> BaseCallbackManager:
        manager = inner(cls, *args, **kwargs)
        if level.get() is not Level.OPEN:
            _stand_before_cache()  # another thread may have set one since the private run began
            _install_gates()  # or loaded LangGraph
            manager.handlers = [handler for handler in manager.handlers if _stays(handler)]
            manager.inheritable_handlers = [handler for handler in manager.inheritable_handlers if _stays(handler)]
        return manager

    setattr(configure, _GATED, True)
    return configure


def _stays(handler: BaseCallbackHandler) -> bool:
    """Whether the handler only carries astream_events, astream_log or graph streams to a caller inside the block."""
    from langchain_core.tracers._streaming import _StreamingCallbackHandler

    if level.get() is not Level.PRIVATE or not isinstance(handler, _StreamingCallbackHandler):
        return False
    return not any(handler is one for one in _outside.get())


class CacheGate:
    """The attribute ``cache`` of every model: False inside a sealed context, the model's own value outside.

    On the class it is not seen: pydantic would take it for the default of the field.
    """

    def __get__(self, model: BaseLanguageModel[Any] | None, owner: type) -> BaseCache | bool | None:
        if model is None or "cache" not in model.__dict__:
            raise AttributeError("cache")
        value: BaseCache | bool | None = model.__dict__["cache"] if level.get() is Level.OPEN else False
        return value

    def __set__(self, model: BaseLanguageModel[Any], value: BaseCache | bool | None) -> None:
        model.__dict__["cache"] = value


class _SpyCache(BaseCache):
    """Notes that it was asked, and holds nothing."""

    asked = False

    def lookup(self, prompt: str, llm_string: str) -> None:
        self.asked = True

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        self.asked = True

    def clear(self, **kwargs: Any) -> None:
        """Nothing is held."""


_tried: tuple[Any, ...] = ()


def _asked_cache() -> str | None:
    """Return the class of langchain-core whose models ask their cache inside a quiet call, or None.

    Tried once, and again when anything in the classes or modules that decide it was replaced since.
    """
    global _tried
    decisive = tuple(value for place in _CACHING for value in vars(place).values())
    if len(decisive) == len(_tried) and all(map(operator.is_, decisive, _tried)):
        return None
    spy = _SpyCache()
    models: dict[str, BaseLanguageModel[Any]] = {
        "BaseChatModel": ParrotFakeChatModel(cache=spy),
        "BaseLLM": FakeListLLM(responses=["", ""], cache=spy),
    }
    prompts: list[PromptValue] = [ChatPromptValue(messages=[HumanMessage("")])]
    for kind, model in models.items():
        with sealed(Level.QUIET):
            model.generate_prompt(prompts)
            # In a thread: this one may be running an event loop.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(contextvars.copy_context().run, asyncio.run, model.agenerate_prompt(prompts)).result()
        if spy.asked:
            return kind
    _tried = decisive
    return None


class CacheBypass(BaseCache):
    """The global cache while sealed contexts are open: blind and deaf inside them, itself outside."""

    def __init__(self, inner: BaseCache) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what else the application's own cache can do

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """What the real cache finds; nothing inside."""
        return None if level.get() else self.inner.lookup(prompt, llm_string)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Store, but nothing inside."""
        if not level.get():
            self.inner.update(prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        """Clear the real cache."""
        self.inner.clear(**kwargs)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        """Async twin of :meth:`lookup`."""
        return None if level.get() else await self.inner.alookup(prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        """Async twin of :meth:`update`."""
        if not level.get():
            await self.inner.aupdate(prompt, llm_string, return_val)

    async def aclear(self, **kwargs: Any) -> None:
        """Async twin of :meth:`clear`."""
        await self.inner.aclear(**kwargs)


_runs_under_way = 0


def bypass_cache() -> None:
    """Stand before the global cache, set now or later, until as many :func:`restore_cache` calls came."""
    global _runs_under_way
    with _LOCK:
        _runs_under_way += 1
    _stand_before_cache()


def _stand_before_cache() -> None:
    """Models configure their callbacks before anything else: a cache set meanwhile gets its stand-in then."""
    cache = get_llm_cache()
    if cache is None or isinstance(cache, CacheBypass):
        return
    with _LOCK:
        cache = get_llm_cache()
        if _runs_under_way and cache is not None and not isinstance(cache, CacheBypass):
            set_llm_cache(CacheBypass(cache))


def restore_cache() -> None:
    """Give the global cache back when the last sealed context of the process is over."""
    global _runs_under_way
    with _LOCK:
        _runs_under_way -= 1
        cache = get_llm_cache()
        if not _runs_under_way and isinstance(cache, CacheBypass):
            set_llm_cache(cache.inner)
