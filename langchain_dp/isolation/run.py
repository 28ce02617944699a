"""``check_environment`` and ``private_run``: a whole chain without traces."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from types import TracebackType

from langchain_dp.errors import UnsafeEnvironment
from langchain_dp.isolation import context
from langchain_dp.isolation.context import find_problem
from langchain_dp.isolation.filters import Level


def check_environment() -> None:
    """Raise UnsafeEnvironment if a setting or library would reveal prompts."""
    if problem := find_problem():
        raise UnsafeEnvironment(problem)


# Open private runs of the context with their seals, innermost first. None for an ended run.
_open_runs: ContextVar[tuple[tuple[private_run | None, contextlib.ExitStack], ...]] = ContextVar(
    "langchain_dp_private_runs", default=()
)


class private_run:  # reads as a statement: `with private_run():`
    """Run a whole chain without traces: no tracing, no callbacks, no model or global cache.

    It covers the current context, async code, and threads that LangChain starts from it. Handlers that only stream
    ``astream_events`` or ``astream_log`` to a caller inside the block still work.

    Not covered: log records of the user's code and of libraries, graphs compiled with ``debug=True``, a graph's own
    checkpointer, store or cache, and work that is consumed or continues after the block. The body of a generator needs
    the block around the loop that reads it.

    Raises:
        UnsafeEnvironment: On entry: a global setting or library would reveal prompts.

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
        if place is None:  # a generator was closed in another context
            context.restore_cache()
            return
        runs[place] = None, runs[place][1]
        over = []
        while runs and runs[0][0] is None:  # a run opens the context only after all later runs
            over.append(runs.pop(0)[1])
        _open_runs.set(tuple(runs))
        for stack in over:
            stack.close()
