"""Threads that wait for one ledger share a commit: each is judged by itself, and answered after the sync."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes.fair_semaphore import on_both

from langchain_dp import PrivacyBudget
from langchain_dp.accounting import NoisyMaxEvent, PrivacyLedger, Quotas
from langchain_dp.accounting.store import backend as group_commit
from langchain_dp.accounting.store.backend import Backend, Connection
from langchain_dp.errors import BudgetExceeded, LedgerCorrupt, LedgerError, LedgerUnwritable, QuotaExceeded

BUDGET = PrivacyBudget(8.0, 1e-5)
VOTE = NoisyMaxEvent(40.0, 0.05)
MOST = 100

pytestmark = on_both


@pytest.fixture
def ledger(place: str) -> Iterator[PrivacyLedger]:
    """A ledger with a plan of 100 votes."""
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(VOTE, MOST)], name="p", delta=5e-6)
        yield ledger
    with PrivacyLedger(BUDGET, place):  # opening checks that counts and entries agree
        pass


def backend_of(ledger: PrivacyLedger) -> Backend:
    return ledger._store.backend


class Calls:
    """Calls of threads that wait for a ledger, in order, and what became of each."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self.outcomes: list[object] = [None] * len(calls)
        self.threads = [threading.Thread(target=self._run, args=each) for each in enumerate(calls)]

    def _run(self, number: int, call: Callable[[], object]) -> None:
        try:
            call()
            self.outcomes[number] = "done"
        except BaseException as error:
            self.outcomes[number] = error

    @property
    def kinds(self) -> list[object]:
        return ["done" if outcome == "done" else type(outcome) for outcome in self.outcomes]


@contextlib.contextmanager
def waiting(ledger: PrivacyLedger, calls: list[Callable[[], object]]) -> Iterator[Calls]:
    """Threads that wait for the ledger during the block, in this order. After the block all have their outcome."""
    backend = backend_of(ledger)
    assert ledger.plan("p") is not None  # it is open
    give_back = backend._lock.take()
    assert give_back is not None
    made = Calls(calls)
    try:
        for number, thread in enumerate(made.threads, start=1):
            thread.start()
            while len(backend._lock._waiting) < number:
                pass
        yield made
    finally:
        give_back()
        for thread in made.threads:
            thread.join()


def spends(ledger: PrivacyLedger, *counts: int) -> list[Callable[[], object]]:
    plan = ledger.plan("p")
    return [lambda count=count: plan.spend(VOTE, count) for count in counts]  # type: ignore[misc]  # bound now


@pytest.mark.parametrize(("largest", "syncs"), [(group_commit.LARGEST_GROUP, 1), (3, 3)])
def test_one_sync_serves_all_that_wait_before_anybody_is_answered(
    ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch, largest: int, syncs: int
) -> None:
    """If it breaks, a thread waits for the syncs of all before it, or an answer leaves whose charge a crash forgets."""
    monkeypatch.setattr(group_commit, "LARGEST_GROUP", largest)
    backend, answered = backend_of(ledger), []
    real = backend._commit
    with waiting(ledger, spends(ledger, *[1] * 8)) as calls:

        def commit(connection: Connection, wait: float) -> None:
            real(connection, wait)
            answered.append(sum(outcome is not None for outcome in calls.outcomes))

        monkeypatch.setattr(backend, "_commit", commit)
    assert (len(answered), calls.kinds) == (syncs, ["done"] * 8)
    assert all(told <= group * largest for group, told in enumerate(answered))  # those of the groups before, at most
    assert [entry.count for entry in ledger.entries()] == [1] * 8


def test_a_group_whose_commit_fails_is_answered_to_nobody(
    ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, threads are told of charges that no file holds, or of refusals by charges that never were."""
    backend, plan = backend_of(ledger), ledger.plan("p")

    def fail(*_: object) -> None:
        raise backend.errors("the disk is full")

    refused_by_a_failed_one = [*spends(ledger, 60, 60), lambda: plan.spend_up_to(VOTE, 3, caller="run")]
    with waiting(ledger, refused_by_a_failed_one) as calls:
        monkeypatch.setattr(backend, "_commit", fail)
    monkeypatch.undo()
    assert all(isinstance(error, LedgerError) for error in calls.outcomes)
    assert len({id(error) for error in calls.outcomes}) == 3  # with frames of one thread each
    plan.spend(VOTE)  # no entry of the group is remembered as seen
    assert plan.remaining(VOTE) == MOST - 1


def test_a_group_is_judged_one_after_the_other(ledger: PrivacyLedger) -> None:
    """If it breaks, threads that come at once are each compared with what was left before, and overdraw the plan."""
    ledger.plan("p").spend(VOTE, MOST - 5)
    with waiting(ledger, spends(ledger, 2, 2, 2, 1, 1)) as calls:
        pass
    assert calls.kinds == ["done", "done", BudgetExceeded, "done", BudgetExceeded]
    assert ledger.plan("p").remaining(VOTE) == 0


def test_a_group_writes_each_entry(ledger: PrivacyLedger) -> None:
    """If it breaks, charges that are written together are one entry, or stand under another caller."""
    plan, other = ledger.plan("p"), ledger.reserve([(VOTE, 9)], name="other", delta=1e-6)
    charges = [(plan, 1, "a"), (plan, 2, "b"), (other, 3, "c"), (plan, 4, "d")]
    calls_made: list[Callable[[], object]] = [
        lambda plan=plan, n=n, caller=caller: plan.spend(VOTE, n, caller=caller)  # type: ignore[misc]  # bound now
        for plan, n, caller in charges
    ]
    with waiting(ledger, calls_made) as calls:
        pass
    assert calls.kinds == ["done"] * 4
    assert [(entry.id, entry.plan, entry.count, entry.caller) for entry in ledger.entries()] == [
        (number, plan.name, n, caller) for number, (plan, n, caller) in enumerate(charges, start=1)
    ]
    assert (plan.remaining(VOTE), other.remaining(VOTE)) == (MOST - 7, 6)


def test_a_group_takes_few_statements(ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, threads wait for a round trip to the server for each statement of each other thread."""
    statements: list[str] = []
    with ledger._store.read() as connection:
        if hasattr(connection, "set_trace_callback"):
            connection.set_trace_callback(statements.append)
        else:
            kind: Any = type(connection)
            real = kind.execute
            monkeypatch.setattr(kind, "execute", lambda *args: [statements.append(args[1]), real(*args)][1])
    with waiting(ledger, spends(ledger, *[1] * 16)) as calls:
        statements.clear()
    assert calls.kinds == ["done"] * 16
    assert 0 < len(statements) <= 12


def test_a_plan_that_is_full_takes_nothing_from_another(ledger: PrivacyLedger) -> None:
    """If it breaks, a group of two plans is charged twice to one, since the other does not cover it."""
    plan, full = ledger.plan("p"), ledger.reserve([(VOTE, 1)], name="full", delta=1e-6)
    with waiting(ledger, [lambda plan=plan: plan.spend(VOTE) for plan in (plan, full, full, plan)]) as calls:  # type: ignore[misc]  # bound now
        pass
    assert calls.kinds == ["done", "done", BudgetExceeded, "done"]
    assert (plan.remaining(VOTE), full.remaining(VOTE)) == (MOST - 2, 0)


def test_a_plan_of_an_older_copy_is_refused_alone(ledger: PrivacyLedger) -> None:
    """If it breaks, a charge to a plan that this ledger never had goes to the plan in its place."""
    store, [stored] = ledger._store, ledger._store.plans()
    lost = dataclasses.replace(stored, time="2020-01-01T00:00:00.000000+00:00")
    key = next(iter(stored.items))
    uses = [lambda plan=plan: store.add_use(plan, key, 1, "") for plan in (lost, stored, lost, stored)]  # type: ignore[misc]  # bound now
    with waiting(ledger, uses) as calls:
        pass
    assert calls.kinds == [LedgerCorrupt, "done", LedgerCorrupt, "done"]
    assert ledger.plan("p").remaining(VOTE) == MOST - 2


def test_each_is_refused_alone(ledger: PrivacyLedger) -> None:
    """If it breaks, one user without a share fails the charges of all who come at the same moment, or is charged."""
    shared = ledger.reserve([(VOTE, 20)], name="shared", delta=1e-6, quotas=Quotas(default=2))
    charges = [("a", 2), ("a", 1), ("b", 1), ("b", 3), ("b", 1), ("c", 1)]
    with waiting(ledger, [lambda user=user, n=n: shared.spend(VOTE, n, user_id=user) for user, n in charges]) as calls:  # type: ignore[misc]  # bound now
        pass
    assert calls.kinds == ["done", QuotaExceeded, "done", QuotaExceeded, "done", "done"]
    assert (shared.used_by(), shared.remaining(VOTE)) == ({"a": 2, "b": 2, "c": 1}, 15)
    assert [entry.id for entry in ledger.entries()] == [1, 2, 3, 4]


def broken_off(connection: Connection) -> None:
    connection.execute("UPDATE items SET used = used + 1")
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (broken_off, ZeroDivisionError),
        (lambda connection: connection.execute("UPDATE items SET used = used - 1"), LedgerError),
        (lambda connection: connection.execute("INSERT INTO nothing VALUES (1)"), LedgerError),
    ],
    ids=["error of the caller", "rule of the database", "error of the database"],
)
def test_an_error_undoes_one_write_and_no_other(
    ledger: PrivacyLedger, work: Callable[[Connection], Any], error: type[Exception]
) -> None:
    """If it breaks, half a write stays, or an error of one thread loses the charges of the others."""
    one, two = spends(ledger, 1, 1)
    with waiting(ledger, [one, lambda: backend_of(ledger).write(work), two]) as calls:
        pass
    assert [calls.outcomes[0], isinstance(calls.outcomes[1], error), calls.outcomes[2]] == ["done", True, "done"]
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(calls.outcomes[1].__traceback__)]  # type: ignore[attr-defined]  # an error
    assert not any("connection" in names for names in frames)  # where the thread that ran it had the others' charges
    assert ledger.plan("p").remaining(VOTE) == MOST - 2


def test_who_gives_up_waiting_is_not_charged(ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a caller is told that nothing was charged, and a later thread charges it all the same."""
    monkeypatch.setattr(group_commit, "BUSY_SECONDS", 0.05)
    with waiting(ledger, spends(ledger, 1, 1)) as calls:
        for thread in calls.threads:
            thread.join()
    monkeypatch.undo()
    assert calls.kinds == [LedgerUnwritable] * 2
    ledger.plan("p").spend(VOTE)
    assert ledger.plan("p").remaining(VOTE) == MOST - 1


def test_who_gives_up_while_it_is_written_hears_what_became_of_it(
    ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a caller is told that nothing was charged while another thread writes its charge."""
    backend = backend_of(ledger)
    real, given_up = backend._commit, threading.Event()
    wait = group_commit.FairSemaphore.take

    def take(self: Any, patience: float | None = None) -> Any:
        given = wait(self, patience)
        if given is None:
            given_up.set()
        return given

    def commit(*args: Any) -> None:
        assert given_up.wait(60)  # the second thread's patience ends while its charge is being written
        real(*args)

    monkeypatch.setattr(group_commit, "BUSY_SECONDS", 0.5)
    monkeypatch.setattr(group_commit.FairSemaphore, "take", take)
    with waiting(ledger, spends(ledger, 1, 1)) as calls:
        monkeypatch.setattr(backend, "_commit", commit)
    assert calls.kinds == ["done"] * 2
    monkeypatch.undo()
    assert ledger.plan("p").remaining(VOTE) == MOST - 2


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_of_the_thread_that_writes_stops_no_other(ledger: PrivacyLedger) -> None:
    """If it breaks, Ctrl-C in one thread loses the charges of others, or lets them wait for ever."""
    once = iter([interrupted])

    def work(_: Connection) -> None:
        next(once, lambda: None)()

    one, two = spends(ledger, 1, 1)
    with waiting(ledger, [one, lambda: backend_of(ledger).write(work), two]) as calls:
        pass
    assert calls.kinds == [KeyboardInterrupt, "done", "done"]
    assert ledger.plan("p").remaining(VOTE) == MOST - 1


def test_an_interrupted_commit_counts_as_spent(ledger: PrivacyLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a charge whose outcome nobody knows is answered, or its thread waits for ever."""
    backend = backend_of(ledger)
    with waiting(ledger, spends(ledger, 1, 1, 1)) as calls:
        monkeypatch.setattr(backend, "_commit", interrupted)
    monkeypatch.undo()
    assert calls.kinds == [KeyboardInterrupt, LedgerUnwritable, LedgerUnwritable]
    assert all("count as spent" in str(error) for error in calls.outcomes[1:])
    ledger.plan("p").spend(VOTE)
