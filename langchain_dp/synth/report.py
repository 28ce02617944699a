"""What a synthesis or private answers will cost and whether they are worth it, before anything is spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from langchain_dp._util.reprs import InNotebooks
from langchain_dp._util.rounding import took
from langchain_dp.accounting import PrivacyBudget
from langchain_dp.accounting.budget import LEAST_CLIP
from langchain_dp.ensemble.engine_calls import count_or_estimate
from langchain_dp.ports import NextTokenScorer, ReportsThroughput
from langchain_dp.records import PrivateRecords
from langchain_dp.synth.promise import parameters, weak
from langchain_dp.synth.prompts import AnswerPrompts
from langchain_dp.synth.settings import Design, SynthesisSettings, designed

_GAINS = ((LEAST_CLIP, "a third"), (0.65, "half"), (1.0, "three quarters"), (1.8, "nine tenths"))
"""Share of what members add to the public model's guess of the next token that is left at a clip: SmolLM2-135M on eight
public news texts, gains of .10, .18, .22 and .27 nats a token, and .30 without any clip."""
_SHORT = 40.0
"""Tokens of a record that is not known."""
_MEASURED = "SmolLM2-135M: another model may gain less or more"


class _Prospect(InNotebooks):
    """What plans of texts and of answers say of their noise."""

    design: Design

    @property
    def clip(self) -> float:
        """By how much a member may move the log-probability of a token, in nats."""
        return self.design.noise.clip

    @property
    def members(self) -> int:
        """Members that are expected to take part in one text."""
        return self.design.noise.members

    @property
    def is_worth_it(self) -> bool:
        """Whether the records can move what is written. From the clip alone, which is public."""
        return self.clip >= LEAST_CLIP


@dataclasses.dataclass(frozen=True)
class SynthesisPlan(_Prospect):
    """Cost and prospects of one run.

    Args:
        budget: The promise.
        design: Rounds or groups, and the noise.
        labels: Number of labels: texts of one round.
        tokens: Estimated tokens to evaluate.
        seconds: Estimated time; None if the engine's speed is unknown.
        weak: Why the promise is weak, if it is.
        fewer: Where it is not worth it, a smaller number of examples that would be, if there is one.

    Examples:
        >>> plan = synthesizer.plan(2_000)
        >>> print(plan)
        >>> plan.is_worth_it, plan.members
        (True, 30)
    """

    budget: PrivacyBudget
    design: Design
    labels: int
    tokens: float
    seconds: float | None = None
    weak: tuple[str, ...] = ()
    fewer: int | None = None

    @property
    def examples(self) -> int:
        """Texts that will be written, before filters."""
        return self.design.rounds * self.labels

    @property
    def verdict(self) -> str:
        """In plain words whether it is worth it. From the clip alone, which is public."""
        at_most = "" if self.fewer is None else f" ({self.fewer:,} would do)"
        return _verdict(
            self.design.noise.clip,
            "Write with the model alone from a good description (public_examples()), spend nothing; or have fewer "
            f"examples{at_most}",
            "the labels mean",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self.budget.to_dict(),
            "examples": self.examples,
            **parameters(self.design),
            "verdict": self.verdict,
            "tokens_to_evaluate": self.tokens,
            "seconds": self.seconds,
            "weak": list(self.weak),
        }

    def __str__(self) -> str:
        design, noise = self.design, self.design.noise
        time = "" if self.seconds is None else f", about {took(self.seconds)}"
        several = "s" if design.rounds > 1 else ""
        who = (
            f"{design.rounds} round{several}, each record in each with q = {noise.event.sampling_probability:.4g}"
            if design.scheme == "rounds"
            else f"{design.rounds} disjoint group{several} of records"
        )
        of = f", each of about {design.shots} records" if design.shots > 1 else ""
        of_each = f": {design.rounds:,} of each of {self.labels} labels" if self.labels > 1 else ""
        return "\n".join(
            [
                f"Plan for synthetic examples: {self.budget}",
                f"  examples     {self.examples:,}{of_each}, at most {noise.event.tokens} tokens each",
                f"  members      {who}; {noise.members} expected a text{of}",
                f"  clip         {noise.clip:.3g} nats a member and token",
                f"  worth it?    {yes_or_no(self.verdict)}",
                "  for nothing  as many by the model alone, public_examples() or --alone: look first if they will do",
                f"  to evaluate  about {self.tokens:,.0f} tokens{time}",
                *(f"  WARNING      {point}" for point in self.weak),
            ]
        )


@dataclasses.dataclass(frozen=True)
class AnswersPlan(_Prospect):
    """Cost and prospects of private answers. The tokens are counted on the records: do not publish them.

    Args:
        budget: The promise of all answers together.
        design: Rounds, one an answer, and their noise.
        tokens: Estimated tokens to evaluate for one answer.
        seconds: Estimated time of one answer; None if the engine's speed is unknown.
        weak: Why the promise is weak, if it is.

    Examples:
        >>> plan = replies.plan()
        >>> plan.answers
        100
    """

    budget: PrivacyBudget
    design: Design
    tokens: float
    seconds: float | None = None
    weak: tuple[str, ...] = ()

    @property
    def answers(self) -> int:
        """Largest number of answers."""
        return self.design.rounds

    @property
    def verdict(self) -> str:
        """In plain words whether it is worth it. From the clip alone, which is public."""
        return _verdict(
            self.design.noise.clip, "Ask the model alone, spend nothing; or have fewer answers", "the answers hold"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **self.budget.to_dict(),
            "answers": self.answers,
            **parameters(self.design),
            "verdict": self.verdict,
            "tokens_per_answer": self.tokens,
            "seconds_per_answer": self.seconds,
            "weak": list(self.weak),
        }

    def __str__(self) -> str:
        noise = self.design.noise
        time = "" if self.seconds is None else f", about {took(self.seconds)}"
        return "\n".join(
            [
                f"Plan for private answers: {self.budget}",
                f"  answers      {self.answers:,} at most, of at most {noise.event.tokens} tokens each",
                f"  members      each record in each answer with q = {noise.event.sampling_probability:.4g}; "
                f"{noise.members} expected an answer",
                f"  clip         {noise.clip:.3g} nats a member and token",
                f"  worth it?    {yes_or_no(self.verdict)}",
                f"  an answer    about {self.tokens:,.0f} tokens to evaluate{time}",
                *(f"  WARNING      {point}" for point in self.weak),
            ]
        )


def yes_or_no(verdict: str) -> str:
    """A verdict as the answer to whether it is worth it."""
    return verdict.replace("not worth it: ", "no: ", 1)


def _verdict(clip: float, instead: str, holding: str) -> str:
    """What comes through a clip; where it is nothing, what to do ``instead``."""
    if clip < LEAST_CLIP:
        return f"not worth it: the records can hardly move the public model. {instead}, more records, a larger epsilon"
    share = next(said for bound, said in reversed(_GAINS) if clip >= bound)
    weak = f" (worth it where {holding} what no model knows)" if clip < 1 else ""
    return f"about {share} of what the records could add comes through{weak}; measured on {_MEASURED}"


def planned_answers(
    engine: NextTokenScorer,
    prompts: AnswerPrompts,
    budget: PrivacyBudget,
    design: Design,
    records: PrivateRecords | None,
) -> AnswersPlan:
    """Work out the plan; ``records`` for their lengths, None assumes short ones. A question is as long as a record."""
    shown = _SHORT if records is None else _average(engine, records, prompts.shown)
    tokens = engine.count_tokens(prompts.head) + (1 + design.noise.members) * (2 * shown + design.noise.event.tokens)
    return AnswersPlan(
        budget=budget,
        design=design,
        tokens=tokens,
        seconds=_seconds(engine, tokens),
        weak=weak(design, budget.epsilon, budget.delta),
    )


def planned(
    engine: NextTokenScorer,
    settings: SynthesisSettings,
    budget: PrivacyBudget,
    design: Design,
    records: PrivateRecords | None,
) -> SynthesisPlan:
    """Work out the plan; ``records`` for their lengths, None assumes short ones."""
    head = max(engine.count_tokens(settings.prompts.described(text)) for text in settings.labels.values())
    tail = engine.count_tokens(settings.prompts.tail)
    texts = design.rounds * len(settings.labels)
    members = 1 + design.noise.members
    body = _SHORT if records is None else _average(engine, records, lambda row: settings.prompts.body([row]))
    tokens = texts * (head + members * (body * settings.shots + tail + design.noise.event.tokens))
    return SynthesisPlan(
        budget=budget,
        design=design,
        labels=len(settings.labels),
        tokens=tokens,
        seconds=_seconds(engine, tokens),
        weak=weak(design, budget.epsilon, budget.delta),
        fewer=None if design.noise.clip >= LEAST_CLIP or design.records is None else _fewer(settings, budget, design),
    )


def _fewer(settings: SynthesisSettings, budget: PrivacyBudget, design: Design) -> int | None:
    """A number of examples of which the records would have a part: a half, a quarter, ... of those that were asked."""
    count = settings.count
    while (count := count // 2) >= len(settings.labels):
        if designed(dataclasses.replace(settings, count=count), budget, design.records or 0).noise.clip >= LEAST_CLIP:
            return count
    return None


def _average(engine: NextTokenScorer, records: PrivateRecords, shown: Callable[[Mapping[str, Any]], str]) -> float:
    """Tokens of a record as it is shown, the mean of a hundred."""
    rows = [records.get(name) for name in records.ids()[:: max(1, len(records) // 100)]]
    most = engine.max_prompt_tokens  # what is longer is cut
    return sum(min(count_or_estimate(engine, shown(row)), most) for row in rows) / max(len(rows), 1)


def _seconds(engine: NextTokenScorer, tokens: float) -> float | None:
    speed = engine.tokens_per_second() if isinstance(engine, ReportsThroughput) else None
    return None if not speed else tokens / speed
