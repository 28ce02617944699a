"""Watching a ledger: the figures that are told of it, and that nobody who watches can change it or hold it up."""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import ledger_files

from langchain_dp.accounting import (
    ExponentialEvent,
    MetricLedger,
    NoisyMaxEvent,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
)
from langchain_dp.accounting.metric import Owner
from langchain_dp.accounting.store.plans import PlanStore
from langchain_dp.accounting.store.schema import LEDGER
from langchain_dp.accounting.store.sqlite import SQLite
from langchain_dp.audit.report import opening, report
from langchain_dp.audit.report.opening import open_ledger
from langchain_dp.audit.watch import LedgerStats, figures
from langchain_dp.audit.watch.reading import MEASURES, Watched, named
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerCorrupt, LedgerError, LedgerUnwritable

ANSWER = NoisyMaxEvent(2.0, 0.1)
SECRET = "Zebedee Quillfeather was treated for gout"


def told(found: LedgerStats) -> dict[str, float]:
    """What the gauges show, by name and labels."""
    return {
        f"{measure.name}{sorted(labels.values()) or ''}": value
        for measure in MEASURES
        for labels, value in measure.of(found)
    }


def test_the_figures_are_those_of_the_report(ledger: Path) -> None:
    """If it breaks, an alarm looks at other numbers than the ledger holds."""
    found, page = Watched(ledger).figures(), report(ledger)
    for name in ("unit", "sides", "budget", "reserved", "left"):
        assert getattr(found, name) == getattr(page, name)
    assert found.spent == pytest.approx(page.spent)
    assert (found.releases, found.plans, found.plans_open) == (page.total, 2, 2) == (6, 2, 2)
    assert dict(found.used) == {
        "Report noisy max": 6, "LimitedDomain (one token)": 0, "Exponential mechanism (one choice)": 0,
    }  # fmt: skip
    assert dict(found.unused) == {
        "Report noisy max": 94, "LimitedDomain (one token)": 40, "Exponential mechanism (one choice)": 1,
    }  # fmt: skip


def test_the_figures_in_eta_are_those_of_the_report(metric: Path) -> None:
    """If it breaks, eta passes for an epsilon, or the account that is nearly full does not show."""
    found, page = Watched(metric).figures(), report(metric)
    for name in ("unit", "sides", "budget", "reserved", "spent", "left"):
        assert getattr(found, name) == getattr(page, name)
    assert (found.releases, found.refusals) == (5, None)
    assert told(found) == {
        "healthy": 1.0, "limit.eta['user']": 20.0, "limit.eta['document']": 10.0, "spent.eta['user']": 10.0,
        "spent.eta['document']": 7.0, "left.eta['user']": 10.0, "left.eta['document']": 3.0,
        "releases['Metric privacy of words']": 5.0,
    }  # fmt: skip
    with MetricLedger(None) as unlimited:
        assert figures(unlimited).left == (math.inf, math.inf)
        assert "left.eta['user']" not in told(figures(unlimited))


def test_a_path_and_an_open_ledger_are_not_mixed_up(ledger: Path) -> None:
    """If it breaks, who gives the one for the other gets an error of somebody else's code."""
    with pytest.raises(InvalidParameter, match=r"open ledger\. For a path, call report\(path\)"):
        figures(str(ledger))  # type: ignore[arg-type]
    with PrivacyLedger(PrivacyBudget(1.0)) as opened, pytest.raises(InvalidParameter, match=r"report_on\(ledger\)"):
        report(opened)  # type: ignore[arg-type]


def test_a_plan_that_is_used_up_is_not_open() -> None:
    """If it breaks, nobody sees that a chain has no answers left."""
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5)) as made:
        plan = made.reserve([(ANSWER, 3)], name="short", delta=5e-6)
        plan.spend(ANSWER, 2)
        assert (figures(made).plans_open, told(figures(made))["releases.left['Report noisy max']"]) == (1, 1)
        plan.spend(ANSWER)
        found = figures(made)
        assert (found.plans, found.plans_open, told(found)["releases.left['Report noisy max']"]) == (1, 0, 0)
        assert "delta" in {name.partition(".")[2] for name in told(found)}


def test_parts_are_no_label_of_a_gauge(tmp_path: Path) -> None:
    """If it breaks, what somebody called a part of the data stands in a dashboard."""
    events = [PartEvent(SECRET, ExponentialEvent(0.1)), ExponentialEvent(0.2)]
    with PrivacyLedger(PrivacyBudget(8.0), tmp_path / f"{SECRET}.db") as made:
        plan = made.reserve([(event, 2) for event in events], name=SECRET)
        for event in events:
            plan.spend(event, caller=SECRET)
        found = figures(made)
    assert dict(found.used) == {"Exponential mechanism (one choice)": 2}
    assert "Zebedee" not in repr(found)


def test_refusals_are_counted_here_and_written_nowhere(tmp_path: Path) -> None:
    """If it breaks, a chain that is refused all day looks idle; or a refusal costs, or changes the file."""
    path = tmp_path / "refusing.db"
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), path) as made:
        plan = made.reserve([(ANSWER, 3)], name="short", delta=5e-6)
        assert made.refusals == 0
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded):
            plan.spend(ANSWER, 4)
        with pytest.raises(BudgetExceeded):
            made.reserve([(ANSWER, 10**6)], name="long")
        plans = made.plan("short")
        assert plans is not None
        with pytest.raises(BudgetExceeded):
            plans.spend(ANSWER, 4)
        assert (made.refusals, figures(made).refusals) == (3, 3)
        assert told(figures(made))["refusals"] == 3
        assert path.read_bytes() == before
        assert Watched(path).figures().refusals is None  # another object knows nothing of them
    with MetricLedger(2.0) as made:
        made.spend(2.0, [Owner("a", "ann")], table="glove")
        with pytest.raises(BudgetExceeded):
            made.spend(1.0, [Owner("b", "ann")], table="glove")
        assert (made.refusals, figures(made).refusals) == (1, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_counts_its_own_refusals(tmp_path: Path) -> None:
    """If it breaks, the refusals of a parent are added up once for every worker."""
    with PrivacyLedger(PrivacyBudget(8.0), tmp_path / "forked.db") as made:
        made.reserve([(ANSWER, 3)], name="direct")
        with pytest.raises(BudgetExceeded):
            made.spend(ANSWER, 4)
        child = os.fork()
        if not child:
            try:
                made.spend(ANSWER, 4)
            except BudgetExceeded:
                os._exit(made.refusals)
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert made.refusals == 1


@pytest.mark.parametrize("kind", ["ledger", "metric"])
def test_who_watches_cannot_write(kind: str, request: pytest.FixtureRequest) -> None:
    """If it breaks, looking at a ledger can charge it, refund it, or leave something beside it."""
    path: Path = request.getfixturevalue(kind)
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    watched = Watched(path)
    watched.figures()
    watched.report()
    for statement in ("UPDATE ledger SET time = 'x'", "DELETE FROM entries", "CREATE TABLE more (x)"):
        for write in (True, False):
            with pytest.raises(LedgerError), watched.open()._store.backend.transaction(write=write) as connection:
                connection.execute(statement)
    watched.figures()
    watched.close()
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


def test_a_ledger_that_was_given_stays_open(ledger: Path) -> None:
    """If it breaks, to stop watching stops the chain."""
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), ledger) as made:
        Watched(made).close()
        made.plans()[0].spend(ANSWER)


WRITER = """
import sys, time
from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
with PrivacyLedger(PrivacyBudget(8.0, 1e-5), sys.argv[1]) as ledger:
    plan, slowest = ledger.plans()[0], 0.0
    print("ready", flush=True)
    for _ in range(60):
        time.sleep(0.005)
        begun = time.monotonic()
        plan.spend(NoisyMaxEvent(2.0, 0.1))
        slowest = max(slowest, time.monotonic() - begun)
print(slowest)
"""


def test_who_watches_holds_up_nobody_who_writes(ledger: Path) -> None:
    """If it breaks, a dashboard stops the chain, or a busy chain makes its ledger look unhealthy."""
    watched, seen, totals = Watched(ledger), set(), list[int]()
    store = watched.open()._store
    assert isinstance(store, PlanStore)
    program = [sys.executable, "-c", WRITER, str(ledger)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        while writer.poll() is None:
            plans, used = store.glance(wait=5.0)  # as often as it can
            seen.add(sum(used.values()))
            totals.append(report(ledger).total)
        slowest = float(writer.stdout.read())
    assert writer.returncode == 0
    assert len(plans) == 2
    assert watched.figures().releases == 66
    assert len(seen) > 3
    assert totals == sorted(totals)
    assert slowest < 5.0  # a reader that kept its lock would make it wait for 30 s


def test_trouble_is_told_by_its_kind_alone(ledger: Path, tmp_path: Path) -> None:
    """If it breaks, a path stands in a gauge; or a ledger that is gone, locked or replaced passes for healthy."""
    missing = Watched(tmp_path / SECRET)
    assert missing.look() == (None, "InvalidParameter")
    watched = Watched(ledger)
    assert watched.look()[1] == ""
    copy = ledger.read_bytes()
    ledger.unlink()
    assert watched.look() == (None, "LedgerError")
    ledger.write_bytes(copy)  # an older copy may forget what was spent: it stays so until somebody looks into it
    assert watched.look() == (None, "LedgerError")
    assert Watched(ledger).look()[1] == ""


def test_a_ledger_that_somebody_keeps_locked_is_unhealthy(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a scrape hangs for half a minute behind a writer that hangs."""
    monkeypatch.setattr("langchain_dp.audit.watch.reading.PATIENCE", 0.05)
    watched = Watched(ledger)
    assert watched.look()[1] == ""
    connection = sqlite3.connect(ledger, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    begun = time.monotonic()
    assert watched.look() == (None, "LedgerUnwritable")
    assert time.monotonic() - begun < 10.0  # and not as long as a spend waits
    connection.execute("ROLLBACK")
    connection.close()
    assert watched.look()[1] == ""


@pytest.mark.parametrize("ledgers", [{}, None, [], {"": "a.db"}, {"two\nlines": "a.db"}, {"x" * 201: "a.db"}, {3: "a"}])
def test_ledgers_are_given_by_short_names(ledgers: Any) -> None:
    """If it breaks, a ledger is shown under no name, or a text becomes a label."""
    with pytest.raises(InvalidParameter):
        named(ledgers)


@pytest.mark.parametrize(
    ("was", "now", "opened"),
    [(b'{"', b"[}", True), (b'{"', b"[}", False), (b"CREATE TABLE", b"CREATE T\xc9BLE", False)],
    ids=["json-watched", "json", "text"],
)
def test_a_damaged_ledger_is_unhealthy(was: bytes, now: bytes, opened: bool, ledger: Path) -> None:
    """If it breaks, one damaged ledger takes the figures of all others with it, and no alarm is raised."""
    watched = Watched(ledger)
    if opened:
        assert watched.look()[1] == ""
    with ledger.open("r+b") as file:  # the same file: a new one is refused before it is read
        text = file.read()
        assert was in text
        file.seek(0)
        file.write(text.replace(was, now))
    assert watched.look() == (None, "LedgerCorrupt")
    with pytest.raises(LedgerError):
        watched.report()


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in folder.iterdir()
    }


def edited(statement: str) -> Callable[[Path], None]:
    """A ledger in which somebody ran a statement."""

    def make(path: Path) -> None:
        PrivacyLedger(PrivacyBudget(1.0), path).close()
        ledger_files.edited(path, statement)

    return make


def broken(path: Path) -> None:
    PrivacyLedger(PrivacyBudget(1.0), path).close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(20_000))


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda path: None, InvalidParameter, "nothing is there"),
        (lambda path: path.mkdir(), InvalidParameter, "to be a file"),
        (lambda path: path.touch(), LedgerCorrupt, "empty file"),
        (lambda path: path.write_text(SECRET * 100), LedgerCorrupt, "not a ledger"),
        (lambda path: ledger_files.edited(path, "CREATE TABLE t (x)"), LedgerCorrupt, "no ledger of this package"),
        (edited("PRAGMA journal_mode = WAL"), LedgerCorrupt, "keeps a log beside it"),
        (broken, LedgerCorrupt, "damaged"),
        (edited("UPDATE ledger SET neighbors = 'friends'"), LedgerCorrupt, "budget cannot be read"),
    ],
)
def test_what_is_no_ledger_is_said_in_one_line(make: Any, kind: type[Exception], said: str, tmp_path: Path) -> None:
    """If it breaks, a wrong file ends in a traceback, or is changed by being looked at."""
    path = tmp_path / "it.db"
    make(path)
    before = fingerprint(tmp_path) if not path.is_dir() else {}
    with pytest.raises(kind, match=said) as refused:
        report(path)
    assert "\n" not in str(refused.value)
    assert "Zebedee" not in str(refused.value)
    assert not before or fingerprint(tmp_path) == before


def test_a_ledger_that_a_thread_opens_meanwhile_keeps_its_locks(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, two processes charge one file at once, since a thread of one of them looked at its header."""
    opened: list[SQLite] = []
    thread = threading.Thread(target=lambda: opened.append(SQLite(str(ledger), LEDGER)))

    def slowly(path: str, mode: str) -> Any:
        thread.start()
        thread.join(0.3)
        assert not opened
        return open(path, mode)

    monkeypatch.setattr(opening, "open", slowly, raising=False)
    open_ledger(ledger).close()
    thread.join()
    opened.pop().close()


def test_a_spend_that_a_crash_left_unfinished_is_not_taken_back(ledger: Path) -> None:
    """If it breaks, the reader repairs the file, or reads counts of which half is written."""
    connection = sqlite3.connect(ledger, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")
    for number in range(2000):  # more than the cache holds, so that pages reach the file
        connection.execute("INSERT INTO entries (time, item, count, caller) VALUES ('x', 1, 1, ?)", (f"{number}" * 20,))
    copy = ledger.with_name("crashed.db")
    copy.write_bytes(ledger.read_bytes())
    Path(f"{copy}-journal").write_bytes(Path(f"{ledger}-journal").read_bytes())
    connection.execute("ROLLBACK")
    connection.close()
    before = fingerprint(ledger.parent)
    with pytest.raises(LedgerUnwritable, match="middle of a spend"):
        report(copy)
    assert fingerprint(ledger.parent) == before
    PrivacyLedger(PrivacyBudget(8.0, 1e-5), copy).close()
    assert report(copy).total == 6
