"""Exceptions that leave the engine empty-handed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from langchain_dp.errors import LangChainDPError, ModelUnavailable

P = ParamSpec("P")
T = TypeVar("T")

_CONTROL = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


def emptied(method: Callable[P, T]) -> Callable[P, T]:
    """Return ``method`` so that what it raises holds no frame, context or text of what it was given.

    Error reporters read the locals of each frame of a traceback, and exceptions of a codec carry the text itself. The
    errors of this package, which hold public values only, come out with their messages, Ctrl-C and its kin as new
    and empty ones, anything else as ModelUnavailable.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # raised again below, empty
            stop = _empty(error)
        del args, kwargs
        raise stop from None

    return call


def _empty(error: BaseException) -> BaseException:
    if isinstance(error, LangChainDPError):
        return type(error)(*error.args)
    if isinstance(error, SystemExit):
        return SystemExit(error.code if isinstance(error.code, int) or error.code is None else 1)
    for kind in _CONTROL:
        if isinstance(error, kind):
            return kind()
    return ModelUnavailable(f"The engine failed with {type(error).__name__}; its text is withheld. Build it anew.")
