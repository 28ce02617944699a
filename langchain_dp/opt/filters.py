"""Reasons to drop a released candidate, by released text alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from langchain_dp._util.words import UNSPACED, whole
from langchain_dp.opt.templates import OptPrompts

_HEADINGS = "# Student", "#Student", "Output:", "Input:", "Instruction:"
_CLOSING = "\"')\\]}*_\u201d\u2019\u300d\u300f\uff09"
_ENDS = re.compile(rf"[.!?\u0964\u061f\u06d4\u3002\uff01\uff1f\u2026][{_CLOSING}]*$")
_STOP = re.compile(
    rf"[.!?\u0964\u061f\u06d4\u2026]+[{_CLOSING}]*(?=\s)|[\u3002\uff01\uff1f]+[{_CLOSING}]*(?![{_CLOSING},;\u3001])"
)
_CUT_SHORT = frozenset(
    {"approx", "cf", "dr", "etc", "fig", "inc", "jr", "mr", "mrs", "ms", "prof", "resp", "sr", "st", "vs"}
)
_HANGING = re.compile(r"[,;:(\[{\u2013\u2014-]$")
_COMMON = """
about answer below each example examples following from give given have input into instruction label more must only
output please read shall should student text that their them then there these they this those what when whether which
will with write your
"""
_SMALL = frozenset(_COMMON.split())
_RUN = 4
"""Words in a row that no text repeats by chance."""
Run = tuple[str, ...]


class Echo:
    """Detects a heading, or four consecutive words of a request that are not ``known``."""

    def __init__(self, asked: Iterable[str] = (), *, known: str = "", headings: Iterable[str] = ()) -> None:
        self._runs = frozenset(run for text in asked for run in _runs(_words(text))) - _runs(_words(known))
        self._begun = frozenset(run[:-1] for run in self._runs)
        self._headings = tuple(text.casefold() for text in headings)
        self._openings = tuple(part for text in self._headings for part in _openings(text))

    def __call__(self, text: str) -> bool:
        folded = " ".join(text.casefold().split())
        return any(heading in folded for heading in self._headings) or not self._runs.isdisjoint(_runs(_words(folded)))

    def near(self, text: str) -> bool:
        """Return whether the next token may complete a repetition."""
        words = _words(text)
        if words and self._begun.intersection([tuple(words[1 - _RUN :]), tuple(words[-_RUN:-1])]):
            return True
        return any(map(text.casefold().rstrip().endswith, self._openings))


def _openings(heading: str) -> list[str]:
    least = len(re.sub(r"(\w+|[^\w\s])$", "", heading).rstrip())
    return [heading[:at].rstrip() for at in range(max(least, 1), len(heading))]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _runs(words: list[str]) -> frozenset[Run]:
    return frozenset(tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1))


def candidate_fault(
    candidate: str, *, instruction: str, words: Sequence[str], prompts: OptPrompts, complete: bool = True
) -> str:
    """``complete``: the model ended the text itself."""
    text = candidate.strip()
    if not text:
        return "it has no text"
    if request_echo(prompts, instruction)(text):
        return "it repeats the request"
    if not (_ENDS.search(text) or (complete and not _HANGING.search(text))):
        return "it stops in mid-sentence"
    if not _names_the_task(text, instruction, words):
        return "it no longer names the task"
    return ""


def request_echo(prompts: OptPrompts, instruction: str) -> Echo:
    return Echo([prompts.meta, *prompts.messages], known=instruction, headings=_HEADINGS)


def whole_sentences(text: str) -> tuple[str, str]:
    """Separate the unfinished last sentence."""
    end = 0
    for stop in _STOP.finditer(text):
        if _ends_sentence(text[end : stop.start()], text[stop.end() :].lstrip()):
            end = stop.end()
    if _ENDS.search(text) or not end:
        return text, ""
    return text[:end], text[end:].strip()


def _ends_sentence(before: str, after: str) -> bool:
    """Ignore the full stops of "1. Say" and "Mr. X"."""
    words = re.findall(r"\w+", before.casefold())
    if not words or after[:1].islower():
        return False
    last = words[-1]
    return last not in _CUT_SHORT and (len(words) > 1 if last.isdigit() else len(last) > 1 or not last.isascii())


def _names_the_task(text: str, instruction: str, words: Sequence[str]) -> bool:
    folded = text.casefold()
    if any(re.search(whole(word.casefold()), folded) for word in words):
        return True
    return bool(_content(folded) & _content(instruction.casefold()))


def _content(text: str) -> set[str]:
    """Return long words, or pairs of letters in scripts without spaces."""
    pairs = re.findall(rf"(?=([{UNSPACED}]{{2}}))", text)
    return {word for word in re.findall(r"\w{4,}", text) if word not in _SMALL}.union(pairs)
