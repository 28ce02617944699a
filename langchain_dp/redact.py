"""Errors without private text: what goes wrong with private work is raised without the values it was done on.

Callbacks get the error of a run, error reporters keep the locals of each of its frames, and the exceptions of a codec
carry the text itself. Every public entry point that takes private text stands behind one of two decorators:

- :func:`redact_errors`, where the package does all of the work itself: no frame of it is ever raised;
- :func:`hold_arguments`, where a model or a chain of the caller is called, whose errors must pass as they are: the
  method gets its private arguments as :class:`PrivateArgs`, and gives each piece of work on them to :func:`redacted`.

The frames that count are those below the entry point: ours, and those of LangChain and of the standard library that
are called from ours. What a caller's own frames hold, and LangChain's above the entry point in a chain of the caller,
is out of reach. :func:`redacting` wraps a method of an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from langchain_dp.errors import LangChainDPError, ModelUnavailable, PrivateDataError

P = ParamSpec("P")
R = TypeVar("R")
SANITIZING = "while texts were sanitized"


class PrivateArgs:
    """Private values on their way through frames that others may read."""

    __slots__ = ("values",)

    def __init__(self, *values: Any) -> None:
        self.values = values

    @classmethod
    def of(cls, value: Any) -> PrivateArgs:
        """One private value; as it is, if it is held already."""
        return value if isinstance(value, cls) else cls(value)

    def __add__(self, other: PrivateArgs) -> PrivateArgs:
        """As the values add: so LangChain gathers what comes in piece by piece."""
        return PrivateArgs(self.values[0] + other.values[0])

    def __repr__(self) -> str:
        return "PrivateArgs(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("Private values on their way cannot be pickled or copied.")


class Redacted(RuntimeError):
    """A foreign error of which its own text was left out: what this one says may be read by anybody."""


def run_redacted(work: Callable[..., R], held: PrivateArgs, when: str = SANITIZING) -> R:
    """Do the work, and raise what it raises without its frames and its context.

    Args:
        work: What is done on the values.
        held: Private values.
        when: What was being done, for the text of a foreign error.
    """
    try:
        return work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error, when)
    raise stop


async def arun_redacted(work: Callable[..., Awaitable[R]], held: PrivateArgs, when: str = SANITIZING) -> R:
    """Async twin of :func:`redacted`."""
    try:
        return await work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error, when)
    raise stop


def hold_arguments(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public entry point so that it gets these arguments as :class:`PrivateArgs`, read by :meth:`Held.of`.

    Args:
        *names: Parameters that take private values.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        places = [place for place, name in enumerate(inspect.signature(method).parameters) if name in names]

        def held(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return (
                tuple(PrivateArgs.of(value) if place in places else value for place, value in enumerate(args)),
                {name: PrivateArgs.of(value) if name in names else value for name, value in kwargs.items()},
            )

        return _behind(held, method, method)

    return decorate


def redact_errors(when: str = SANITIZING) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public entry point, a function or a coroutine function, so that :func:`redacted` does all of it.

    Args:
        when: What is being done, for the text of a foreign error.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)

        def held(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:  # it names parameters alone
                return (TypeError(f"{method.__qualname__}(): {error}"),), {}
            return (PrivateArgs(args, kwargs),), {}

        def work(given: PrivateArgs | TypeError) -> Any:
            if isinstance(given, TypeError):
                raise given
            how: Callable[..., Any] = arun_redacted if inspect.iscoroutinefunction(method) else run_redacted
            return how(lambda args, kwargs: method(*args, **kwargs), given, when)

        return _behind(held, work, method)

    return decorate


def _behind(held: Callable[..., Any], work: Callable[..., Any], method: Callable[P, R]) -> Callable[P, R]:
    """A frame that lets go of its raw arguments before the work begins; of the same kind as the method."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = held(args, kwargs)
            return await work(*args, **kwargs)

        return cast("Callable[P, R]", acall)

    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def aparts(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            args, kwargs = held(args, kwargs)
            async with contextlib.aclosing(work(*args, **kwargs)) as parts:
                async for part in parts:
                    yield part

        return cast("Callable[P, R]", aparts)

    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def parts(*args: Any, **kwargs: Any) -> Iterator[Any]:
            args, kwargs = held(args, kwargs)
            yield from work(*args, **kwargs)

        return cast("Callable[P, R]", parts)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> R:
        args, kwargs = held(args, kwargs)
        return cast("R", work(*args, **kwargs))

    return cast("Callable[P, R]", call)


class HeldInputs:
    """LangChain's own ways to call the Runnable beside it, each given its input held: its frames and events show none.

    They end in the Runnable's ``invoke``, ``ainvoke``, ``stream`` or ``astream``, which take what is held.
    """

    def batch(self, inputs: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """As LangChain's."""
        inputs = [PrivateArgs.of(one) for one in inputs]
        return super().batch(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def batch_as_completed(self, inputs: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As LangChain's."""
        inputs = [PrivateArgs.of(one) for one in inputs]
        return super().batch_as_completed(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def abatch_as_completed(self, inputs: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """As LangChain's."""
        inputs = [PrivateArgs.of(one) for one in inputs]
        return super().abatch_as_completed(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def transform(self, input: Iterator[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        """As LangChain's: one result, when all input has come in."""
        return super().transform(map(PrivateArgs.of, input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def atransform(self, input: AsyncIterator[Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        """As LangChain's: one result, when all input has come in."""
        return super().atransform((PrivateArgs.of(one) async for one in input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def astream_log(self, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        """As LangChain's. The input is in no entry."""
        return super().astream_log(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc]

    async def abatch(self, inputs: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """As LangChain's."""
        inputs = [PrivateArgs.of(one) for one in inputs]
        return await super().abatch(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def stream(self, input: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: A002  # Runnable's name
        """As LangChain's: one result, when it is complete."""
        return super().stream(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def astream(self, input: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        """As LangChain's: one result, when it is complete."""
        return super().astream(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def astream_events(self, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        """As LangChain's. The input is in no event."""
        return super().astream_events(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc]


def redacting(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method of an engine so that what it raises holds no frame, context or text of what it was given.

    As :func:`redacted`, but every foreign error, also of a file, is a ModelUnavailable.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # raised again below
            stop = _anew(error) or ModelUnavailable(
                f"The engine failed with {type(error).__name__}; its text is withheld. Build it anew."
            )
        del args, kwargs
        raise stop

    return call


def without_frames(error: BaseException, when: str = SANITIZING) -> BaseException:
    """The same error anew, without frames and context.

    Errors of this package, and of files, say what they are about; of others only the type's name is left.
    """
    if isinstance(error, OSError) and error.errno is not None:
        said = os.strerror(error.errno) if error.errno > 0 else type(error).__name__  # its own words may be a record's
        return OSError(error.errno, said, error.filename)
    for kind in (TimeoutError, ConnectionError, OSError):
        if isinstance(error, kind):  # whoever tries again catches these
            return kind(f"{type(error).__name__} {when}; its text is withheld.")
    if isinstance(error, Redacted):
        return Redacted(*error.args)
    return _anew(error) or Redacted(f"{type(error).__name__} {when}; its text is withheld.")


def interruption(error: BaseException) -> BaseException | None:
    """Ctrl-C, an exit or a cancellation anew and empty, since it must pass; None for any other error."""
    if isinstance(error, SystemExit):
        # A code may be any object, so also a text.
        return SystemExit(error.code if isinstance(error.code, int) or error.code is None else 1)
    for kind in (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        if isinstance(error, kind):
            return kind()
    return None


def _anew(error: BaseException) -> BaseException | None:
    """An error of this package with what it says, or an interruption; None for any other error."""
    if isinstance(error, LangChainDPError):
        new = type(error).__new__(type(error), *error.args)
        vars(new).update({name: value for name, value in vars(error).items() if name != "__notes__"})
        return new
    return interruption(error)
