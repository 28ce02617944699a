"""Who asks what somebody else is being answered already waits, and never for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.voters import VotingChat, VotingEngine, classifier, left

from langchain_dp import PrivacyBudget, PrivacyLedger


@pytest.mark.parametrize("model", [VotingChat, VotingEngine])
async def test_who_waits_in_the_loops_threads_does_not_keep_the_answer_from_coming(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, ainvoke and invoke of one question wait for each other, and with them all threads of the loop."""
    loop, begun, entered, go = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    chain = classifier(model())

    async def probed() -> None:
        begun.set()
        await go.wait()

    def ask() -> str:
        loop.call_soon_threadsafe(entered.set)
        return chain.invoke("q")

    monkeypatch.setattr(chain._voter, "aprobe", probed)
    first = asyncio.create_task(chain.ainvoke("q"))
    await begun.wait()  # it has the right to answer
    second = asyncio.create_task(asyncio.to_thread(ask))
    await entered.wait()  # and this one has the only thread
    go.set()
    assert await asyncio.wait_for(asyncio.gather(first, second), 60) == ["positive", "positive"]
    assert left(chain) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(tmp_path: Path) -> None:
    """If it breaks, a worker that was forked while a question was answered hangs once it asks the same."""
    parent, begun, go = os.getpid(), threading.Event(), threading.Event()

    def during() -> None:
        if os.getpid() == parent:
            begun.set()
            go.wait(60)

    with PrivacyLedger(PrivacyBudget(50.0), tmp_path / "ledger") as ledger:
        chain = classifier(VotingEngine(during=during), ledger=ledger)
        model_calls = threading.Thread(target=chain.invoke, args=("q",))
        model_calls.start()
        assert begun.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a hanging child is killed, and seen by its status
            os._exit(0 if chain.invoke("q") == "positive" else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go.set()
        model_calls.join()
        assert status == 0
        assert chain.invoke("q") == "positive"
        assert left(chain) == 3
