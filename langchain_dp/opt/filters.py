"""Which released candidates are not handed over, and why. Of what has left already: it costs nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_dp._util.words import UNSPACED, whole
from langchain_dp.ensemble.echo import Echo
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
    """Why a released candidate is not handed over; empty if it may be. A function of public text alone.

    Args:
        candidate: The instruction that was written.
        instruction: The initial one.
        words: Words of the labels.
        prompts: What the writer was asked with.
        complete: Whether the model ended the text itself, and not the largest number of tokens or a lack of votes.

    Returns:
        A sentence without its end, such as "it repeats the request".

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
    """What a candidate may not repeat: the request, unless the initial instruction says it, too."""
    return Echo([prompts.meta, prompts.secrecy, *prompts.messages], known=instruction, headings=_HEADINGS)


def whole_sentences(text: str) -> tuple[str, str]:
    """A text that was cut off, without its last sentence; and that sentence. All of it, where none is whole.

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
    """Whether a stop between the two ends a sentence: not that of "1. Say" or "Mr. X", nor before a small letter."""
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
    """Longer words; where writing puts no spaces between words, pairs of letters."""
    pairs = re.findall(rf"(?=([{UNSPACED}]{{2}}))", text)
    return {word for word in re.findall(r"\w{4,}", text) if word not in _SMALL}.union(pairs)
