"""Prompts of examples and a question, as plain text or chat messages, and the subsets' prompts in one release."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
import string
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from langchain_dp._util import forks, validate
from langchain_dp._util.reprs import MadeOfFields
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.ensemble.questions import check_template, check_text, variables_of
from langchain_dp.ensemble.scheme import Scheme
from langchain_dp.ensemble.subsets import Subset, SubsetSampler
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness
from langchain_dp.records import TEXT_OR_NUMBER, PrivateRecords, named_words

Shot = tuple[str, str]
"""(rendered input up to the cue, label word)."""


@dataclasses.dataclass(frozen=True, repr=False)
class SubsetPrompt:
    """The prompt of one subset. Private, except the question."""

    member: Hashable  # changes with the subset's content
    shots: tuple[Shot, ...]  # without any the subset abstains
    question: str  # rendered, the same for every subset of a release

    def __repr__(self) -> str:
        return "SubsetPrompt(<private>)"


Vote = int | None
"""Index of a label. None abstains."""


def count_votes(subset_prompts: Sequence[SubsetPrompt], votes: Sequence[Vote], labels: int) -> list[int]:
    """Return private counts. Each subset moves at most one vote."""
    counts = [0] * labels
    for subset_prompt, vote in zip(subset_prompts, votes, strict=True):
        if subset_prompt.shots and vote is not None:
            counts[vote] += 1
    return counts


class SubsetPrompts:
    """The private records in subsets. A changed record changes one subset and its key."""

    def __init__(
        self, records: PrivateRecords, scheme: Scheme, render: Callable[[Mapping[str, Any]], Shot], rng: Randomness
    ) -> None:
        self.scheme = scheme
        self._records = records
        self._shots: dict[str, Shot] = {record_id: render(records.get(record_id)) for record_id in records.ids()}
        self._render = render
        self._lock = threading.Lock()
        forks.keep_still(self)
        self.forgotten = 0
        self.catch_up: Callable[[], None] | None = None  # with replicas, called first
        self.caches: weakref.WeakSet[AnswerCache[Any]] = weakref.WeakSet()
        # Coins are drawn for users. Without a user_key each record is one.
        self._shown = {records.user_of(group[0]): group for group in records.users(at_most=1)}
        self._sampler = SubsetSampler(self._shown, scheme, rng)

    def draw(self, question: str) -> list[SubsetPrompt]:
        return self._prompts(self._sampler.draw, question)

    def balanced(self, question: str, rng: random.Random) -> list[SubsetPrompt]:
        """Return a non-private few-shot prompt with balanced labels."""
        sizes = [len(each.shots) for each in self.everyone(question) or self.draw(question) if each.shots]
        with self._lock:
            by_word: dict[str, list[Shot]] = {}
            for shot in self._shots.values():
                by_word.setdefault(shot[1], []).append(shot)
        shots: list[Shot] = []
        size = rng.choice(sizes) if sizes else 0
        while len(shots) < size and (words := [word for word, left in by_word.items() if left]):
            chosen = rng.sample(words, min(len(words), size - len(shots)))
            shots += [by_word[word].pop(rng.randrange(len(by_word[word]))) for word in chosen]
        return [SubsetPrompt(None, tuple(shots), question)] if shots else []

    def everyone(self, question: str) -> list[SubsetPrompt]:
        return self._prompts(self._sampler.everyone, question)

    def _prompts(self, choose: Callable[[], Iterable[Subset]], question: str) -> list[SubsetPrompt]:
        if self.catch_up is not None:
            self.catch_up()
        with self._lock:
            return [
                SubsetPrompt(
                    subset.member,
                    tuple(self._shots[name] for user in subset.record_ids for name in self._shown[user]),
                    question,
                )
                for subset in choose()
            ]

    def add(self, example: Mapping[str, Any], record_id: str | None) -> tuple[str, Hashable | None]:
        """Return the id, and the previous key of its subset."""
        with self._lock:
            shot = self._render(example)
            record_id = self._records.add(example, record_id=record_id)
            self._shots[record_id] = shot
            return record_id, self._refresh(self._records.user_of(record_id))

    def _refresh(self, user: str) -> Hashable | None:
        before, now = self._shown.pop(user, []), self._records.records_of(user, at_most=1)
        if not now:
            return self._sampler.forget(user)
        self._shown[user] = now
        if not before:
            return self._sampler.add(user)
        return self._sampler.change(user) if now != before else None

    def forget(self, record_id: str) -> Hashable | None:
        """Return the previous key of the subset."""
        with self._lock:
            user = self._records.user_of(record_id)
            self._records.forget(record_id)
            self.forgotten += 1
            del self._shots[record_id]
            epoch = self.forgotten
            stale = self._refresh(user)
        for answers in list(self.caches):
            answers.invalidate_before(epoch)
        return stale

    def average_shot(self) -> str:
        with self._lock:
            texts = sorted((f"{question} {word}\n\n" for question, word in self._shots.values()), key=len)
        mean = sum(map(len, texts)) / max(len(texts), 1)
        return min(texts, key=lambda text: abs(len(text) - mean), default="")


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
                f"Expected question={self.question!r} without the label, which follows answer={self.answer!r}. Drop "
                "{label}."
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
        return tuple(self.ask(dict.fromkeys(self.variables, blank)) for blank in ("N/A", "", "[MASK]"))

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
