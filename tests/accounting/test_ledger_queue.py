"""Writers of a ledger file are served in the order of arrival, and a queue that fails stops nobody."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator

import pytest
from fakes.kills import workers

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import NoisyMaxEvent
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.accounting.store import backend, sqlite_queue

pytestmark = pytest.mark.skipif(sqlite_queue.fcntl is None, reason="without Linux's file locks there is no queue")

BUDGET = PrivacyBudget(3.0, 1e-5)
VOTE = NoisyMaxEvent(100.0)
LOCKS = pathlib.Path("/proc/locks")

needs_locks = pytest.mark.skipif(not LOCKS.exists(), reason="reads in Linux's list of locks who waits")


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A ledger with a direct plan of 100 votes."""
    path = tmp_path / "l.db"
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.reserve([(VOTE, 100)], name="direct")
    return path


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Another program writes to the file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextlib.contextmanager
def writers(path: pathlib.Path, names: list[str]) -> Iterator[list[threading.Thread]]:
    """Threads that charge once each, with a ledger of their own: they meet at the file, as processes do."""
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(PrivacyLedger(BUDGET, path)) for _ in names]
        for ledger in ledgers:
            assert ledger.remaining(VOTE) == 100  # all is open that they need
        yield [
            threading.Thread(target=ledger.spend, args=(VOTE,), kwargs={"caller": name})
            for ledger, name in zip(ledgers, names, strict=True)
        ]


def in_line(path: pathlib.Path, length: int) -> None:
    """Return once the queue is so long, the first in line included. Each process holds the byte of its number."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            file = f":{os.stat(f'{path}.queue').st_ino} "
            locks = (lock.split() for lock in LOCKS.read_text().splitlines() if file in lock and " WRITE " in lock)
            numbers = {lock[-2] for lock in locks if lock[1] == "OFDLCK" and int(lock[-2]) < sqlite_queue._COUNTER}
            if len(numbers) == length:  # a set: while locks come and go, the kernel may list one of them twice
                return


def chains(path: pathlib.Path) -> list[str]:
    with PrivacyLedger(BUDGET, path) as ledger:
        return [entry.caller for entry in ledger.entries()]


@needs_locks
def test_writers_are_served_in_the_order_of_arrival(path: pathlib.Path) -> None:
    """If it breaks, chance decides who charges next, and beside busy processes a writer waits for half a minute."""
    names = [f"writer {number}" for number in range(8)]
    with writers(path, names) as threads:
        with locked(path):
            for length, thread in enumerate(threads, start=1):
                thread.start()
                in_line(path, length)
        for thread in threads:
            thread.join()
    assert chains(path) == names


@needs_locks
def test_the_last_one_served_cannot_overtake_the_next(path: pathlib.Path) -> None:
    """If it breaks, a process that charges without a pause goes before the ones that still wake up."""
    for _ in range(50):
        order = []

        def wait_and_go(order: list[str] = order) -> None:
            with sqlite_queue.turn(str(path), 30):
                order.append("waiting")

        waiting = threading.Thread(target=wait_and_go)
        with sqlite_queue.turn(str(path), 30):
            waiting.start()
            in_line(path, 2)
        with sqlite_queue.turn(str(path), 30):
            order.append("again")
        waiting.join()
        assert order == ["waiting", "again"]


@needs_locks
def test_a_reader_that_cannot_read_at_once_lines_up(path: pathlib.Path) -> None:
    """If it breaks, a process that opens or reads a ledger finds no gap between busy writers."""
    with writers(path, ["writer"]) as [writer], PrivacyLedger(BUDGET, path) as ledger:
        reader = threading.Thread(target=ledger.remaining, args=(VOTE,))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            writer.start()
            in_line(path, 1)
            reader.start()
            in_line(path, 2)
        writer.join()
        reader.join()


def test_a_thread_that_charges_again_waits_behind_the_others(path: pathlib.Path) -> None:
    """If it breaks, one thread that charges without a pause keeps the others from a ledger they share."""
    with PrivacyLedger(BUDGET, path) as ledger:
        waiting = threading.Thread(target=ledger.spend, args=(VOTE,), kwargs={"caller": "waiting"})
        store = ledger._store.backend
        with store.transaction(write=True):
            waiting.start()
            while not store._lock._waiting:
                pass
        for _ in range(5):
            ledger.spend(VOTE, caller="again")
        waiting.join()
    assert chains(path) == ["waiting"] + ["again"] * 5


@needs_locks
def test_a_process_killed_in_the_queue_holds_up_nobody(path: pathlib.Path) -> None:
    """If it breaks, every writer of a ledger waits for a process that is dead."""

    def charges() -> Callable[[], None]:
        ledger = PrivacyLedger(BUDGET, path)
        return lambda: ledger.spend(VOTE, caller="killed")

    with writers(path, ["alive"]) as [alive]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(path))
            pids = []
            for length in (1, 2):
                [(pid, _)] = stack.enter_context(workers(charges, 1))
                pids.append(pid)
                in_line(path, length)
            alive.start()
            in_line(path, 3)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            in_line(path, 1)
        alive.join()
    assert chains(path) == ["alive"]


@needs_locks
def test_ctrl_c_in_the_queue_charges_nothing_and_gives_the_place_up(path: pathlib.Path) -> None:
    """If it breaks, an impatient user cannot end a program that waits, or all others wait for it afterwards."""

    def interrupt() -> None:
        in_line(path, 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with writers(path, ["first", "last"]) as [first, last], PrivacyLedger(BUDGET, path) as ledger:
        assert ledger.remaining(VOTE) == 100
        with locked(path):
            first.start()
            in_line(path, 1)
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                ledger.spend(VOTE, caller="interrupted")
            interrupting.join()
        first.join()
        last.start()
        last.join()
    assert chains(path) == ["first", "last"]


@needs_locks
def test_ctrl_c_while_a_wait_begins_gives_the_place_up(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the place of a program that was interrupted early is never free: all others wait at each charge."""

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    with sqlite_queue.turn(str(path), 1.0):
        monkeypatch.setattr(sqlite_queue, "Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt), sqlite_queue.turn(str(path), 1.0):
            pass
        monkeypatch.undo()
    in_line(path, 0)


def test_a_queue_that_does_not_move_is_left(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a program that was stopped as the first in line stops every other process, too."""
    monkeypatch.setattr(backend, "BUSY_SECONDS", 0.2)
    with sqlite_queue.turn(str(path), 1.0), writers(path, ["after"]) as [after]:
        after.start()
        after.join()
        assert chains(path) == ["after"]


@pytest.mark.parametrize("obstacle", ["folder", "pipe", "link", "no locks", "no module", "no thread"])
def test_without_a_queue_a_ledger_is_shared_all_the_same(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    """If it breaks, a ledger that two processes use fails where its queue cannot be made."""
    queue = path.with_name("l.db.queue")

    def failing(error: Exception) -> Callable[..., None]:
        def refused(*_: object, **__: object) -> None:
            raise error

        return refused

    {
        "folder": queue.mkdir,
        "pipe": lambda: os.mkfifo(queue),
        "link": lambda: queue.symlink_to(path.with_name("elsewhere")),
        "no module": lambda: monkeypatch.setattr(sqlite_queue, "fcntl", None),
        "no locks": lambda: monkeypatch.setattr(sqlite_queue, "fcntl", failing(OSError(95, "Operation not supported"))),
        "no thread": lambda: monkeypatch.setattr(
            sqlite_queue, "Thread", failing(RuntimeError("can't start new thread"))
        ),
    }[obstacle]()
    names = ["one", "two", "three"]
    with writers(path, names) as threads:
        with locked(path):
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
    assert sorted(chains(path)) == sorted(names)
    assert not path.with_name("elsewhere").exists()


def test_who_is_alone_with_a_ledger_leaves_no_queue(path: pathlib.Path) -> None:
    """If it breaks, every ledger has one more file beside it, whether it is shared or not."""
    assert [file.name for file in path.parent.iterdir()] == ["l.db"]
