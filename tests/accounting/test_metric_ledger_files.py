"""Every way in which the files of a metric ledger can be wrong, and what is said about it."""

from __future__ import annotations

import os
import pathlib
import shutil
import sqlite3
import stat
from collections.abc import Callable

import pytest

from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import MetricLedger, Owner
from langchain_dp.errors import InvalidParameter, LedgerCorrupt, LedgerError, LedgerMismatch, LedgerUnwritable

TABLE = "small"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    file = tmp_path_factory.mktemp("metric") / "metric.db"
    with MetricLedger(3.0, file) as ledger:
        ledger.spend(1.0, [Owner("d", "u"), Owner("e", "u")], table=TABLE)
        ledger.released().put({b"k": ("word",)})
    return file


@pytest.fixture
def path(made_once: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A closed ledger with two releases, and a file of releases beside it."""
    for file in made_once.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / "metric.db"


def _sql(statement: str) -> Callable[[pathlib.Path], None]:
    def change(path: pathlib.Path) -> None:
        with sqlite3.connect(path) as connection:
            for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {trigger}")
            connection.executescript(statement)
        connection.close()

    return change


DAMAGE: dict[str, Callable[[pathlib.Path], object]] = {
    "empty": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(b"not a ledger" * 1000),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "another schema": _sql("PRAGMA user_version = 9"),
    "another application": _sql("PRAGMA application_id = 7"),
    "lowered account": _sql("UPDATE accounts SET spent = 5"),
    "entry removed": _sql("DELETE FROM entries WHERE id = 2; UPDATE accounts SET spent = 0 WHERE account = 3"),
    "all forgotten": _sql("DELETE FROM entries; UPDATE accounts SET spent = 0"),
    "account removed": _sql("PRAGMA foreign_keys = OFF; DELETE FROM accounts WHERE whose = 'user'"),
    "limit lowered below": _sql("UPDATE ledger SET user_limit = 1500000000"),
    "no first row": _sql("DELETE FROM ledger"),
    "no table": _sql("DROP TABLE entries"),
    "log of writes": lambda path: sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").connection.close(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(path: pathlib.Path, damage: str) -> None:
    """If it breaks, a ledger that forgot releases, or is none, is trusted."""
    DAMAGE[damage](path)
    with pytest.raises(LedgerCorrupt) as caught:
        MetricLedger.open(path)
    assert "metric ledger" in str(caught.value)


@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "another application", "no first row"])
def test_a_damaged_file_of_releases_is_refused(path: pathlib.Path, damage: str) -> None:
    """If it breaks, damage is taken for texts that were released, or the owner is not told that deleting it is safe."""
    beside = path.with_name("metric.db.releases")
    DAMAGE[damage](beside)
    with MetricLedger(3.0, path) as ledger, pytest.raises(LedgerCorrupt, match="file of releases"):
        ledger.released()
    beside.unlink()
    with MetricLedger(3.0, path) as ledger:
        assert ledger.released().get([b"k"]) == {}


def test_releases_of_a_lost_ledger_are_not_taken_over(path: pathlib.Path) -> None:
    """If it breaks, nobody notices that the ledger beside the releases was lost and began anew."""
    path.unlink()
    with MetricLedger(3.0, path) as ledger, pytest.raises(LedgerMismatch, match="another ledger"):
        ledger.released()


@pytest.mark.parametrize("limits", [{"limit": 2.0}, {"limit": None}, {"limit": 3.0, "document_limit": 1.0}])
def test_other_limits_are_refused(path: pathlib.Path, limits: dict[str, float | None]) -> None:
    """If it breaks, a ledger is read under a weaker promise than it was written for."""
    with pytest.raises(LedgerMismatch, match="limit=3"):
        MetricLedger(path=path, **limits)


def test_the_two_kinds_of_ledger_refuse_each_other(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If it breaks, nats per unit of distance are charged to an epsilon, or the other way round."""
    with pytest.raises(LedgerCorrupt):
        PrivacyLedger(PrivacyBudget(1.0), path)
    PrivacyLedger(PrivacyBudget(1.0), tmp_path / "epsilon.db").close()
    with pytest.raises(LedgerCorrupt, match="no metric ledger"):
        MetricLedger(3.0, tmp_path / "epsilon.db")


def test_only_the_owner_can_read(path: pathlib.Path) -> None:
    """If it breaks, others on the machine read the key of the hashes, or what was released."""
    for file in (path, path.with_name("metric.db.releases")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_cannot_be_written_says_so_at_once(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If it breaks, a missing folder or a lost file is noticed only after a text was released."""
    with pytest.raises(LedgerUnwritable, match="folder"):
        MetricLedger(path=tmp_path / "nowhere" / "metric.db")
    with pytest.raises(InvalidParameter, match="nothing is there"):
        MetricLedger.open(tmp_path / "none.db")
    with MetricLedger(3.0, path) as ledger:
        path.unlink()
        with pytest.raises(LedgerError, match="vanished"):
            ledger.spend(1.0, [Owner("x")], table=TABLE)


def test_an_older_copy_put_in_its_place_is_noticed(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If it breaks, a restored backup gives back what was released since."""
    shutil.copyfile(path, tmp_path / "old.db")
    with MetricLedger(3.0, path) as ledger:
        ledger.spend(0.5, [Owner("f", "u")], table=TABLE)
        path.write_bytes((tmp_path / "old.db").read_bytes())  # the same file, older contents
        with pytest.raises(LedgerCorrupt, match="older copy"):
            ledger.spend(0.5, [Owner("f", "u")], table=TABLE)


def test_the_file_itself_refuses_a_refund(path: pathlib.Path) -> None:
    """If it breaks, one stray statement lowers an account, edits history or lifts a limit without a trace."""
    statements = [
        "UPDATE accounts SET spent = 0",
        "UPDATE accounts SET spent = spent + 9000000000",
        "DELETE FROM accounts",
        "UPDATE entries SET eta = 1",
        "DELETE FROM entries",
        "UPDATE ledger SET metric = 'other'",
        "INSERT INTO accounts (whose, hash, spent) VALUES ('user', x'00', 9000000000)",
    ]
    connection = sqlite3.connect(path)
    for statement in statements:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    connection.close()


def test_a_closed_ledger_is_refused(path: pathlib.Path) -> None:
    """If it breaks, something is released against an account that nobody watches any more."""
    ledger = MetricLedger(3.0, path)
    kept = ledger.released()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.spend(1.0, [Owner("x")], table=TABLE)
    with pytest.raises(LedgerError, match="closed"):
        kept.get([b"k"])


def test_another_metric_ledger_in_the_same_file_is_noticed(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If this fails, another ledger copied over a running one is charged, under hashes that match nobody in it."""
    with MetricLedger(3.0, tmp_path / "other.db") as other:
        for _ in range(3):
            other.spend(0.5, [Owner("d", "u")], table=TABLE)
    with MetricLedger(3.0, path) as ledger:
        path.write_bytes((tmp_path / "other.db").read_bytes())
        for _ in range(2):
            with pytest.raises(LedgerMismatch, match=r"replaced by another one.*restore the file that was there"):
                ledger.spend(0.5, [Owner("f", "u")], table=TABLE)
    with MetricLedger(3.0, path) as ledger:
        assert len(list(ledger.entries())) == 3
