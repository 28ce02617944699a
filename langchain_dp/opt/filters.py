"""Which released candidates are not handed over, and why. Of what has left already: it costs nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_dp._util.words import UNSPACED, whole
from langchain_dp.opt.templates import OptPrompts

_RUN = 4
"""Words in a row that nobody writes twice by accident."""
_HEADINGS = re.compile(r"#\s*Student|(?:Correct |Student )?Output:|Input:|(?:Old |Better )?Instruction:", re.IGNORECASE)
_ENDS = re.compile(r"[.!?\u0964\u061f\u06d4\u3002\uff01\uff1f\u2026][\"')\]\u201d\u2019}]*$")
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
    asked = [prompts.meta, prompts.secrecy, *prompts.messages]
    if _HEADINGS.search(text) or echoes(text, asked, known=instruction):
        return "it repeats the request"
    if not (_ENDS.search(text) or (complete and not _HANGING.search(text))):
        return "it stops in mid-sentence"
    if not _names_the_task(text, instruction, words):
        return "it no longer names the task"
    return ""


def echoes(text: str, asked: Sequence[str], *, known: str = "") -> bool:
    """Whether ``text`` has four words in a row in common with something that was ``asked``, and not with ``known``."""
    own = _runs(text) - _runs(known)
    return any(own & _runs(each) for each in asked)


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1)}


def _names_the_task(text: str, instruction: str, words: Sequence[str]) -> bool:
    folded = text.casefold()
    if any(re.search(whole(word.casefold()), folded) for word in words):
        return True
    return bool(_content(folded) & _content(instruction.casefold()))


def _content(text: str) -> set[str]:
    """Longer words; where writing puts no spaces between words, pairs of letters."""
    pairs = re.findall(rf"(?=([{UNSPACED}]{{2}}))", text)
    return {word for word in re.findall(r"\w{4,}", text) if word not in _SMALL}.union(pairs)
