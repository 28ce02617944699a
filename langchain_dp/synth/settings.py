"""The public settings of a synthesis, and what follows from them: how many rounds, of whom, under which noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from langchain_dp._util import validate
from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    Neighbors,
    PartEvent,
    PrivacyBudget,
    calibrate_text_round,
)
from langchain_dp.accounting.budget import LABELS_FROM_DATA
from langchain_dp.accounting.events import MOST_TOKENS, count_is_public
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.synth.prompts import SynthesisPrompts

Scheme = Literal["auto", "rounds", "groups"]

NEARLY_ALL = 1.8
"""Clip in nats at which nine tenths of what records add is left: where rounds have it, groups gain nothing."""
ENOUGH = 2.5
"""Clip in nats above which a larger one is not worth more members: a group shows no more of its records."""
MOST_ROUNDS = 10_000
"""Most rounds of one run: to account for more takes minutes and gigabytes."""
FEW = 5
"""Expected members below which groups are not considered: a text is then hardly more than one record."""


@dataclasses.dataclass(frozen=True)
class SynthesisSettings:
    """Public settings.

    Args:
        labels: Label -> public description, in the public order.
        count: Texts of all labels together, at least.
        max_new_tokens: T, tokens of one text at most.
        members: s, expected members of one text under "rounds".
        scheme: "rounds", "groups", or "auto": see :func:`designed`.
        sampling_probability: q under "rounds"; None derives it where the number of records is public.
        candidates: Tokens of the public model's that are considered.
        temperature: Of the distribution that a token is drawn from.
        prompts: Templates.
        chat: Ask in the model's chat template.
        shots: Records of its label that one member is expected to show.
        labels_from_data: Whether the labels were read off the records.
    """

    labels: Mapping[str, str]
    count: int
    max_new_tokens: int
    members: int
    scheme: Scheme
    sampling_probability: float | None
    candidates: int
    temperature: float
    prompts: SynthesisPrompts
    chat: bool
    shots: int = 1
    labels_from_data: bool = False

    def __post_init__(self) -> None:
        validate.one_of("labels_from_data", self.labels_from_data, (True, False))
        validate.integer("count", self.count, at_least=1, at_most=MOST_ROUNDS)
        validate.integer("max_new_tokens", self.max_new_tokens, at_least=1, at_most=MOST_TOKENS)
        validate.integer("members", self.members, at_least=2, at_most=10_000)
        validate.integer("shots", self.shots, at_least=1, at_most=100)
        validate.one_of("chat", self.chat, (True, False))
        validate.one_of("scheme", self.scheme, ("auto", "rounds", "groups"))
        validate.integer("candidates", self.candidates, at_least=2, at_most=100_000)
        validate.number("temperature", self.temperature, at_least=0.05, at_most=100.0)
        if self.sampling_probability is not None:
            validate.number("sampling_probability", self.sampling_probability, above=0.0, at_most=1.0)
            if self.scheme == "groups":
                raise InvalidParameter(
                    f"Expected sampling_probability={self.sampling_probability} to be left out with "
                    'scheme="groups", where every record takes part in one round.'
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """What no epsilon counts of how the settings came about."""
        return (LABELS_FROM_DATA,) if self.labels_from_data else ()

    @property
    def rounds(self) -> int:
        """Rounds: each writes one text a label."""
        return math.ceil(self.count / len(self.labels))

    def public(self) -> dict[str, Any]:
        """Plain values, for a journal and a file."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.shots == 1:
            del fields["shots"]
        if not self.labels_from_data:
            del fields["labels_from_data"]
        return {**fields, "labels": dict(self.labels), "prompts": dataclasses.asdict(self.prompts)}


@dataclasses.dataclass(frozen=True)
class Design:
    """What a run does and what it costs: constants, fixed before its first release, all public.

    Args:
        scheme: "rounds": every record is a member of a round by a coin. "groups": records are cut into disjoint groups
            once, and each writes one round.
        rounds: Rounds, or groups.
        noise: How tokens are drawn. Its ``members`` is the divisor.
        records: Number of records that it was made for; None where that is private.
        texts: Texts of one round: labels.
        shots: Records of its label that one member of a text is expected to show.
    """

    scheme: Literal["rounds", "groups"]
    rounds: int
    noise: ClippedSum
    records: int | None
    texts: int = 1
    shots: int = 1

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Design:
        """The design whose ``dataclasses.asdict`` these fields are."""
        noise = fields["noise"]
        return cls(**{**fields, "noise": ClippedSum(**{**noise, "event": ClippedSumRoundEvent(**noise["event"])})})

    @property
    def block(self) -> int:
        """Slots whose records stand in one prompt, those of the text's label."""
        return 1 if self.shots == 1 else self.shots * self.texts

    @property
    def charges(self) -> int:
        """How often a round of texts is charged.

        A record alone in its prompt comes or goes with its label: two texts are moved by half as much each. One of many
        changes a member of both texts by as much as it changes one, and their members are drawn by coins of their own.
        """
        return 2 if self.block > 1 and self.texts > 1 else 1

    def charged(self, number: int) -> PartEvent | Any:
        """What round ``number`` is charged as. A group is a part of the data: records of others pay nothing for it."""
        event = self.noise.event
        return PartEvent(f"group {number}", event) if self.scheme == "groups" else event

    def due(self, number: int) -> int:
        """How often the event of round ``number`` has been charged once that round begins."""
        return self.charges * (1 if self.scheme == "groups" else number + 1)  # a group has an event of its own

    def events(self) -> list[tuple[Any, int]]:
        """What a run reserves: each event once, with how often it is charged."""
        last = {self.charged(number): number for number in range(self.rounds)}
        return [(event, self.due(number)) for event, number in last.items()]


def designed(settings: SynthesisSettings, budget: PrivacyBudget, records: int) -> Design:
    """Of the schemes that are admitted rounds, unless their clip is below ``NEARLY_ALL`` and that of groups larger.

    Args:
        settings: Public settings.
        budget: The promise.
        records: Number of records; used only where it is public.
    """
    if settings.shots > 1 and budget.neighbors is not Neighbors.REPLACE_ONE:
        raise InvalidParameter(
            f"Expected shots={settings.shots} to be 1 unless neighbours replace one record: a member of several would "
            "change by more than is accounted for under other relations."
        )
    unfit = _unfit_for_groups(settings, budget, records)
    if settings.scheme == "groups" and unfit:
        raise InvalidParameter(unfit)
    if settings.scheme == "rounds" or unfit:
        return _in_rounds(settings, budget, records)
    too_few = records < settings.members * settings.shots * len(settings.labels)
    if settings.scheme == "groups" or too_few:
        return _in_groups(settings, budget, records)
    rounds = _in_rounds(settings, budget, records)
    if rounds.noise.clip >= NEARLY_ALL:  # groups would have as many members, or more
        return rounds
    return max(rounds, _in_groups(settings, budget, records), key=lambda design: design.noise.clip)


def in_rounds(
    budget: PrivacyBudget, *, records: int, texts: int, rounds: int, members: int, tokens: int, temperature: float,
    rate: float | None, shots: int = 1,
) -> Design:  # fmt: skip
    """Rounds in which every record takes part by a coin, with the largest clip that the budget allows.

    Args:
        budget: The promise.
        records: Number of records; used only where it is public.
        texts: Texts of one round, each with members of its own.
        rounds: Rounds.
        members: Expected members of one text.
        tokens: Tokens of one text at most.
        temperature: Of the distribution that a token is drawn from.
        rate: Rate of the records; None derives it.
        shots: Records of its label that one member is expected to show.
    """
    wanted = members * texts * shots
    counted = count_is_public(budget.neighbors)
    if rate is None and not counted:
        raise InvalidParameter(
            "Expected sampling_probability= to be given under add/remove neighbours, where the number of records is "
            f"private: {wanted} members of a round over about as many records as you have."
        )
    if rate is None and (not records or wanted > records):
        raise InvalidParameter(
            f"Expected at least members * texts of a round{' * shots' if shots > 1 else ''} = {members} * {texts}"
            f"{f' * {shots}' if shots > 1 else ''} = {wanted} records, but there are {records}. Lower members="
            f"{' or shots=' if shots > 1 else ''}, or give more records."
        )
    if rate is not None:
        validate.number("sampling_probability", rate, above=0.0, at_most=1.0)
    rate = wanted / records if rate is None else rate
    plain = ClippedSum(ClippedSumRoundEvent(1.0, tokens, rate), members, temperature)
    return _fitting(budget, Design("rounds", rounds, plain, records if counted else None, texts, shots), rounds)


def _fitting(budget: PrivacyBudget, design: Design, rounds: int) -> Design:
    """A design with the noise that the budget allows.

    Args:
        budget: The promise.
        design: How texts are drawn, with an epsilon0 of 1.
        rounds: Rounds of texts that one record pays for.
    """
    text = design.noise.event
    fits = calibrate_text_round(
        budget, rounds=rounds * design.charges, tokens=text.tokens, sampling_probability=text.sampling_probability
    )
    event = dataclasses.replace(text, epsilon0=fits)
    return dataclasses.replace(design, noise=dataclasses.replace(design.noise, event=event))


def _in_rounds(settings: SynthesisSettings, budget: PrivacyBudget, records: int) -> Design:
    return in_rounds(
        budget,
        records=records,
        texts=len(settings.labels),
        rounds=settings.rounds,
        members=settings.members,
        tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        rate=settings.sampling_probability,
        shots=settings.shots,
    )


def _members_a_text(settings: SynthesisSettings, records: int) -> int:
    """Members of one text where disjoint groups write one text a label each."""
    return records // (settings.rounds * len(settings.labels) * settings.shots)


def _unfit_for_groups(settings: SynthesisSettings, budget: PrivacyBudget, records: int) -> str:
    """Why the records cannot be cut into disjoint groups; empty if they can."""
    if not count_is_public(budget.neighbors):
        return 'Expected scheme="rounds" under add/remove neighbours, where the number of records is private.'
    members = _members_a_text(settings, records)
    if members < FEW:
        return (
            f"Expected at least {FEW} members a text, but {records} records in {settings.rounds} groups of "
            f'{len(settings.labels)} texts each are {members}. Lower count=, or use scheme="rounds".'
        )
    return ""


def _in_groups(settings: SynthesisSettings, budget: PrivacyBudget, records: int) -> Design:
    """Groups of no more members than are asked for, unless the clip needs them: it grows with their number."""
    there = _members_a_text(settings, records)
    few = min(settings.members, there)
    least = _groups_of(few, settings, budget, records)
    if few == there or least.noise.clip >= ENOUGH:
        return least
    most = _groups_of(there, settings, budget, records)
    while most.noise.clip > 1.2 * ENOUGH:
        # In proportion to the members, up to a bound: between 1/clip and 1/members a line.
        share = (1 / ENOUGH - 1 / most.noise.clip) / (1 / least.noise.clip - 1 / most.noise.clip)
        fewer = math.ceil(1 / ((1 - share) / most.noise.members + share / few))
        if fewer >= most.noise.members:
            break
        most = _groups_of(fewer, settings, budget, records)
    return most


def _groups_of(members: int, settings: SynthesisSettings, budget: PrivacyBudget, records: int) -> Design:
    plain = ClippedSum(ClippedSumRoundEvent(1.0, settings.max_new_tokens, 1.0), members, settings.temperature)
    return _fitting(budget, Design("groups", settings.rounds, plain, records, len(settings.labels), settings.shots), 1)
