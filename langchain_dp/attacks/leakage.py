"""Search a prompt for training rows (Hong et al. 2024, Figure 2)."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util import validate
from langchain_dp.attacks import checks
from langchain_dp.attacks.leak_report import LEAKED, LeakedSpan, LeakReport, NearestRow
from langchain_dp.attacks.singles import ComparedText, Frequent, Singles, frequent_words, given_words
from langchain_dp.attacks.words import Prompt, Rarity, bare, covered, weight, words_of
from langchain_dp.errors import InvalidParameter

Embed = Callable[[Sequence[str]], npt.ArrayLike]

Numbers = dict[tuple[int, int], dict[str, tuple[int, tuple[int, int]]]]

Matrix = npt.NDArray[np.float64]
_SIZES = (3, 4)  # of character n-grams

# A sentence ends, a line ends, or a cue begins a part of a forged example: "Input:", "# Student errors", "Output:".
_PIECE = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+|\s*(?:#+ ?)?\b[A-Z]\w*(?: [A-Z]\w*)?:\s|\s*#+ (?=\w)")


def find_leaks(
    prompt: str | Sequence[Any],
    rows: Sequence[Any],
    *,
    public: Sequence[str] = (),
    held_out: Sequence[Any] = (),
    shortest: int = 4,
    embed: Embed | None = None,
    ordinary: Sequence[str] | None = None,
    name: str = LEAKED,
) -> LeakReport:
    """Search a prompt for text of training rows.

    Words are compared without case, accents and punctuation. Without its public words, a common run counts if it has

    - at least ``shortest`` words, one of them no everyday word, or
    - one word less, two of them no everyday words and one rare (in one row, or in at most 1% of rows), or
    - the whole row, of at least two words, one of them no everyday word.

    Everyday words are English function words and those of a tenth of all rows. In writing without spaces, a letter is
    half a word.

    Nonpublic text in one row alone also counts if it is

    - a word beyond the 100,000 most frequent of English, a name beyond the first 10,000, or two neighboring names
      beyond the first 1,000. Names have a capital inside a sentence.
    - an unlisted word of five or more letters and digits, and no time, rank or size.
    - a number of six or more digits, four of them different, in any grouping.

    Args:
        prompt: The prompt, or released texts such as ``SyntheticExamples``.
        rows: Training rows: texts, or mappings with ``text``. Private.
        public: Text that the prompt may repeat, in runs of three words.
        held_out: Similar rows that are not behind the prompt. Findings in them are chance.
        shortest: Words that make a run, at least 2.
        embed: Texts to vectors, such as :class:`langchain_dp.attacks.SentenceEmbeddings`. None: character n-grams.
        ordinary: Ordinary words by frequency, by default GloVe's (extra ``rapt``). Without a list of the rows'
            language, single words are found only with digits.
        name: Name of the result.

    Raises:
        InvalidParameter: Texts are missing, or ``embed`` does not give one vector per text.

    Examples:
        >>> found = find_leaks(prompt, [row["text"] for row in rows], held_out=others)
        >>> found.rate, found.rate_by_chance
    """
    validate.integer("shortest", shortest, at_least=2)
    if not isinstance(prompt, (str, Sequence)):
        raise InvalidParameter(
            f"Expected prompt to be a str, not {type(prompt).__name__}. Give the text, such as message.content."
        )
    prompt = prompt if isinstance(prompt, str) else "\n\n".join(checks.texts_of("prompt", prompt))
    rows, held_out = checks.texts_of("rows", rows), checks.texts_of("held_out", held_out, at_least=0)
    public = checks.texts("public", public, at_least=0)
    if embed is not None:
        validate.function("embed", embed, of="a list of texts")
    training, others = _Rows(rows), _Rows(held_out)
    frequent = frequent_words() if ordinary is None else given_words(checks.texts("ordinary", ordinary, at_least=0))
    # Rarity is counted over both kinds of row, so that neither is favored.
    search = _Search(prompt, public, (training, others), shortest, frequent)
    spans, leaked = search.spans(training)
    return LeakReport(
        prompt, spans, search.spans(others)[0], search.nearest(training, others, embed), len(rows),
        len(held_out), search.own_starts, len(search.pieces()), name, frequent.name if search.read else "none",
        leaked,
    )  # fmt: skip


class _Rows:
    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.parsed = [ComparedText(text, words_of(text)) for text in texts]
        self.folded = [[word.folded for word in text.words] for text in self.parsed]

    @property
    def plain(self) -> list[str]:
        return [" ".join(words) for words in self.folded]


class _Search:
    def __init__(
        self, prompt: str, public: Sequence[str], kinds: Sequence[_Rows], shortest: int, frequent: Frequent
    ) -> None:
        rows = [row for kind in kinds for row in kind.folded]
        self._prompt = prompt
        self._words = words_of(prompt)
        self._folded = [word.folded for word in self._words]
        known = _Rows(public)
        self._public_words = {word for text in known.folded for word in text}
        self._public = covered(self._folded, known.folded, 3)
        self._shortest = shortest
        self._rarity = Rarity(rows)
        self._index = Prompt(self._folded, 2)
        self.read = frequent.reads(rows)
        self._singles = Singles(ComparedText(prompt, self._words), self._public, known.parsed, frequent, read=self.read)
        self._distinct = {tuple(map(bare, row)) for row in rows}  # a row that stands there twice is one
        self._holders = Counter(word for row in self._distinct for word in set(row))
        self._numbers_of = {kind: self._numbers_in(kind) for kind in kinds}

    @property
    def own_starts(self) -> frozenset[int]:
        return frozenset(word.start for word, known in zip(self._words, self._public, strict=True) if not known)

    def spans(self, rows: _Rows) -> tuple[tuple[LeakedSpan, ...], frozenset[int]]:
        runs: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
        for number, row in enumerate(rows.folded):
            for at, start, length in self._index.runs(row):
                if self._counts(at, at + length, whole=length == len(row)):
                    runs[at, at + length].append((number, start, length == len(row)))
            for at, start, length in self._alone(rows.parsed[number]):
                runs[at, at + length].append((number, start, length == len(row)))
        spans = [*(self._span(place, some, rows) for place, some in runs.items()), *self._numbers(rows)]
        leaked = frozenset(row for span in spans for row in span.rows)
        outer = {(span.start, span.end): span for span in reversed(spans)}  # the first of two in one place
        inner = {one for one in outer for other in outer if one != other and other[0] <= one[0] and one[1] <= other[1]}
        spans = [outer[place] for place in outer.keys() - inner]
        return tuple(sorted(spans, key=lambda span: (-span.bits, span.start))), leaked

    def _alone(self, row: ComparedText) -> list[tuple[int, int, int]]:
        runs: list[tuple[int, int, int]] = []
        for at, start, length, words in sorted(self._singles.words(row)):
            if not self._only(words):
                continue
            if runs and (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]) == (at, start):
                runs[-1] = (*runs[-1][:2], runs[-1][2] + length)
            else:
                runs.append((at, start, length))
        return runs

    def _only(self, words: str | tuple[str, str]) -> bool:
        if isinstance(words, str):
            return self._holders[words] == 1
        return sum(words in pairwise(row) for row in self._distinct) == 1

    def _numbers_in(self, rows: _Rows) -> Numbers:
        numbers: Numbers = defaultdict(dict)
        for place, row in enumerate(rows.parsed):
            for ours, theirs in self._singles.numbers(row):
                numbers[ours].setdefault(row.text, (place, theirs))
        return numbers

    def _numbers(self, rows: _Rows) -> list[LeakedSpan]:
        spans = []
        for (start, end), held in self._numbers_of[rows].items():
            within = {
                text
                for found in self._numbers_of.values()
                for (a, b), texts in found.items()
                if a <= start and end <= b
                for text in texts
            }
            if len(within) > 1:
                continue
            ((number, (row_start, row_end)),) = held.values()
            text = rows.texts[number]
            same = tuple(place for place, other in enumerate(rows.texts) if other == text)
            own = sum(start <= place < end for place in self.own_starts)
            most = self._rarity.most_bits
            spans.append(
                LeakedSpan(start, end, self._prompt[start:end], same, text, row_start, row_end, own, most, whole=False)
            )
        return spans

    def _counts(self, start: int, end: int, *, whole: bool) -> bool:
        own = self._own(start, end)
        everyday = self._rarity.common
        telling = [word for word in own if not (word in self._public_words or everyday(word) or word.isdecimal())]
        if not telling:
            return False
        rare = len(telling) >= 2 and any(map(self._rarity.rare, telling))
        return weight(own) >= self._shortest - rare or (whole and weight(own) >= 2)

    def _own(self, start: int, end: int) -> list[str]:
        return [self._folded[at] for at in range(start, end) if not self._public[at]]

    def _span(self, place: tuple[int, int], found: Sequence[tuple[int, int, bool]], rows: _Rows) -> LeakedSpan:
        first, last = self._words[place[0]], self._words[place[1] - 1]
        own = self._own(*place)
        found = sorted(found, key=lambda one: not one[2])  # the row that it is the whole of comes first
        row, at, whole = found[0]
        return LeakedSpan(
            first.start, last.end, self._prompt[first.start : last.end],
            tuple(dict.fromkeys(number for number, _, _ in found)), rows.texts[row],
            rows.parsed[row].words[at].start, rows.parsed[row].words[at + place[1] - place[0] - 1].end,
            len(own), sum(map(self._rarity.bits, own)), whole,
        )  # fmt: skip

    def nearest(self, rows: _Rows, held_out: _Rows, embed: Embed | None) -> tuple[NearestRow, ...]:
        pieces = _Rows(self.pieces())
        if not pieces.texts:
            return ()
        table = similarities(pieces.plain, [*rows.plain, *held_out.plain], embed)
        count = len(rows.texts)
        best = table[:, :count].argmax(axis=1)
        chance = table[:, count:].max(axis=1) if held_out.texts else np.full(len(best), np.nan)
        by_chance = [float(value) if held_out.texts else None for value in chance]
        nearest = [
            NearestRow(piece, int(row), rows.texts[row], float(table[i, row]), by_chance[i])
            for i, (piece, row) in enumerate(zip(pieces.texts, best, strict=True))
        ]
        return tuple(sorted(nearest, key=lambda row: -row.similarity))

    def pieces(self) -> list[str]:
        pieces, at = [], 0
        for cut in [*_PIECE.finditer(self._prompt), None]:
            end = len(self._prompt) if cut is None else cut.start()
            own = sum(
                at <= word.start < end and not known for word, known in zip(self._words, self._public, strict=True)
            )
            if own >= 3:
                pieces.append(self._prompt[at:end].strip())
            at = end if cut is None else cut.end()
        return pieces


def similarities(texts: Sequence[str], rows: Sequence[str], embed: Embed | None) -> Matrix:
    """Return cosine similarities, by default of character n-grams."""
    return _by_letters(texts, rows) if embed is None else _unit(embed, texts) @ _unit(embed, rows).T


def _unit(embed: Embed, texts: Sequence[str]) -> Matrix:
    vectors = validate.numbers("what embed returned", embed(list(texts)))
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise InvalidParameter(
            f"Expected embed to give one finite vector for each of {len(texts)} texts, but it gave an array of shape "
            f"{vectors.shape}."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _letters(text: str) -> Counter[str]:
    padded = [f" {word} " for word in text.split()]
    return Counter(word[i : i + size] for word in padded for size in _SIZES for i in range(len(word) - size + 1))


def _by_letters(texts: Sequence[str], rows: Sequence[str]) -> Matrix:
    counted = [_letters(row) for row in rows]
    row_counts = Counter(gram for row in counted for gram in row)
    weight = {gram: math.log((1 + len(rows)) / (1 + count)) + 1 for gram, count in row_counts.items()}
    rarest = math.log(1 + len(rows)) + 1  # of n-grams in no row
    index: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, text in enumerate(texts):
        values = {gram: math.sqrt(count) * weight.get(gram, rarest) for gram, count in _letters(text).items()}
        length = math.sqrt(sum(value**2 for value in values.values())) or 1.0
        for gram, value in values.items():
            index[gram].append((place, value / length))
    table = np.zeros((len(texts), len(rows)))
    for column, row in enumerate(counted):
        squares = 0.0
        for gram, count in row.items():
            value = math.sqrt(count) * weight[gram]
            squares += value**2
            for place, share in index.get(gram, ()):
                table[place, column] += share * value
        table[:, column] /= math.sqrt(squares) or 1.0
    return table
