"""Readers choose one public choice for each private text, alone."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable

from langchain_dp.aggregate.encoders import CheckedEncoder, described, nearest
from langchain_dp.aggregate.features import Floats
from langchain_dp.ensemble.engine_calls import (
    LEAST,
    PromptBudget,
    ask_together,
    asked_publicly,
    beginning,
    forget_members,
    opaque,
    row_of,
)
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.isolation.model import IsolatedModel
from langchain_dp.parsing import parse_label
from langchain_dp.ports import CONTENT_FREE, LabelScorer, MemberPrompt
from langchain_dp.records import encodable

MOST_CHOICES = 500
NO_ANSWER = "no answer"
"""The choice without a clear answer."""
_MOST_CHARS = 20_000
_AT_ONCE = 64
_TEXTS_AT_ONCE = 1_000

Choices = list[int | None]
"""Index per text."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with public choices, asked of each private text.

    Args:
        name: Short name, the heading of its table.
        choices: 2 to 500 names, with or without descriptions.
        text: Wording for a model. "Which {name} fits this text best?" by default.
        below: Finer choices below leading ones: a mapping, or a function from a choice's name. The function gets
            released names alone, and may call any model.

    Raises:
        InvalidParameter: The choices are too few, too many or repeated.

    Examples:
        >>> Question("mood", ["calm", "angry"], text="Is the customer calm or angry?").described
        {'calm': '', 'angry': ''}
    """

    name: str
    choices: Sequence[str] | Mapping[str, str]
    text: str = ""
    below: Mapping[str, Sequence[str]] | Callable[[str], Sequence[str] | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or not encodable(self.name):
            raise InvalidParameter("Expected the name of a question to be a non-empty str.")
        check_choices(f"choices of {self.name!r}", self.choices)
        if not isinstance(self.text, str) or not encodable(self.text):
            raise InvalidParameter(f"Expected the text of {self.name!r} to be a str of valid Unicode.")
        if isinstance(self.below, Mapping):
            if unknown := [choice for choice in self.below if choice not in self.described]:
                raise InvalidParameter(
                    f"Expected below= of {self.name!r} to name its choices, but it names {unknown[:5]}."
                )
            for choice, finer in self.below.items():
                check_choices(f"choices below {choice!r}", finer)

    @property
    def described(self) -> dict[str, str]:
        """Choices with descriptions."""
        return dict(self.choices) if isinstance(self.choices, Mapping) else dict.fromkeys(self.choices, "")

    def finer(self, choice: str) -> Question | None:
        """Return the question below a choice, or None."""
        listed = self.below(choice) if callable(self.below) else (self.below or {}).get(choice)
        return None if listed is None else Question(f"{self.name}: {choice}", listed)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        below = {name: list(finer) for name, finer in self.below.items()} if isinstance(self.below, Mapping) else None
        return {
            "name": self.name, "choices": self.described, "text": self.text,
            "below": "a function" if callable(self.below) else below,
        }  # fmt: skip

    def instruction(self) -> str:
        """Return the public prompt."""
        asked = self.text or f"Which {self.name} fits this text best?"
        listed = "\n".join(f"- {choice}" for choice in described(self.described))
        return f"{asked}\n{listed}\nAnswer with one of these only.\n\nText: "


def check_choices(name: str, choices: object) -> None:
    if isinstance(choices, str) or not isinstance(choices, (Sequence, Mapping)):
        raise InvalidParameter(f"Expected the {name} to be a list, or a mapping to descriptions, not a str.")
    given = list(choices)
    texts = [*given, *(choices.values() if isinstance(choices, Mapping) else ())]
    if not all(isinstance(text, str) and encodable(text) for text in texts) or not all(map(str.strip, given)):
        raise InvalidParameter(f"Expected the {name} to be non-empty strings, or a mapping to descriptions.")
    if not 2 <= len(given) <= MOST_CHOICES:
        remedy = "Add one." if len(given) < 2 else "Join similar ones."
        raise InvalidParameter(f"Expected 2 to {MOST_CHOICES} {name}, got {len(given):,}. {remedy}")
    folded = [choice.strip().casefold() for choice in given]
    if twice := sorted({choice for choice in folded if folded.count(choice) > 1}):
        raise InvalidParameter(f"Expected each of the {name} once, but these stand there twice: {twice[:5]}.")
    if NO_ANSWER in folded:
        raise InvalidParameter(f"Expected the {name} without {NO_ANSWER!r}: that one is added. Leave it out.")


class Reader(Protocol):
    """Chooses for each text alone, None after a failure."""

    name: str
    notes: list[str]

    def probe(self, questions: Sequence[Question]) -> None:
        """Check with public texts, or raise ModelUnavailable."""

    def choose(
        self, questions: Sequence[Question], texts: Sequence[str], advance: Callable[[int], Any]
    ) -> list[Choices]:
        """Return one list per question. ``advance`` counts answers."""
        ...


class EncoderReader:
    """Chooses the nearest description, the first of equals."""

    def __init__(self, encoder: Embeddings | None, trusted: bool) -> None:
        self._encoder = CheckedEncoder(encoder, trusted=trusted)
        self.name, self.notes = self._encoder.name, self._encoder.notes

    def probe(self, questions: Sequence[Question]) -> None:
        self._encoder.probe()

    def choose(
        self, questions: Sequence[Question], texts: Sequence[str], advance: Callable[[int], Any]
    ) -> list[Choices]:
        ranked = self.rank(questions, texts, 1, advance)
        return [[places[0] if places else None for places in ranks] for ranks in ranked]

    def rank(
        self, questions: Sequence[Question], texts: Sequence[str], count: int, advance: Callable[[int], Any]
    ) -> list[list[list[int]]]:
        """Return the ``count`` nearest choices per question and text, none after a failure."""
        tables = [self._encoder.public_vectors(described(question.described)) for question in questions]
        ranked: list[list[list[int]]] = [[] for _ in questions]
        for rows in self._encoder.private_vectors(texts):
            for ranks, table in zip(ranked, tables, strict=True):
                places = nearest(rows, table, count).tolist()
                ranks += [near if row.any() else [] for near, row in zip(places, rows, strict=True)]
            advance(len(rows) * len(questions))
        return ranked


class ModelReader:
    """Makes one isolated call per text and question."""

    def __init__(self, model: Runnable[Any, Any], trusted: bool) -> None:
        self._model = IsolatedModel(model, trust_opaque_model=trusted)
        self.name, self.notes = self._model.name, list(self._model.notes)
        self._given, self._trusted = model, trusted

    def probe(self, questions: Sequence[Question]) -> None:
        self._model.probe(f"{questions[0].instruction()}This is a test.")

    def choose(
        self, questions: Sequence[Question], texts: Sequence[str], advance: Callable[[int], Any]
    ) -> list[Choices]:
        chosen: list[Choices] = []
        for question in questions:
            read = functools.partial(parse_label, words=list(question.described))
            model = IsolatedModel(self._given, trust_opaque_model=self._trusted, read=read)
            head, choices = question.instruction(), []
            for start in range(0, len(texts), _TEXTS_AT_ONCE):
                part = texts[start : start + _TEXTS_AT_ONCE]
                choices += model.batch([f"{head}{beginning(text, _MOST_CHARS)}" for text in part])
                advance(len(part))
            chosen.append(choices)
        return chosen


class EngineReader:
    """Scores choices, over scores for empty texts (Zhao et al. 2021)."""

    def __init__(self, engine: LabelScorer) -> None:
        self._engine = engine
        self.name, self.notes = engine.name, list(getattr(engine, "notes", ()))
        self._budget = PromptBudget(engine)

    def probe(self, questions: Sequence[Question]) -> None:
        for question in questions:
            self._baseline(question)

    def _baseline(self, question: Question) -> Floats:
        words = len(question.described)
        rows = asked_publicly(lambda: self._scored(question, list(CONTENT_FREE), "public"))
        valid = [row for row in rows if row is not None and len(row) == words]
        if not valid or not np.isfinite(valid).all():
            raise ModelUnavailable("The engine does not score the choices of a question about a public text. Check it.")
        return np.asarray(np.mean(valid, axis=0))

    def _scored(self, question: Question, texts: Sequence[str], member: str) -> list[list[float] | None]:
        head, tail = question.instruction(), "\nAnswer:"
        words = [f" {choice}" for choice in question.described]
        room = self._budget.remaining(self._engine.max_tail_tokens, head, tail, max(words, key=len))
        if room < LEAST:
            raise InvalidParameter(
                f"Expected the choices of {question.name!r} to leave room for a text, but they leave {max(room, 0)} "
                "tokens. Give fewer choices, or the engine a larger max_tokens."
            )
        cut = [self._budget.truncate([text], whole="".join, tokens=room)[0] for text in texts]
        prompts = [MemberPrompt(head, text, tail, f"{member} {place}") for place, text in enumerate(cut)]
        try:
            return self._engine.score_labels(prompts, words)
        finally:
            forget_members(self._engine, *[prompt.member for prompt in prompts])

    def choose(
        self, questions: Sequence[Question], texts: Sequence[str], advance: Callable[[int], Any]
    ) -> list[Choices]:
        secret = secrets.token_bytes(32)
        chosen: list[Choices] = []
        for question in questions:
            baseline, choices = self._baseline(question), []
            for start in range(0, len(texts), _AT_ONCE):
                part = texts[start : start + _AT_ONCE]
                ask = functools.partial(self._scored, question, member=opaque(secret, question.name, start))
                rows = ask_together(ask, part)
                choices += [_best(row, baseline) for row in rows]
                advance(len(part))
            chosen.append(choices)
        return chosen


def _best(scores: object, baseline: Floats) -> int | None:
    row = row_of(scores, len(baseline))
    return None if row is None or np.isnan(row).any() else int(np.argmax(row - baseline))


def reader_for(model: Any, encoder: Embeddings | None, *, trusted: bool) -> Reader:
    if model is not None and encoder is not None:
        raise InvalidParameter("Expected encoder= or model=, not both: one of them reads the records.")
    if model is None:
        return EncoderReader(encoder, trusted)
    scorer = scorer_of(model)
    return ModelReader(model, trusted) if scorer is None else EngineReader(scorer)


def scorer_of(model: Any) -> LabelScorer | None:
    """Return an engine, or None for a chat model."""
    if isinstance(model, LabelScorer):
        return model
    if isinstance(model, Runnable):
        return None
    raise InvalidParameter(
        f"Expected model={type(model).__name__} to be a chat model, or an engine that scores labels. Pass e.g. "
        "ChatOpenAI(...) or LlamaCppEnsemble(...)."
    )
