"""Text that arrives in pieces, sanitized as its words are complete.

A word, and a date of several words, must be whole before it can be privatized. So text is held back until two whole
words follow it: then every date shows itself ("12 of" is none yet, "12 of May" is), and nothing else that belongs
together has space in it, but code between fences. What is then joined is what one release of the whole text would have
joined, word for word and mark for mark.

What leaves comes out one piece at a time. Where the raw text has its spaces does not show in what the chunks are: a
stretch between two of them may hold several tokens ("well-known" has three), and a chunk for each stretch would say so.
It shows in when they come, as far as the pieces that were fed in show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from langchain_dp.rapt import tokenize

_SPACE = re.compile(r"[ \n\t\r]+")
_HELD = 2  # whole words after a cut


class TextStream:
    """One text, fed in pieces; each piece of it is released once.

    Args:
        pieces: Releases a stretch of text that no feature crosses, as pieces for ``tokenize.join``.
    """

    def __init__(self, pieces: Callable[[str], Sequence[str]]) -> None:
        self._pieces = pieces
        self._text = ""
        self._waiting: list[str] = []
        self._last: list[str] = []
        self._quoted = False

    def push(self, text: str) -> list[str]:
        """Take the next piece of the text and return what may leave by now."""
        self._text += text
        cut = _last_cut(self._text)
        if not cut:
            return []
        ready, self._text = self._text[:cut], self._text[cut:]
        return self._each(self._pieces(ready))

    def finish(self) -> list[str]:
        """Return the rest."""
        rest, self._text = self._text, ""
        last = [*self._each(self._pieces(rest)), self._join([], end=True)]
        return [chunk for chunk in last if chunk]

    def _each(self, pieces: Sequence[str]) -> list[str]:
        """A chunk for each piece that has something to write by now."""
        return [chunk for piece in pieces if (chunk := self._join([piece], end=False))]

    def _join(self, pieces: Sequence[str], *, end: bool) -> str:
        pieces = [*self._waiting, *pieces]
        # The spacing around an apostrophe hangs on the piece after it.
        self._waiting = [pieces.pop()] if pieces and pieces[-1] == "'" and not end else []
        if not pieces:
            return ""
        # The spacing before a piece hangs on the one before, and on whether a quotation is open there.
        before = [*(['"'] if self._quoted else []), *self._last]
        joined = tokenize.join([*before, *pieces])[len(tokenize.join(before)) :]
        self._quoted ^= [*self._last, *pieces[:-1]].count('"') % 2 == 1
        self._last = [pieces[-1]]
        return joined


def _last_cut(text: str) -> int:
    """Where the part of ``text`` ends that no further text can change; 0 if there is none."""
    spaces = [match.start() for match in _SPACE.finditer(text)]
    # After the last possible cut come so many words, each with space behind it.
    candidates = spaces[:-_HELD] if len(spaces) > _HELD else []
    if not candidates:
        return 0
    crossed = [(feature.start, feature.end) for feature in tokenize.features(text, code=False)]
    while candidates:
        cut = candidates.pop()
        while crossed and crossed[-1][0] >= cut:
            crossed.pop()
        if not crossed or crossed[-1][1] <= cut:
            return cut
    return 0
