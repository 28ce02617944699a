"""Audits of whole chains on two neighbors under the same coins: what one record can change, exactly.

Where the coins are the same, nothing is left to chance: at most one prompt and one vote may differ, and no log line.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from fakes.coins import Coins
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableLambda

from audits.check import ERROR, Check, Finding, worst
from audits.laws import attendance, coins
from audits.stubs import LABELS, LogRecorder, examples
from audits.synth import ScoringEngine
from langchain_dp.accounting import Neighbors, NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.audit import NamingEngine
from langchain_dp.icl import DPICLClassifier, SamplingOptions
from langchain_dp.mechanisms import ClippedSum, ReportNoisyMax
from langchain_dp.ports import MemberPrompt, TokenScores
from langchain_dp.synth import DPAnswerGenerator

_R1, _ADD, _ZERO = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL
_DAMAGED, _FORGET = "damaged", "forget"
Row = dict[str, str]


@dataclasses.dataclass
class Observed:
    """What a run showed to its model, gave to its mechanism, logged and charged."""

    prompts: list[list[str]] = dataclasses.field(default_factory=list)
    votes: list[Any] = dataclasses.field(default_factory=list)
    lines: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    charged: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    ended: list[str] = dataclasses.field(default_factory=list)
    damage: type[BaseException] = ValueError

    def ask(self, release: Callable[[], object]) -> None:
        """Release, and keep how it ended: that must not hang on a record."""
        try:
            release()
        except BaseException as error:  # whatever a model raises
            self.ended.append(type(error).__name__)
        else:
            self.ended.append("answered")


class _Engine(NamingEngine):
    """Votes for every member, also for one without examples, and fails where one is damaged."""

    def __init__(self, seen: Observed) -> None:
        super().__init__()
        self._seen = seen

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        """As of the parent; a member without a vote of its own has one for the last label."""
        if any(_DAMAGED in prompt.body for prompt in prompts):
            raise self._seen.damage("this call cannot be answered")
        self._seen.prompts[-1] += [prompt.body for prompt in prompts if prompt.body]
        rows = super().score_labels(prompts, words)
        return [row or [float(place) for place in range(len(words))] for row in rows]


def _chat(seen: Observed) -> Runnable[Any, Any]:
    """The same as a chat model, which is asked member by member."""

    def say(messages: Sequence[BaseMessage]) -> str:
        shots = [str(message.content) for message in messages[1:-1]]
        if any("record" in shot for shot in shots):
            seen.prompts[-1].append("\n".join(shots))
        if any(_DAMAGED in shot for shot in shots):
            raise seen.damage("this call cannot be answered")
        return shots[-1] if shots else LABELS[0]

    return RunnableLambda(say)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two neighbors: records that a chain is built with, and those that join later or are forgotten (None: neither)."""

    name: str
    neighbors: Neighbors
    built: tuple[Sequence[Row], Sequence[Row]]
    joining: tuple[Sequence[Row | None], Sequence[Row | None]] = ((), ())
    subsets: int = 5


def _pairs() -> list[Pair]:
    rows = examples(16)
    few, more, one = rows[:8], rows[8:12], {"id": "one", "text": "record 99", "label": LABELS[1]}
    other = {**few[3], "text": f"record 98 {_DAMAGED}"}
    changed = {**few[3], "text": "record 97 of another kind", "label": LABELS[1 - LABELS.index(few[3]["label"])]}
    return [
        Pair("one more is added later, and others after it", _ADD, (few, few), ([None, *more], [one, *more])),
        Pair("one more at construction, and others added later", _ADD, (few, [*few, one]), (more, more)),
        Pair("one more where most subsets are empty", _ADD, (few[:3], [*few[:3], one]), subsets=12),
        Pair("one of another kind", _R1, (few, [*few[:3], changed, *few[4:]]), (more, more), subsets=4),
        Pair("one that breaks a call", _R1, (few, [*few[:3], other, *few[4:]]), (more, more), subsets=4),
        Pair("one is forgotten, and others added later", _ADD, (few, few), ([None, *more], [{_FORGET: "r3"}, *more])),
        Pair(
            "a twin of another",
            _R1,
            (few, [*few[:3], {**few[3], "text": few[4]["text"], "label": few[4]["label"]}, *few[4:]]),
        ),
        Pair("one that breaks a call is added later", _ADD, (few, few), ([None], [{**one, "text": other["text"]}])),
    ]


PAIRS = _pairs()
"""Records that differ in one."""


def _released(
    pair: Pair, side: int, model: Callable[[Observed], Any], same: Coins, questions: int, damage: type[BaseException]
) -> Observed:
    seen = Observed(damage=damage)
    with _observed(seen, same, pair.neighbors) as (ledger, stack):
        event = NoisyMaxEvent(5.0, 0.75, "fixed")
        ledger.reserve([(event, questions)], name="dp-icl")
        chain = DPICLClassifier(
            model=model(seen), trust_opaque_model=True, examples=pair.built[side], labels=LABELS, ledger=ledger,
            max_queries=questions, shots=2, subsets=pair.subsets,
            sampling=SamplingOptions("fixed", pair.subsets, 0.75), calibrate=False,
        )  # fmt: skip
        for place, row in enumerate(pair.joining[side]):
            same.start(f"add {place}")
            if row is not None and _FORGET in row:
                chain.forget(row[_FORGET])
            elif row is not None:
                chain.add(row)
        stack.enter_context(_watched(ReportNoisyMax, lambda counts: seen.votes.append(list(counts))))
        for number in range(questions):
            same.start(f"question {number}")
            seen.prompts.append([])
            seen.ask(functools.partial(chain.invoke, f"question {number}"))
    return seen


@contextlib.contextmanager
def _observed(
    seen: Observed, same: Coins, neighbors: Neighbors
) -> Iterator[tuple[PrivacyLedger, contextlib.ExitStack]]:
    """A ledger under given coins; at the end ``seen`` holds what was logged and charged."""
    with contextlib.ExitStack() as stack, PrivacyLedger(PrivacyBudget(500.0, 0.1, neighbors)) as ledger:
        stack.enter_context(mock.patch.object(random, "_urandom", same.urandom))
        heard = stack.enter_context(LogRecorder())
        same.start("build")
        yield ledger, stack
        seen.lines = list(heard.lines)
        seen.charged = [(entry.event, entry.count) for entry in ledger.entries()]


@contextlib.contextmanager
def _watched(mechanism: type, see: Callable[..., object]) -> Iterator[None]:
    real = vars(mechanism)["release"]

    @functools.wraps(real)
    def release(self: Any, *private: Any, **how: Any) -> Any:
        see(*private)
        return real(self, *private, **how)

    with mock.patch.object(mechanism, "release", release):
        yield


def differences(here: Observed, there: Observed) -> list[str]:
    """What differs by more than one record may change."""
    if here.ended != there.ended:
        return [f"releases end as {here.ended}, or as {there.ended}"]
    wrong = []
    for one, other in zip(here.prompts, there.prompts, strict=True):
        gone, came = (collections.Counter(a) - collections.Counter(b) for a, b in ((one, other), (other, one)))
        if max(gone.total(), came.total()) > 1:
            wrong.append(f"{max(gone.total(), came.total())} prompts of one release differ")
    for counts, others in zip(here.votes, there.votes, strict=True):
        moved = [b - a for a, b in zip(counts, others, strict=True)]
        if sum(step for step in moved if step > 0) > 1 or sum(-step for step in moved if step < 0) > 1:
            wrong.append(f"votes {counts} become {others}")
    if here.lines != there.lines:
        wrong.append("a log line tells the two apart")
    if here.charged != there.charged:
        wrong.append("other charges")
    return wrong


_MODELS: dict[str, Callable[[Observed], Any]] = {"engine": _Engine, "chat model": _chat}


def votes(
    pairs: Sequence[Pair] = PAIRS, seeds: int = 6, questions: int = 4, damage: type[BaseException] = ValueError
) -> Finding:
    """Answers of DP-ICL on two neighbors, under the same coins and by both voters; ``damage`` is what breaks a call."""
    return worst(
        _compared(
            f"{pair.name}, {name}",
            [_released(pair, side, model, Coins(str(seed)), questions, damage) for side in (0, 1)],
        )
        for pair, (name, model), seed in itertools.product(pairs, _MODELS.items(), range(seeds))
    )


def _compared(when: str, sides: Sequence[Observed]) -> Finding:
    wrong = differences(*sides)
    return Finding(
        bool(wrong), f"{when}: {wrong[0]}" if wrong else "one prompt and one vote differ at most; no log line"
    )


class _Writer(ScoringEngine):
    """Fails in a call of several members of which one is damaged."""

    def __init__(self, seen: Observed) -> None:
        super().__init__()
        self._seen = seen

    def score_next_token(self, public: Any, members: Any, *, candidates: int, chat: bool = False) -> TokenScores:
        if any(_DAMAGED in one.prompt.body for one in members):
            raise self._seen.damage("this call cannot be answered")
        self._seen.prompts[-1] += sorted({one.prompt.body for one in members if "record" in one.prompt.body})
        return super().score_next_token(public, members, candidates=candidates, chat=chat)


def _written(rows: Sequence[Row], seed: int, damage: type[BaseException]) -> Observed:
    seen, same = Observed(prompts=[[]], damage=damage), Coins(str(seed))
    with _observed(seen, same, _R1) as (ledger, stack):
        chain = DPAnswerGenerator(
            model=_Writer(seen), examples=rows, ledger=ledger, max_queries=2, members=8, sampling_probability=0.5,
            max_new_tokens=1, candidates=3,
        )  # fmt: skip
        stack.enter_context(_watched(ClippedSum, lambda known, rows, *_: seen.votes.append(_texts(rows))))
        same.start("question")
        seen.prompts = [[]]
        seen.ask(functools.partial(chain.invoke, "question"))
        seen.prompts = [sorted(set(seen.prompts[0]))]
    return seen


def _texts(rows: Sequence[Any]) -> list[int]:
    """How many members say nothing, and how many like each of the words: as votes."""
    kinds = collections.Counter(None if row is None else max(range(len(row)), key=lambda at: row[at]) for row in rows)
    return [kinds[kind] for kind in (0, 1, 2)]


def written(seeds: int = 8, damage: type[BaseException] = ValueError) -> Finding:
    """A written answer on two neighbors, under the same coins; ``damage`` is what breaks a call."""
    rows = [
        {**row, "text": f"{row['text']} says {('up', 'down')[place % 2]}"} for place, row in enumerate(examples(16))
    ]
    others = {"of another kind": "record 97 says up", "that breaks a call": f"record 98 {_DAMAGED}"}
    return worst(
        _compared(
            f"one {name}",
            [_written([*rows[:3], one, *rows[4:]], seed, damage) for one in (rows[3], {**rows[3], "text": text})],
        )
        for (name, text), seed in itertools.product(others.items(), range(seeds))
    )


def asked_again(releases: int = 60) -> Finding:
    """One question many times, of which no answer is kept: its members are drawn by new coins each time."""
    tests = {
        "answers": _votes_again(releases),
        "written answers": _written_again(releases),
        "chains that go on with one plan": _chains_again(releases // 3),
    }
    worst_of_all = min(tests, key=lambda name: tests[name])
    return Finding(
        tests[worst_of_all] < ERROR / len(tests),
        f"one question {releases} times, least p = {tests[worst_of_all]:.1g}: {worst_of_all}",
    )


def _sampled(seen: Observed, ledger: PrivacyLedger, most: int) -> DPICLClassifier:
    return DPICLClassifier(
        model=_Engine(seen), examples=examples(48), labels=LABELS, ledger=ledger, max_queries=most, shots=1,
        subsets=18, sampling=SamplingOptions("fixed", 48, 0.375), calibrate=False, answer_cache_size=1,
    )  # fmt: skip


def _votes_again(releases: int) -> float:
    seen = Observed()
    with PrivacyLedger(PrivacyBudget(500.0, 0.5, _R1)) as ledger:
        ledger.reserve([(NoisyMaxEvent(5.0, 0.375, "fixed"), 2 * releases)], name="dp-icl")
        chain = _sampled(seen, ledger, 2 * releases)
        for _ in range(releases):
            for question in ("the same question", "another, whose answer takes the place"):
                seen.prompts.append([])
                chain.invoke(question)
    return coins(attendance(seen.prompts[::2]), 0.375)


def _chains_again(releases: int) -> float:
    """As many processes, or replicas, that share a plan: each draws by coins of its own."""
    seen = Observed()
    with PrivacyLedger(PrivacyBudget(500.0, 0.5, _R1)) as ledger:
        ledger.reserve([(NoisyMaxEvent(5.0, 0.375, "fixed"), releases)], name="dp-icl")
        for _ in range(releases):
            seen.prompts.append([])
            _sampled(seen, ledger, releases).invoke("the same question")
    return coins(attendance(seen.prompts), 0.375)


def _written_again(releases: int) -> float:
    seen, rounds = Observed(prompts=[[]]), []
    with PrivacyLedger(PrivacyBudget(500.0, 0.1, _R1)) as ledger:
        chain = DPAnswerGenerator(
            model=_Writer(seen), examples=examples(48), ledger=ledger, max_queries=releases, sampling_probability=0.375,
            max_new_tokens=1, candidates=3, answer_cache_size=0,
        )  # fmt: skip
        for _ in range(releases):
            seen.prompts = [[]]
            chain.invoke("the same question")
            rounds.append(sorted(set(seen.prompts[0])))
    return coins(attendance(rounds), 0.375)


CHECKS = [
    Check("neighbors", "one prompt, one vote, no log line", votes, once=True),
    Check("neighbors 2", "the same of written answers", written, once=True),
    Check("asked again", "a question anew has new coins", asked_again),
]
