"""What a run has written, as it stands in its result: each text, and why it is dropped where it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from langchain_dp.ensemble.echo import Echo
from langchain_dp.ensemble.naming import names_of
from langchain_dp.opt.filters import candidate_fault, request_echo, whole_sentences
from langchain_dp.opt.glossary import description_fault, glossary_echo, with_glossary
from langchain_dp.opt.plan import Written
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import PromptAlternative
from langchain_dp.opt.text import Text


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A text that was written and paid for. It is released, whether it is handed over or not.

    Args:
        text: The instruction; of a glossary, the description of one label.
        dropped: Why it is not handed over; empty if it may be.
        label: The label that it describes, in a glossary.
        cut: What was written after an instruction and is no part of it: a sentence that ran into the last token.

    Examples:
        >>> optimized = optimizer.optimize(rows)
        >>> kept = [candidate.text for candidate in optimized.candidates if not candidate.dropped]
    """

    text: str
    dropped: str = ""
    label: str = ""
    cut: str = ""

    def __str__(self) -> str:
        said = f"{self.label}: {self.text!r}" if self.label else repr(self.text)
        said = f"{said} (without its unfinished end {self.cut!r})" if self.cut else said
        return f"{said} (dropped: {self.dropped})" if self.dropped else said


@dataclasses.dataclass(frozen=True)
class PromptChoice:
    """What may be handed over: one of these is selected. Public or released.

    Args:
        instruction: The instruction.
        words: What the labels are called in it, in the public order.
    """

    instruction: str
    words: tuple[str, ...]


def echo_of(settings: Settings) -> Echo:
    """What no text of a run may repeat. What would be dropped for it is not written in the first place."""
    if settings.glossary is not None:
        return glossary_echo(settings.glossary, chat=bool(settings.decoding.chat))
    return request_echo(settings.prompts, settings.instruction) if settings.candidate_options.filtered else Echo()


def judged(settings: Settings, text: Text, written: Sequence[Written]) -> list[Candidate]:
    """Candidates of a run, in the order in which they were written."""
    found = []
    for each in written:
        said, complete = text.instruction(each.tokens), each.ended in ("end", "stop")
        if settings.glossary is not None:
            fault = description_fault(said, settings.glossary, complete=complete)
            found.append(Candidate(said, fault, settings.labels[each.message]))
            continue
        fault, cut = "" if said else "it has no text", ""
        if settings.candidate_options.filtered:
            said, cut = (said, "") if complete else whole_sentences(said)
            fault = candidate_fault(
                said,
                instruction=settings.instruction,
                words=settings.words,
                prompts=settings.prompts,
                complete=complete,
            )
        found.append(Candidate(said, fault, cut=cut))
    return found


def choices(settings: Settings, written: Sequence[Candidate]) -> list[PromptChoice]:
    """What may be selected; the initial instruction is the last, and stands for a candidate that is dropped.

    Before it stand the public alternatives. Of a glossary: answered by names from the descriptions, under the
    instruction that asks for them and under the initial one; and answered by the labels' words.
    """
    words = tuple(settings.words)
    initial = PromptChoice(settings.instruction, words)
    public = [*(_alternative(settings, each) for each in settings.alternatives), initial]
    if settings.glossary is None:
        return [*(initial if each.dropped else PromptChoice(each.text, words) for each in written), *public]
    return [*_described(settings, written, initial), *public]


def _alternative(settings: Settings, given: PromptAlternative) -> PromptChoice:
    words = tuple(settings.words_of(given))
    return PromptChoice(given.instruction or settings.instruction, words)


def _described(settings: Settings, written: Sequence[Candidate], initial: PromptChoice) -> list[PromptChoice]:
    """What a glossary's descriptions make, beside the initial instruction."""
    glossary = settings.glossary
    assert glossary is not None  # choices
    names_under = glossary.instruction if glossary.named else ""
    return described_choices(initial, settings.labels, written, names_under=names_under) or [initial]


def described_choices(
    initial: PromptChoice, labels: Sequence[str], written: Sequence[Candidate], *, names_under: str
) -> list[PromptChoice]:
    """What descriptions make of a prompt; nothing where none is of use.

    Args:
        initial: The prompt.
        labels: The public labels.
        written: Descriptions of some of them.
        names_under: Instruction that asks for names from the descriptions, beside the prompt's own; empty for no names.
    """
    kept = {each.label: "" if each.dropped else each.text for each in written}
    said = [kept.get(label, "") for label in labels]
    if not any(said):
        return []
    found = [PromptChoice(with_glossary(initial.instruction, initial.words, said), initial.words)]
    if names_under:
        names = tuple(names_of(initial.words, dict(zip(initial.words, said, strict=True))).values())
        asking = names_under, initial.instruction
        found = [*(PromptChoice(with_glossary(each, names, said), names) for each in asking), *found]
    return found
