"""What do texts of one label have in common? Subsets show their records of one label, and describe it in a few words.

The released descriptions are a glossary: lines of the instruction that say what each label means. So a model learns
from private records what no model can know, such as which team the tickets of "team A" go to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from langchain_dp._util import validate
from langchain_dp.ensemble.describing import TOPIC, Shown, answers, says_nothing, turns, wording, words_of
from langchain_dp.ensemble.echo import Echo
from langchain_dp.ensemble.prompt_budget import PromptBudget
from langchain_dp.ensemble.subsets import Subset
from langchain_dp.ensemble.text_writer import INVENTED
from langchain_dp.opt.templates import OptPrompts
from langchain_dp.ports import MemberPrompt, TextGenerator
from langchain_dp.records import PrivateRecords

_USUAL = {
    "instruction": "Say what the {kind} of the text is.",
    "task": "The {kind} of each text in one or two words.",
    "cue": "{Kind}:",
    "opening": "These texts were sorted into the same folder{label}:",
    "question": "What kind of texts are in this folder? Answer with a short list of {kind}s, not with a sentence.",
}


@dataclasses.dataclass(frozen=True)
class Glossary:
    """How ``method="glossary"`` asks for descriptions. Public; ``dataclasses.asdict`` saves it.

    Args:
        show_labels: Tell the model the name of the label that it describes. Without, it sees a folder of texts: for
            names that mislead, or say nothing.
        named: Also try prompts that ask for names taken from the descriptions ("sports") instead of the labels' own
            words ("team A"), which says more to a model; ``OptimizedPrompt.chain`` puts the labels back. What is
            handed over, such a prompt, one with the labels' words, or the initial one, is selected on validation
            records.
        kind: What tells the labels apart, such as "topic", "mood" or "urgency": the texts below are made of it where
            they are left out.
        instruction: What a prompt with names asks for. It is tried beside the optimizer's own, which was written for
            other words: "Choose the team" goes ill with names of topics.
        task: What is asked of a model that continues plain text, before the texts.
        cue: What stands before each answer.
        shown: Public texts with their answers, which show such a model what is asked. They must not be taken from the
            records, nor be of their kinds: a description that repeats one of these answers is dropped. None: three
            topics, where ``kind`` is "topic".
        opening: What stands before the texts in a chat template (``Decoding(chat=True)``), where nothing is shown. With
            ``show_labels``, ``{label}`` stands for the name.
        question: What stands after them.

    Raises:
        InvalidParameter: A text is none, or ``shown`` is missing.

    Examples:
        >>> Glossary(kind="mood", shown=[("Closed again, and nobody had told us.", "annoyed")]).instruction
        'Say what the mood of the text is.'
    """

    show_labels: bool = False
    named: bool = True
    kind: str = TOPIC
    instruction: str = ""
    task: str = ""
    cue: str = ""
    shown: Shown | None = None
    opening: str = ""
    question: str = ""

    def __post_init__(self) -> None:
        validate.one_of("show_labels", self.show_labels, (True, False))
        validate.one_of("named", self.named, (True, False))
        for name, value in wording(dataclasses.asdict(self), _USUAL).items():
            object.__setattr__(self, name, value)

    def public(self) -> dict[str, Any]:
        """Plain values, as JSON gives them back."""
        return {**dataclasses.asdict(self), "shown": [list(pair) for pair in self.shown or ()]}

    @property
    def choices(self) -> int:
        """Prompts among which is selected."""
        return choices_of(named=self.named)

    def asking(self, word: str, *, chat: bool) -> LabelRequest:
        """The public texts around the records of one label, whose word is ``word``."""
        if chat:
            shown = f', "{word}"' if self.show_labels else ""
            return LabelRequest(self.opening.replace("{label}", shown) + "\n\n", f"\n{self.question}")
        label = f'The next texts were sorted into the folder "{word}".\n\n' if self.show_labels else ""
        return LabelRequest(f"{self.task}\n\n{turns(self.shown or (), _line, self.cue)}{label}", self.cue)


def choices_of(*, named: bool) -> int:
    """Prompts among which is selected: lines and the initial one, and with names two more."""
    return 4 if named else 2


@dataclasses.dataclass(frozen=True)
class LabelRequest:
    """Public texts around the records of one label.

    Args:
        head: What stands before them.
        tail: What stands after them.
    """

    head: str
    tail: str

    def body(self, texts: Sequence[str]) -> str:
        """The private part: one text a line. What breaks lines in a text becomes a blank."""
        return "".join(map(_line, texts))

    def whole(self, texts: Sequence[str]) -> str:
        """The whole prompt."""
        return self.head + self.body(texts) + self.tail


def _line(text: str) -> str:
    return f"- {' '.join(text.split())}\n"


class LabelTexts:
    """Shows, of each subset, the records of one label. A subset without any is not asked.

    What a subset shows depends on its own records and on the public label alone.

    Args:
        records: All records.
        prompts: Templates.
        labels: Public labels; text number i of a run describes label i.
        asking: What stands around the records of each.
        engine: The model, whose context a subset has to fit into.
        max_new_tokens: Longest description.
    """

    apart = True
    """Each text of a run shows other records: caches do not outlive it."""

    def __init__(
        self,
        records: PrivateRecords,
        prompts: OptPrompts,
        labels: Sequence[str],
        asking: Sequence[LabelRequest],
        *,
        engine: TextGenerator,
        max_new_tokens: int,
    ) -> None:
        self._records = records
        self._prompts = prompts
        self._labels = list(labels)
        self._asking = list(asking)
        self._room = PromptBudget(engine)
        longest = max(self._asking, key=lambda one: len(one.head))
        self._tokens = self._room.remaining(engine.max_prompt_tokens, longest.head, longest.tail, more=max_new_tokens)

    @property
    def texts(self) -> int:
        """Texts of a run: one a label."""
        return len(self._labels)

    def members(self, subsets: Sequence[Subset], message: int) -> list[MemberPrompt]:
        """Prompts of the subsets that hold records of label number ``message``. Private, as is their number."""
        public = self.public(message)
        found = []
        for subset in subsets:
            rows = [self._records.get(name) for name in subset.record_ids]
            texts = [self._prompts.render(row) for row in rows if str(row["label"]) == self._labels[message]]
            if texts:
                key = (subset.member, message)
                whole = self._asking[message].body
                body = whole(self._room.truncate(texts, whole=whole, tokens=self._tokens))
                found.append(dataclasses.replace(public, body=body, member=key))
        return found

    def public(self, message: int) -> MemberPrompt:
        """The prompt without a record, for label number ``message``."""
        asking = self._asking[message]
        return MemberPrompt(asking.head, "", asking.tail, ("public", asking.head))

    def invented(self, message: int) -> str:
        """What a subset would show of an invented record."""
        return self._asking[message].body([INVENTED])


def description_fault(text: str, glossary: Glossary, *, complete: bool = True) -> str:
    """Why a released description does not go into a glossary; empty if it does. Of released text alone: free.

    Args:
        text: The description.
        glossary: How it was asked for.
        complete: Whether the model ended it; a text that ran into its last token is complete if more than one word
            of it stands.

    Examples:
        >>> description_fault("", Glossary())
        'it has no text'
    """
    words = words_of(text)
    if not words:
        return "it has no text"
    if glossary_echo(glossary)(text):
        return "it repeats the request"
    if says_nothing(text, glossary.kind):
        return "it says nothing of the texts"
    return "" if complete or len(words) > 1 else "it stops in mid-sentence"


def glossary_echo(glossary: Glossary, *, chat: bool = False) -> Echo:
    """What a description may not repeat: the question, and the answers that are shown, which a chat has none of."""
    asked = glossary.task, glossary.opening, glossary.question
    return Echo(asked, whole=answers(glossary.shown, chat=chat))


def with_glossary(instruction: str, words: Sequence[str], descriptions: Sequence[str]) -> str:
    """The instruction with a line for every label; a word without a description stands alone.

    No lines where they would say nothing but the words.
    """
    pairs = [(word, "" if said.strip(" .!?") == word else said) for word, said in zip(words, descriptions, strict=True)]
    lines = [f"{word}: {said}" if said else word for word, said in pairs]
    return "\n".join([instruction, *(lines if any(said for _, said in pairs) else [])])
