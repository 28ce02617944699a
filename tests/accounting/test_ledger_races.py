"""Many at once: the last queries go to exactly as many callers as there are queries."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from fakes.fair_semaphore import on_both
from fakes.forked import end_of
from fakes.kills import workers
from fakes.racing import Attempt, outcome, race, race_threads

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.calibrate import max_releases
from langchain_dp.accounting.events import ExponentialEvent, NoisyMaxEvent
from langchain_dp.accounting.ledger import LedgerPlan, PrivacyLedger
from langchain_dp.accounting.store import sqlite
from langchain_dp.errors import BudgetExceeded, LedgerUnwritable, PlanError

BUDGET = PrivacyBudget(3.0, 1e-5)
VOTE = NoisyMaxEvent(8.0)
FAINT, MANY = NoisyMaxEvent(4000.0), 100_000
WIDE, SAMPLED = PrivacyBudget(8.0, 1e-5), NoisyMaxEvent(4.0, 0.05)
PROCESSES, THREADS = 4, 16

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="races forked processes")


@pytest.fixture
def memory(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder in memory where there is one: no test cuts the power, and syncs of 10,000 spends take a minute."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield pathlib.Path(folder)


@on_both
@pytest.mark.parametrize("shared", [True, False], ids=["a ledger a process", "a ledger a thread"])
def test_the_last_hundred_answers_go_to_a_hundred_of_64_racers(place: str, shared: bool) -> None:
    """If it breaks, threads of processes that share a ledger release more than it covers, or lose what was left."""
    with PrivacyLedger(WIDE, place) as ledger:
        ledger.reserve([(SAMPLED, 4000)], name="p").spend(SAMPLED, 4000 - 100)

    def enter(_: int) -> Attempt:
        plans = [PrivacyLedger(WIDE, place).plan("p") for _ in range(1 if shared else 8)]
        return lambda number: (outcome(plans[number % len(plans)].spend, SAMPLED) for _ in range(3))

    assert race(8, 8, enter) == {"done": 100, "refused": 64 * 3 - 100}
    with PrivacyLedger(WIDE, place) as ledger:
        assert ledger.plan("p").remaining(SAMPLED) == 0
        assert len(list(ledger.entries())) == 101


@on_both
def test_a_new_ledger_raced_for_by_all_is_one(place: str, tmp_path: pathlib.Path) -> None:
    """If this fails, two processes that start together each get a budget of their own."""

    def spend() -> None:
        with PrivacyLedger(BUDGET, place) as ledger:
            ledger.spend(VOTE)

    most = max_releases(VOTE, BUDGET)
    found = race(PROCESSES, THREADS, lambda _: lambda _: [outcome(spend)])
    assert found == {"done": most, "refused": PROCESSES * THREADS - most}
    files = {file.name for file in tmp_path.iterdir()}
    assert files - {"ledger.db.queue"} == (set() if "://" in place else {"ledger.db"})


def test_who_looks_at_a_ledger_that_is_being_made_stops_nobody(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the process that makes the ledger dies when another one opens it in that moment."""
    path, link = tmp_path / "ledger.db", os.link

    def seen_at_once(source: str, target: str) -> None:
        link(source, target)
        PrivacyLedger(BUDGET, path).close()

    monkeypatch.setattr(os, "link", seen_at_once)
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.spend(VOTE)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]


@on_both
def test_plans_raced_for_stay_within_the_budget(place: str) -> None:
    """If this fails, plans reserved at the same moment exceed the budget together."""
    with PrivacyLedger(BUDGET, place) as ledger:
        claim = ledger.reserve([(VOTE, 1)], name="one", delta=1e-6).epsilon
        fitting = int(3.0 / claim) - 1
        assert 0 < fitting < 9

    def enter(process: int) -> Attempt:
        own = PrivacyLedger(BUDGET, place)
        return lambda number: [outcome(own.reserve, [(VOTE, 1)], name=f"{process}-{number}", delta=1e-6)]

    assert race(PROCESSES, THREADS, enter) == {"done": fitting, "refused": PROCESSES * THREADS - fitting}
    with PrivacyLedger(BUDGET, place) as ledger:
        assert ledger.reserved()[0] <= 3.0


def test_threads_share_one_ledger_in_memory() -> None:
    """If this fails, threads of one process overdraw or crash a shared ledger."""
    with PrivacyLedger(BUDGET) as ledger:
        plan = ledger.reserve([(VOTE, 10)], name="p")
        found = race_threads(THREADS, lambda _: [outcome(plan.spend, VOTE) for _ in range(2)])
        assert found == {"done": 10, "refused": 2 * THREADS - 10}
        assert plan.remaining(VOTE) == 0


@on_both
def test_two_first_direct_spends_agree_on_one_plan(place: str) -> None:
    """If this fails, two processes that start with different events each take the whole budget."""
    with PrivacyLedger(BUDGET, place) as one, PrivacyLedger(BUDGET, place) as two:
        one.spend(VOTE)
        two.spend(VOTE)
        assert one.remaining(VOTE) == two.remaining(VOTE) == max_releases(VOTE, BUDGET) - 2
        with PrivacyLedger(BUDGET, place) as three, pytest.raises(PlanError):
            three.spend(ExponentialEvent(0.1))
        with pytest.raises(BudgetExceeded):
            two.spend(VOTE, 100)


@on_both
def test_forking_while_threads_spend_is_safe(place: str) -> None:
    """If this fails, a fork in the middle of a transaction deadlocks the child or loses a spend."""
    event = NoisyMaxEvent(4.0, 0.05)
    with PrivacyLedger(BUDGET, place) as ledger:
        plan = ledger.reserve([(event, 1000)], name="p")
        stop = threading.Event()

        def work() -> int:
            spent = 0
            while not stop.is_set() and spent < 233:
                plan.spend(event)
                spent += 1
            return spent

        with ThreadPoolExecutor(3) as pool:
            working = [pool.submit(work) for _ in range(3)]
            assert [end_of(lambda: plan.spend(event, 2)) for _ in range(8)] == [0] * 8
            stop.set()
            spent = sum(each.result() for each in working)
        assert 1000 - plan.remaining(event) == spent + 16


def spend_at(path: pathlib.Path | str) -> Callable[[], object]:
    plan = PrivacyLedger(BUDGET, path).plan("p")
    return lambda: plan.spend(FAINT)


def test_who_waits_for_a_lock_asks_often_and_at_random_and_gives_up_in_the_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a waiter asks so rarely that busy writers starve it, or in step with another, or for ever."""
    naps: list[float] = []
    clock = SimpleNamespace(sleep=naps.append, monotonic=lambda: 1000.0 + sum(naps))
    with PrivacyLedger(BUDGET, tmp_path / "l.db") as ledger:
        plan = ledger.reserve([(FAINT, 5)], name="p")
        holder = sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite, "time", clock)
        with pytest.raises(LedgerUnwritable, match="another process held a lock"):
            plan.spend(FAINT)
        assert 30.0 <= sum(naps) < 30.0 + sqlite.LONGEST_NAP
        assert 0.0 <= min(naps) <= max(naps) <= sqlite.LONGEST_NAP <= 0.01
        assert len(set(naps[-100:])) == 100
        holder.close()
        plan.spend(FAINT)
        assert len(list(ledger.entries())) == 1


@on_both
def test_two_writers_without_a_pause_starve_nobody(place: str) -> None:
    """If this fails, a third process cannot open a ledger that two others use, and is told that it is locked."""
    path = place
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.reserve([(FAINT, MANY)], name="p", epsilon=2.9)
    with workers(lambda: spend_at(path), 2) as busy:
        for _, read in busy:
            assert os.read(read, 1) == b"."
        for _ in range(5):
            with PrivacyLedger(BUDGET, path) as ledger:
                assert ledger.plan("p").remaining(FAINT) < MANY
        assert [os.waitpid(pid, os.WNOHANG) for pid, _ in busy] == [(0, 0)] * 2  # both are still at it


def _spend_some(plan: LedgerPlan, count: int) -> int:
    for _ in range(count):
        plan.spend(FAINT)
    return count


def test_ten_thousand_spends_of_threads_pools_and_the_killed_are_all_there(memory: pathlib.Path) -> None:
    """If this fails, an answer left a process and its charge is not in the ledger: a release for free."""
    path, killed, told = memory / "l.db", 12, 0
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.reserve([(FAINT, MANY)], name="p", epsilon=2.9)
        with (
            ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool,
            ThreadPoolExecutor(4) as own,
        ):
            jobs = [pool.submit(_spend_some, plan, 500) for _ in range(8)]  # each opens the file anew
            jobs += [own.submit(_spend_some, plan, 1000) for _ in range(4)]
            for _ in range(killed):
                with workers(lambda: spend_at(path), 1) as [(pid, read)]:
                    here = 0
                    while here < 170:
                        heard = os.read(read, 170 - here)
                        assert heard
                        here += len(heard)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    while rest := os.read(read, 65536):  # what it was told of before it died
                        here += len(rest)
                told += here
            told += sum(job.result() for job in jobs)
    with PrivacyLedger(BUDGET, path) as ledger:  # opening checks that counts and entries agree
        kept = sum(entry.count for entry in ledger.entries())
    assert told >= 10_000
    assert told <= kept <= told + killed  # each of the killed may have died between charge and answer
