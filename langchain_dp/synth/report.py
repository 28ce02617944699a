"""Plans and certificates of private texts."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from langchain_dp._util.reprs import InNotebooks
from langchain_dp._util.rounding import took
from langchain_dp.accounting import LedgerPlan, Neighbors, PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.budget import LEAST_CLIP, weak_promise_reasons
from langchain_dp.ensemble.engine_calls import count_or_estimate
from langchain_dp.ensemble.subsets import KEYED
from langchain_dp.mechanisms import Randomness
from langchain_dp.ports import NextTokenScorer, ReportsThroughput
from langchain_dp.records import PrivateRecords
from langchain_dp.synth.prompts import AnswerPrompts, SynthesisPrompts
from langchain_dp.synth.settings import Design, SynthesisSettings

_GAINS = ((LEAST_CLIP, "a third"), (0.65, "half"), (1.0, "three quarters"), (1.8, "nine tenths"))
"""Effect left at a clip: SmolLM2-135M on eight public news texts."""
_SHORT = 40.0
_MEASURED = "SmolLM2-135M: another model may gain less or more"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TextPlan(InNotebooks):
    """Base of the plans."""

    budget: PrivacyBudget
    design: Design
    tokens: float
    seconds: float | None = None
    weak: tuple[str, ...] = ()
    _instead: ClassVar[str]
    _holding: ClassVar[str]

    @property
    def clip(self) -> float:
        """Largest move of a token's log-probability by a member, in nats."""
        return self.design.noise.clip

    @property
    def members(self) -> int:
        """Expected members."""
        return self.design.noise.members

    @property
    def is_worth_it(self) -> bool:
        """True if the records can move the texts, by the public clip."""
        return self.clip >= LEAST_CLIP

    @property
    def verdict(self) -> str:
        """A verdict on its use."""
        if not self.is_worth_it:
            return (
                f"not worth it: the records can hardly move the public model. {self._instead}, more records, a larger "
                "epsilon"
            )
        share = next(share for bound, share in reversed(_GAINS) if self.clip >= bound)
        weak = f" (worth it where {self._holding} what no model knows)" if self.clip < 1 else ""
        return f"about {share} of the records' possible effect remains{weak}; measured on {_MEASURED}"

    def _rendered(self, title: str, first: str, each: str, *last: str) -> str:
        noise = self.design.noise
        joined = f"each record in each {each} with q = {self.design.rate:.4g}; {noise.members} expected a text"
        return "\n".join(
            [
                f"Plan for {title}: {self.budget}",
                first,
                f"  members      {joined}",
                f"  clip         {noise.clip:.3g} nats a member and token",
                f"  worth it?    {yes_or_no(self.verdict)}",
                *last,
                *(f"  WARNING      {reason}" for reason in self.weak),
            ]
        )

    @property
    def _time(self) -> str:
        return "" if self.seconds is None else f", about {took(self.seconds)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesisPlan(_TextPlan):
    """Cost and usefulness of one run.

    Args:
        budget: The promise.
        design: Rounds and noise.
        tokens: Estimated tokens to evaluate.
        seconds: Estimated time. None: unknown.
        weak: Reasons why the promise is weak.
        labels: Number of labels: texts of one round.

    Examples:
        >>> plan = synthesizer.plan(2_000)
        >>> print(plan)
        >>> plan.is_worth_it, plan.members
        (True, 30)
    """

    labels: int
    _instead = (
        "Write with the model alone from a good description (public_examples()), spend nothing. Or have fewer examples"
    )
    _holding = "the labels mean"

    @property
    def examples(self) -> int:
        """Texts before filters."""
        return self.design.rounds * self.labels

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.budget.to_dict(), "examples": self.examples, **_parameters(self.design), "verdict": self.verdict,
            "tokens_to_evaluate": self.tokens, "seconds": self.seconds, "weak": list(self.weak),
        }  # fmt: skip

    def __str__(self) -> str:
        of_each = f": {self.design.rounds:,} of each of {self.labels} labels" if self.labels > 1 else ""
        return self._rendered(
            "synthetic examples",
            f"  examples     {self.examples:,}{of_each}, at most {self.design.noise.event.tokens} tokens each",
            f"of {self.design.rounds:,} rounds",
            "  no budget    as many by the model alone, public_examples() or --alone: look at these first",
            f"  to evaluate  about {self.tokens:,.0f} tokens{self._time}",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswersPlan(_TextPlan):
    """Cost and usefulness of private answers. The tokens are counted on the records: do not publish them.

    Args:
        budget: The promise of all answers together.
        design: Rounds, one per answer, and their noise.
        tokens: Estimated tokens of one answer.
        seconds: Estimated time of one answer. None: unknown.
        weak: Reasons why the promise is weak.

    Examples:
        >>> plan = replies.plan()
        >>> plan.answers
        100
    """

    _instead = "Ask the model alone, spend nothing. Or have fewer answers"
    _holding = "the answers hold"

    @property
    def answers(self) -> int:
        """Largest number of answers."""
        return self.design.rounds

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.budget.to_dict(), "answers": self.answers, **_parameters(self.design), "verdict": self.verdict,
            "tokens_per_answer": self.tokens, "seconds_per_answer": self.seconds, "weak": list(self.weak),
        }  # fmt: skip

    def __str__(self) -> str:
        return self._rendered(
            "private answers",
            f"  answers      {self.answers:,} at most, of at most {self.design.noise.event.tokens} tokens each",
            "answer",
            f"  an answer    about {self.tokens:,.0f} tokens to evaluate{self._time}",
        )


def yes_or_no(verdict: str) -> str:
    return verdict.replace("not worth it: ", "no: ", 1)


def planned_answers(
    engine: NextTokenScorer, prompts: AnswerPrompts, budget: PrivacyBudget, design: Design,
    records: PrivateRecords | None,
) -> AnswersPlan:  # fmt: skip
    """Work out the plan. ``records=None`` assumes short ones."""
    shown = _record_tokens(engine, records, prompts)
    tokens = engine.count_tokens(prompts.head) + (1 + design.noise.members) * (2 * shown + design.noise.event.tokens)
    return AnswersPlan(
        budget=budget, design=design, tokens=tokens, seconds=_seconds(engine, tokens), weak=weak(design, budget)
    )


def planned(
    engine: NextTokenScorer, settings: SynthesisSettings, budget: PrivacyBudget, design: Design,
    records: PrivateRecords | None,
) -> SynthesisPlan:  # fmt: skip
    prompts, labels = settings.prompts, len(settings.labels)
    head = max(engine.count_tokens(prompts.described(text)) for text in settings.labels.values())
    shown = _record_tokens(engine, records, prompts) + engine.count_tokens(prompts.tail)
    tokens = design.rounds * labels * (head + (1 + design.noise.members) * (shown + design.noise.event.tokens))
    return SynthesisPlan(
        budget=budget, design=design, tokens=tokens, seconds=_seconds(engine, tokens), weak=weak(design, budget),
        labels=labels,
    )  # fmt: skip


def _record_tokens(
    engine: NextTokenScorer, records: PrivateRecords | None, prompts: SynthesisPrompts | AnswerPrompts
) -> float:
    if records is None:
        return _SHORT
    rows = [records.get(name) for name in records.ids()[:: max(1, len(records) // 100)]]
    most = engine.max_prompt_tokens  # longer ones are cut
    return sum(min(count_or_estimate(engine, prompts.shown(row)), most) for row in rows) / max(len(rows), 1)


def _seconds(engine: NextTokenScorer, tokens: float) -> float | None:
    speed = engine.tokens_per_second() if isinstance(engine, ReportsThroughput) else None
    return None if not speed else tokens / speed


def certified(
    plan: LedgerPlan, design: Design, engine: NextTokenScorer, rng: Randomness, *notes: str, round_up: bool = False
) -> PrivacyCertificate:
    return plan.certificate(
        design.noise.event,
        mechanism="exponential mechanism on clipped differences from the public model, token by token",
        model=engine.name,
        private=rng.private,
        reason="" if rng.private else "drawn from not_private_seed: anybody who knows the seed can remove the noise",
        notes=(
            *notes,
            "every record takes part in a round by a secret coin",
            KEYED,
            "style and common knowledge of many records remain, and text of few records does not",
            *weak(design, plan),
            *getattr(engine, "notes", ()),
        ),
        parameters=_parameters(design),
        round_up=round_up,
    )


def public_certificate(engine: NextTokenScorer, *notes: str) -> PrivacyCertificate:
    return PrivacyCertificate(
        mechanism="the model alone",
        epsilon=0.0,
        delta=0.0,
        neighbors=Neighbors.ADD_OR_REMOVE_ONE,
        model=engine.name,
        notes=(
            "no record was shown to the model: these texts cost nothing of their own",
            "the description of each label counts as public",
            *notes,
        ),
    )


def _parameters(design: Design) -> dict[str, Any]:
    """Return noise and rounds."""
    noise = design.noise
    return {
        "clip": noise.clip,
        "members": noise.members,
        "temperature": noise.temperature,
        "sampling_probability": design.rate,
        "tokens": noise.event.tokens,
        "rounds": design.rounds,
    }


def weak(design: Design, promise: PrivacyBudget | LedgerPlan) -> tuple[str, ...]:
    if design.records is not None:
        return weak_promise_reasons(promise.epsilon, promise.delta, design.records, "records")
    draws = "draws that one record is expected in once"
    return weak_promise_reasons(promise.epsilon, promise.delta, round(1 / design.rate), draws)
