"""Folds a text, so that recognizers read one form of all spellings, with a map back."""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from urllib.parse import unquote

Span = tuple[int, int, str]
"""Start, end, kind."""

_MOST_DECODINGS = 4  # "\\\\u0040", "&amp;#64;" and "%2540" are decoded twice
_MOST_MARKS = 30  # combining marks per letter. More would take quadratic time
_IGNORED = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\U000e0000-\U000e0fff]"
)
_JAMO = re.compile("[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?")
_ALIKE = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d", "-"),
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02b9\u02bb\u02bc\u02bd\u0060\u00b4\uff07", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\uff02", '"'),
}
_CHANGES = re.compile(f"{_IGNORED.pattern}|[{''.join(_ALIKE)}]")
_ENCODED = re.compile(
    r"""(?<!\\)\\++(?:u[dD][89abAB][0-9a-fA-F]{2}\\++u[dD][c-fC-F][0-9a-fA-F]{2}  # two halves of one character
              |u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|["'/])
    |(?<!\\)\\++[nrt]
    |&(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});
    |%(?:[0-7][0-9a-fA-F]|[c-dC-D][0-9a-fA-F]%[89abAB][0-9a-fA-F]|[eE][0-9a-fA-F](?:%[89abAB][0-9a-fA-F]){2}
        |[fF][0-7](?:%[89abAB][0-9a-fA-F]){3})""",
    re.VERBOSE,
)
_BREAK = re.compile(r"(?<!\\)\\++[nrt]")
_DOUBLED = re.compile(r"(?<!\\)\\(?=\\+[uUx])")
_HEXADECIMAL = re.compile(r"[uUx]\{?([0-9a-fA-F]+)")
_SAME = dict.fromkeys(map(ord, "\t\n\r\x0b\x0c"), " ") | {0x130: "i", 0x131: "i"}  # in Turkish, i is dotted or not
_UNUSUAL = re.compile(r"[\s\x1c-\x1f]{2,}|[^\S ]|`|[^\x00-\x7f]|[\x00-\x08\x0e-\x1f\x7f]")
_RUN = re.compile(
    rf"(?P<blank>(?:{_IGNORED.pattern})*+[\s\x1c-\x1f](?:[\s\x1c-\x1f]|{_IGNORED.pattern})*+)"
    r"|`|.?[^\x00-\x7f\s]++|[\x00-\x08\x0e-\x1f\x7f]",
    re.DOTALL,
)


class Folded:
    """A folded copy of a text, with the position of each character in the text."""

    def __init__(self, text: str, starts: Sequence[int] | None = None, ends: Sequence[int] | None = None) -> None:
        self.text = text
        self._starts = starts
        self._ends = ends

    def span(self, start: int, end: int) -> tuple[int, int]:
        if self._starts is None or self._ends is None or not 0 <= start < end <= len(self.text):
            return start, end
        return self._starts[start], self._ends[end - 1]

    def replaced(self, changes: Iterable[tuple[int, int, str]]) -> Folded:
        starts = range(len(self.text)) if self._starts is None else self._starts
        ends = range(1, len(self.text) + 1) if self._ends is None else self._ends
        text, new_starts, new_ends, position = [], [], [], 0
        for start, end, new in changes:
            text += [self.text[position:start], new]
            new_starts += [*starts[position:start], *[starts[start]] * len(new)]
            new_ends += [*ends[position:start], *[ends[end - 1]] * len(new)]
            position = end
        if not position:
            return self
        text.append(self.text[position:])
        return Folded("".join(text), [*new_starts, *starts[position:]], [*new_ends, *ends[position:]])


def readings(text: str) -> list[Folded]:
    """Return the copies of a text that recognizers read: encodings are ambiguous.

    The first decodes all, the second no line breaks, the third no doubled backslash. The last is the text itself.
    """
    copies = [_decoded(text)]
    if _BREAK.search(text):
        copies.append(_decoded(text, breaks=False))
    if _DOUBLED.search(text):
        copies.append(_decoded(text, doubled=False))
    copies = [*map(_one_form, copies), Folded(text)]
    return list({copy.text: copy for copy in reversed(copies)}.values())[::-1]


def fold(text: str) -> str:
    """Return a form equal for all spellings of one entity, except case."""
    return " ".join(_one_form(_decoded(text)).text.split())


def caseless(text: str) -> Folded:
    lower = text.translate(_SAME).casefold()
    if len(lower) == len(text) and "\u0307" not in lower:
        return Folded(lower)
    copy = Folded(text)
    return copy.replaced((place, place + 1, new) for place, one in enumerate(text) if (new := _small(one)) != one)


@lru_cache(4096)
def _small(letter: str) -> str:
    return letter.translate(_SAME).casefold().replace("\u0307", "")


def united(text: str, find: Callable[[str], Iterable[Span]]) -> list[Span]:
    """Find entities in every reading of a text, and return their spans in the text.

    A later span counts unless, without cut characters, the first reading covers it.
    """
    first, *others = readings(text)
    spans = [(*first.span(start, end), kind) for start, end, kind in find(first.text)]
    if not others:
        return spans
    encoded = [match.span() for match in _ENCODED.finditer(text)]
    covered = merged(spans, touching=True)
    for other in others:
        for start, end, kind in find(other.text):
            start, end = other.span(start, end)
            begin, last = _without_cut(start, end, encoded)
            place = bisect_right(covered, begin, key=lambda span: span[0]) - 1
            if place < 0 or last > covered[place][1]:
                spans.append((start, end, kind))
    return spans


def _without_cut(start: int, end: int, encoded: Sequence[tuple[int, int]]) -> tuple[int, int]:
    place = bisect_right(encoded, (start, start))
    if place and encoded[place - 1][0] < start < encoded[place - 1][1] < end:
        start = encoded[place - 1][1]
    place = bisect_left(encoded, (end, end))
    if place and start < encoded[place - 1][0] < end < encoded[place - 1][1]:
        end = encoded[place - 1][0]
    return start, end


def merged(spans: Iterable[Span], *, touching: bool = False) -> list[Span]:
    """Join overlapping (or touching) spans under the longest one's kind."""
    whole: list[Span] = []
    widest = 0
    for start, end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if whole and start < whole[-1][1] + touching:
            first, last, kept = whole[-1]
            whole[-1] = first, max(last, end), kept if widest >= end - start else kind
            widest = max(widest, end - start)
        else:
            whole.append((start, end, kind))
            widest = end - start
    return whole


def _decoded(text: str, *, breaks: bool = True, doubled: bool = True) -> Folded:
    copy = Folded(text)
    if not doubled:
        copy = copy.replaced((match.start(), match.end(), "\\ ") for match in _DOUBLED.finditer(text))
    for _ in range(_MOST_DECODINGS):
        changes = [
            (match.start(), match.end(), new)
            for match in _ENCODED.finditer(copy.text)
            if (breaks or not _BREAK.fullmatch(match[0])) and (new := _decode(match[0])) != match[0]
        ]
        if not changes:
            break
        copy = copy.replaced(changes)
    return copy


def _decode(code: str) -> str:
    if code[0] == "&":
        return html.unescape(code)
    if code[0] == "%":
        try:
            return unquote(code, errors="strict")
        except UnicodeDecodeError:
            return code
    if code[-1] in "nrt" and _BREAK.fullmatch(code):
        return "\t" if code[-1] == "t" else "\n"
    values = [int(one, 16) for one in _HEXADECIMAL.findall(code)]
    if not values:
        return code[-1]
    if len(values) == 2:
        return chr(0x10000 + ((values[0] - 0xD800) << 10) + values[1] - 0xDC00)
    return chr(values[0]) if values[0] < 0x110000 else code


def _one_form(copy: Folded) -> Folded:
    if not _UNUSUAL.search(copy.text):
        return copy
    changes: list[tuple[int, int, str]] = []
    for match in _RUN.finditer(copy.text):
        run, start = match[0], match.start()
        if match["blank"]:
            new = "\n" if any(one in "\n\r\x0b\x0c\x85\u2028\u2029" for one in run) else " "
            if new != run:
                changes.append((start, match.end(), new))
        elif run.isascii():
            changes.append((start, match.end(), "'" if run == "`" else " "))
        elif _CHANGES.search(run) or not unicodedata.is_normalized("NFKC", run):
            changes += [(start + first, start + last, new) for first, last, new in _characters(run)]
    return copy.replaced(changes)


def _characters(run: str) -> Iterable[tuple[int, int, str]]:
    seen = [place for place, one in enumerate(run) if not _IGNORED.match(one)]
    position = number = 0
    while number < len(seen):
        start, last = seen[number], number + 1
        most = min(len(seen), last + _MOST_MARKS)
        while last < most and unicodedata.combining(run[seen[last]]):
            last += 1
        if "\u1100" <= run[start] <= "\u1112":  # the first part of a Korean syllable
            syllable = _JAMO.match("".join(run[place] for place in seen[number : number + 3]))
            last = max(last, number + len(syllable[0]) if syllable else 0)
        end = seen[last - 1] + 1
        letters = run[start] if last == number + 1 else "".join(run[place] for place in seen[number:last])
        new = _looks(letters)
        if start > position or new != run[start:end]:
            yield position, end, new
        position, number = end, last
    if position < len(run):
        yield position, len(run), ""


@lru_cache(4096)
def _looks(letters: str) -> str:
    if letters in _ALIKE:
        return _ALIKE[letters]
    if len(letters) == 1 and unicodedata.decomposition(letters).startswith(("<super>", "<sub>")):
        return " "  # a footnote number is no part of a name
    return unicodedata.normalize("NFKC", letters)
