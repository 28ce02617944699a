"""From a model's answer to a label, or to nothing: an answer that is not clearly one label abstains."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp._util.words import whole

_EDGES = " \t\"'`*_.,;:!?()[]{}<>-#"
_CUE = re.compile(r"^[\w /]{1,40}?(?::|\bis\b)\s*", re.UNICODE)
_NEGATION = re.compile(r"\b(?:not|no|never|neither|hardly)\b", re.IGNORECASE)
_FENCE = re.compile(r"^\s*```\w*[ \t]*\n(.*?)(?:```.*)?$", re.DOTALL)


def parse_label(answer: Any, words: Sequence[str]) -> int | None:
    """Index of the word that ``answer`` names, or None.

    Understands strings, chat messages (text or one tool call), enum members, and mappings or pydantic objects with a
    ``label`` field. Case, surrounding punctuation and a cue such as "Label:" or "The answer is" do not matter.
    Only the first line that is not empty counts.

    Args:
        answer: What the model returned. Private.
        words: Label words, in the public order.

    Returns:
        Index into ``words``; None if the answer names no word, or more than one.
    """
    text = _text(answer)
    if text is None:
        return None
    text = _FENCE.sub(r"\1", text)
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if isinstance(fields, Mapping):
            text = _text(fields) or ""
    line = next((line for line in text.splitlines() if line.strip()), "")
    rest = _without_cue(line.strip(_EDGES), words)
    # As it stands first: "-" or "(a)" may be a label.
    for form, candidates in ((_folded, [line]), (_plain, [line, rest])):
        forms = [form(word) for word in words]
        for candidate in map(form, candidates):
            if candidate and candidate in forms:
                return forms.index(candidate) if forms.count(candidate) == 1 else None
    return _leading(rest, words)


def _without_cue(line: str, words: Sequence[str]) -> str:
    """The line without its cue. What names a label ("Positive: negative") or negates ("It is not:") is no cue."""
    cue = _CUE.match(line)
    if cue is None or _NEGATION.search(cue[0]) or any(_names(cue[0], word) for word in words):
        return line
    return line[cue.end() :]


def _leading(line: str, words: Sequence[str]) -> int | None:
    """A line that starts with one word and goes on without naming another ("Positive. The film is a joy")."""
    named = {index for index, word in enumerate(words) if _names(line, word)}
    # longest first: "not relevant" is asked before "relevant"
    for index in sorted(named, key=lambda index: -len(words[index])):
        rest = re.sub(re.escape(words[index]), " ", line, count=1, flags=re.IGNORECASE)
        if re.match(rf"{re.escape(words[index])}\s*(?:[.,;:!()\-\u2013\u2014]|$)", line, re.IGNORECASE):
            others = {other for other in range(len(words)) if other != index and _names(rest, words[other])}
            return None if others else index
    return None


def _names(line: str, word: str) -> bool:
    return re.search(whole(word), line, re.IGNORECASE) is not None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _plain(text: str) -> str:
    return _folded(text.strip(_EDGES))


def _text(answer: Any) -> str | None:
    if isinstance(answer, enum.Enum):
        return str(answer.value)
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Mapping):
        return _text(answer.get("label"))
    tool_calls = getattr(answer, "tool_calls", None)
    if tool_calls:
        return _text(tool_calls[0].get("args", {})) if len(tool_calls) == 1 else None
    content = getattr(answer, "content", None)
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [block if isinstance(block, str) else block.get("text", "") for block in content]
        return "".join(part for part in parts if isinstance(part, str))
    return _text(answer.label) if hasattr(answer, "label") else None
