"""Public filters of released texts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Literal

from langchain_dp._util.words import pieces_of
from langchain_dp.synth.journal import WrittenText

Reason = Literal["", "empty", "short", "repeats the request", "twice"]

# Closing marks behind an end belong to its sentence. Chinese and Japanese put no blank behind it.
_SENTENCE = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964][\"')\]\u2019\u201d\xbb]*(?=\s|$)|[\u3002\uff01\uff1f][\u300d\u300f\u201d\uff09]*"
)


def judged(
    written: Sequence[WrittenText], min_words: int, descriptions: Collection[str], *, cue: str
) -> list[tuple[WrittenText, Reason]]:
    """Return each text, cut to whole sentences before the next ``cue``, and its fault or ""."""
    seen = {_folded(description) for description in descriptions}
    requests, judgments = frozenset(seen), list[tuple[WrittenText, Reason]]()
    for one in written:
        text = re.split(rf"(?<=\S)\s+{re.escape(cue)}", one.text, maxsplit=1)[0]
        if one.ended == "length" and (ends := [match.end() for match in _SENTENCE.finditer(text)]):
            text = text[: ends[-1]]
        reason: Reason = ""
        if not any(character.isalnum() for character in text):
            reason = "empty"
        elif len(pieces_of(text)) < min_words:
            reason = "short"
        elif (folded := _folded(text)) in seen:
            reason = "repeats the request" if folded in requests else "twice"
        seen.add(_folded(text))
        judgments.append((dataclasses.replace(one, text=text), reason))
    return judgments


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
