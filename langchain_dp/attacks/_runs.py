"""Runs of words that a prompt and a row have in common. Exact: every maximal run is found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence


class Prompt:
    """The words of a prompt, indexed by their n-grams.

    Args:
        words: Folded words.
        shortest: Fewest words of a run, at least 1.
    """

    def __init__(self, words: Sequence[str], shortest: int) -> None:
        self._words = words
        self._shortest = shortest
        self._places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for at in range(len(words) - shortest + 1):
            self._places[tuple(words[at : at + shortest])].append(at)

    def runs(self, row: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """Maximal common runs as (first word in the prompt, first word in the row, number of words)."""
        for start in range(len(row) - self._shortest + 1):
            for at in self._places.get(tuple(row[start : start + self._shortest]), ()):
                if start and at and row[start - 1] == self._words[at - 1]:
                    continue  # part of a run that was found
                length = self._shortest
                while (
                    start + length < len(row)
                    and at + length < len(self._words)
                    and row[start + length] == self._words[at + length]
                ):
                    length += 1
                yield at, start, length


def covered(words: Sequence[str], texts: Sequence[Sequence[str]], shortest: int) -> list[bool]:
    """Which words stand in a run of at least ``shortest`` words that one of ``texts`` holds too, or are all of it."""
    known = [False] * len(words)
    for text in texts:
        for at, _, length in Prompt(words, min(shortest, len(text)) or 1).runs(text):
            known[at : at + length] = [True] * length
    return known
