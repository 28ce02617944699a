"""Words of a text. Without spaces each letter is one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Kana, ideographs, Thai, Lao, Burmese, Khmer.
UNSPACED = (
    "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_ALONE = f"[{UNSPACED}]"

BEGINS, ENDS = rf"(?<![^\W{UNSPACED}])", rf"(?![^\W{UNSPACED}])"
"""Patterns of word ends."""

_WORD = re.compile(rf"{_ALONE}|(?:(?!{_ALONE})\w)+")
_PIECE = re.compile(rf"{_ALONE}|(?:(?!{_ALONE})\S)+")


def words_of(text: str) -> list[str]:
    return _WORD.findall(text)


def pieces_of(text: str) -> list[str]:
    return _PIECE.findall(text)


def written(word: str) -> str:
    """Match any Unicode form, apostrophe and spacing."""
    forms = dict.fromkeys((word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))))
    patterns = "|".join(r"\s+".join(map(re.escape, form.split())) for form in forms)
    return re.sub("['\u2019]", "['\u2019]", patterns)


def whole(word: str) -> str:
    begins, ends = ("" if re.match(_ALONE, word[at]) else edge for at, edge in ((0, BEGINS), (-1, ENDS)))
    return f"{begins}(?:{written(word)}){ends}"


# An underscore is no part of a word: Markdown puts one around it.
_FROM = re.compile(rf"(?={_ALONE})|(?<![^\W_{UNSPACED}])")
_TO = re.compile(rf"(?<={_ALONE})|(?![^\W_{UNSPACED}])")


def standing_alone(word: str, text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while (start := text.find(word, position)) >= 0:
        end = start + len(word)
        position = start + 1
        if _FROM.match(text, start) and _TO.match(text, end):
            yield start, end
            position = end
