"""Single words that reveal a row."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from langchain_dp.attacks.words import FUNCTION_WORDS, Prompt, Word, bare, folded
from langchain_dp.errors import InvalidParameter, MissingExtra

_FREQUENT, _NAME, _NAMES = 100_000, 10_000, 1_000  # ranks from which a word, a name and two names are rare
_SHORTEST = 3  # letters of a rare word
_MIXED = 5  # letters and digits of a word that has both
_CHUNK = 6  # the same with other characters between them
_DIGITS, _DIFFERENT = 6, 4  # digits of a number, and different ones: 1,000,000 and 2020 2021 reveal nobody
_LANGUAGE = 0.6  # share of the rows' running words that a list of their language holds
_COUNTED = re.compile(r"\d{1,4}(?:st|nd|rd|th|s|am|pm|k|m|x|mg|kg|km|cm|mm|min|h)")
_NUMBER = re.compile(r"\d(?:[\W_]{0,5}\d)*")
_CHUNKS = re.compile(r"\w(?:\S*\w)?")
_ENDS = re.compile(r"(?:^|[.!?:\n\"\u201c(\[>*#|])\s*$")


@dataclasses.dataclass(frozen=True)
class Frequent:
    """Ordinary words by rank."""

    name: str
    ranks: Mapping[str, int]

    def rank(self, word: str) -> int:
        return self.ranks.get(word.split("'")[0], _FREQUENT)

    def reads(self, texts: Sequence[Sequence[str]]) -> bool:
        words = [word for text in texts for word in text]
        return bool(self.ranks) and sum(self.rank(word) < _FREQUENT for word in words) >= _LANGUAGE * len(words)


@functools.cache  # of a file that does not change: a search of many answers reads it once
def frequent_words() -> Frequent:
    from langchain_dp.rapt._tables import installed_words  # a search for runs does without

    try:
        words = installed_words("glove", _FREQUENT)
    except (MissingExtra, InvalidParameter):
        return Frequent("none", {})
    return dataclasses.replace(given_words(words), name=f"glove, first {len(words):,}")


def given_words(words: Sequence[str]) -> Frequent:
    ranks: dict[str, int] = {}
    for place, word in enumerate(words):
        ranks.setdefault(folded(word), place)
    return Frequent(f"{len(ranks):,} given words", ranks)


@dataclasses.dataclass(frozen=True, repr=False)
class ComparedText:
    """A text with its comparable parts."""

    text: str
    words: Sequence[Word]

    @functools.cached_property
    def digits(self) -> tuple[list[str], list[int]]:
        digits, places = [], []
        for number in _NUMBER.finditer(self.text):
            for at in range(number.start(), number.end()):
                if self.text[at].isdecimal():
                    digits.append(str(unicodedata.decimal(self.text[at])))
                    places.append(at)
            digits.append("")
            places.append(number.end())
        return digits, places

    @functools.cached_property
    def chunks(self) -> dict[str, tuple[int, int]]:
        """Places of chunks that mix letters and digits."""
        spans = {}
        for chunk in _CHUNKS.finditer(self.text):
            joined = "".join(filter(str.isalnum, folded(chunk[0])))
            if len(joined) >= _CHUNK and mixed(joined):
                spans[joined] = chunk.span()
        return spans

    @functools.cached_property
    def names(self) -> frozenset[int]:
        """Places of words with a capital inside a sentence."""
        capital = [self.text[word.start].isupper() for word in self.words]
        if 2 * sum(capital) > len(capital) > 4:
            return frozenset()
        return frozenset(
            place
            for place, word in enumerate(self.words)
            if capital[place] and not _ENDS.search(self.text[max(0, word.start - 8) : word.start])
        )

    def widened(self, start: int, end: int) -> tuple[int, int]:
        touched = [word for word in self.words if word.start < end and start < word.end]
        return min([start, *(word.start for word in touched)]), max([end, *(word.end for word in touched)])


def mixed(word: str) -> bool:
    return (
        len(word) >= _MIXED
        and any(map(str.isdigit, word))
        and any(map(str.isalpha, word))
        and not _COUNTED.fullmatch(word)
    )


class Singles:
    """Words of a prompt that reveal a row by themselves."""

    def __init__(
        self,
        prompt: ComparedText,
        public: Sequence[bool],  # of each word
        public_texts: Sequence[ComparedText],
        frequent: Frequent,
        *,
        read: bool,  # whether the list is of the rows' language
    ) -> None:
        self._prompt = prompt
        self._public = public
        self._known = {bare(word.folded) for text in public_texts for word in text.words}
        self._frequent = frequent
        self._read = read
        self._digits = Prompt([digit or "|" for digit in prompt.digits[0]], _DIGITS)  # no run crosses two numbers
        self._known_digits = ["".join(digit or " " for digit in text.digits[0]) for text in public_texts]
        self._known_chunks = {chunk for text in public_texts for chunk in text.chunks}
        self._places: dict[str, list[int]] = {}
        for place, word in enumerate(prompt.words):
            if not public[place] and bare(word.folded) not in self._known | FUNCTION_WORDS:
                self._places.setdefault(bare(word.folded), []).append(place)

    def words(self, row: ComparedText) -> Iterator[tuple[int, int, int, str | tuple[str, str]]]:
        for start, word in enumerate(row.words):
            one = bare(word.folded)
            for at in self._places.get(one, ()):
                if self._tells(one, name=start in row.names and at in self._prompt.names):
                    yield at, start, 1, one
                if self._two_names(at, start, row):
                    yield at, start, 2, (one, bare(row.words[start + 1].folded))

    def _tells(self, word: str, *, name: bool) -> bool:
        if any(map(str.isdigit, word)):
            return mixed(word) and self._frequent.rank(word) >= (_FREQUENT if self._read else 0)
        rare = _NAME if name else _FREQUENT
        return self._read and len(word) >= _SHORTEST and self._frequent.rank(word) >= rare

    def _two_names(self, at: int, start: int, row: ComparedText) -> bool:
        if not (self._read and {start, start + 1} <= row.names and {at, at + 1} <= self._prompt.names):
            return False
        second = bare(row.words[start + 1].folded)
        if at + 1 not in self._places.get(second, ()):
            return False
        return max(self._frequent.rank(word) for word in (row.words[start].folded, second)) >= _NAMES

    def numbers(self, row: ComparedText) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        ours, places = self._prompt.digits
        if len(ours) <= _DIGITS and not self._prompt.chunks:
            return
        theirs, rows_places = row.digits
        for at, start, length in self._digits.runs(theirs):
            run = "".join(ours[at : at + length])
            if len(set(run)) >= _DIFFERENT and not any(run in known for known in self._known_digits):
                yield (
                    self._prompt.widened(places[at], places[at + length - 1] + 1),
                    row.widened(rows_places[start], rows_places[start + length - 1] + 1),
                )
        for chunk in self._prompt.chunks.keys() & row.chunks.keys() - self._known_chunks:
            spans = self._prompt.chunks[chunk], row.chunks[chunk]
            if any(end - start > len(chunk) for start, end in spans):  # else it is one word in both
                yield spans
