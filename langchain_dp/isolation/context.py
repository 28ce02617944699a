"""The sealed context: nothing inside is traced, called back, cached or inherited.

- The outer run's config is emptied.
- Tracing is disabled, for ``@traceable`` functions too.
- Gates on callback managers, also LangGraph's, remove all other handlers.
- ``model.cache`` is False inside, and a stand-in hides the global cache.

:func:`find_problem` tests the gates before each use: a replaced gate is a refusal, not a leak.
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
from collections.abc import Callable
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


def sealed(depth: Level) -> contextlib.ExitStack:
    """Seal the current context until the returned stack is closed."""
    # Imported here: langsmith costs 0.1 s.
    from langchain_core.tracers.context import tracing_v2_callback_var
    from langsmith.run_helpers import tracing_context

    stack = hooked()
    outer = var_child_runnable_config.get()
    # Values are set back without tokens: a generator may be closed in another context.
    for variable in (level, var_child_runnable_config, _outside, tracing_v2_callback_var):
        stack.callback(variable.set, variable.get())  # type: ignore[arg-type]  # its own value
    # Streaming handlers of the outer run would carry private text out.
    handlers = (outer or {}).get("callbacks") or []
    if not isinstance(handlers, list):
        handlers = [*handlers.handlers, *handlers.inheritable_handlers]
    _outside.set((*_outside.get(), *handlers))
    level.set(max(level.get(), depth))
    var_child_runnable_config.set(None)
    tracing_v2_callback_var.set(None)
    stack.enter_context(tracing_context(enabled=False, parent=False))
    return stack


def hooked() -> contextlib.ExitStack:
    """Renew the hooks and bypass the global cache in every call, which may outlive its context."""
    global _open_blocks
    filters.install()
    with _LOCK:
        _open_blocks += 1
    _install_gates()
    stack = contextlib.ExitStack()
    stack.callback(restore_cache)
    return stack


def find_problem(*, try_gate: bool = True) -> str | None:
    """Return why this process would reveal private prompts, or None.

    ``try_gate`` tests the gates, too (0.3 ms).
    """
    if get_debug():
        return (
            "Expected langchain debug=True to be False: it prints every prompt, with any callbacks. "
            "Call langchain_core.globals.set_debug(False)."
        )
    for name in _OLD_TRACERS:
        # With these set and tracing off, as here, langchain-core raises on every run.
        if os.environ.get(name, "") not in ("", "0", "false", "False"):
            return f"Expected {name} to be unset: this tracer is gone from langchain-core. Unset it."
    if os.environ.get("SSLKEYLOGFILE"):
        return (
            "Expected SSLKEYLOGFILE to be unset: with that file anybody can decrypt every prompt on its way to a "
            "model. Unset it, and rebuild the model."
        )
    if not try_gate:
        return None
    with sealed(Level.QUIET):
        managers = [kind.configure(inheritable_callbacks=[BaseCallbackHandler()]) for kind in _MANAGERS]
        if graphs := sys.modules.get(_GRAPHS):
            managers += [make({"callbacks": [graphs.GraphCallbackHandler()]}) for make in _graph_managers(graphs)]
        for manager in managers:
            if manager.handlers:
                return (
                    f"Expected {type(manager).__name__}.configure to give no handlers inside an isolated call: another "
                    "library has replaced it since, or adds handlers of its own. Remove its LangChain instrumentation."
                )
    if kind := _caching_kind():
        return (
            f"Expected no model to ask its cache inside an isolated call, but {kind} does: another library has "
            "replaced a method of langchain-core, or this version of it caches in a new way. Remove the library, or "
            "install another version."
        )
    return None


def _install_gates() -> None:
    # An existing gate would take the lock.
    kinds = (*_MANAGERS, *_graph_kinds(sys.modules.get(_GRAPHS)))
    with _LOCK:
        for manager in kinds:
            inner = manager.__dict__["configure"].__func__
            if not hasattr(inner, _GATED):
                manager.configure = classmethod(_gated(inner))
        if not isinstance(BaseLanguageModel.__dict__.get("cache"), CacheGate):
            BaseLanguageModel.cache = CacheGate()  # type: ignore[assignment]  # a field, whose values lie in each model
        cache = get_llm_cache()
        if _open_blocks and cache is not None and not isinstance(cache, CacheBypass):
            set_llm_cache(CacheBypass(cache))


def _graph_managers(graphs: types.ModuleType | None) -> list[Callable[[RunnableConfig], BaseCallbackManager]]:
    names = (f"get_{kind}_graph_callback_manager_for_config" for kind in ("sync", "async"))
    return [getattr(graphs, name) for name in names if hasattr(graphs, name)]


@functools.cache
def _graph_kinds(graphs: types.ModuleType | None) -> tuple[Any, ...]:
    """Use an empty context, without gates."""
    return tuple(type(contextvars.Context().run(make, {})) for make in _graph_managers(graphs))


def _gated(inner: Callable[..., BaseCallbackManager]) -> Callable[..., BaseCallbackManager]:
    @functools.wraps(inner)
    def configure(cls: type[BaseCallbackManager], *args: Any, **kwargs: Any) -> BaseCallbackManager:
        manager = inner(cls, *args, **kwargs)
        if level.get() is not Level.OPEN:
            _install_gates()  # another thread may have set a cache or loaded LangGraph since the private run began
            manager.handlers = _may_stay(manager.handlers)
            manager.inheritable_handlers = _may_stay(manager.inheritable_handlers)
        return manager

    setattr(configure, _GATED, True)
    return configure


def _may_stay(handlers: list[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
    if level.get() is not Level.PRIVATE:
        return []
    from langchain_core.tracers._streaming import _StreamingCallbackHandler

    streams = (handler for handler in handlers if isinstance(handler, _StreamingCallbackHandler))
    return [handler for handler in streams if not any(handler is one for one in _outside.get())]


class CacheGate:
    """The attribute ``cache`` of every model, False inside.

    The class shows none, or pydantic would use it as the field's default.
    """

    def __get__(self, model: BaseLanguageModel[Any] | None, owner: type) -> BaseCache | bool | None:
        if model is None or "cache" not in model.__dict__:
            raise AttributeError("cache")
        value: BaseCache | bool | None = model.__dict__["cache"] if level.get() is Level.OPEN else False
        return value

    def __set__(self, model: BaseLanguageModel[Any], value: BaseCache | bool | None) -> None:
        model.__dict__["cache"] = value


class _SpyCache(BaseCache):
    """A cache that records its use."""

    used = False

    def lookup(self, prompt: str, llm_string: str) -> None:
        self.used = True

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        self.used = True

    def clear(self, **kwargs: Any) -> None:
        """Do nothing."""


_tried: tuple[Any, ...] = ()


def _caching_kind() -> str | None:
    """Return the class whose models use their cache inside, or None. Cached until classes change."""
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
            # This thread may run an event loop.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(contextvars.copy_context().run, asyncio.run, model.agenerate_prompt(prompts)).result()
        if spy.used:
            return kind
    _tried = decisive
    return None


class CacheBypass(BaseCache):
    """A stand-in for the global cache, empty inside."""

    def __init__(self, inner: BaseCache) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # other methods of the application's cache

    def lookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return None if level.get() else self.inner.lookup(prompt, llm_string)

    def update(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        if not level.get():
            self.inner.update(prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        self.inner.clear(**kwargs)

    async def alookup(self, prompt: str, llm_string: str) -> RETURN_VAL_TYPE | None:
        return None if level.get() else await self.inner.alookup(prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: RETURN_VAL_TYPE) -> None:
        if not level.get():
            await self.inner.aupdate(prompt, llm_string, return_val)

    async def aclear(self, **kwargs: Any) -> None:
        await self.inner.aclear(**kwargs)


_open_blocks = 0


def restore_cache() -> None:
    global _open_blocks
    with _LOCK:
        _open_blocks -= 1
        cache = get_llm_cache()
        if not _open_blocks and isinstance(cache, CacheBypass):
            set_llm_cache(cache.inner)
