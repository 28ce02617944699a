"""How an object prints whose making was refused: what reports the error reads it, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def also_unmade(show: Callable[[T], str]) -> Callable[[T], str]:
    """A ``__repr__`` that stands an object without its attributes.

    Error reporters print the locals of each frame, ``self`` among them: without this the error of a ``__init__`` is
    lost in an AttributeError.
    """

    @functools.wraps(show)
    def shown(self: T) -> str:
        try:
            return show(self)
        except AttributeError:
            return f"{type(self).__name__}(not made)"

    return shown
