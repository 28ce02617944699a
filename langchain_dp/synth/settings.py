"""Settings of private texts, and the rounds and noise that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from langchain_dp._util import validate
from langchain_dp.accounting import ClippedSumRoundEvent, Neighbors, PrivacyBudget, calibrate_text_round
from langchain_dp.accounting.budget import LABELS_FROM_DATA
from langchain_dp.accounting.events import MOST_TOKENS, count_is_public
from langchain_dp.ensemble.text_writer import TextWriter
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import ClippedSum, Randomness
from langchain_dp.ports import NextTokenScorer
from langchain_dp.records import PrivateRecords
from langchain_dp.synth.prompts import AnswerPrompts, SynthesisPrompts

MOST_ROUNDS = 10_000
"""Accounting for more takes minutes."""


@dataclasses.dataclass(frozen=True)
class Design:
    """Public constants of a plan. ``records`` is None where it is private."""

    rounds: int
    noise: ClippedSum
    records: int | None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Design:
        noise = fields["noise"]
        return cls(**{**fields, "noise": ClippedSum(**{**noise, "event": ClippedSumRoundEvent(**noise["event"])})})

    @property
    def rate(self) -> float:
        """Probability that a record joins a round."""
        return self.noise.event.sampling_probability


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingSettings:
    """Public settings of private texts."""

    prompts: SynthesisPrompts | AnswerPrompts
    max_new_tokens: int
    members: int
    sampling_probability: float | None = None
    candidates: int = 512
    temperature: float = 1.0
    chat: bool = False

    def __post_init__(self) -> None:
        validate.integer("max_new_tokens", self.max_new_tokens, at_least=1, at_most=MOST_TOKENS)
        validate.integer("members", self.members, at_least=2, at_most=10_000)
        validate.one_of("chat", self.chat, (True, False))
        validate.integer("candidates", self.candidates, at_least=2, at_most=100_000)
        validate.number("temperature", self.temperature, at_least=0.05, at_most=100.0)
        if self.sampling_probability is not None:
            validate.number("sampling_probability", self.sampling_probability, above=0.0, at_most=1.0)

    def design(self, budget: PrivacyBudget, *, records: int, rounds: int, texts: int = 1) -> Design:
        """Return the design with the largest affordable clip."""
        wanted, rate = self.members * texts, self.sampling_probability
        counted = count_is_public(budget.neighbors)
        if rate is None and not counted:
            raise InvalidParameter(
                "Expected sampling_probability= to be given under add/remove neighbors, where the number of records "
                f"is private: {wanted} members of a round over about as many records as you have."
            )
        if rate is None and (not records or wanted > records):
            raise InvalidParameter(
                f"Expected at least members * texts of a round = {self.members} * {texts} = {wanted} records, but "
                f"there are {records}. Lower members=, or give more records."
            )
        rate = wanted / records if rate is None else rate
        epsilon0 = calibrate_text_round(budget, rounds=rounds, tokens=self.max_new_tokens, sampling_probability=rate)
        event = ClippedSumRoundEvent(epsilon0, self.max_new_tokens, rate)
        noise = ClippedSum(event, self.members, float(self.temperature))
        return Design(rounds, noise, records if counted else None)

    def writer(self, engine: NextTokenScorer, noise: ClippedSum, rng: Randomness) -> TextWriter:
        return TextWriter(engine, self.prompts.end, noise, candidates=self.candidates, chat=self.chat, rng=rng)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesisSettings(WritingSettings):
    """Public settings of one synthesis."""

    prompts: SynthesisPrompts
    labels: Mapping[str, str]
    count: int
    labels_from_data: bool = False

    def __post_init__(self) -> None:
        validate.one_of("labels_from_data", self.labels_from_data, (True, False))
        validate.integer("count", self.count, at_least=1, at_most=MOST_ROUNDS)
        super().__post_init__()

    @property
    def notes(self) -> tuple[str, ...]:
        return (LABELS_FROM_DATA,) if self.labels_from_data else ()

    @property
    def rounds(self) -> int:
        """One text per label each."""
        return math.ceil(self.count / len(self.labels))

    def public(self) -> dict[str, Any]:
        """Return plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not self.labels_from_data:
            del fields["labels_from_data"]
        return {**fields, "labels": dict(self.labels), "prompts": dataclasses.asdict(self.prompts)}


def coin_names(records: PrivateRecords, neighbors: Neighbors) -> dict[str, str]:
    """Name coins by slot where the number of records is public, otherwise by id."""
    counted = count_is_public(neighbors)
    return {name: str(slot) if counted else name for slot, name in enumerate(records.ids())}
