"""Templates of the forward and the backward prompt, after Hong et al. 2024, Figure 5, and Sordoni et al. 2023."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from langchain_dp._util import validate
from langchain_dp._util.reprs import MadeOfFields
from langchain_dp.ensemble.questions import check_template, check_text, variables_of
from langchain_dp.errors import InvalidParameter
from langchain_dp.records import named_words

MESSAGES = (
    "A better instruction has a few words more, where this one left the student in doubt.",
    "A better instruction says of each output which inputs belong to it.",
    "A better instruction has only the words that the student needs.",
    "A better instruction says in more detail what is asked, so that it can be read in one way only.",
)
"""Requests. They give no orders, so a copied request is no instruction."""

CUE = "Better instruction:"
"""In the user's turn, a small model repeated this cue."""

NO_ANSWER = "(none)"


@dataclasses.dataclass(frozen=True)
class OptPrompts(MadeOfFields):
    """Public templates of one task.

    Args:
        text: Template of one input. Its variables are keys of an example.
        words: Label or its name -> word that the model sees and answers.
        meta: Introduction of the backward prompt.
        messages: Requests, of which each backward prompt holds one.
        answer: Line after every instruction, or "". ``{labels}`` stands for the labels' words.
        system: Release a system message and a human one.

    Raises:
        InvalidParameter: The template has no plain variable, there is no message, or a word is invalid or shared.

    Examples:
        >>> prompts = OptPrompts(text="{subject}: {text}", words={"not relevant": "no", "relevant": "yes"})
        >>> prompts.render({"subject": "Order 7", "text": "Where is it?"})
        'Order 7: Where is it?'
    """

    text: str = "{text}"
    words: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    meta: str = (
        "The aim is that a student makes no more errors. The student turns an input text into an output text, and "
        "follows an instruction. Below are that instruction, inputs where the student was right, and inputs where the "
        "student was wrong."
    )
    messages: Sequence[str] = MESSAGES
    answer: str = "Answer with one of: {labels}."
    system: bool = False

    def __post_init__(self) -> None:
        check_template("text", self.text)
        if isinstance(self.messages, str) or not self.messages:
            raise InvalidParameter(f"Expected messages={self.messages!r} to be at least one request. See MESSAGES.")
        for name, text in [("meta", self.meta), *(("messages", each) for each in self.messages)]:
            check_text(name, text)
        words = named_words(self.words)
        if not isinstance(self.answer, str) or "\n" in self.answer or (self.answer and "{labels}" not in self.answer):
            raise InvalidParameter(
                f"Expected answer={self.answer!r} to be one line that holds '{{labels}}', or empty. Write for example "
                "'Answer with one of: {labels}.'"
            )
        validate.one_of("system", self.system, (True, False))
        object.__setattr__(self, "words", MappingProxyType(words))
        object.__setattr__(self, "messages", tuple(self.messages))

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the template's variables, in order."""
        return variables_of(self.text)

    def word(self, label: str) -> str:
        """Return the word of a label."""
        return self.words.get(label, label)

    def render(self, fields: Mapping[str, Any]) -> str:
        """Return one input, stripped."""
        return self.text.format_map({name: str(fields[name]).strip() for name in self.variables}).strip()

    def forward_head(self, instruction: str, words: Sequence[str] = ()) -> str:
        """Return the public text before an input."""
        return f"Instruction: {instruction}\n{self.naming(words)}\n"

    def naming(self, words: Sequence[str]) -> str:
        """Return the line that names the labels' words, or "" without words."""
        return self.answer.replace("{labels}", ", ".join(words)) + "\n" if self.answer and words else ""

    def forward_body(self, text: str) -> str:
        """Return one input."""
        return f"Input: {text}\n\n"

    @property
    def forward_tail(self) -> str:
        """The cue. The label word follows it after a space."""
        return "Output:"

    def forward(self, instruction: str, words: Sequence[str] = ()) -> str:
        """Return the forward prompt as a template."""
        return "".join(self.forward_parts(instruction, words))

    def forward_parts(self, instruction: str, words: Sequence[str] = ()) -> tuple[str, str]:
        """Return :meth:`forward` in two parts: common to all inputs, and input with cue."""
        head = self.forward_head(instruction, words).replace("{", "{{").replace("}", "}}")
        return head, f"{self.forward_body(self.text)}{self.forward_tail}"

    def backward_head(self, instruction: str) -> str:
        """Return the public text before the demonstrations."""
        return f"{self.meta}\n\nInstruction: {instruction}\n\n"

    def backward_body(self, demonstrations: Sequence[Demonstration]) -> str:
        """Return the private part: the records of one subset."""
        successes = [d for d in demonstrations if d.answer == d.word]
        errors = [d for d in demonstrations if d.answer != d.word]
        parts = []
        if successes:
            rows = "".join(f"Input: {d.text}\nCorrect Output: {d.word}\n\n" for d in successes)
            parts.append(f"# Student successes\n{rows}")
        if errors:
            rows = "".join(
                f"Input: {d.text}\nStudent Output: {d.answer or NO_ANSWER}\nCorrect Output: {d.word}\n\n"
                for d in errors
            )
            parts.append(f"# Student errors\n{rows}")
        return "".join(parts)

    def backward_tail(self, message: int, instruction: str) -> str:
        """Return the request, then the instruction: a model copies text beside the cue."""
        return f"{self.messages[message]}\n\nOld instruction: {instruction}\n"


@dataclasses.dataclass(frozen=True)
class PromptAlternative:
    """A public prompt to select from: another instruction, other words for the labels, or both.

    Args:
        instruction: Its instruction. "" is the initial one.
        words: Label or its name -> its word, if changed.

    Raises:
        InvalidParameter: Both are empty.

    Examples:
        >>> PromptAlternative("Say whom or what the question asks for.", {"human": "person"}).instruction
        'Say whom or what the question asks for.'
    """

    instruction: str = ""
    words: Mapping[Any, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.instruction, str) or not isinstance(self.words, Mapping):
            raise InvalidParameter(
                f"Expected an alternative of {type(self.instruction).__name__} and {type(self.words).__name__} to be "
                "an instruction (str) and words (label -> word)."
            )
        check_text("instruction of an alternative", self.instruction)
        object.__setattr__(self, "instruction", self.instruction.strip())
        object.__setattr__(self, "words", named_words(self.words))
        if not self.instruction and not self.words:
            raise InvalidParameter("Expected an alternative to have an instruction, or words, of its own. It is empty.")

    def public(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"instruction": self.instruction, "words": dict(self.words)}


@dataclasses.dataclass(frozen=True, repr=False)
class Demonstration:
    """One private record in a backward prompt."""

    text: str
    word: str
    answer: str | None

    def __repr__(self) -> str:
        return "Demonstration(<private>)"


@dataclasses.dataclass(frozen=True)
class OptTask:
    """A ready task with the settings of Hong et al. 2024, Table 5.

    Args:
        labels: Public labels.
        instruction: Initial instruction (Table 6, after Sordoni et al. 2023).
        shots: Demonstrations per subset.
        subsets: Expected number of subsets that vote on one token.
        prompts: Templates.

    Examples:
        >>> task = OptTask(("praise", "complaint"), "Praise or complaint?", shots=5, subsets=205)
        >>> settings = {name: getattr(task, name) for name in ("labels", "instruction", "shots", "subsets", "prompts")}
        >>> optimizer = DPPromptOptimizer(model=engine, budget=budget, **settings)
    """

    labels: tuple[str, ...]
    instruction: str
    shots: int
    subsets: int
    prompts: OptPrompts = OptPrompts()


SST2 = OptTask(("negative", "positive"), "Classify the input text as positive or negative.", 5, 205)
"""Movie reviews."""

TREC = OptTask(
    ("description", "entity", "expression", "human", "location", "number"),
    "Read the following question, then choose whether it is about a description, entity, expression, human, location "
    "or number.",
    3,
    102,
)
"""Question types."""

MPQA = OptTask(
    ("negative", "positive"), "Read the following review, then choose whether it is negative or positive.", 3, 102
)
"""Opinions. Hong et al. use a repetition penalty of 1.1 here."""

DISASTER = OptTask(
    ("not relevant", "relevant"),
    "Read the following sentence, then choose whether it is relevant to a disaster.",
    3,
    102,
    OptPrompts(words={"not relevant": "no", "relevant": "yes"}),
)
"""Posts about a disaster or not. The words are yes and no, because "not relevant" contains "relevant"."""

TASKS: Mapping[str, OptTask] = MappingProxyType({"sst2": SST2, "trec": TREC, "mpqa": MPQA, "disaster": DISASTER})
