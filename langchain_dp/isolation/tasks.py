"""A model's tasks must not end the event loop: asyncio passes their SystemExit past every ``except``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from langchain_dp.isolation.filters import Level, level


class ModelStopped(Exception):
    """A SystemExit or KeyboardInterrupt in a task, without text."""


class _Guarded(Coroutine[Any, Any, Any]):
    """A coroutine that raises ModelStopped. An ``async def`` cancelled early would never await the inner one."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        return _run_step(self._inner.send, value)

    def throw(self, *error: Any) -> Any:
        return _run_step(self._inner.throw, *error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # cr_frame and others


def _run_step(step: Callable[..., Any], *args: Any) -> Any:
    try:
        return step(*args)
    except (SystemExit, KeyboardInterrupt):
        pass
    raise ModelStopped


class _QuietTask(asyncio.Task[Any]):
    """A task with an empty repr, for asyncio's debug mode."""

    def __repr__(self) -> str:
        return "<Task of an isolated call>"


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the error."""
    if not task.cancelled():
        task.exception()


class _Factory:
    """The loop's own task factory outside, guarded tasks inside."""

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self.inner = inner
        self.calls = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        context = options.get("context")
        depth = level.get() if context is None else context.get(level, Level.OPEN)
        if depth is Level.QUIET and asyncio.iscoroutine(coro):
            task = _QuietTask(_Guarded(coro), loop=loop, **options)
            task.add_done_callback(_retrieve_error)
            return task
        if self.inner is not None:
            return self.inner(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)


class _Reports:
    """Drops reports of isolated calls."""

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self.inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        callback_context = getattr(context.get("handle"), "_context", None)
        if callback_context is None or callback_context.get(level, Level.OPEN) is not Level.QUIET:
            (type(loop).default_exception_handler if self.inner is None else self.inner)(loop, context)


@contextlib.contextmanager
def guarded_tasks() -> Iterator[None]:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    factory = before if isinstance(before, _Factory) else _Factory(before)
    factory.calls += 1
    loop.set_task_factory(factory)
    reports = loop.get_exception_handler()
    if not isinstance(reports, _Reports):
        loop.set_exception_handler(_Reports(reports))
    try:
        yield
    finally:
        factory.calls -= 1
        if not factory.calls and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.inner)
        if not factory.calls and isinstance(reports := loop.get_exception_handler(), _Reports):
            loop.set_exception_handler(reports.inner)
