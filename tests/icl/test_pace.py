"""Answers go out on time: not before it, and not held when late."""

from __future__ import annotations

import pytest
from fakes.voters import classifier

from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.pace import Pace


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def pace(self, seconds: float | None) -> Pace:
        return Pace(seconds, clock=lambda: self.now, sleep=self.sleep, asleep=self.asleep)


async def test_an_early_answer_waits_for_the_rest_of_the_time() -> None:
    """The wait is the whole time, or counted from the answer, so that the time still shows the work."""
    clock = Clock()
    pace = clock.pace(5.0)
    started = pace.start()
    clock.now += 2.0
    pace.hold(started)
    assert clock.slept == [3.0]
    started = pace.start()
    clock.now += 4.5
    await pace.ahold(started)
    assert clock.slept == [3.0, 0.5]


async def test_a_late_answer_goes_out_at_once() -> None:
    """A slow answer is made slower, or sleeps a negative time."""
    clock = Clock()
    pace = clock.pace(5.0)
    started = pace.start()
    clock.now += 7.0
    pace.hold(started)
    await pace.ahold(started)
    assert clock.slept == []


async def test_without_a_time_nothing_waits() -> None:
    """Answers are held although nobody asked for it."""
    clock = Clock()
    pace = clock.pace(None)
    pace.hold(pace.start())
    await pace.ahold(pace.start())
    assert clock.slept == []


@pytest.mark.parametrize("run", ["sync", "async"])
async def test_every_new_answer_of_a_chain_is_held_and_a_kept_one_is_not(run: str) -> None:
    """min_response_seconds is accepted and then ignored, in sync or async calls."""
    clock = Clock()
    chain = classifier(min_response_seconds=30.0)
    chain._releaser.pace = clock.pace(30.0)
    for question in ("x", "y", "x"):
        _ = chain.invoke(question) if run == "sync" else await chain.ainvoke(question)
    assert clock.slept == [30.0, 30.0]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_an_answer_time_that_is_none_is_refused(seconds: float) -> None:
    """A time of zero or less holds nothing back without a word."""
    with pytest.raises(InvalidParameter, match="min_response_seconds="):
        classifier(min_response_seconds=seconds)
