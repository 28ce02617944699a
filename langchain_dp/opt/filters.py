"""Reasons to drop a released candidate. They depend on released text alone and cost nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_dp._util.words import UNSPACED, whole
from langchain_dp.ensemble.text_writer import Echo
from langchain_dp.opt.templates import OptPrompts

_HEADINGS = "# Student", "#Student", "Output:", "Input:", "Instruction:"
_CLOSING = "\"')\\]}*_\u201d\u2019\u300d\u300f\uff09"
_ENDS = re.compile(rf"[.!?\u0964\u061f\u06d4\u3002\uff01\uff1f\u2026][{_CLOSING}]*$")
_STOP = re.compile(
    rf"[.!?\u0964\u061f\u06d4\u2026]+[{_CLOSING}]*(?=\s)|[\u3002\uff01\uff1f]+[{_CLOSING}]*(?![{_CLOSING},;\u3001])"
)
"""What may end a sentence within a text."""
_CUT_SHORT = frozenset(
    {"approx", "cf", "dr", "etc", "fig", "inc", "jr", "mr", "mrs", "ms", "prof", "resp", "sr", "st", "vs"}
)
"""Words that a full stop belongs to. One letter is another, as in "e.g."."""
_HANGING = re.compile(r"[,;:(\[{\u2013\u2014-]$")
_COMMON = """
about answer below each example examples following from give given have input into instruction label more must only
output please read shall should student text that their them then there these they this those what when whether which
will with write your
"""
_SMALL = frozenset(_COMMON.split())
"""Words of four letters and more that every instruction may hold, whatever the task."""


def candidate_fault(
    candidate: str, *, instruction: str, words: Sequence[str], prompts: OptPrompts, complete: bool = True
) -> str:
    """Explain why a released candidate is not handed over, or return "". Uses public text alone.

    Args:
        candidate: The written instruction.
        instruction: The initial instruction.
        words: Words of the labels.
        prompts: Templates that the writer was asked with.
        complete: Whether the model ended the text itself, before the token limit and without a lack of votes.

    Returns:
        A clause, such as "it repeats the request".

    Examples:
        >>> candidate_fault("Say it", instruction="Is it spam?", words=["spam", "ham"], prompts=OptPrompts())
        'it no longer names the task'
    """
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
    """Return the request as text that no candidate may repeat, except what the initial instruction also says."""
    return Echo([prompts.meta, prompts.secrecy, *prompts.messages], known=instruction, headings=_HEADINGS)


def whole_sentences(text: str) -> tuple[str, str]:
    """Separate the unfinished last sentence from a text that was cut off, if another sentence is complete.

    Examples:
        >>> whole_sentences("Is it spam? Answer with one of")
        ('Is it spam?', 'Answer with one of')
    """
    end = 0
    for stop in _STOP.finditer(text):
        if _ends_sentence(text[end : stop.start()], text[stop.end() :].lstrip()):
            end = stop.end()
    if _ENDS.search(text) or not end:
        return text, ""
    return text[:end], text[end:].strip()


def _ends_sentence(before: str, after: str) -> bool:
    """Tell a full stop from those of "1. Say" and "Mr. X", and from one before a small letter."""
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
    """Return the longer words, or pairs of letters in scripts without spaces."""
    pairs = re.findall(rf"(?=([{UNSPACED}]{{2}}))", text)
    return {word for word in re.findall(r"\w{4,}", text) if word not in _SMALL}.union(pairs)
