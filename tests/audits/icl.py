"""Audits of whole DP-ICL chains, on every face and under every scheme, with a stub model that keeps what it sees."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.runnables import RunnableLambda

from audits.check import Check, Finding, likely, worst
from audits.laws import noisy_max_law, tally
from audits.stubs import LABELS, SeenPrompt, Witness, at_once, charges, examples, mixed_up, who_was_asked
from langchain_dp.accounting import Neighbors, NoisyMaxEvent, PrivacyBudget, PrivacyLedger, epsilon
from langchain_dp.accounting.events import SamplingName, event_from_json
from langchain_dp.ensemble.answers import KEPT
from langchain_dp.errors import BudgetExceeded, ModelUnavailable
from langchain_dp.icl import ChatDPICL, DPICLClassifier, SamplingOptions

_R1, _ADD, _ZERO = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL
Face = Callable[[DPICLClassifier, Sequence[str]], list[str]]


FACES: dict[str, Face] = {
    "invoke": lambda chain, asked: [chain.invoke(each) for each in asked],
    "batch": lambda chain, asked: chain.batch(list(asked)),
    "stream": lambda chain, asked: ["".join(chain.stream(each)) for each in asked],
    "ainvoke": lambda chain, asked: at_once(chain.ainvoke(each) for each in asked),
    "abatch": lambda chain, asked: asyncio.run(chain.abatch(list(asked))),
    "certificate": lambda chain, asked: [chain.invoke_with_certificate(each).label for each in asked],
    "async certificate": lambda chain, asked: [
        each.label for each in at_once(chain.ainvoke_with_certificate(one) for one in asked)
    ],
    "mapping": lambda chain, asked: [chain.invoke({"text": each}) for each in asked],
    "chat": lambda chain, asked: [str(ChatDPICL(classifier=chain).invoke(each).content) for each in asked],
    "chat batch": lambda chain, asked: [str(each.content) for each in ChatDPICL(classifier=chain).batch(list(asked))],
    "async chat": lambda chain, asked: [
        str(each.content) for each in at_once(ChatDPICL(classifier=chain).ainvoke(one) for one in asked)
    ],
    "chat stream": lambda chain, asked: [
        "".join(str(part.content) for part in ChatDPICL(classifier=chain).stream(each)) for each in asked
    ],
}
"""Every way to ask."""


@dataclasses.dataclass(frozen=True)
class AnswerSetting:
    """One way to build a chain. The records are 96, the subsets 48, the slots 12."""

    sampling: SamplingName
    neighbors: Neighbors
    asked_elsewhere: bool = False

    def __str__(self) -> str:
        where = ", asked elsewhere" if self.asked_elsewhere else ""
        return f"{self.sampling}, {self.neighbors.name}{where}"

    @property
    def event(self) -> NoisyMaxEvent:
        """A release: some of the records take part, or of the subsets."""
        return NoisyMaxEvent(5.0, 0.375 if self.sampling == "fixed" else 0.1875, self.sampling)


SETTINGS = [
    AnswerSetting("fixed", _R1),
    AnswerSetting("resample", _R1),
    AnswerSetting("fixed", _ADD),
    AnswerSetting("resample", _ADD),
    AnswerSetting("fixed", _ZERO),
    AnswerSetting("fixed", _R1, asked_elsewhere=True),
]
"""Schemes, neighbors, and a model that is asked call by call."""

PAIRS = [(SETTINGS[place % len(SETTINGS)], face) for place, face in enumerate(FACES)]
"""Every face and every setting once at least."""
EVERY_PAIR = list(itertools.product(SETTINGS, FACES))


class AnswerRun:
    """A chain, its ledger and what its model saw."""

    def __init__(self, setting: AnswerSetting, most: int, *, answer_cache_size: int = KEPT) -> None:
        self.setting = setting
        self.ledger = PrivacyLedger(PrivacyBudget(500.0, 0.5, setting.neighbors))
        self.ledger.reserve([(setting.event, most)], name="dp-icl")
        # A model that is asked elsewhere is looked into, and so gets nothing but a list.
        self.witness = Witness() if setting.asked_elsewhere else Witness(self.charged)
        self._rows = examples(96)
        partitions = 48 if setting.sampling == "fixed" else None
        self.chain = DPICLClassifier(
            model=RunnableLambda(self.witness.say) if setting.asked_elsewhere else self.witness,
            trust_opaque_model=True, examples=self._rows[:-8], labels=LABELS, ledger=self.ledger,
            max_queries=most, shots=2, subsets=12,
            sampling=SamplingOptions(setting.sampling, partitions, setting.event.sampling_probability),
            calibrate=False, answer_cache_size=answer_cache_size,
        )  # fmt: skip
        for row in self._rows[-8:]:  # who comes later sits in one subset, too
            self.chain.add(row)

    def charged(self) -> int:
        return charges(self.ledger)

    @property
    def event(self) -> NoisyMaxEvent:
        """What the ledger says of every release."""
        event = event_from_json(next(self.ledger.entries()).event)
        assert isinstance(event, NoisyMaxEvent)
        return event

    def unpaid(self) -> list[str]:
        """What the ledger and the certificate say less of than there was."""
        kinds = {entry.event for entry in self.ledger.entries()}
        if not kinds:
            return ["nothing was charged"]
        event, promised = self.event, self.chain.certificate()
        cost = epsilon([(event, self.charged())], promised.delta, neighbors=self.setting.neighbors)
        wrong = []
        if len(kinds) > 1 or event != self.setting.event:
            wrong.append(f"charged as {kinds}")
        if cost > promised.epsilon or promised.neighbors is not self.setting.neighbors:
            wrong.append(f"{promised.epsilon:.2f} promised, {cost:.2f} spent")
        return wrong

    def second_budget(self) -> list[str]:
        """What is wrong with a second chain over the same subsets, whose answers another ledger pays for."""
        plan, before = self.ledger.plans()[0], self.charged()
        with PrivacyLedger(PrivacyBudget(500.0, 0.5, self.setting.neighbors)) as ledger:
            own = ledger.reserve([(self.setting.event, 2)], name="second", epsilon=plan.epsilon, delta=plan.delta)
            share = PrivacyBudget(own.epsilon, own.delta, self.setting.neighbors)
            twin = self.chain.with_budget(share, ledger=ledger, name="second", max_queries=2)
            for question in ("question 0", "of its own"):
                with contextlib.suppress(BudgetExceeded):
                    twin.invoke(question)
            charged = charges(ledger)
        paid = (charged, self.charged() - before)
        return [] if paid == (2, 0) else [f"{paid} charged to the second budget and the first for 2 releases"]

    def apart(self) -> list[str]:
        """Prompts that hold something else than the records of one subset."""
        prompt = self.chain.prompt
        wrong = mixed_up(self.asked().values(), fixed=self.setting.sampling == "fixed")
        own = [(prompt.ask(row), prompt.word(row["label"])) for row in self._rows]
        for each in self.witness.shown:
            shots = [own[record] for record in each.records]
            turns = "\n".join(turn for shot in shots for turn in shot)
            if each.body != (turns if self.setting.asked_elsewhere else prompt.body(shots)):
                wrong.append("a prompt is not what its own records make")
        return wrong

    def asked(self) -> dict[Any, list[SeenPrompt]]:
        """Private prompts by the question that they ended in."""
        found: dict[Any, list[SeenPrompt]] = collections.defaultdict(list)
        for each in self.witness.shown:
            found[each.question].append(each)
        return found


def _no_longer_kept() -> Finding:
    """A question whose answer had to go is a new release."""
    run = AnswerRun(SETTINGS[0], 4, answer_cache_size=2)
    for question in ("one", "two", "three", "one", "one"):
        run.chain.invoke(question)
    paid = run.charged()
    return Finding(paid != 4, f"{paid} charged for 4 releases, one of a question whose answer was no longer kept")


def calls(pairs: Sequence[tuple[AnswerSetting, str]] = PAIRS) -> Finding:
    """Five questions, one of them twice, then one again, others after a record was forgotten, and one beyond the plan.

    What the ledger holds against what was released, and against what the model was asked.
    """
    return worst(itertools.chain([_no_longer_kept()], (_calls(setting, face) for setting, face in pairs)))


def _calls(setting: AnswerSetting, face: str) -> Finding:
    run, ask, wrong = AnswerRun(setting, 14), FACES[face], []
    questions = [f"question {number}" for number in range(6)]

    def expect(releases: int, when: str) -> None:
        if (charged := run.charged()) != releases:
            wrong.append(f"{charged} charged for {releases} releases {when}")

    answers = ask(run.chain, [*questions[:5], questions[1]])
    expect(5, "of five questions")
    # Threads overtake each other; but whoever was charged as the k-th saw k charges at least.
    charges = sorted(min(each.charged for each in asked) for asked in run.asked().values())
    early = sum(seen < due for due, seen in enumerate(charges, 1))
    if early and not setting.asked_elsewhere:
        wrong.append(f"{early} questions were asked before their charge")
    before = len(run.witness.shown)
    if [*answers[5:], *ask(run.chain, questions[:1])] != [answers[1], answers[0]] or len(run.witness.shown) > before:
        wrong.append("a question that was answered before was answered anew")
    expect(5, "with one of them again")
    gone = run.witness.shown[0].records[0]
    run.chain.forget(f"r{gone}")
    # What was found with the help of a forgotten record is not given out again, where that may be known.
    ask(run.chain, questions[:1] if setting.neighbors is not _ADD else questions[5:])
    run.chain.batch([f"later {number}" for number in range(8)])
    expect(14, "after a record was forgotten")
    if any(gone in each.records for each in run.witness.shown[before:]):
        wrong.append("a forgotten record was shown")
    try:
        ask(run.chain, ["question 7"])
        wrong.append("a question beyond the plan was answered")
    except BudgetExceeded:
        expect(14, "of a plan of fourteen")
    for question, asked in run.asked().items():
        often = max(collections.Counter(record for each in asked for record in each.records).values())
        if often > 1 + (setting.neighbors is not _ADD and "question 0" in question):
            wrong.append(f"a record was shown {often} times for one charge")
    wrong += [*run.unpaid(), *run.second_budget()]
    return Finding(bool(wrong), f"{setting}, {face}: {wrong[0]}" if wrong else "chains of 14 releases each")


def subset_prompts(settings: Sequence[AnswerSetting] = SETTINGS, releases: int = 60) -> Finding:
    """Whole chains at q < 1: who was asked, what each prompt held, and who won, against the event in the ledger."""
    try:
        return _subset_prompts(settings, releases)
    except ModelUnavailable as error:  # the stub answers whatever is public
        return Finding(True, f"a companion was asked something else: {error}")


def _subset_prompts(settings: Sequence[AnswerSetting], releases: int) -> Finding:
    tests: dict[str, float] = {}
    hits: list[bool] = []
    chances: list[float] = []
    for place, setting in enumerate(settings):
        run, ask = AnswerRun(setting, releases), list(FACES.values())[place % 5]
        questions = [f"question {number}." for number in range(releases)]
        answers = ask(run.chain, questions)
        if wrong := run.unpaid() + run.apart():
            return Finding(True, f"{setting}: {wrong[0]}")
        asked, event = run.asked(), run.event
        rounds = [asked[f"Text: question {number}.\nLabel:"] for number in range(releases)]
        tests[f"who was asked, {setting}"] = who_was_asked(
            rounds, fixed=event.sampling == "fixed", q=event.sampling_probability
        )
        for shown, answer in zip(rounds, answers, strict=True):
            votes = collections.Counter({label: sum(each.said == label for each in shown) for label in LABELS})
            (leader, most), (_, least) = votes.most_common()
            if most > least:
                hits.append(answer == leader)
                chances.append(noisy_max_law((most, least), event.sigma))
    tests[f"{sum(hits)} of {len(hits)} majorities won, {sum(chances):.0f} expected"] = tally(sum(hits), chances)
    return likely(tests)


CHECKS = [
    Check("answers", "DP-ICL: one charge an answer", lambda: calls(EVERY_PAIR), once=True),
    Check("prompts", "DP-ICL at q < 1: coins, prompts, noise", subset_prompts),
]
