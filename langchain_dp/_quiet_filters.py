"""Filters that drop log records and warnings born inside a quiet call, and let everything else pass.

Provider clients log request bodies at DEBUG, and warnings may quote what they warn about. Both filters ask one
context variable, so they concern the calling thread or task only; outside a quiet call they do nothing, which is
why they may stay in place.
"""

from __future__ import annotations

import enum
import logging
import warnings
from contextvars import ContextVar
from typing import Any, cast


class Level(enum.IntEnum):
    """How much the current context hides. Nested contexts take the larger level."""

    OPEN = 0
    PRIVATE = 1
    QUIET = 2


level: ContextVar[Level] = ContextVar("langchain_dp_level", default=Level.OPEN)


class _DropQuietRecords(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return level.get() is not Level.QUIET


class _MatchesWhenQuiet:
    """Stands where ``warnings.filters`` has a regular expression: only its ``match`` is ever called."""

    def match(self, text: str) -> bool:
        return level.get() is Level.QUIET


_RECORDS = _DropQuietRecords()
_WARNINGS: tuple[Any, ...] = ("ignore", _MatchesWhenQuiet(), Warning, None, 0)


def install() -> None:
    """Put both filters in front of every logger, handler and warning filter that exists now.

    Loggers are filtered as well as handlers, because error reporters hook in between the two. A logger and its
    handler that are both created during the call are the gap; so each call installs anew.
    """
    # One look per logger instead of addFilter's own: a big application has hundreds.
    for logger in (logging.root, *logging.root.manager.loggerDict.copy().values()):
        if isinstance(logger, logging.Logger):
            if _RECORDS not in logger.filters:
                logger.addFilter(_RECORDS)
            for handler in logger.handlers:
                if _RECORDS not in handler.filters:
                    handler.addFilter(_RECORDS)
    if logging.lastResort is not None and _RECORDS not in logging.lastResort.filters:
        logging.lastResort.addFilter(_RECORDS)
    # catch_warnings() swaps the list per thread of control and cannot be used here: it is not thread-safe.
    filters = cast("list[Any]", warnings.filters)
    if not filters or filters[0] is not _WARNINGS:
        filters.insert(0, _WARNINGS)
