"""The sealed context: nothing inside it is traced, called back or inherited from the run around it.

Five things carry a prompt out of a LangChain call. Each is closed here, in the current context only:

- handlers of the outer run, and its ``configurable`` values: the inherited config is emptied
- tracers switched on by environment variables, by ``langsmith.configure`` or by a parent run: tracing is disabled
- ``@traceable`` functions inside the model: the same
- handlers from elsewhere (passed in config, bound to a chain, a field of the model, a configure hook, put there by an
  instrumentation that patches the callback manager): a gate on ``CallbackManager.configure`` takes them out again
- the global cache: a stand-in answers "not cached" inside, and passes on outside

The gate wraps a public class method of langchain-core. It does nothing outside a sealed context, and
:func:`find_problem` tries it before each use: a gate that someone replaced is a refusal, not a leak.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.caches import RETURN_VAL_TYPE, BaseCache
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, BaseCallbackManager, CallbackManager
from langchain_core.globals import get_debug, get_llm_cache, set_llm_cache
from langchain_core.runnables.config import var_child_runnable_config

from langchain_dp import _forks, _quiet_filters
from langchain_dp._quiet_filters import Level, level

_MANAGERS: tuple[Any, ...] = (CallbackManager, AsyncCallbackManager)
_GATED = "_langchain_dp_gated"
_LOCK = threading.Lock()
_forks.renew_lock(sys.modules[__name__], "_LOCK")
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

    _install_gate()
    _quiet_filters.install()
    stack = contextlib.ExitStack()
    # Values are set back, not reset by token: a generator may be closed in another context than it was opened in.
    stack.callback(level.set, level.get())
    stack.callback(var_child_runnable_config.set, var_child_runnable_config.get())
    stack.callback(tracing_v2_callback_var.set, tracing_v2_callback_var.get())
    level.set(max(level.get(), depth))
    var_child_runnable_config.set(None)
    tracing_v2_callback_var.set(None)
    stack.enter_context(tracing_context(enabled=False, parent=False))
    return stack


def find_problem(*, try_gate: bool = True) -> str | None:
    """Return why private prompts would be printed or handed out in this process now, or None.

    Args:
        try_gate: Also make a callback manager and see that it stays empty (0.3 ms; once a batch is enough).
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
    if not try_gate:
        return None
    with sealed(Level.QUIET):
        for manager in _MANAGERS:
            if manager.configure(inheritable_callbacks=[BaseCallbackHandler()]).handlers:
                return (
                    f"Expected {manager.__name__}.configure to give no handlers inside a quiet call: another library "
                    "has replaced it since, or adds handlers of its own. Remove its LangChain instrumentation."
                )
    return None


def _install_gate() -> None:
    with _LOCK:
        for manager in _MANAGERS:
            inner = manager.__dict__["configure"].__func__
            if not hasattr(inner, _GATED):
                manager.configure = classmethod(_gated(inner))


def _gated(inner: Callable[..., BaseCallbackManager]) -> Callable[..., BaseCallbackManager]:
    @functools.wraps(inner)
    def configure(cls: type[BaseCallbackManager], *args: Any, **kwargs: Any) -> BaseCallbackManager:
        manager = inner(cls, *args, **kwargs)
        if level.get() is not Level.OPEN:
            _stand_before_cache()  # another thread may have set one since the private run began
            manager.handlers = [handler for handler in manager.handlers if _stays(handler)]
            manager.inheritable_handlers = [handler for handler in manager.inheritable_handlers if _stays(handler)]
        return manager

    setattr(configure, _GATED, True)
    return configure


def _stays(handler: BaseCallbackHandler) -> bool:
    """Whether the handler only carries astream_events, astream_log or graph streams to the caller of this very run."""
    from langchain_core.tracers._streaming import _StreamingCallbackHandler

    return level.get() is Level.PRIVATE and isinstance(handler, _StreamingCallbackHandler)


class CacheBypass(BaseCache):
    """The global cache while private runs are under way: blind and deaf inside them, itself outside."""

    def __init__(self, inner: BaseCache) -> None:
        self.inner = inner

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


_runs_under_way = 0


def bypass_cache() -> None:
    """Stand before the global cache, if there is one, until as many :func:`restore_cache` calls came."""
    global _runs_under_way
    with _LOCK:
        _runs_under_way += 1
    _stand_before_cache()


def _stand_before_cache() -> None:
    """Models configure their callbacks, and then look into the cache: each of them finds the stand-in."""
    cache = get_llm_cache()
    if cache is None or isinstance(cache, CacheBypass):
        return
    with _LOCK:
        cache = get_llm_cache()
        if _runs_under_way and cache is not None and not isinstance(cache, CacheBypass):
            set_llm_cache(CacheBypass(cache))


def restore_cache() -> None:
    """Give the global cache back when the last private run of the process is over."""
    global _runs_under_way
    with _LOCK:
        _runs_under_way -= 1
        cache = get_llm_cache()
        if not _runs_under_way and isinstance(cache, CacheBypass):
            set_llm_cache(cache.inner)
