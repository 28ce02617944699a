"""Errors without private text: what goes wrong with private work is raised without the values it was done on.

Callbacks get the error of a run, error reporters keep the locals of each of its frames, and the exceptions of a codec
carry the text itself. :func:`redacted` wraps one piece of work, :func:`redacting` a method of an engine.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from langchain_dp.errors import LangChainDPError, ModelUnavailable, PrivateDataError

P = ParamSpec("P")
R = TypeVar("R")
SANITIZING = "while texts were sanitized"


class Held:
    """Private values on their way through frames that others may read."""

    __slots__ = ("values",)

    def __init__(self, *values: Any) -> None:
        self.values = values

    @classmethod
    def of(cls, value: Any) -> Held:
        """One private value; as it is, if it is held already."""
        return value if isinstance(value, cls) else cls(value)

    def __add__(self, other: Held) -> Held:
        """As the values add: so LangChain gathers what comes in piece by piece."""
        return Held(self.values[0] + other.values[0])

    def __repr__(self) -> str:
        return "Held(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("Private values on their way cannot be pickled or copied.")


class Redacted(RuntimeError):
    """A foreign error of which its own text was left out: what this one says may be read by anybody."""


def redacted(work: Callable[..., R], held: Held, when: str = SANITIZING) -> R:
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


async def aredacted(work: Callable[..., Awaitable[R]], held: Held, when: str = SANITIZING) -> R:
    """Async twin of :func:`redacted`."""
    try:
        return await work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error, when)
    raise stop


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
