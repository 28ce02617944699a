"""What a ledger holds after its process was killed with no chance to clean up."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable

import pytest
from fakes.fair_semaphore import on_both, path_of
from fakes.forked import end_of
from fakes.kills import killed_often, told_before_kill, workers

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import NoisyMaxEvent
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.errors import LedgerCorrupt

BUDGET = PrivacyBudget(8.0, 1e-5)
VOTE = NoisyMaxEvent(40.0, 0.05)
MOST = 200_000

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")


@pytest.fixture
def path(place: str) -> pathlib.Path | str:
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(VOTE, MOST)], name="p")
    return path_of(place)


def _used(path: pathlib.Path) -> int:
    with PrivacyLedger(BUDGET, path) as ledger:  # opening checks that counts and entries agree
        return MOST - ledger.plan("p").remaining(VOTE)


def spend_at(path: pathlib.Path) -> Callable[[], object]:
    plan = PrivacyLedger(BUDGET, path).plan("p")
    return lambda: plan.spend(VOTE)


@on_both
@pytest.mark.parametrize("threads", [1, 8])
def test_kill_at_any_moment_forgets_no_answer(path: pathlib.Path, threads: int, pytestconfig: pytest.Config) -> None:
    """If this fails, an answer that left the process before it was killed is not in the ledger: a free release.

    ``--kill-rounds`` takes other moments, as many as it says, and prints the sums with ``-s``.
    """
    asked = pytestconfig.getoption("--kill-rounds")
    dice = random.Random(20) if asked is None else random.Random()
    told, stored = killed_often(lambda: spend_at(path), lambda: _used(path), asked or 40, dice, threads)
    print(f"{asked or 40} kills: {told} acknowledged <= {stored} stored, {stored - told} unknown")


def test_a_copy_of_the_file_alone_holds_every_answer(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If this fails, a backup, or a folder cleaned after a crash, gives back spends that were answered."""
    dice = random.Random(22)
    opened = acknowledged = 0
    for turn in range(40):
        acknowledged += told_before_kill(lambda: spend_at(path), after=1 + dice.randrange(8))
        alone = tmp_path / f"copy{turn}.db"
        shutil.copyfile(path, alone)
        unfinished = path.with_name("ledger.db-journal").exists()
        try:
            copied = _used(alone)
            opened += 1
            assert acknowledged <= copied <= acknowledged + 1
        except LedgerCorrupt:
            assert unfinished  # half of a spend that nobody was told of: refused, and taken back with the journal
        finished = _used(path)
        assert acknowledged <= finished <= acknowledged + 1
        acknowledged = finished  # the one that was on disk but not told counts from now on
    assert opened > 0


def _die_while_writing(path: pathlib.Path) -> None:
    """Leave the file as a process killed between its writes to the pages and the removal of the journal does."""
    store = PrivacyLedger(BUDGET, path)._account.store
    with store.backend.transaction(write=True) as connection:
        connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
        connection.executemany(
            "INSERT INTO entries (time, item, count, caller) VALUES ('', 1, 1, ?)", [("x" * 200,)] * 500
        )
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_unfinished_spend_is_taken_back_and_nothing_else(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If this fails, a journal that a crash left is not rolled back, or half a spend is trusted as a whole one."""
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.plan("p").spend(VOTE, 5)
    before = path.read_bytes()
    assert end_of(lambda: _die_while_writing(path)) == -signal.SIGKILL
    assert path.with_name("ledger.db-journal").exists()
    assert path.read_bytes() != before
    shutil.copyfile(path, tmp_path / "alone.db")
    with pytest.raises(LedgerCorrupt):
        PrivacyLedger(BUDGET, tmp_path / "alone.db")
    assert _used(path) == 5
    assert [file.name for file in path.parent.iterdir() if "journal" in file.name] == []


def _create_and_die(path: pathlib.Path, step: int) -> None:
    """Create a ledger in a process that is killed before its ``step``-th file operation."""
    operations = itertools.count()

    def watch(event: str, _: object) -> None:
        if event in ("open", "sqlite3.connect", "os.link", "os.rename", "os.remove") and next(operations) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    PrivacyLedger(BUDGET, path)


def test_a_creator_killed_at_any_step_leaves_a_whole_ledger_or_none(tmp_path: pathlib.Path) -> None:
    """If this fails, a path holds half a ledger that no process can open or replace."""
    step = 0
    while end_of(functools.partial(_create_and_die, tmp_path / f"{step}.db", step)) == -signal.SIGKILL:
        with PrivacyLedger(BUDGET, tmp_path / f"{step}.db") as ledger:  # made by the child, or here: whole either way
            assert ledger.reserved() == (0.0, 0.0)
        step += 1
    assert step >= 5  # build, sync, link, unlink, open


def _create(path: pathlib.Path) -> Callable[[], None]:
    return PrivacyLedger(BUDGET, path).close


def test_a_creator_killed_at_any_moment_leaves_a_whole_ledger_or_none(tmp_path: pathlib.Path) -> None:
    """If this fails, a creator that dies inside SQLite leaves half a ledger under the final name."""
    dice = random.Random(21)
    for turn in range(15):
        path = tmp_path / f"{turn}.db"
        with workers(functools.partial(_create, path)):  # who is killed on leaving
            time.sleep(dice.random() * 0.02)
        with PrivacyLedger(BUDGET, path) as ledger:
            assert ledger.reserved() == (0.0, 0.0)


def test_a_power_cut_needs_a_sync_for_every_spend(path: pathlib.Path) -> None:
    """If this fails, a power cut brings back a spend's journal, or the pages before it: synchronous is not EXTRA."""
    with PrivacyLedger(BUDGET, path) as ledger, ledger._account.store.read() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_spend_does_the_same_work_however_many_came_before(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a spend composes, rescans or reopens something, and the ledger slows every answer down."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        store = ledger._account.store
        monkeypatch.setattr(ledger._account, "cost", None)  # composing is what takes long
        with store.read() as connection:
            statements: list[str] = []
            connection.set_trace_callback(statements.append)
        work = []
        for _ in range(50):
            plan.spend(VOTE, caller="bench")
            work.append(len(statements))
            statements.clear()
        with store.read() as same:
            assert same is connection
    assert 0 < work[0] <= 10
    assert max(work) == work[0]
