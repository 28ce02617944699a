"""A released answer is free for ever; two who ask the same thing at the same time share one release."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes.synthesizers import generator
from fakes.voters import AsyncVotingChat, Shots, VotingChat, classifier, left, majority

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.errors import InvalidParameter


def held() -> tuple[AsyncVotingChat, asyncio.Event, asyncio.Event]:
    """A model whose async calls say that they have begun, and wait until they may go on."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        await go_on.wait()

    return AsyncVotingChat(before=wait), started, go_on


async def test_the_same_question_twice_is_one_spend() -> None:
    """Asking again costs budget, in any mix of call styles; or different questions share an answer."""
    model = VotingChat()
    chain = classifier(model)
    answers = [chain.invoke("x"), await chain.ainvoke("x"), chain.invoke("  x "), chain.invoke({"text": "x"})]
    answers += [chain.invoke_with_certificate("x").label, *chain.stream("x"), *chain.batch(["x", "x"])]
    assert set(answers) == {"positive"}
    assert left(chain) == 4
    assert len(model.asked) == 8
    chain.batch(["X", "x?"])
    assert left(chain) == 2


def test_threads_that_ask_the_same_share_one_release() -> None:
    """Sixteen threads with one question spend sixteen times."""
    together = threading.Barrier(16)
    model = VotingChat()
    chain = classifier(model)

    def ask(_: int) -> str:
        together.wait(30)
        return chain.invoke("x")

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(16))) == {"positive"}
    assert left(chain) == 4
    assert len(model.asked) == 8


async def test_a_thread_and_tasks_share_one_release() -> None:
    """Sync and async users of one question do not see each other, or each task of a gather spends."""
    model, started, go_on = held()
    chain = classifier(model)
    tasks = [asyncio.create_task(chain.ainvoke("x")) for _ in range(15)]
    await started.wait()
    thread = asyncio.create_task(asyncio.to_thread(chain.invoke, "x"))
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(*tasks, thread) == ["positive"] * 16
    assert left(chain) == 4


async def test_invoke_in_a_running_loop_does_not_wait_for_a_task_of_that_loop() -> None:
    """A sync call on the loop's thread waits for ever for the same question asked by a task of that loop."""
    model, started, go_on = held()
    chain = classifier(model)
    task = asyncio.create_task(chain.ainvoke("x"))
    await started.wait()
    assert chain.invoke("x") == "positive"  # sync calls of the double do not wait
    go_on.set()
    assert await task == "positive"
    assert left(chain) == 3


async def test_waiters_try_again_when_the_first_asker_fails() -> None:
    """All who wait for the first user fail with it, or wait for ever."""
    first = threading.Event()

    def reply(shots: Shots, question: str) -> str:
        if not first.is_set():
            first.set()
            raise ConnectionError("not yet up")
        return majority(shots, question)

    chain = classifier(VotingChat(reply=reply), max_concurrency=1)  # one test question
    results = await asyncio.wait_for(
        asyncio.gather(*(chain.ainvoke("x") for _ in range(5)), return_exceptions=True), timeout=60
    )
    assert sorted(type(result).__name__ for result in results) == ["ModelUnavailable", "str", "str", "str", "str"]
    assert left(chain) == 4


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_cancelled_asker_does_not_hang_the_others(cancelled: int) -> None:
    """A client that hangs up leaves everyone with the same question waiting, whether it asked first or later."""
    model, started, go_on = held()
    chain = classifier(model)
    tasks = [asyncio.create_task(chain.ainvoke("x")) for _ in range(4)]
    await started.wait()
    tasks[cancelled].cancel()
    await asyncio.sleep(0)
    go_on.set()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
    assert isinstance(results.pop(cancelled), asyncio.CancelledError)
    assert results == ["positive"] * 3
    assert left(chain) == 4  # what the first user paid for is found, whoever is left to be told


async def test_who_hangs_up_has_paid_once_and_who_hangs_up_early_has_not() -> None:
    """If it breaks, every closed browser tab uses up budget, or a release goes on that nobody has paid for."""
    probing, probe = asyncio.Event(), asyncio.Event()

    async def probed() -> None:
        probing.set()
        await probe.wait()

    model, started, go_on = held()
    chain = classifier(model)
    chain._voter.aprobe = probed  # type: ignore[method-assign]
    early = asyncio.create_task(chain.ainvoke("another question"))
    await probing.wait()
    early.cancel()
    assert isinstance((await asyncio.gather(early, return_exceptions=True))[0], asyncio.CancelledError)
    probe.set()
    for _ in range(3):
        late = asyncio.create_task(chain.ainvoke("x"))
        await started.wait()
        late.cancel()
        assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], asyncio.CancelledError)
    go_on.set()
    assert await asyncio.wait_for(chain.ainvoke("x"), 60) == "positive"
    assert left(chain) == 4


def test_an_answer_under_way_while_a_record_is_forgotten_is_not_kept() -> None:
    """The answer of a vote that still held the record is kept although the record is gone."""
    model_calls, go_on = threading.Event(), threading.Event()

    def reply(shots: Shots, question: str) -> str:
        if shots:
            model_calls.set()
            go_on.wait(30)
        return majority(shots, question)

    chain = classifier(VotingChat(reply=reply))
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(chain.invoke, "x")
        assert model_calls.wait(30)
        chain.forget("#0")
        go_on.set()
        assert under_way.result(30) == "positive"
    chain.invoke("x")
    assert left(chain) == 3


def test_to_settle_what_another_claimed_wakes_nobody() -> None:
    """If it breaks, who is interrupted while he waits ends the wait of all others, and each pays for the answer."""
    cache, mine, other = AnswerCache[str](), object(), object()
    assert cache.claim("x", 0, mine) is None
    cache.settle("x", None, 0, other)
    assert cache._under_way
    cache.settle("x", "a", 0, mine)
    assert not cache._under_way
    assert cache.claim("x", 0, other) == "a"


@pytest.mark.parametrize("kind", ["labels", "texts"])
def test_an_interrupt_right_after_the_claim_leaves_no_question_behind(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, Ctrl-C at the wrong moment makes one question hang for ever."""
    claim, stop = AnswerCache.claim, [KeyboardInterrupt]

    def interrupted(self: AnswerCache[Any], *given: Any) -> Any:
        found = claim(self, *given)
        if found is None and stop:
            raise stop.pop()  # as a signal does when the call returns
        return found

    monkeypatch.setattr(AnswerCache, "claim", interrupted)
    chain: Any = classifier() if kind == "labels" else generator()
    with pytest.raises(KeyboardInterrupt):
        chain.invoke("where is it")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(chain.invoke, "where is it").result(60)


def _kept(*chains: DPICLClassifier) -> int:
    """Answers that these chains hold in memory."""
    return sum(len(chain._releaser._answers._answers) for chain in chains)


def test_forgetting_drops_the_answers_of_every_chain_over_the_subsets() -> None:
    """Answers that a forgotten record helped to find are given out again, or stay in memory."""
    chain = classifier(max_queries=50)
    twin = chain.with_budget(PrivacyBudget(50.0), max_queries=50)
    for turn in range(4):
        chain.batch(["x", "y"])
        twin.batch(["x", "y", "z"])
        assert _kept(chain, twin) == 5
        chain.forget(f"#{turn}")
        assert _kept(chain, twin) == 0  # at once, not when the next question comes
    assert (left(chain), left(twin)) == (50 - 4 * 2, 50 - 4 * 3)


async def test_the_answers_kept_are_bounded_and_the_oldest_goes_first() -> None:
    """A service that is asked ever new questions grows without bound, or forgets what is asked most."""
    chain = classifier(answer_cache_size=2, max_queries=20)
    for question in ("x", "y"):
        chain.invoke(question)
    assert await chain.ainvoke("x") == "positive"  # asked for again: y is the older one now
    chain.invoke("z")
    assert (_kept(chain), left(chain)) == (2, 17)
    chain.batch(["x", "z"])
    assert left(chain) == 17
    await chain.ainvoke("y")
    assert left(chain) == 16  # a new release, and charged
    long = "q" * 19_000
    chain.invoke(long)
    assert not any(isinstance(key, str) and long in key for key in chain._releaser._answers._answers)
    with pytest.raises(InvalidParameter, match="answer_cache_size=0"):
        classifier(answer_cache_size=0)
