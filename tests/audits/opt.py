"""Audits of whole DP-OPT runs, from the examples to the prompt, with a stub model that keeps what it is asked."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy import stats

from audits.check import Check, Finding, likely
from audits.laws import limited_domain_law, softmax, tally, total
from audits.stubs import LABELS, Witness, charges, examples, label_of, mixed_up, who_was_asked
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    epsilon,
)
from langchain_dp.accounting.events import SamplingName, event_from_json
from langchain_dp.opt import CandidateOptions, DPPromptOptimizer, DPPromptSelector, OptPrompts, SamplingOptions
from langchain_dp.opt.reservation import TRAINING, VALIDATION
from langchain_dp.opt.templates import Demonstration

_R1, _ADD, _ZERO = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL
_INSTRUCTION = "Say which."
_KBAR = 8
_ALTERNATIVES = [f"Say which, the {k}." for k in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")]


@dataclasses.dataclass(frozen=True)
class PromptSetting:
    """One way to run. The records are 128, of which a quarter validates; subsets and slots are 48."""

    sampling: SamplingName
    neighbors: Neighbors
    choosing: bool = False  # all vote alike, for many candidates, and the best of them is not sure to win

    def __str__(self) -> str:
        return f"{self.sampling}, {self.neighbors.name}"

    def optimizer(self, witness: Witness, ledger: PrivacyLedger) -> DPPromptOptimizer:
        """An optimizer on this stub."""
        fixed, rate = self.sampling == "fixed", 1.0 if self.choosing else 0.5
        return DPPromptOptimizer(
            model=witness,
            labels=LABELS,
            instruction=_INSTRUCTION,
            ledger=ledger,
            shots=2,
            subsets=48,
            sampling=SamplingOptions(self.sampling, 48 if fixed else None, rate if fixed else rate / 2),
            validation=0.25,
            num_prompts=7 if self.choosing else 160,
            max_new_tokens=1 if self.choosing else 6,
            candidate_options=CandidateOptions(
                max_calls=10 if self.choosing else 160,
                kbar=_KBAR,
                epsilon0=0.2 if self.choosing else 2.0,
                delta0=1 / 24 if self.choosing else 1 / 256,
                filtered=False,  # what this stub writes names no task
            ),
            calibrate=False,
            progress=False,
        )

    def vote(self, record: int, calls: int) -> int | None:
        """A token of its own for each call; or four opinions: that one, the end, one of many, and none."""
        common = 1 + calls % 50
        if self.choosing:
            return common
        opinion = record % 16
        return common if opinion < 5 else 0 if opinion == 5 else 51 + record % 11 if opinion < 9 else None


def _right(record: int, head: str) -> bool:
    """Under most instructions most records are answered right."""
    return (record + sum(head.encode())) % 16 > 0


WRITING = [
    PromptSetting("fixed", _R1),
    PromptSetting("fixed", _ADD),
    PromptSetting("fixed", _ZERO),
    PromptSetting("resample", _ADD),
]
"""Whose tokens are followed."""
CHOOSING = [PromptSetting("fixed", neighbors, True) for neighbors in (_R1, _R1, _R1, _R1, _ADD, _ZERO)]
"""Whose choice is followed."""


class PromptRun:
    """A run, its ledger, and what its model saw."""

    def __init__(self, setting: PromptSetting, face: int = 0) -> None:
        self.setting = setting
        self.budget = PrivacyBudget(0.8 if setting.choosing else 500.0, 0.5, setting.neighbors)
        with PrivacyLedger(self.budget) as ledger:
            self.witness = Witness(functools.partial(charges, ledger), vote=setting.vote, right=_right)
            self.optimizer = setting.optimizer(self.witness, ledger)
            rows = examples(128)
            if face % 2:
                self.prompt = asyncio.run(self.optimizer.aoptimize(rows))
            else:
                self.prompt = self.optimizer.optimize(rows)
            self.entries = list(ledger.entries())
            self.certificate = self.prompt.certificate
            self.released = self.optimizer.released()
        self.calls = sum(entry.count for entry in self.entries if self.event(entry).part == TRAINING)
        self.rounds = self.witness.rounds
        alone = [each for each in self.witness.shown if each.body.startswith("Input:")]
        self.chosen_by = [each for each in alone if each.charged > self.calls]

    @staticmethod
    def event(entry: Any) -> PartEvent:
        """What an entry of the ledger paid for."""
        event = event_from_json(entry.event)
        assert isinstance(event, PartEvent)
        return event

    @functools.cached_property
    def token(self) -> LimitedDomainEvent:
        """What a token was charged as."""
        event = next(self.event(entry).event for entry in self.entries if self.event(entry).part == TRAINING)
        assert isinstance(event, LimitedDomainEvent)
        return event

    @functools.cached_property
    def choice(self) -> ExponentialEvent:
        """What the choice was charged as."""
        event = self.event(self.entries[-1]).event
        assert isinstance(event, ExponentialEvent)
        return event

    @functools.cached_property
    def trained(self) -> frozenset[int]:
        """Records that the model saw before the choice was charged."""
        return frozenset(record for each in self.witness.shown if each.charged <= self.calls for record in each.records)

    @functools.cached_property
    def validated(self) -> frozenset[int]:
        """Records that it saw after that."""
        return frozenset(record for each in self.chosen_by for record in each.records)

    def wrong(self) -> list[str]:
        """What is not as promised, whatever the coins."""
        wrong, made = [], self.certificate.parameters
        kinds = collections.Counter[str]()
        for entry in self.entries:
            kinds[entry.event] += entry.count
        charged = [(event_from_json(event), count) for event, count in kinds.items()]
        if [count for event, count in charged if event.part == VALIDATION] != [1] or len(charged) != 2:
            wrong.append(f"charged were {charged}")
        cost = epsilon(charged, self.certificate.delta, neighbors=self.setting.neighbors)
        if cost > self.certificate.epsilon or self.certificate.epsilon > self.budget.epsilon:
            wrong.append(f"{self.certificate.epsilon:.2f} promised, {cost:.2f} spent")
        if len(self.rounds) != self.calls:
            wrong.append(f"{self.calls} calls charged, the model asked {len(self.rounds)} times")
        late = sum(each.charged != place for place, round_ in enumerate(self.rounds, 1) for each in round_)
        if late:
            wrong.append(f"{late} prompts were asked before their charge")
        if self.trained & self.validated:
            wrong.append(f"{len(self.trained & self.validated)} validation records were shown before the choice")
        if sum(len(text.split()) for text in self.released) != made["tokens_released"]:
            wrong.append("the certificate counts other tokens than were released")
        return wrong + self._apart()

    def _apart(self) -> list[str]:
        wrong = mixed_up(self.rounds, fixed=self.setting.sampling == "fixed")
        prompts, head = OptPrompts(), OptPrompts().forward_head(_INSTRUCTION, LABELS)
        for round_ in self.rounds:
            for each in round_:
                own = [
                    Demonstration(
                        f"record {k}{' mute' if k % 3 == 2 else ''}",
                        LABELS[label_of(k)],
                        LABELS[label_of(k) if _right(k, head) else 1 - label_of(k)],
                    )
                    for k in each.records
                ]
                # What stands first are successes: the own records in an order of their own.
                if sorted(each.body.splitlines()) != sorted(prompts.backward_body(own).splitlines()):
                    wrong.append("a prompt is not what its own records make")
        if any(len(each.records) != 1 for each in self.chosen_by):
            wrong.append("a validation record was not asked alone")
        return wrong

    def coins(self) -> float:
        """Whether each subset, or each record, had a coin of its own in every call, at the rate that was charged."""
        return who_was_asked(self.rounds, fixed=self.setting.sampling == "fixed", q=self.token.sampling_probability)

    def laws(self) -> list[dict[Any, float]]:
        """What each call could release, from the votes of those who were asked and what was charged."""
        return [
            limited_domain_law(
                collections.Counter(each.said for each in asked if each.said is not None),
                epsilon0=self.token.epsilon0,
                delta0=self.token.delta0,
                kbar=_KBAR,
                threshold=1 if self.setting.neighbors is _ZERO else 2,
            )
            for asked in self.rounds
        ]

    def chosen(self) -> tuple[int, dict[int, float]]:
        """Right answers of the candidate that won, and how likely each number of them was."""
        right = collections.Counter[str]()
        for each in self.chosen_by:
            [record] = each.records
            right[each.head] += each.said == LABELS[label_of(record)]
        # A candidate without text stands for the initial instruction.
        initial = 1 + int(self.certificate.parameters["prompts"]) - len(self.released)
        texts = [*self.released, *[_INSTRUCTION] * initial]
        heights = {k: right[OptPrompts().forward_head(text, LABELS)] for k, text in enumerate(texts)}
        return right[OptPrompts().forward_head(self.prompt.instruction, LABELS)], _law(heights, self.choice)


def tokens(settings: Sequence[PromptSetting] = WRITING, runs: int = 1) -> Finding:
    """Whole runs at q < 1: calls and charges, who was asked, what each prompt held, and what came out of the votes."""
    tests: dict[str, float] = {}
    made: list[PromptRun] = []
    for setting in settings:
        laws: list[dict[Any, float]] = []
        seen = dict.fromkeys(("bottoms", "tokens"), 0)
        for face in range(runs):
            run = PromptRun(setting, len(made))
            if wrong := run.wrong():
                return Finding(True, f"{setting}: {wrong[0]}")
            made.append(run)
            tests[f"{setting}, run {face}: who was asked"] = run.coins()
            laws += run.laws()
            seen["bottoms"] += int(run.certificate.parameters["bottoms"])
            seen["tokens"] += int(run.certificate.parameters["tokens_released"])
        ends = len(laws) - sum(seen.values())
        for what, number, token in (("nothing", seen["bottoms"], None), ("the end", ends, 0)):
            expected = [law.get(token, 0.0) for law in laws]
            said = f"{setting}: {number} of {len(laws)} calls gave {what}, {sum(expected):.0f} expected"
            tests[said] = tally(number, expected)
    tests["validation records that two runs have in common"] = _split(made)
    return likely(tests)


def _split(runs: Sequence[PromptRun]) -> float:
    """Whether the validation records of two runs have more, or fewer, in common than coins make."""
    pairs = list(itertools.combinations(runs, 2))
    p_values = []
    for one, other in pairs:
        law = stats.hypergeom(128, len(one.validated), len(other.validated))
        common = len(one.validated & other.validated)
        p_values.append(2 * min(law.cdf(common), law.sf(common - 1)))
    return float(min(1.0, len(pairs) * min(p_values)))


def choice(settings: Sequence[PromptSetting] = CHOOSING, runs: int = 5) -> Finding:
    """Whole runs over a small budget: which of the candidates won, against what the choice was charged as."""
    made: list[PromptRun] = []
    for setting, face in itertools.product(settings, range(runs)):
        made.append(PromptRun(setting, face))
        if wrong := made[-1].wrong():
            return Finding(True, f"{setting}: {wrong[0]}")
    won, laws = zip(*(run.chosen() for run in made), strict=True)
    seen = f"{sum(won)} right answers of {len(made)} chosen candidates, {sum(map(_mean, laws)):.0f} expected"
    return likely({seen: total(sum(won), laws)})


def _law(heights: Mapping[int, int], choice: ExponentialEvent) -> dict[int, float]:
    """How likely a candidate of each height is to be chosen, by what the choice was charged as."""
    law: dict[int, float] = collections.defaultdict(float)
    for k, chance in softmax(heights, choice.epsilon).items():
        law[heights[k]] += chance
    return law


def _mean(law: Mapping[int, float]) -> float:
    return sum(value * chance for value, chance in law.items())


def _run(
    face: int,
    rows: Sequence[Any],
    witness: Witness,
    budget: PrivacyBudget | None = None,
    kind: Callable[..., Any] = DPPromptOptimizer,
    **settings: Any,
) -> tuple[Witness, Any, list[Any]]:
    """Optimize once, sync or async in turn: what the model saw, the prompt, and each charge."""
    with PrivacyLedger(budget or PrivacyBudget(500.0, 0.5)) as ledger:
        witness.charged = functools.partial(charges, ledger)
        optimizer = kind(
            model=witness, labels=LABELS, instruction=_INSTRUCTION, ledger=ledger, calibrate=False,
            progress=False, **settings,
        )  # fmt: skip
        prompt = asyncio.run(optimizer.aoptimize(rows)) if face % 2 else optimizer.optimize(rows)
        return witness, prompt, [event_from_json(entry.event) for entry in ledger.entries() for _ in range(entry.count)]


def _better(record: int, head: str) -> bool:
    """The later an alternative, the more records are answered right under it."""
    return record < 100 + 2 * sum(place for place, text in enumerate(_ALTERNATIVES, 1) if text in head)


def public_prompts(runs: int = 10) -> Finding:
    """Whole runs that choose among public prompts: one charge before any record is shown, all are asked, who wins."""
    won, laws = [], []
    for setting, face in itertools.product((_R1, _ADD, _ZERO), range(runs)):
        witness, prompt, paid = _run(
            face, examples(128), Witness(right=_better), PrivacyBudget(0.4, 0.5, setting), DPPromptSelector,
            alternatives=_ALTERNATIVES,
        )  # fmt: skip
        asked = collections.Counter(each.records for each in witness.shown)
        cost = epsilon(list(collections.Counter(paid).items()), prompt.certificate.delta, neighbors=setting)
        wrong = [
            len(paid) != 1 or not isinstance(paid[0].event, ExponentialEvent),
            cost > prompt.certificate.epsilon,
            any(each.charged < 1 for each in witness.shown),
            asked != dict.fromkeys([(record,) for record in range(128)], len(_ALTERNATIVES) + 1),
        ]
        if any(wrong):
            said = ("other charges", "more spent than promised", "asked before the charge", "not each record alone")
            return Finding(True, f"{setting.name}, run {face}: {said[wrong.index(True)]}")
        right = collections.Counter[str]()
        for each in witness.shown:
            right[each.head] += each.said == LABELS[label_of(each.records[0])]
        texts = [*_ALTERNATIVES, _INSTRUCTION]
        heights = {k: right[OptPrompts().forward_head(text, LABELS)] for k, text in enumerate(texts)}
        won.append(heights[texts.index(prompt.instruction)])
        laws.append(_law(heights, paid[0].event))
    seen = f"{sum(won)} right answers of {len(won)} chosen prompts, {sum(map(_mean, laws)):.0f} expected"
    return likely({seen: total(sum(won), laws)})


CHECKS = [
    Check("tokens", "DP-OPT at q < 1: charges, coins, votes", tokens),
    Check("choice", "the chosen candidate hides a record", choice),
    Check("choose", "a choice among public prompts", public_prompts),
]
