"""Score prompts on a target model, and choose one by public rows."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.isolation.model import CALLS, IsolatedModel
from langchain_dp.opt.handover import OptimizedPrompt
from langchain_dp.parsing import parse_label
from langchain_dp.records import Examples, PrivateRecords, check_labels, label_name, label_words, named_words, row_fault
from langchain_dp.records.files import fields_of, placed, rows_of
from langchain_dp.redact import redact_errors

_LEAST_ROWS = 20
"""With fewer rows one lucky answer would decide."""


NONE = ""


@dataclasses.dataclass(frozen=True)
class PromptScore:
    """Score of a prompt on a test set.

    Args:
        accuracy: Share of correct rows, in [0, 1].
        standard_error: Of the accuracy, over rows.
        answered: Share of rows whose answer named exactly one label.
        rows: Number of rows.
        confusion: Correct label -> answered label, or "" -> number of rows.

    Examples:
        >>> print(PromptScore(accuracy=0.9, standard_error=0.03, answered=1.0, rows=100))
        accuracy 0.900 +- 0.030 on 100 rows (100% of the answers named one label)
    """

    accuracy: float
    standard_error: float
    answered: float
    rows: int
    confusion: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, said: Sequence[int | None], right: Sequence[str], labels: Sequence[str]) -> PromptScore:
        """``said`` holds indexes of answered labels or None, ``right`` the correct labels."""
        pairs = Counter(
            (label, NONE if index is None else labels[index]) for index, label in zip(said, right, strict=True)
        )
        rows = len(right)
        accuracy = sum(pairs[label, label] for label in labels) / rows
        return cls(
            accuracy,
            math.sqrt(accuracy * (1 - accuracy) / rows),
            sum(index is not None for index in said) / rows,
            rows,
            {label: {answer: pairs[label, answer] for answer in (*labels, NONE)} for label in labels},
        )

    @property
    def always(self) -> str | None:
        """The only label ever answered if the rows have several."""
        present = [label for label, counts in self.confusion.items() if any(counts.values())]
        answered = {
            answer for counts in self.confusion.values() for answer, count in counts.items() if count and answer
        }
        return answered.pop() if len(present) > 1 and len(answered) == 1 else None

    def table(self) -> str:
        """Return the confusion as text, one row per correct label."""
        head = ["right \\ said", *self.confusion, "(no label)"]
        rows = [[label, *map(str, counts.values())] for label, counts in self.confusion.items()]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in (head, *rows)
        )

    def __str__(self) -> str:
        always = "" if self.always is None else f"; always says {self.always!r}"
        return (
            f"accuracy {self.accuracy:.3f} +- {self.standard_error:.3f} on {self.rows} rows "
            f"({self.answered:.0%} of the answers named one label{always})"
        )


@dataclasses.dataclass(frozen=True)
class TargetScore:
    """Score of one prompt on the target model.

    Args:
        instruction: Its instruction.
        words: Its words for the labels, in public order.
        score: Score on the rows.
        gain: Accuracy minus that of the initial instruction, in [-1, 1].
        standard_error: Of the gain if both prompts were equally good.

    Examples:
        >>> initial, *others = choose_for_target(optimized, model, public_rows).scores
        >>> print(others[0].score.table())
    """

    instruction: str
    words: tuple[str, ...]
    score: PromptScore
    gain: float
    standard_error: float

    @property
    def is_better(self) -> bool:
        """Return whether the gain exceeds one standard error."""
        return self.gain > self.standard_error

    def __str__(self) -> str:
        return f"{self.score.accuracy:.3f} ({self.gain:+.3f} +- {self.standard_error:.3f})  {self.instruction!r}"


@dataclasses.dataclass(frozen=True)
class TargetChoice:
    """Result of :func:`choose_for_target`.

    Args:
        prompt: The chosen prompt, with the certificate of its run.
        scores: Of the initial instruction, the selected prompt, then the other candidates.

    Examples:
        >>> chosen = choose_for_target(optimized, model, public_rows)
        >>> chosen.prompt.save("prompt-for-the-target.json")
    """

    prompt: OptimizedPrompt
    scores: tuple[TargetScore, ...]

    def __str__(self) -> str:
        chosen = self.prompt.instruction, tuple(self.prompt.words.values())
        marks = ["->" if (each.instruction, each.words) == chosen else "  " for each in self.scores]
        return "\n".join(f"{mark} {each}" for mark, each in zip(marks, self.scores, strict=True))


@redact_errors("while prompts were compared")
def choose_for_target(
    prompt: OptimizedPrompt, model: Runnable[Any, Any], rows: Examples, *, max_concurrency: int = CALLS
) -> TargetChoice:
    """Choose the released prompt that suits the target model best, by public rows.

    The initial instruction stays unless another prompt is better by more than one standard error. This costs no budget.

    Args:
        prompt: The result of a run.
        model: Any chat model. It gets ``len(rows)`` calls per prompt.
        rows: At least 20 public rows with labels. Private rows would leak through the choice.
        max_concurrency: Most calls at a time.

    Raises:
        InvalidParameter: There are too few rows, or one lacks a variable, a text or a known label.
        ModelUnavailable: The model answered no row at all.

    Formal guarantee:
        That of the prompt's certificate, for its private rows. None for ``rows``.

    Examples:
        >>> optimized = optimizer.optimize(private_rows)
        >>> chosen = choose_for_target(optimized, model, public_rows)
        >>> print(chosen)  # each prompt's accuracy, and its gain over the initial instruction
        >>> chain = chosen.prompt.chain(model)
    """
    if not isinstance(prompt, OptimizedPrompt):
        raise InvalidParameter(
            f"Expected prompt of type {type(prompt).__name__} to be what DPPromptOptimizer.optimize() returned."
        )
    labels, records = prompt.settings["labels"], _read(rows)
    validate.integer("number of rows", len(records), at_least=_LEAST_ROWS, remedy="With fewer, luck would choose.")
    choices, scores = prompt.choices(), list[TargetScore]()
    initial: list[bool] = []
    for choice in choices:
        template = prompt.with_choice(choice).template()
        words = dict(zip(labels, choice.words, strict=True))
        answers, truths = _answers(template, model, records, labels, words, max_concurrency)
        right = [index is not None and labels[index] == truth for index, truth in zip(answers, truths, strict=True)]
        initial = initial or right
        score = PromptScore.of(answers, truths, labels)
        scores.append(TargetScore(choice.instruction, choice.words, score, *paired_gain(right, initial)))
    better = [at for at, each in enumerate(scores) if each.is_better]
    best = max(better, key=lambda at: scores[at].gain, default=0)
    return TargetChoice(prompt.with_choice(choices[best]), tuple(scores))


def paired_gain(right: Sequence[bool], before: Sequence[bool]) -> tuple[float, float]:
    gains = [int(new) - int(old) for new, old in zip(right, before, strict=True)]
    return sum(gains) / len(gains), math.sqrt(sum(map(abs, gains))) / len(gains)


@redact_errors("while a prompt was scored")
def evaluate_prompt(
    prompt: ChatPromptTemplate | OptimizedPrompt,
    model: Runnable[Any, Any],
    rows: Examples,
    labels: Sequence[Any],
    *,
    words: Mapping[str, str] | None = None,
    max_concurrency: int = CALLS,
) -> PromptScore:
    """Score a prompt on test rows with any chat model. Callbacks, caches and tracers do not see the rows.

    Args:
        prompt: A template or result of :class:`DPPromptOptimizer`.
        model: The model to score.
        rows: Mappings with the prompt's variables and ``label``, or a DataFrame, a dataset or a path.
        labels: The public labels.
        words: Label -> word. By default those in the prompt's metadata.
        max_concurrency: Most calls at a time.

    Raises:
        InvalidParameter: There are no rows, one lacks a variable, a text or a known label, or words or prompt belong to
            other labels.
        ModelUnavailable: The model answered no row at all.

    Examples:
        >>> prompt = optimizer.invoke(rows)
        >>> score = evaluate_prompt(prompt, model, test_rows, LABELS)
        >>> print(score)
        >>> print(score.table())
    """
    labels = check_labels(labels)
    if isinstance(prompt, OptimizedPrompt):
        if prompt.words and set(prompt.words) != set(labels):
            raise InvalidParameter(f"Expected labels={list(labels)} to be those of the prompt: {list(prompt.words)}.")
        prompt = prompt.template()
    if not isinstance(prompt, ChatPromptTemplate):
        raise InvalidParameter(f"Expected prompt of type {type(prompt).__name__} to be a ChatPromptTemplate.")
    records = _read(rows)
    validate.integer("number of rows", len(records), at_least=1)
    words = words if words is not None else (prompt.metadata or {}).get("words", {})
    return PromptScore.of(*_answers(prompt, model, records, labels, words, max_concurrency), labels)


def _read(rows: Examples) -> list[Mapping[str, Any]]:
    if isinstance(rows, PrivateRecords):
        rows = [rows.get(name) for name in rows.ids()]
    return [fields_of(row) or {} for row in rows_of(rows)]


def _answers(
    prompt: ChatPromptTemplate,
    model: Runnable[Any, Any],
    asked: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    words: Mapping[str, str],
    max_concurrency: int,
) -> tuple[list[int | None], list[str]]:
    truths = [_truth(row, position, prompt.input_variables, labels) for position, row in enumerate(asked)]
    shown = label_words(named_words(words), labels)
    messages = [prompt.format_messages(**{name: row[name] for name in prompt.input_variables}) for row in asked]
    # Accuracy on the caller's own rows is no release, so an opaque model is fine.
    answers = IsolatedModel(model, max_concurrency=max_concurrency, trust_opaque_model=True).batch(messages)
    if all(answer is None for answer in answers):
        new = IsolatedModel(model, trust_opaque_model=True)  # one that has seen no row may tell the reason
        new.probe(prompt.format_messages(**dict.fromkeys(prompt.input_variables, "A public test.")))
        raise ModelUnavailable(
            f"Expected the model to answer, but it failed on each of {len(asked):,} rows. Check it: it is asked by "
            "invoke(), not by ainvoke()."
        )
    return [None if answer is None else parse_label(answer, shown) for answer in answers], truths


def _truth(row: Mapping[str, Any], position: int, variables: Sequence[str], labels: Sequence[str]) -> str:
    if "label" not in row:
        raise InvalidParameter(f"Expected test row {position} to have its label under 'label'. Rename the field.")
    label = label_name(row.get("label"))
    if fault := row_fault({**row, "label": label}, labels, variables, whose="prompt"):
        raise InvalidParameter(placed(fault, f"test row {position}"))
    return str(label)
