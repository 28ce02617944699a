"""Written candidates, and the prompts that a run selects from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from langchain_dp.opt.filters import Echo, candidate_fault, request_echo, whole_sentences
from langchain_dp.opt.plan import Written
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.text import Text


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A written text. It is released and paid for, even if dropped.

    Args:
        text: The instruction.
        dropped: Reason why it cannot be selected, or "".
        cut: Unfinished sentence removed from its end, or "".

    Examples:
        >>> optimized = optimizer.optimize(rows)
        >>> kept = [candidate.text for candidate in optimized.candidates if not candidate.dropped]
    """

    text: str
    dropped: str = ""
    cut: str = ""

    def __str__(self) -> str:
        text = f"{self.text!r} (without its unfinished end {self.cut!r})" if self.cut else repr(self.text)
        return f"{text} (dropped: {self.dropped})" if self.dropped else text


@dataclasses.dataclass(frozen=True)
class PromptChoice:
    """A public or released instruction, with a word per label."""

    instruction: str
    words: tuple[str, ...]


def echo_of(settings: Settings) -> Echo:
    return request_echo(settings.prompts, settings.instruction) if settings.candidate_options.filtered else Echo()


def judged(settings: Settings, text: Text, written: Sequence[Written]) -> list[Candidate]:
    candidates = []
    for each in written:
        instruction, complete = text.instruction(each.tokens), each.ended in ("end", "stop")
        fault, cut = "" if instruction else "it has no text", ""
        if settings.candidate_options.filtered:
            if not complete:
                instruction, cut = whole_sentences(instruction)
            fault = candidate_fault(
                instruction, instruction=settings.instruction, words=settings.words, prompts=settings.prompts,
                complete=complete,
            )  # fmt: skip
        candidates.append(Candidate(instruction, fault, cut=cut))
    return candidates


def choices(settings: Settings, written: Sequence[Candidate]) -> list[PromptChoice]:
    """The initial instruction comes last, and replaces dropped candidates."""
    words = tuple(settings.words)
    initial = PromptChoice(settings.instruction, words)
    candidates = [initial if each.dropped else PromptChoice(each.text, words) for each in written]
    alternatives = [
        PromptChoice(each.instruction or settings.instruction, tuple(settings.words_of(each)))
        for each in settings.alternatives
    ]
    return [*candidates, *alternatives, initial]
