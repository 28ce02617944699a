"""Filters for log records, warnings and uncaught errors of isolated calls, by one context variable."""

from __future__ import annotations

import enum
import functools
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class Level(enum.IntEnum):
    """Nested contexts take the larger level."""

    OPEN = 0
    PRIVATE = 1
    QUIET = 2


level: ContextVar[Level] = ContextVar("langchain_dp_level", default=Level.OPEN)


class _DropQuietRecords(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return level.get() is not Level.QUIET


class _PassedOutside:
    """A process hook that acts as ``inside`` in isolated calls only."""

    def __init__(self, outside: Callable[..., Any], inside: Callable[..., Any] = lambda *_: None) -> None:
        self._outside, self._inside = outside, inside

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._inside if level.get() is Level.QUIET else self._outside)(*args, **kwargs)


class _DropQuietThreads:
    """A ``threading.excepthook`` that ignores threads of isolated calls."""

    def __init__(self, outside: Callable[[Any], object]) -> None:
        self._outside = outside

    def __call__(self, args: Any) -> None:
        if not hasattr(args.thread, _STARTED_QUIET):
            self._outside(args)


def _marking(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def marked(self: threading.Thread) -> None:
        if level.get() is Level.QUIET:
            setattr(self, _STARTED_QUIET, True)
        start(self)

    setattr(marked, _STARTED_QUIET, True)
    return marked


def _dropping(handle: Callable[[logging.Logger, logging.LogRecord], None]) -> Any:
    @functools.wraps(handle)
    def dropping(self: logging.Logger, record: logging.LogRecord) -> None:
        if level.get() is not Level.QUIET:
            handle(self, record)

    setattr(dropping, _DROPS, True)
    return dropping


_STARTED_QUIET = "_langchain_dp_started_quiet"
_DROPS = "_langchain_dp_drops"
_RECORDS = _DropQuietRecords()


def install() -> None:
    """Filter loggers and handlers: error reporters hook in between."""
    # These hooks run before any filter.
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, _PassedOutside):
        logging.setLogRecordFactory(_PassedOutside(factory, logging.LogRecord))
    for place, name in ((sys, "unraisablehook"), (warnings, "_showwarnmsg")):
        hook = getattr(place, name, None)
        if callable(hook) and not isinstance(hook, _PassedOutside):
            setattr(place, name, _PassedOutside(hook))
    if not isinstance(threading.excepthook, _DropQuietThreads):
        threading.excepthook = _DropQuietThreads(threading.excepthook)
    if not hasattr(threading.Thread.start, _STARTED_QUIET):
        threading.Thread.start = _marking(threading.Thread.start)  # type: ignore[method-assign,assignment]
    if not hasattr(logging.Logger.handle, _DROPS):  # a provider may create its logger in the call
        logging.Logger.handle = _dropping(logging.Logger.handle)  # type: ignore[method-assign]
    for logger in (logging.root, *logging.root.manager.loggerDict.copy().values()):
        for handler in getattr(logger, "handlers", ()):  # a place in the tree of loggers has none
            if _RECORDS not in handler.filters:
                handler.addFilter(_RECORDS)
    if logging.lastResort is not None and _RECORDS not in logging.lastResort.filters:
        logging.lastResort.addFilter(_RECORDS)
