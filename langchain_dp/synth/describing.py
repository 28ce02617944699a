"""What do the texts of one label have in common? Written first, by the same mechanism, in a few words.

A released description is public. So it stands before the texts, for the public model and for every member alike: the
model then knows what a label means that is called "team A", and the budget of the texts buys what is particular to
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from langchain_dp._util import validate
from langchain_dp.accounting.events import MOST_TOKENS
from langchain_dp.ensemble.describing import TOPIC, Shown, own, says_nothing, turns, wording
from langchain_dp.synth.prompts import SynthesisPrompts

_USUAL = {
    "task": "The {kind} of each text in one or two words.",
    "cue": "{Kind}:",
    "opening": "Texts were sorted into folders by {kind}. A text of one folder:",
    "question": "Name the {kind} of this folder in one or two words.",
}


@dataclasses.dataclass(frozen=True)
class LabelDescriptionOptions:
    """How ``DPExampleSynthesizer(describe=...)`` asks what the texts of a label have in common. All of it is public.

    Args:
        max_new_tokens: Tokens of a description at most. One or two words are asked for; what is allowed is paid for.
        members: Records that are expected to take part in one description; fewer where there are not as many.
        clip_ratio: Clip of the descriptions, in clips of the texts. Both are made as large as the budget allows, so
            this is how the budget is split.
        temperature: Of the distribution that a token of a description is drawn from. It is lower where the clip
            would be above 5 nats, at the same cost.
        show_labels: Show the model, before and after, what ``labels=`` says of a label too. Without, it sees texts, and
            then the description alone: for names that mislead, or say nothing.
        kind: What tells the labels apart, such as "topic", "mood" or "urgency": the texts below are made of it where
            they are left out.
        task: What is asked of a model that continues plain text, before the texts.
        cue: What stands before each answer.
        shown: Public texts with their answers, which show such a model what is asked. They must not be taken from the
            records, nor be of their kinds: no description is one of these answers. None: three topics, where
            ``kind`` is "topic".
        opening: What stands before the text in a chat template, where nothing is shown.
        question: What stands after it.

    Raises:
        InvalidParameter: A value is out of bounds, a text is none, or ``shown`` is missing.

    Examples:
        >>> LabelDescriptionOptions(max_new_tokens=12).members
        60
    """

    max_new_tokens: int = 5
    members: int = 60
    clip_ratio: float = 2.5
    temperature: float = 0.5
    show_labels: bool = False
    kind: str = TOPIC
    task: str = ""
    cue: str = ""
    shown: Shown | None = None
    opening: str = ""
    question: str = ""

    def __post_init__(self) -> None:
        validate.integer("max_new_tokens", self.max_new_tokens, at_least=1, at_most=MOST_TOKENS)
        validate.integer("members", self.members, at_least=2, at_most=10_000)
        validate.number("clip_ratio", self.clip_ratio, at_least=0.01, at_most=100.0)
        validate.number("temperature", self.temperature, at_least=0.05, at_most=100.0)
        validate.one_of("show_labels", self.show_labels, (True, False))
        for name, value in wording(dataclasses.asdict(self), _USUAL).items():
            object.__setattr__(self, name, value)

    def asking(self, given: str, prompts: SynthesisPrompts, *, chat: bool) -> tuple[str, str]:
        """Public text before and after the record of a label of which ``given`` is said."""
        label = f'The next text was sorted under "{given}".\n\n' if self.show_labels else ""
        if chat:
            return f"{self.opening}\n\n{label}", f"\n{self.question}"
        return f"{self.task}\n\n{turns(self.shown or (), prompts.body_of, self.cue)}{label}", self.cue

    def joined(self, given: str, description: str) -> str:
        """What the model is told of a label: ``description``, where one was released that says something."""
        if not description:
            return given
        return f"{given}: {description}" if self.show_labels else description


def useful(text: str, cue: str = SynthesisPrompts().tail, kind: str = TOPIC) -> str:
    """A released description without what it ends in the middle of, or goes on with; empty if it says nothing.

    Args:
        text: As it was released.
        cue: What the next text of the prompt would begin with.
        kind: What was asked for: to repeat it says nothing.

    Examples:
        >>> useful("Sports, football,")
        'Sports, football'
        >>> useful("the same topic"), useful("2018")
        ('', '')
    """
    said = own(text, cue)
    return "" if says_nothing(said, kind) else said.strip(" \t,;:-")


def told(
    labels: Mapping[str, str], described: Mapping[str, str], how: LabelDescriptionOptions | None
) -> dict[str, str]:
    """What the model is told of each label: what is given, or was released."""
    if how is None:
        return dict(labels)
    return {label: how.joined(given, described.get(label, "")) for label, given in labels.items()}


def instruction_of(words: Mapping[str, str], described: Mapping[str, str]) -> str:
    """A task in words: what each label, by the word that it is called, means, as far as it was described."""
    lines = [
        f"- {word}: {described[label]}" if (described.get(label) or word) != word else f"- {word}"
        for label, word in words.items()
    ]
    return "\n".join(["Sort the text into one of these, and answer with its name alone:", *lines])
