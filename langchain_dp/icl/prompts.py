"""Prompts of examples and a question, as plain text or chat messages."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import string
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from langchain_dp._util import validate
from langchain_dp._util.reprs import MadeOfFields
from langchain_dp.ensemble.questions import check_template, check_text, variables_of
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.subset_prompts import SubsetPrompt
from langchain_dp.ports import CONTENT_FREE
from langchain_dp.records import TEXT_OR_NUMBER, named_words


@dataclasses.dataclass(frozen=True)
class ICLPrompt(MadeOfFields):
    """A public template of one few-shot classification prompt.

    Args:
        question: Template of one input, such as "Review: {text}". Its variables are keys of an example.
        answer: Cue between the input and its label word, such as "Sentiment:".
        instruction: Text before the examples. May be empty.
        words: Label -> word that the model sees and answers. A missing label stands for itself.

    Raises:
        InvalidParameter: The template has no variable or an invalid format, two labels share a word, or a word is
            blank.

    Examples:
        >>> prompt = ICLPrompt(question="Message: {text}", answer="Feedback:", words={1: "praise", 0: "complaint"})
        >>> print(prompt.ask({"text": "Thank you all!"}))
        Message: Thank you all!
        Feedback:
    """

    question: str
    answer: str
    instruction: str = ""
    words: Mapping[Any, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("answer", "instruction"):
            check_text(name, getattr(self, name))
        check_template("question", self.question)
        if "label" in self.variables:
            raise InvalidParameter(
                f"Expected question={self.question!r} without {{label}}: the label follows {self.answer!r}. Drop it."
            )
        object.__setattr__(self, "words", MappingProxyType(named_words(self.words)))

    @functools.cached_property
    def variables(self) -> tuple[str, ...]:
        """Names of the template's variables, in order."""
        return variables_of(self.question)

    def word(self, label: str) -> str:
        """Return the word of a label."""
        return self.words.get(label, label)

    def ask(self, fields: Mapping[str, Any]) -> str:
        """Render one input with its cue. Raise InvalidParameter if a variable is missing."""
        if missing := [name for name in self.variables if name not in fields]:
            raise InvalidParameter(f"Expected the input to have the keys {list(self.variables)}; missing: {missing}.")
        if odd := [name for name in self.variables if not isinstance(fields[name], TEXT_OR_NUMBER)]:
            raise InvalidParameter(f"Expected the input's {odd} to be text or numbers. Convert them first.")
        values = {name: str(fields[name]).strip() for name in self.variables}
        return f"{self.question.format_map(values)}\n{self.answer}"

    def cued(self, text: str) -> str:
        """Add the cue to an input's text."""
        return f"{text}\n{self.answer}"

    def input_of(self, text: str) -> str:
        """Remove the cue."""
        return text.removesuffix(f"\n{self.answer}")

    def head(self) -> str:
        """Return the public text before the first example."""
        return f"{self.instruction}\n\n" if self.instruction else ""

    def body(self, shots: Sequence[tuple[str, str]]) -> str:
        """Render the examples (rendered question, label word)."""
        return "".join(f"{question} {word}\n\n" for question, word in shots)

    def content_free(self) -> tuple[str, ...]:
        """Return questions for contextual calibration (Zhao et al. 2021)."""
        return tuple(self.ask(dict.fromkeys(self.variables, blank)) for blank in CONTENT_FREE)

    def messages(self, shots: Sequence[tuple[str, str]], question: str, words: Sequence[str]) -> list[BaseMessage]:
        """Render chat messages, with examples as earlier turns."""
        rule = f"Answer with exactly one of: {', '.join(words)}. Write nothing else."
        system = f"{self.instruction}\n{rule}" if self.instruction else rule
        turns: list[BaseMessage] = [SystemMessage(system)]
        for text, word in shots:
            turns += [HumanMessage(text), AIMessage(word)]
        return [*turns, HumanMessage(question)]


SST2 = ICLPrompt(question="Review: {text}", answer="Sentiment:", words={"positive": "Positive", "negative": "Negative"})
"""Movie reviews, labels positive, negative (Panda et al. 2023, Table 4)."""

AMAZON = dataclasses.replace(SST2, question="Title: {title}\nReview: {text}")
"""Product reviews with a title, labels positive, negative (Panda et al. 2023, Table 4)."""

AGNEWS = ICLPrompt(question="Article: {text}", answer="Answer:")
"""News topics, labels World, Sports, Business, Technology (Panda et al. 2023, Table 4)."""

TREC = ICLPrompt(
    instruction=(
        "Classify the questions based on whether their answer type is a Number, Location, Person, Description, "
        "Entity, or Abbreviation."
    ),
    question="Question: {text}",
    answer="Answer Type:",
    words={
        "number": "Number", "location": "Location", "human": "Person", "description": "Description",
        "entity": "Entity", "expression": "Abbreviation",
    },
)  # fmt: skip
"""Question types, labels number, location, human, description, entity, expression (Panda et al. 2023, Table 4)."""

TEMPLATES: Mapping[str, ICLPrompt] = MappingProxyType({"sst2": SST2, "amazon": AMAZON, "agnews": AGNEWS, "trec": TREC})


def plain(labels: Sequence[str]) -> ICLPrompt:
    validate.integer("number of labels", len(labels), at_least=2)
    return ICLPrompt(
        instruction=f"Decide which label fits each text. Labels: {', '.join(labels)}.",
        question="Text: {text}",
        answer="Label:",
    )


def prompt_from(given: object) -> ICLPrompt:
    """Read a prompt from a text: instruction, question with variables, cue."""
    if isinstance(given, ICLPrompt):
        return given
    if not isinstance(given, str):
        _refuse(f"of type {type(given).__name__} to be an ICLPrompt or a str")
    lines = [line.rstrip() for line in re.sub(r"[ \t]*\{label\}\s*$", "", given).strip().splitlines()]
    paragraphs = "\n".join(lines).split("\n\n")
    first = next((place for place, paragraph in enumerate(paragraphs) if _names_variables(paragraph)), None)
    if first is None:
        _refuse("to name a variable, such as {text}, where the question stands")
    question, _, cue = "\n\n".join(paragraphs[first:]).rpartition("\n")
    if not question or not cue.strip() or _names_variables(cue):
        question, cue = "\n\n".join(paragraphs[first:]), _CUE
    instruction = "\n\n".join(paragraph.format() for paragraph in paragraphs[:first])
    return ICLPrompt(question=question.strip(), answer=cue.format().strip(), instruction=instruction)


def _names_variables(text: str) -> bool:
    try:
        return any(name is not None for _, name, _, _ in string.Formatter().parse(text))
    except ValueError:
        _refuse("to hold every brace that stands for itself twice")


def _refuse(why: str) -> NoReturn:
    raise InvalidParameter(
        f"Expected prompt {why}. Write ICLPrompt(instruction=..., question='Review: {{text}}', answer='Sentiment:')."
    )


TEST_QUESTION = "This is a test."
INVENTED = (
    "Some text.", "Another text.", "A third text.", "One more text.", "Yet another text.", "A sixth text.",
    "A text of its own.", "A last text.",
)  # fmt: skip
"""PUBLIC texts without content."""

_FEWEST_INVENTED = 4
_CUE = "Label:"


def invented_prompts(prompt: ICLPrompt, words: Sequence[str]) -> Callable[[str], SubsetPrompt]:
    """Return a function that puts PUBLIC invented examples before a question."""
    texts = INVENTED[: max(_FEWEST_INVENTED, len(words))]
    shots = tuple((_rendered(prompt, text), word) for text, word in zip(texts, itertools.cycle(words), strict=False))
    return functools.partial(SubsetPrompt, ("public", len(shots)), shots)


def companion_text(prompt: ICLPrompt, words: Sequence[str]) -> str:
    return prompt.head() + prompt.body(invented_prompts(prompt, words)("").shots)


def public_question(prompt: ICLPrompt) -> str:
    return _rendered(prompt, TEST_QUESTION)


def _rendered(prompt: ICLPrompt, text: str) -> str:
    return prompt.ask(dict.fromkeys(prompt.variables, text))
