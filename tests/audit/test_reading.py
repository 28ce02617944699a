"""Reading a ledger changes nothing, whatever it is, and says in one line what is no ledger."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.store.schema import LEDGER
from langchain_dp.accounting.store.sqlite import SQLite
from langchain_dp.audit.report import opening, report
from langchain_dp.audit.report.opening import open_ledger
from langchain_dp.audit.report.page import page
from langchain_dp.errors import InvalidParameter, LedgerCorrupt, LedgerError, LedgerUnwritable

ANSWER = NoisyMaxEvent(2.0, 0.1)
SECRET = "Zebedee Quillfeather was treated for gout"


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in folder.iterdir()
    }


@pytest.mark.parametrize("kind", ["ledger", "metric"])
def test_reading_changes_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """If it breaks, an audit alters the evidence, creates files beside it, or takes an unfinished spend back."""
    path: Path = request.getfixturevalue(kind)
    before = fingerprint(path.parent)
    page(report(path))
    assert fingerprint(path.parent) == before
    path.chmod(0o400)
    assert report(path).total


def test_a_ledger_that_is_in_use_is_read_and_goes_on(ledger: Path) -> None:
    """If it breaks, a report stops a running chain, or the chain's charges stop the report."""
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), ledger) as made:
        plan = made.plans()[0]
        spender = threading.Thread(target=lambda: [plan.spend(ANSWER) for _ in range(20)])
        spender.start()
        totals = [report(ledger).total for _ in range(3)]
        spender.join()
        assert totals == sorted(totals)
        assert report(ledger).total == 26


def test_what_is_read_cannot_be_charged(ledger: Path) -> None:
    """If it breaks, the reader's ledger spends, or says that it did."""
    before = fingerprint(ledger.parent)
    opened = open_ledger(ledger)
    assert isinstance(opened, PrivacyLedger)
    with opened, pytest.raises(LedgerError):
        opened.plans()[0].spend(ANSWER)
    assert fingerprint(ledger.parent) == before


def other_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")


def with_log(path: Path) -> None:
    PrivacyLedger(PrivacyBudget(1.0), path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def broken(path: Path) -> None:
    PrivacyLedger(PrivacyBudget(1.0), path).close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(20_000))


def strange_budget(path: Path) -> None:
    PrivacyLedger(PrivacyBudget(1.0), path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE ledger SET neighbors = 'friends'")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda path: None, InvalidParameter, "nothing is there"),
        (lambda path: path.mkdir(), InvalidParameter, "to be a file"),
        (lambda path: path.touch(), LedgerCorrupt, "empty file"),
        (lambda path: path.write_text(SECRET * 100), LedgerCorrupt, "no ledger"),
        (other_database, LedgerCorrupt, "no ledger of this package"),
        (with_log, LedgerCorrupt, "keeps a log beside it"),
        (broken, LedgerCorrupt, "damaged"),
        (strange_budget, LedgerCorrupt, "budget cannot be read"),
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
