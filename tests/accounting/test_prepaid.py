"""Releases paid for in blocks: never one for free, whoever dies, forks, closes or races."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.fair_semaphore import on_both
from fakes.forked import end_of, in_child

from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.ledger import LedgerPlan
from langchain_dp.accounting.store.plans import PlanStore
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerError

BUDGET = PrivacyBudget(8.0, 1e-5)
VOTE = NoisyMaxEvent(4.0, 0.05)
OTHER = NoisyMaxEvent(5.0, 0.05)
MOST = 1000


def reserved(place: str, **settings: int) -> tuple[PrivacyLedger, LedgerPlan]:
    ledger = PrivacyLedger(BUDGET, place, **settings)
    return ledger, ledger.reserve([(VOTE, MOST), (OTHER, 10)], name="p")


def charged(place: str) -> int:
    with PrivacyLedger(BUDGET, place) as ledger:  # opening checks that counts and entries agree
        return sum(entry.count for entry in ledger.entries())


@on_both
def test_a_block_is_one_write_and_is_said(place: str) -> None:
    """If it breaks, prepaying is no faster, or a certificate hides that more is charged than was released."""
    ledger, plan = reserved(place, prepay_block=100)
    for _ in range(101):
        plan.spend(VOTE, caller="mail")
    assert [(entry.count, entry.caller) for entry in ledger.entries()] == [(100, "mail (prepaid)")] * 2
    assert plan.remaining(VOTE) == MOST - 101
    note = plan.certificate(VOTE).notes[-1]
    assert note.startswith("paid for in blocks of 100: the cost counts 99 releases")
    assert plan.certificate(VOTE).remaining == MOST - 101
    plan.spend(OTHER)
    assert plan.remaining(OTHER) == 9  # all 10 are paid for, and no more than there are
    plan.spend(VOTE, 250)  # more than a block: what is left of it, and what is missing
    assert plan.remaining(VOTE) == MOST - 351
    assert charged(place) == 200 + 10 + 151
    ledger.close()


@on_both
def test_the_last_ones_are_given_and_no_more(place: str) -> None:
    """If it breaks, what does not fill a block is lost, or a block goes beyond the plan."""
    ledger, plan = reserved(place, prepay_block=300)
    for _ in range(MOST):
        plan.spend(VOTE)
    with pytest.raises(BudgetExceeded) as refused:
        plan.spend(VOTE)
    assert refused.value.fits == 0
    assert charged(place) == MOST
    plan.spend(OTHER, 7)
    with pytest.raises(BudgetExceeded) as refused:
        plan.spend(OTHER, 4)
    assert refused.value.fits == 3
    plan.spend(OTHER, 3)
    ledger.close()


@on_both
def test_a_closed_ledger_spends_nothing_and_refunds_nothing(place: str) -> None:
    """If it breaks, a release goes on after the ledger was closed, or a later process gets what was paid for."""
    ledger, plan = reserved(place, prepay_block=100)
    plan.spend(VOTE)
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        plan.spend(VOTE)
    assert charged(place) == 100


def test_a_copy_is_the_same_and_a_pickle_pays_for_itself(place: str) -> None:
    """If it breaks, one block is spent by two."""
    ledger, plan = reserved(place, prepay_block=100)
    plan.spend(VOTE)
    for twin in (copy.copy(plan), copy.deepcopy(plan)):
        twin.spend(VOTE)
    assert charged(place) == 100
    again = pickle.loads(pickle.dumps(plan))  # made here
    again.spend(VOTE)
    assert charged(place) == 200
    assert [plan.remaining(VOTE), again.remaining(VOTE)] == [MOST - 200 + 97, MOST - 200 + 99]
    ledger.close()


def test_without_it_nothing_changes(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a ledger that did not ask for blocks pays in blocks, or its certificate says so."""
    ledger, plan = reserved(place)
    assert ledger._account.prepaid is None
    plan.spend(VOTE, caller="mail")
    assert [(entry.count, entry.caller) for entry in ledger.entries()] == [(1, "mail")]
    assert "blocks" not in str(plan.certificate(VOTE).notes)
    with pytest.raises(InvalidParameter, match="prepay_block=0"):
        PrivacyLedger(BUDGET, place, prepay_block=0)

    def failing(*_: object) -> bool:
        raise LedgerError("the disk is full")

    paid, other = reserved(place, prepay_block=10)
    monkeypatch.setattr(PlanStore, "add_use", failing)
    with pytest.raises(LedgerError):
        other.spend(VOTE)
    assert other.remaining(VOTE) == MOST - 1  # a write that failed gives no block
    ledger.close()
    paid.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@on_both
def test_a_child_of_a_fork_pays_for_itself(place: str) -> None:
    """If it breaks, parent and child spend one block: releases for free."""
    ledger, plan = reserved(place, prepay_block=100)
    plan.spend(VOTE)

    def child() -> str:
        plan.spend(VOTE)
        return str(plan.remaining(VOTE))

    assert in_child(child) == str(MOST - 200 + 99)
    assert charged(place) == 200
    plan.spend(VOTE)
    assert charged(place) == 200
    ledger.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@on_both
def test_a_fork_while_a_thread_pays_hangs_nobody(place: str) -> None:
    """If it breaks, a fork waits for a lock under which the database is asked, or a child finds it taken for ever."""
    ledger, plan = reserved(place, prepay_block=2)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set() and plan.remaining(VOTE) > 200:
            plan.spend(VOTE)

    def child() -> None:
        signal.alarm(20)
        plan.spend(VOTE)

    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            pool.submit(work)
        assert [end_of(child) for _ in range(5)] == [0] * 5
        stop.set()
    ledger.close()


def _racers(place: str, gate: int, told: int, *, die: bool) -> None:
    """Eight threads that spend until they are refused; of those that die, the process goes in the middle of it."""
    plan = PrivacyLedger(BUDGET, place, prepay_block=7).plan("p")
    os.write(told, b"r")
    os.read(gate, 1)

    def spend() -> None:
        for turn in range(MOST):
            try:
                plan.spend(VOTE)
            except BudgetExceeded:
                return
            os.write(told, b".")
            if die and turn == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="races forked processes")
@on_both
@pytest.mark.parametrize("dying", [0, 3])
def test_64_racers_for_the_last_hundred_answers(place: str, dying: int) -> None:
    """If it breaks, processes that prepay release more than the plan covers, or lose more than their blocks."""
    ledger, plan = reserved(place)
    plan.spend(VOTE, MOST - 100)
    ledger.close()
    gate_read, gate_write = os.pipe()
    made = []
    for number in range(8):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _racers(place, gate_read, write, die=number < dying)
            finally:
                os._exit(0)
        os.close(write)
        made.append((pid, read))
    released = 0
    for _, read in made:
        assert os.read(read, 1) == b"r"
    os.write(gate_write, b"." * 8)
    for pid, read in made:
        while more := os.read(read, 65536):
            released += len(more)
        os.waitpid(pid, 0)
        os.close(read)
    os.close(gate_read)
    os.close(gate_write)
    assert charged(place) == MOST
    # Of each that died up to a block and the eight that its threads had in hand.
    assert 100 - dying * (7 + 8) <= released <= 100
    assert released == 100 or dying


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
def test_a_crash_loses_at_most_the_rest_of_a_block(place: str) -> None:
    """If it breaks, a process that dies takes more with it than it said, or leaves releases that nobody paid for."""
    reserved(place)[0].close()
    before = 0
    for steps in (1, 4, 5, 6, 9, 10, 11):

        def child(steps: int = steps) -> None:
            plan = PrivacyLedger(BUDGET, place, prepay_block=5).plan("p")
            for _ in range(steps):
                plan.spend(VOTE)
            os.kill(os.getpid(), signal.SIGKILL)

        assert end_of(child) == -signal.SIGKILL
        assert charged(place) - before == -(-steps // 5) * 5
        before = charged(place)
