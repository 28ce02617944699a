"""``check_environment`` and ``private_run``: a whole chain without traces."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from langchain_dp.errors import InvalidParameter, UnsafeEnvironment
from langchain_dp.isolation import context
from langchain_dp.isolation.context import find_problem
from langchain_dp.isolation.filters import Level

P = ParamSpec("P")
T = TypeVar("T")


def check_environment() -> None:
    """Refuse to run where private prompts would be printed or handed out whatever this package does.

    Raises:
        UnsafeEnvironment: langchain's debug mode is on, a tracer that langchain-core no longer supports is set, or
            another library adds handlers to every run. The message names the remedy.
    """
    if problem := find_problem():
        raise UnsafeEnvironment(problem)


# Open private runs of the current context, innermost first, each with its seal; None for a run that has ended.
_open_runs: ContextVar[tuple[tuple[private_run | None, contextlib.ExitStack], ...]] = ContextVar(
    "langchain_dp_private_runs", default=()
)


class private_run:  # reads as a statement: `with private_run():`
    """Run a whole chain without traces: no tracing, no callbacks, no model or global cache, from the root run on.

    Use ``with private_run():``, ``async with private_run():`` or ``@private_run()`` over a function or coroutine
    function. It covers the current context and the threads that LangChain starts from it. All handlers are ignored,
    also those in ``config``, bound to the chain or set on a model. Handlers that only stream ``astream_events`` or
    ``astream_log`` to a caller inside the block still work.

    Not covered: log records of the user's code and of libraries (a server's client may log whole requests at DEBUG); a
    graph compiled with ``debug=True``, which prints; a graph's own checkpointer, store or cache; work that is consumed
    after the block or continues after it (read a stream inside, join a thread inside); and the body of a generator that
    others drive: put the block around the loop that reads it.

    Raises:
        UnsafeEnvironment: On entry; see ``check_environment``.

    Examples:
        >>> with private_run():
        ...     answer = (prompt | model).invoke({"text": private_text})
    """

    def __enter__(self) -> None:
        check_environment()
        stack = context.sealed(Level.PRIVATE)
        _open_runs.set(((self, stack), *_open_runs.get()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        runs = list(_open_runs.get())
        place = next((number for number, (entered, _) in enumerate(runs) if entered is self), None)
        if place is None:  # a generator was closed in another context, whose seals are not its own
            context.restore_cache()
            return
        runs[place] = None, runs[place][1]
        over = []
        while runs and runs[0][0] is None:  # a run opens the context only after the runs entered later have ended
            over.append(runs.pop(0)[1])
        _open_runs.set(tuple(runs))
        for stack in over:
            stack.close()

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return ``function`` with every call inside a private run.

        Raises:
            InvalidParameter: It is a generator function, or returns a generator, whose body runs outside of any one
                call.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise _read_later(function)
        if inspect.iscoroutinefunction(function):
            coroutine_function = cast("Callable[P, Any]", function)

            @functools.wraps(function)
            async def aprivate(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with private_run():
                    return await coroutine_function(*args, **kwargs)

            return cast("Callable[P, T]", aprivate)

        @functools.wraps(function)
        def private(*args: P.args, **kwargs: P.kwargs) -> T:
            with private_run():
                result = function(*args, **kwargs)
            if inspect.isgenerator(result) or inspect.isasyncgen(result):
                raise _read_later(function)
            # An awaitable has not run yet: an object with an async __call__, or a lambda around ainvoke().
            return cast("T", _privately(result)) if inspect.isawaitable(result) else result

        return private


async def _privately(awaitable: Awaitable[Any]) -> Any:
    async with private_run():
        return await awaitable


def _read_later(function: Any) -> InvalidParameter:
    return InvalidParameter(
        f"Expected function={getattr(function, '__name__', type(function).__name__)} to be no generator function, and "
        "to return no generator. Put `with private_run():` around the loop that reads it."
    )
