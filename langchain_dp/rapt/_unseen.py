"""Private work inside a run of LangChain: what goes wrong with it is raised without the values it was done on.

Callbacks are handed the error of a run, and error reporters keep the locals of each of its frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from langchain_dp._quiet_calls import bare

R = TypeVar("R")
_WHEN = "while texts were sanitised"


class Held:
    """Private values on their way through frames that others may read."""

    __slots__ = ("values",)

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return "Held(<private>)"


class Withheld(RuntimeError):
    """A foreign error of which its own text was left out: what this one says may be read by anybody."""


def unseen(work: Callable[..., R], held: Held) -> R:
    """Do the work, and raise what it raises without its frames and its context."""
    try:
        return work(*held.values)
    except BaseException as error:  # raised again below
        stop = without_frames(error)
    raise stop


def without_frames(error: BaseException) -> BaseException:
    """The same error anew; of a foreign one only the type's name is left."""
    return Withheld(*error.args) if isinstance(error, Withheld) else bare(error, _WHEN)
