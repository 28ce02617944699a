"""Words, their rarity, and common runs."""

from __future__ import annotations

import dataclasses
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from langchain_dp._util.words import UNSPACED

# Letters may have loose accents, and invisible characters between them. An underline is no letter.
_ACCENTS = r"\u0300-\u036f"
_HIDDEN = r"\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
_LETTERS = rf"(?:(?![{UNSPACED}])[^\W_]|[{_ACCENTS}])+"
_WORD = re.compile(rf"[{UNSPACED}]|{_LETTERS}(?:(?:'|[{_HIDDEN}]+){_LETTERS})*")
_UNSEEN = re.compile(rf"[{_ACCENTS}{_HIDDEN}]")
_UNSPACED = re.compile(rf"[{UNSPACED}]")
_APOSTROPHES = str.maketrans("\u2019\u02bc\u2018", "'''")
# Letters that Unicode does not decompose.
_STROKES = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "ħ": "h", "\u0131": "i", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th"}
)

_FUNCTION = (
    "a about after again all also am an and any are as at back be because been before being but by can could did "
    "do does down each even every first for from get go got had has have he her here him his how i if in into is "
    "it its just me more most much my never no not now of off on one only or other our out over own re s same she "
    "should so some still such t than that the their them then there these they this those through to too two "
    "under until up us very was we well were what when where which while who why will with would you your don't "
    "didn't wasn't isn't it's i'm"
)

FUNCTION_WORDS = frozenset(_FUNCTION.split())


@dataclasses.dataclass(frozen=True, repr=False)
class Word:
    """A folded word."""

    folded: str
    start: int
    end: int  # one past the last character


def words_of(text: str) -> list[Word]:
    return [
        Word(folded(found[0]), found.start(), found.end()) for found in _WORD.finditer(text.translate(_APOSTROPHES))
    ]


def weight(words: Iterable[str]) -> float:
    return sum(0.5 if _UNSPACED.fullmatch(word) else 1.0 for word in words)


def bare(word: str) -> str:
    return word.removesuffix("'s")


def folded(text: str) -> str:
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold()))
    return unicodedata.normalize("NFKC", seen.translate(_STROKES))


class Rarity:
    """Rarity of words."""

    def __init__(self, texts: Sequence[Iterable[str]]) -> None:
        self._count = len(texts)
        self._found = Counter(word for text in texts for word in set(text))

    @property
    def most_bits(self) -> float:
        return math.log2((self._count + 1) / 2)

    def bits(self, word: str) -> float:
        if word in FUNCTION_WORDS:
            return 0.0
        return math.log2((self._count + 1) / (self._found[word] + 1)) if self._found[word] < self._count else 0.0

    def rare(self, word: str) -> bool:
        return word not in FUNCTION_WORDS and self._found[word] <= max(1, self._count // 100)

    def common(self, word: str) -> bool:
        return word in FUNCTION_WORDS or (self._count >= 100 and 10 * self._found[word] >= self._count)


class Prompt:
    """Words of a prompt."""

    def __init__(self, words: Sequence[str], shortest: int) -> None:
        self._words = words
        self._shortest = shortest
        self._places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for at in range(len(words) - shortest + 1):
            self._places[tuple(words[at : at + shortest])].append(at)

    def runs(self, row: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """Yield (place in the prompt, place in the row, length)."""
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
    known = [False] * len(words)
    for text in texts:
        for at, _, length in Prompt(words, min(shortest, len(text)) or 1).runs(text):
            known[at : at + length] = [True] * length
    return known
