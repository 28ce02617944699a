"""Raises errors without private text: error reporters store the locals of each frame, and codec errors hold the text.

A public entry point has :func:`redact_errors`, or :func:`hold_arguments` if a caller's model runs inside, whose errors
pass unchanged. Frames of the caller, and of LangChain above, are out of reach.
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
    """Private values on their way through readable frames."""

    __slots__ = ("values",)

    def __init__(self, *values: Any) -> None:
        self.values = values

    @classmethod
    def of(cls, value: Any) -> PrivateArgs:
        return value if isinstance(value, cls) else cls(value)

    def __add__(self, other: PrivateArgs) -> PrivateArgs:
        return PrivateArgs(self.values[0] + other.values[0])

    def __repr__(self) -> str:
        return "PrivateArgs(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("Private values on their way cannot be pickled or copied.")


class Redacted(RuntimeError):
    """A foreign error without its text."""


def run_redacted(work: Callable[..., R], held: PrivateArgs, when: str = SANITIZING) -> R:
    """Run ``work``, and raise its errors without frames and context."""
    try:
        return work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error, when)
    raise stop


async def arun_redacted(work: Callable[..., Awaitable[R]], held: PrivateArgs, when: str = SANITIZING) -> R:
    try:
        return await work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error, when)
    raise stop


def hold_arguments(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Pass these arguments of an entry point as :class:`PrivateArgs`."""

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
    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)

        def held(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:  # its text holds names of parameters only
                return (TypeError(f"{method.__qualname__}(): {error}"),), {}
            return (PrivateArgs(args, kwargs),), {}

        def work(private: PrivateArgs | TypeError) -> Any:
            if isinstance(private, TypeError):
                raise private
            run: Callable[..., Any] = arun_redacted if inspect.iscoroutinefunction(method) else run_redacted
            return run(lambda args, kwargs: method(*args, **kwargs), private, when)

        return _behind(held, work, method)

    return decorate


def _behind(held: Callable[..., Any], work: Callable[..., Any], method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method in a frame that drops raw arguments before the work."""
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
    """LangChain's call styles with wrapped inputs: their frames and events show none."""

    def batch(self, inputs: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        inputs = [PrivateArgs.of(one) for one in inputs]
        return super().batch(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def batch_as_completed(self, inputs: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        inputs = [PrivateArgs.of(one) for one in inputs]
        return super().batch_as_completed(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def abatch_as_completed(self, inputs: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        inputs = [PrivateArgs.of(one) for one in inputs]
        return super().abatch_as_completed(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def transform(self, input: Iterator[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        return super().transform(map(PrivateArgs.of, input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def atransform(self, input: AsyncIterator[Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        return super().atransform((PrivateArgs.of(one) async for one in input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def astream_log(self, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        return super().astream_log(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc]

    async def abatch(self, inputs: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        inputs = [PrivateArgs.of(one) for one in inputs]
        return await super().abatch(inputs, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def stream(self, input: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: A002  # Runnable's name
        return super().stream(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def astream(self, input: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        return super().astream(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc, no-any-return]

    def astream_events(self, input: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        return super().astream_events(PrivateArgs.of(input), *args, **kwargs)  # type: ignore[misc]


def redacting(method: Callable[P, R]) -> Callable[P, R]:
    """Redact errors of an engine. Foreign ones become ModelUnavailable."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # raised again below
            stop = _copy(error) or ModelUnavailable(
                f"The engine failed with {type(error).__name__}, text withheld. Build it again."
            )
        del args, kwargs
        raise stop

    return call


def without_frames(error: BaseException, when: str = SANITIZING) -> BaseException:
    """Copy an error without frames and context. Foreign ones, except of files, keep only their type."""
    if isinstance(error, OSError) and error.errno is not None:
        text = os.strerror(error.errno) if error.errno > 0 else type(error).__name__  # its own text may be private
        return OSError(error.errno, text, error.filename)
    for kind in (TimeoutError, ConnectionError, OSError):
        if isinstance(error, kind):  # retries catch these
            return kind(f"{type(error).__name__} {when}, text withheld.")
    if isinstance(error, Redacted):
        return Redacted(*error.args)
    return _copy(error) or Redacted(f"{type(error).__name__} {when}, text withheld.")


def interruption(error: BaseException) -> BaseException | None:
    """Copy Ctrl-C, an exit or a cancellation, which must pass."""
    if isinstance(error, SystemExit):
        # A code may be a text.
        return SystemExit(error.code if isinstance(error.code, int) or error.code is None else 1)
    for kind in (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        if isinstance(error, kind):
            return kind()
    return None


def _copy(error: BaseException) -> BaseException | None:
    """Copy our errors and interruptions."""
    if isinstance(error, LangChainDPError):
        new = type(error).__new__(type(error), *error.args)
        vars(new).update({name: value for name, value in vars(error).items() if name != "__notes__"})
        return new
    return interruption(error)
