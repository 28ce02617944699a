"""Chunks in, sanitised chunks out: what may leave early does, everything else is gathered first."""

from __future__ import annotations

from typing import Any

from langchain_dp.rapt.core import Core
from langchain_dp.rapt.streams import TextStream

NOTHING: Any = object()
"""Stands for no chunk at all; None is a chunk, and refused."""


class Streaming:
    """One stream. No I/O of its own, so that sync and async callers drive the same thing.

    A stream of one chunk is a whole input, as every chain makes it of a plain call, and is released like one: from
    what was released before, if it was.

    Args:
        core: Releases.
        user: Whose account is charged.
        document: Which document the stream is, for its account.
    """

    def __init__(self, core: Core, user: str | None, document: str | None) -> None:
        self._core = core
        self._user = user
        self._document = document
        self._gathered: Any = NOTHING
        self._text: TextStream | None = None

    def push(self, chunk: Any) -> list[Any]:
        """Take a chunk and return what leaves now."""
        if self._text is not None:
            return list(self._text.push(chunk))
        if self._gathered is NOTHING:
            self._gathered = chunk
            return []
        if isinstance(self._gathered, str) and isinstance(chunk, str) and self._core.streams(self._document):
            self._text = self._core.stream(self._user, self._document)
            return list(self._text.push(self._gathered + chunk))
        self._gathered = _added(self._gathered, chunk)
        return []

    def finish(self) -> list[Any]:
        """Return the rest."""
        if self._text is not None:
            return list(self._text.finish())
        if self._gathered is NOTHING:
            return []
        return [self._core.sanitise(self._gathered, self._user, self._document)]


def _added(before: Any, chunk: Any) -> Any:
    """Chunks that cannot be added replace one another, as everywhere in LangChain."""
    try:
        return before + chunk
    except TypeError:
        return chunk
