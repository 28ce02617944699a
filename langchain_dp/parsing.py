"""Parse a model's answer into a label. An unclear answer abstains."""

from __future__ import annotations

import enum
import itertools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_dp._util.words import whole

_CUE = re.compile(r"^[\w /]{1,40}?(?:[:\uff1a]|\bis\b)\s*", re.UNICODE)
_NEGATION = re.compile(r"\b(?:not|no|never|neither|hardly|cannot|wrong|but|except)\b|n['\u2019]t\b", re.IGNORECASE)
_DENIED = re.compile(r"[\W_]*(?:no|not|false|wrong|incorrect)[\W_]*", re.IGNORECASE)
_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)
_FENCE = re.compile(r"^\s*```\w*[ \t]*\n(.*?)(?:```.*)?$", re.DOTALL)
_ENDS = r".,;:!()\-\u2013\u2014\u2026\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f\uff08\uff09\u0964\u060c\u061b\u061f"
"""Marks that end or continue a sentence after a word."""
_MARKS = "`*<>#"
_UNITS = "%\u2030&@"
_EDGES = ("P", "Z", "So", "Cf", "Cc")
_MOST_EDGES = 12
_LONGEST = 10_000
"""Letters read per line, because a model may repeat one without end."""


def parse_label(answer: Any, words: Sequence[str]) -> int | None:
    """Return the index of the one word that ``answer`` names, or None.

    Answers are strings, chat messages, enum members, and mappings or objects with a ``label``. Case, outer punctuation
    and a cue such as "Label:" do not matter. The first nonempty line after ``</think>`` counts.
    """
    text = _text(answer, words)
    if text is None:
        return None
    text = _FENCE.sub(r"\1", _THOUGHT.sub("", text))
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if isinstance(fields, Mapping):
            text = _text(fields, words) or ""
    line = _one_form(next((line for line in text.splitlines() if line.strip()), "").strip()[:_LONGEST])
    words = [_one_form(word) for word in words]
    rest = _without_cue(_bare(line, right=False), words)
    for candidate in (line, rest):
        if (index := _least_bare(candidate, words)) is not None:
            return index
    plain = [_folded(_bare(word)) for word in words]
    for candidate in map(_folded, (_bare(line), _bare(rest))):
        if candidate and candidate in plain:
            return plain.index(candidate) if plain.count(candidate) == 1 else None
    return _leading(_bare(rest), words)


def _least_bare(text: str, words: Sequence[str]) -> int | None:
    """Return the word left with the fewest marks taken off: "(a)" or "C#" may be a label."""
    forms = [_folded(word) for word in words]
    left, right = (min(edges, _MOST_EDGES) for edges in _edges(text))
    for start, end in sorted(itertools.product(range(left + 1), range(right + 1)), key=sum):
        form = _folded(text[start : len(text) - end])
        if form and form in forms:
            # "[a]" is neither of "a" and "(a)"
            unclear = start + end and _bare(form) == form and sum(_folded(_bare(word)) == form for word in words) > 1
            return forms.index(form) if forms.count(form) == 1 and not unclear else None
    return None


def _without_cue(line: str, words: Sequence[str]) -> str:
    """Drop the cue. A label ("Positive: negative") or a negation ("It is not:") is no cue."""
    cue = _CUE.match(line)
    if cue is None or _NEGATION.search(cue[0]) or any(_names(cue[0], word) for word in words):
        return line
    return line[cue.end() :]


def _leading(line: str, words: Sequence[str]) -> int | None:
    """Return the word that starts a line which names no other."""
    named = {index for index, word in enumerate(words) if _names(line, word)}
    # longest first: "not relevant" is asked before "relevant"
    for index in sorted(named, key=lambda index: -len(words[index])):
        rest = re.sub(re.escape(words[index]), " ", line, count=1, flags=re.IGNORECASE)
        # 3.5, 2,500 and 1:30 do not begin with a label
        if re.match(rf"{re.escape(words[index])}\s*(?:(?![.,:\-\u2013]\d)[{_ENDS}]|$)", line, re.IGNORECASE):
            others = {other for other in range(len(words)) if other != index and _names(rest, words[other])}
            return None if others or _DENIED.fullmatch(rest) else index
    return None


def _names(line: str, word: str) -> bool:
    return re.search(whole(word), line, re.IGNORECASE) is not None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _one_form(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _edges(text: str) -> tuple[int, int]:
    """Count the marks at both ends. A sign before a digit belongs to the number."""
    left = next((at for at, letter in enumerate(text) if not _is_mark(letter)), len(text))
    right = next((at for at, letter in enumerate(reversed(text)) if not _is_mark(letter)), len(text))
    if left < len(text) and text[left].isdigit() and text[left - 1 : left] in ("-", "\u2212", "."):
        left -= 1
    return left, right


def _is_mark(letter: str) -> bool:
    return letter in _MARKS or (letter not in _UNITS and unicodedata.category(letter).startswith(_EDGES))


def _bare(text: str, *, right: bool = True) -> str:
    left, end = _edges(text)
    return text[left : len(text) - end * right]


def _text(answer: Any, words: Sequence[str]) -> str | None:
    if isinstance(answer, enum.Enum):
        return answer.name if answer.name in words and str(answer.value) not in words else str(answer.value)
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Integral):  # a label may be a whole number, or a bool
        return str(answer)
    if isinstance(answer, Mapping):
        return _text(answer.get("label"), words)
    tool_calls = getattr(answer, "tool_calls", None)
    if tool_calls:
        return _text(tool_calls[0].get("args", {}), words) if len(tool_calls) == 1 else None
    content = getattr(answer, "content", None)
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        said = [block for block in content if isinstance(block, str) or block.get("type", "text") == "text"]
        parts = [block if isinstance(block, str) else block.get("text", "") for block in said]
        return "".join(part for part in parts if isinstance(part, str))
    return _text(answer.label, words) if hasattr(answer, "label") else None


def label_parser(words: Mapping[str, str]) -> Runnable[Any, str]:
    """Return a Runnable from a model's answer to the label whose word it names.

    An answer with no label, or several, raises ``OutputParserException``, which does not repeat it.

    Args:
        words: Label -> word that the model was asked for.

    Examples:
        >>> label_parser({"team A": "sports", "team B": "business"}).invoke("Sports.")
        'team A'
    """
    labels, shown = list(words), list(words.values())

    def label(answer: Any) -> str:
        place = parse_label(answer, shown)
        if place is None:
            raise OutputParserException(f"Expected the answer to name one of {shown}. Ask again, or count it as wrong.")
        return labels[place]

    return RunnableLambda(label, name="label_parser")
