"""Private work inside a run of LangChain: what goes wrong with it is raised without the values it was done on.

Callbacks are handed the error of a run, and error reporters keep the locals of each of its frames.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from langchain_dp.errors import LangChainDPError
from langchain_dp.quiet.calls import scrubbed

R = TypeVar("R")
SANITISING = "while texts were sanitised"


class Held:
    """Private values on their way through frames that others may read."""

    __slots__ = ("values",)

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return "Held(<private>)"


class Withheld(RuntimeError):
    """A foreign error of which its own text was left out: what this one says may be read by anybody."""


def unseen(work: Callable[..., R], held: Held, when: str = SANITISING) -> R:
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


async def aunseen(work: Callable[..., Awaitable[R]], held: Held, when: str = SANITISING) -> R:
    """Async twin of :func:`unseen`."""
    try:
        return await work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error, when)
    raise stop


def without_frames(error: BaseException, when: str = SANITISING) -> BaseException:
    """The same error anew, without frames and context.

    Errors of this package, and of files, keep what they say, which is public; of others only the type's name is left.
    """
    if isinstance(error, LangChainDPError):
        new = type(error).__new__(type(error), *error.args)
        vars(new).update({name: value for name, value in vars(error).items() if name != "__notes__"})
        return new
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    if isinstance(error, Withheld):
        return Withheld(*error.args)
    return scrubbed(error) or Withheld(f"{type(error).__name__} {when}; its text is withheld.")
