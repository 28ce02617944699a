"""Words of a text, also where writing puts no spaces between them: there a letter is one."""

from __future__ import annotations

import re

# Kana, ideographs, Thai, Lao, Burmese, Khmer.
_ALONE = (
    "[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]"
)
_WORD = re.compile(rf"{_ALONE}|(?:(?!{_ALONE})\w)+")
_PIECE = re.compile(rf"{_ALONE}|(?:(?!{_ALONE})\S)+")


def words_of(text: str) -> list[str]:
    """Runs of letters and digits."""
    return _WORD.findall(text)


def pieces_of(text: str) -> list[str]:
    """What stands between white space, with its punctuation."""
    return _PIECE.findall(text)
