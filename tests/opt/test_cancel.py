"""A call that is cancelled spends nothing more, and loses nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from fakes.optimizers import SENTENCE, Looking, examples, ledger_in, optimizer, used

from langchain_dp.errors import PlanError
from langchain_dp.redact import PrivateArgs


async def test_a_cancelled_call_stops_spending_and_can_be_taken_up(tmp_path: Path) -> None:
    """If it breaks, a request that timed out goes on charging the ledger in its thread, to the end of the plan."""
    turns = iter(range(10**6))
    loop, gone = asyncio.get_running_loop(), threading.Event()

    def look(bodies: list[str]) -> None:
        if "Student" in bodies[0] and next(turns) == 2:
            loop.call_soon_threadsafe(call.cancel)
            assert gone.wait(60)

    with ledger_in(tmp_path) as ledger:
        made = optimizer(Looking(look), ledger=ledger)
        call = asyncio.create_task(made.ainvoke(examples()))
        with pytest.raises(asyncio.CancelledError):
            await call
        gone.set()
        with made._lock:  # until the thread has come to its end
            pass
        assert used(ledger) == {"training": 3, "validation": 0}
        await made.ainvoke(examples())
        assert used(ledger) == {"training": 12, "validation": 1}
        assert made.released() == [SENTENCE, SENTENCE]


def test_a_halted_run_says_that_nothing_is_lost(tmp_path: Path) -> None:
    """If it breaks, what ends a run halfway looks like a failure, or comes after a charge."""
    with ledger_in(tmp_path) as ledger:
        made = optimizer(Looking(), ledger=ledger)
        with pytest.raises(PlanError, match="invoke again"):
            made._execute(PrivateArgs(examples()), None, lambda: True)
        assert used(ledger) == {"training": 0, "validation": 0}
