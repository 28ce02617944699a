"""Copies and forks of a ledger: whatever leaves the process shares its counts, or is refused."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
from fakes.fair_semaphore import on_both, path_of
from fakes.forked import in_child
from fakes.voters import classifier, private_examples

from langchain_dp import errors
from langchain_dp.accounting import _account
from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import NoisyMaxEvent
from langchain_dp.accounting.ledger import LedgerPlan, PrivacyLedger
from langchain_dp.errors import BudgetExceeded, LedgerError, PrivateDataError

BUDGET = PrivacyBudget(3.0, 1e-5)
SMALL = PrivacyBudget(0.2, 1e-6)
VOTE = NoisyMaxEvent(8.0)


@pytest.fixture
def path(place: str) -> pathlib.Path | str:
    """A closed ledger with a plan of 10 votes, 3 of them used."""
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(VOTE, 10)], name="p", delta=1e-6).spend(VOTE, 3)
    return path_of(place)


def test_a_pickled_ledger_is_the_same_ledger(path: pathlib.Path) -> None:
    """If this fails, a worker process starts with a budget of its own."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        copied: LedgerPlan = pickle.loads(pickle.dumps(plan))
        reopened: PrivacyLedger = pickle.loads(pickle.dumps(ledger))
        copied.spend(VOTE, 2)
        assert plan.remaining(VOTE) == 5
        assert [entry.count for entry in reopened.entries()] == [3, 2]
        frozen = pickle.dumps(ledger)
        reopened.close()
        del copied  # its own account closes with it
    os.unlink(path)
    with pytest.raises(LedgerError, match="gone"):
        pickle.loads(frozen)
    PrivacyLedger(BUDGET, path).close()
    with pytest.raises(LedgerError, match="replaced"):
        pickle.loads(frozen)


def test_a_ledger_in_memory_cannot_be_duplicated() -> None:
    """If this fails, a copy of an in-memory ledger spends its budget a second time."""
    with PrivacyLedger(BUDGET) as ledger:
        plan = ledger.reserve([(VOTE, 5)], name="p")
        for thing in (ledger, plan):
            with pytest.raises(PrivateDataError, match="path"):
                pickle.dumps(thing)
            assert copy.deepcopy(thing) is copy.copy(thing) is thing
        said = in_child(lambda: str(plan.spend(VOTE)))
        assert said.startswith("LedgerError")
        assert "twice" in said
        plan.spend(VOTE)
        assert plan.remaining(VOTE) == 4


def test_a_child_is_known_whatever_its_number(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """If it breaks, a child that is number 1 of a container, as its parent is, spends what was paid for once again."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with PrivacyLedger(BUDGET) as ledger, PrivacyLedger(BUDGET, tmp_path / "ledger", prepay_block=5) as paid_for:
        plan = ledger.reserve([(VOTE, 5)], name="p")
        said = in_child(lambda: str(plan.spend(VOTE)))
        assert said.startswith("LedgerError")
        block = paid_for.reserve([(VOTE, 8)], name="p", delta=1e-6)
        block.spend(VOTE)

        def child() -> str:
            for _ in range(3):
                block.spend(VOTE)
            return f"{block.remaining(VOTE)}"

        assert in_child(child) == "0"  # of the three that were not paid for yet
        block.spend(VOTE, 4)
        with pytest.raises(BudgetExceeded):
            block.spend(VOTE)


@on_both
def test_a_fork_shares_the_counts_and_not_the_connection(path: pathlib.Path) -> None:
    """If this fails, a forked child loses spends: its locks are imaginary and others write in between."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        plan.spend(VOTE)
        ready, go = os.pipe()

        def child() -> str:
            plan.spend(VOTE)
            os.read(ready, 1)  # until the parent has closed its own connection
            plan.spend(VOTE)
            return f"{plan.remaining(VOTE)}"

        def meanwhile() -> None:
            while plan.remaining(VOTE) > 5:
                pass
            ledger.close()
            os.write(go, b".")

        other = threading.Thread(target=meanwhile)
        other.start()
        said = in_child(child)
        other.join()
        os.close(ready)
        os.close(go)
    assert said == "4"
    with PrivacyLedger(BUDGET, path) as ledger:
        assert sum(entry.count for entry in ledger.entries()) == 6


@on_both
def test_a_fork_around_python_is_noticed(path: pathlib.Path) -> None:
    """If this fails, a connection made by the parent is used in the child."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        said = in_child(lambda: str(plan.spend(VOTE)), bare=True)
        assert said.startswith("LedgerError")
        assert "around Python" in said
        plan.spend(VOTE)
        assert plan.remaining(VOTE) == 6


def test_a_fork_around_python_leaves_the_parents_spend_alone(path: pathlib.Path) -> None:
    """If this fails, a child that closes what it inherited undoes the spend its parent was writing at the fork."""
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.plans()
        connection = ledger._account.store.backend._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE items SET used = used + 1")
        connection.execute("INSERT INTO entries (time, item, count, caller) VALUES ('', 1, 1, '')")

        def child() -> str:
            nonlocal connection
            connection = None  # the store now holds the only reference
            ledger.close()
            gc.collect()  # a connection and its statements hold each other
            return "closed"

        assert in_child(child, bare=True) == "closed"
        assert connection is not None
        connection.execute("COMMIT")
        plan = ledger.plan("p")
        assert plan.remaining(VOTE) == 6


def _refused(path: str) -> None:
    PrivacyLedger(BUDGET, path).spend(VOTE, 10_000)


def test_every_error_survives_a_pickle_and_a_copy() -> None:
    """If this fails, a process pool dies of an error that it cannot read, instead of raising it."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    for kind in kinds:
        made = (
            kind("why", asked="this", spent=(1.0, 0.1), budget=(2.0, 0.2), fits=3)
            if issubclass(kind, BudgetExceeded)
            else kind("why")
        )
        made.add_note("where")
        for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
            assert type(again) is kind
            assert (str(again), again.args, vars(again)) == ("why", made.args, vars(made))
    assert BudgetExceeded in kinds


@on_both
def test_a_process_pool_raises_what_its_worker_raised(path: pathlib.Path) -> None:
    """If this fails, a used-up budget in a worker breaks the whole pool, and nobody reads why."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(BudgetExceeded, match="These 10,000 questions") as refused:
            pool.submit(_refused, str(path)).result()
        assert refused.value.budget == (3.0, 1e-5)
        assert pool.submit(len, "alive").result() == 5


def test_a_closed_ledger_refuses() -> None:
    """If this fails, a spend after close() is silently not recorded."""
    ledger = PrivacyLedger(BUDGET)
    plan = ledger.reserve([(VOTE, 5)], name="p")
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        plan.spend(VOTE)


def _alive(work: Callable[[], object]) -> str:
    """Run ``work`` in a child that the system ends if it hangs."""

    def guarded() -> str:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        return str(work())

    return in_child(guarded)


def test_a_fork_while_another_thread_composes_leaves_the_child_able_to(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a worker forked while a certificate was worked out hangs at its own first one."""
    composing, go_on, parent, compose = threading.Event(), threading.Event(), os.getpid(), _account.composed_epsilon

    def slow(*given: Any, **named: Any) -> float:
        if os.getpid() == parent:
            composing.set()
            assert go_on.wait(60)
        return compose(*given, **named)

    monkeypatch.setattr(_account, "composed_epsilon", slow)
    event = NoisyMaxEvent(217.0)  # no other test has composed it
    with PrivacyLedger(BUDGET, path) as ledger:
        go_on.set()
        plan = ledger.reserve([(event, 3)], name="q", epsilon=0.2, delta=1e-6)
        go_on.clear()
        composing.clear()
        plan.spend(event, 2)
        with ThreadPoolExecutor(1) as pool:
            spent = pool.submit(plan.spent)
            assert composing.wait(60)
            try:
                said = _alive(lambda: (plan.spent(), plan.spend(event))[0])
            finally:
                go_on.set()
            assert said == str(spent.result())
        assert plan.remaining(event) == 0


@on_both
def test_a_fork_while_records_are_drawn_leaves_the_child_able_to(path: pathlib.Path) -> None:
    """If this fails, a worker forked beside a chain that answers hangs at its own first question."""
    settings: dict[str, Any] = {"sampling": "resample", "partitions": None, "sampling_probability": 0.5}
    chain = classifier(examples=private_examples(2000), ledger=PrivacyLedger(BUDGET, path), budget=SMALL, **settings)
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            chain._subset_prompts.draw("x")

    with ThreadPoolExecutor(2) as pool:
        drawing = [pool.submit(draw) for _ in range(2)]
        try:
            said = [_alive(lambda: chain.invoke("y")) for _ in range(5)]
        finally:
            stop.set()
        for each in drawing:
            each.result()
    assert set(said) <= {"positive", "negative"}


def test_every_lock_of_the_package_is_open_in_a_child() -> None:
    """If this fails, a lock was added that a child of a busy process can wait for without end."""
    package = pathlib.Path(errors.__file__).parent
    forgotten = []
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        locks = len(re.findall(r"(?<!type\()threading\.R?Lock\(\)", text))
        if file.name != "forks.py" and locks > len(
            re.findall(r"forks\.(?:watch|renew_lock|keep_still)\(|self\._watch\(", text)
        ):
            forgotten.append(str(file.relative_to(package)))
    assert forgotten == []
