"""Repetitions of the request in a written text. Uses public and released text alone, so it is free."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RUN = 4
"""Words in a row that nobody writes twice by accident."""
Run = tuple[str, ...]


class Echo:
    """Detects texts that repeat a request, and texts that are about to.

    No text may share four consecutive words with an ``asked`` text, unless ``known`` has them too, or contain one of
    the ``headings`` in any case.

    Examples:
        >>> echo = Echo(["Read how the student did."], headings=["Input:"])
        >>> echo("Say how the student did"), echo("Say how the student failed"), echo.near("Say how the student")
        (True, False, True)
    """

    def __init__(self, asked: Iterable[str] = (), *, known: str = "", headings: Iterable[str] = ()) -> None:
        self._runs = frozenset(run for text in asked for run in _runs(_words(text))) - _runs(_words(known))
        self._begun = frozenset(run[:-1] for run in self._runs)
        self._headings = tuple(text.casefold() for text in headings)
        self._openings = tuple(part for text in self._headings for part in _openings(text))

    def __call__(self, text: str) -> bool:
        """Return whether the text repeats the request."""
        folded = " ".join(text.casefold().split())
        return any(heading in folded for heading in self._headings) or not self._runs.isdisjoint(_runs(_words(folded)))

    def near(self, text: str) -> bool:
        """Return whether the next token, a word or a piece of one, may make the text repeat."""
        words = _words(text)
        if words and self._begun.intersection([tuple(words[1 - _RUN :]), tuple(words[-_RUN:-1])]):
            return True
        return any(map(text.casefold().rstrip().endswith, self._openings))


def _openings(heading: str) -> list[str]:
    """Return the beginnings of a heading that one more token may complete."""
    least = len(re.sub(r"(\w+|[^\w\s])$", "", heading).rstrip())
    return [heading[:at].rstrip() for at in range(max(least, 1), len(heading))]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _runs(words: list[str]) -> frozenset[Run]:
    return frozenset(tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1))
