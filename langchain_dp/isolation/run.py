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
    """Refuse to run where private prompts would be printed or handed out whatever this package does.

    Raises:
        UnsafeEnvironment: langchain's debug mode is on, a tracer that langchain-core no longer supports is set, or
            another library adds handlers to every run. The message names the remedy.
    """
    if problem := find_problem():
        raise UnsafeEnvironment(problem)


# Open private runs of the current context, innermost first, each with its seal. None for a run that has ended.
_open_runs: ContextVar[tuple[tuple[private_run | None, contextlib.ExitStack], ...]] = ContextVar(
    "langchain_dp_private_runs", default=()
)


class private_run:  # reads as a statement: `with private_run():`
    """Run a whole chain without traces: no tracing, no callbacks, no model or global cache, from the root run on.

    It covers the current context, in async code too, and the threads that LangChain starts from it. All handlers are
    ignored, also those in ``config``, bound to the chain or set on a model. Handlers that only stream
    ``astream_events`` or ``astream_log`` to a caller inside the block still work.

    Not covered: log records of the user's code and of libraries (a server's client may log whole requests at DEBUG). A
    graph compiled with ``debug=True``, which prints. A graph's own checkpointer, store or cache. Work that is consumed
    after the block or continues after it (read a stream inside, join a thread inside), and the body of a generator that
    others drive: put the block around the loop that reads it.

    Raises:
        UnsafeEnvironment: On entry. See ``check_environment``.

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
