"""Answers go out on time: not before it, and not held when late."""

from __future__ import annotations

import asyncio
import types

import pytest
from fakes.voters import VotingEngine, classifier

from langchain_dp import DPICLClassifier
from langchain_dp.errors import InvalidParameter


class Clock:
    """Time that passes only when somebody sleeps, and while a subset answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.seconds = seconds
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr("langchain_dp.icl.release.time", clock)
        monkeypatch.setattr(asyncio, "sleep", self.asleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def answer(self, *_: object) -> str:
        self.now += self.seconds
        return "positive"


async def ask(chain: DPICLClassifier, run: str, question: str) -> None:
    _ = chain.invoke(question) if run == "sync" else await chain.ainvoke(question)


RUNS = pytest.mark.parametrize("run", ["sync", "async"])


@RUNS
@pytest.mark.parametrize(("work", "slept"), [(2.0, [3.0]), (4.5, [0.5]), (7.0, [])])
async def test_an_answer_waits_for_the_rest_of_the_time(
    run: str, work: float, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is counted from the answer, so that it shows the work; or a late answer is made slower."""
    clock = Clock(monkeypatch, work)
    chain = classifier(VotingEngine(during=clock.answer), min_response_seconds=5.0)
    await ask(chain, run, "x")
    assert clock.slept == slept


@RUNS
async def test_every_new_answer_of_a_chain_is_held_and_a_kept_one_is_not(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """min_response_seconds is accepted and then ignored, in sync or async calls."""
    clock = Clock(monkeypatch)
    chain = classifier(min_response_seconds=30.0)
    for question in ("x", "y", "x"):
        await ask(chain, run, question)
    assert clock.slept == [30.0, 30.0]
    clock.slept.clear()
    await ask(classifier(), run, "x")
    assert clock.slept == []  # where nobody asked for it


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_an_answer_time_that_is_none_is_refused(seconds: float) -> None:
    """A time of zero or less holds nothing back without a word."""
    with pytest.raises(InvalidParameter, match="min_response_seconds="):
        classifier(min_response_seconds=seconds)
