"""Cuts a text into features (words, numbers, dates, addresses, marks, code) by public rules, and joins words."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

Kind = Literal["word", "number", "date", "url", "punctuation", "code"]


_MONTH = (  # casing is ignored in months only: elsewhere a k would match the Kelvin sign
    r"(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
# No part of a word: space and control characters, marks and symbols, characters that are words by themselves (Han,
# kana, fractions, a few signs), and pictographs. All others make words. A mark may be kept in clear, so braille,
# circled and letterlike symbols, which stand for letters and digits, make words.
_MARKS = (
    r"!-/:-@\[-`{-~\xa1-\xa9\xab\xac\xae-\xb1\xb4\xb6-\xb8\xbb\xbf\xd7\xf7\u055a-\u055f\u0589\u05be\u05c0\u05c3\u05f3\u05f4"
    r"\u060c\u060d\u061b\u061e\u061f\u066a-\u066d\u06d4\u0964\u0965\u0e4f\u0e5a\u0e5b\u104a-\u104f\u1360-\u1368"
    r"\u2010-\u2027\u2030-\u205e\u20a0-\u20a7\u20a9-\u20c0\u2190-\u22ff\u2308-\u230b\u2329\u232a\u2500-\u25ff"
    r"\u27c0-\u27ff\u2900-\u2aff\u3001-\u3003\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    r"\uff5b-\uff65\uffe0-\uffe6\uffe8-\uffee"
)
_ALONE = (
    r"\xbc-\xbe\u2103\u2109\u2116\u2120\u2122\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_PICTURE = r"\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_TONE = r"[\ufe0f\U0001f3fb-\U0001f3ff]"
_SPACE = r"\s\x00-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
_LETTER = rf"[^{_SPACE}{_MARKS}{_ALONE}{_PICTURE}]"
_CODE = r"(?P<code>```(?s:.*?)```|(?<![\w`])`[^`\n]+`(?![\w`]))"  # an open fence, or an apostrophe, begins no code
_FEATURES = rf"""
  (?P<url>(?i:(?:https?|ftp)://|www\.)[^\s<>"]{{0,2047}}[^\s<>".,;:!?)\]]
    |[\w.+-]{{1,64}}@[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{1,8}})
| (?P<date>\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?!\d)|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}})(?!\d)
    |{_DAY}\ (?:of\ )?{_MONTH}\b\.?(?:,?\ \d{{4}}\b)?|{_MONTH}\.?\ {_DAY}\b(?:,?\ \d{{4}}\b)?)
| (?P<number>\d+(?:[.,:/]\d+)*(?!{_LETTER}))
| (?P<picture>[\U0001f1e6-\U0001f1ff]{{2}}|[{_PICTURE}]{_TONE}?(?:\u200d[{_PICTURE}]{_TONE}?)*)
| (?P<word>(?:[^\W\d_]\.){{2,}}|{_LETTER}+(?:['\u2019\-_&.]{_LETTER}+)*|[{_ALONE}])
| (?P<punctuation>\.{{2,3}}|-{{2,3}}|''|``|[{_MARKS}])
"""
GLUE = "\x00"
"""Continues the piece before. It counts as space, so no feature holds it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENDINGS = ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m")
_WIDE_CLOSING = "\u2026\u3001\u3002\uff0c\uff01\uff1f\uff1b\uff1a\uff09\u300d\u300f"
_NO_SPACE_BEFORE = frozenset([*",.;:!?)]}%", *_WIDE_CLOSING, "...", "''", *_ENDINGS])
_NO_SPACE_AFTER = frozenset("([{$\xa3\u20ac#@\uff08\u300c\u300e")
_STRAIGHT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "--", "\u2014": "--"})


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """A part of a text."""

    kind: Kind
    start: int
    end: int


@cache
def _pattern(code: bool) -> re.Pattern[str]:
    return re.compile(f"{_CODE}|{_FEATURES}" if code else _FEATURES, re.VERBOSE)


def clean(text: str) -> str:
    """Replace lone surrogates, which no vocabulary can hold."""
    return _SURROGATE.sub("\ufffd", text)


def features(text: str, *, code: bool = True) -> Iterator[Feature]:
    for match in _pattern(code).finditer(text):
        name = match.lastgroup
        kind: Kind = "word" if name in (None, "picture") else name  # type: ignore[assignment]  # a group is a kind
        yield Feature(kind, match.start(), match.end())


def normal(word: str) -> str:
    """Return the form for look-ups: composed, lower case, straight quotes."""
    if not word.isascii():
        word = unicodedata.normalize("NFC", word).translate(_STRAIGHT)
    return word.lower()


def ending(word: str) -> list[str]:
    straight = word.replace("\u2019", "'")
    for end in _ENDINGS:
        if len(word) > len(end) and straight.lower().endswith(end):
            return [straight[: -len(end)], straight[-len(end) :]]
    return [straight]


def joints(word: str) -> list[str]:
    return [piece for piece in re.split(r"([-_&.'])", word) if piece]


def join(pieces: Sequence[str]) -> str:
    out: list[str] = []
    glue = True
    quoted = False
    for i, piece in enumerate(pieces):
        if piece.startswith("```"):
            out.append(("" if not out else "\n") + piece + "\n")
            glue = True
            continue
        if piece.startswith(GLUE):
            out.append(piece[len(GLUE) :])
            glue = False
            continue
        before = after = False
        if piece == '"':
            before, after, quoted = quoted, not quoted, not quoted
        elif piece == "'":
            before = after = i + 1 < len(pieces) and f"'{pieces[i + 1].lower()}" in (*_ENDINGS, "'t")
        else:
            before, after = piece.lower() in _NO_SPACE_BEFORE, piece in _NO_SPACE_AFTER
        out.append(piece if glue or before else f" {piece}")
        glue = after
    return "".join(out)
