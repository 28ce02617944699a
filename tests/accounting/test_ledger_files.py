"""Every way in which the file of a ledger can be wrong, and what is said about it."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator

import pytest
from fakes.fair_semaphore import on_both, path_of
from fakes.forked import in_child
from fakes.ledger_files import edited

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import ExponentialEvent, NoisyMaxEvent
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.accounting.metric import MetricLedger
from langchain_dp.accounting.store import backend, plans
from langchain_dp.accounting.store.backend import Connection
from langchain_dp.accounting.store.base import is_there
from langchain_dp.accounting.store.plans import PlanStore
from langchain_dp.audit.report.opening import open_ledger
from langchain_dp.audit.watch.reading import Watched
from langchain_dp.errors import (
    InvalidParameter,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LedgerUnwritable,
    PlanError,
)

BUDGET = PrivacyBudget(3.0, 1e-5)
VOTE = NoisyMaxEvent(8.0)
CHOICE = ExponentialEvent(0.05)
FAINT = NoisyMaxEvent(200.0)


@pytest.fixture
def path(place: str) -> pathlib.Path | str:
    """A closed ledger with a plan of 10 votes, 3 of them used."""
    with PrivacyLedger(BUDGET, place) as ledger:
        ledger.reserve([(VOTE, 10)], name="p", delta=1e-6).spend(VOTE, 3)
    return path_of(place)


@pytest.mark.parametrize(
    "other", [PrivacyBudget(2.0, 1e-5), PrivacyBudget(3.0, 1e-6), PrivacyBudget(3.0, 1e-5, "add_or_remove_one")]
)
@on_both
def test_another_budget_is_refused(path: pathlib.Path, other: PrivacyBudget) -> None:
    """If this fails, a ledger is read under another promise than it was written for."""
    with pytest.raises(LedgerMismatch, match=r"epsilon=3\.0.*replace_one.*" + other.neighbors.name.lower()):
        PrivacyLedger(other, path)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no list of open files")
def test_a_refused_file_does_not_stay_open(path: pathlib.Path) -> None:
    """If this fails, a program that catches the refusal, and keeps it, holds the file and its locks."""
    with pytest.raises(LedgerMismatch) as refused:
        PrivacyLedger(PrivacyBudget(2.0), path)
    assert refused.value.__traceback__ is not None  # whose frames hold the ledger
    still = pathlib.Path("/proc/self/fd").iterdir()
    assert str(path) not in [os.readlink(file) for file in still if file.is_symlink()]


def _scribble(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def _sql(statement: str) -> Callable[[pathlib.Path], None]:
    return lambda path: edited(path, statement)


DAMAGE = {
    "empty": lambda path: os.truncate(path, 0),
    "data of somebody": lambda path: path.write_text("text,label\nGood.,positive\n" * 100),
    "garbage": lambda path: path.write_bytes(b"not a ledger at all" * 1000),
    "short garbage": lambda path: path.write_bytes(b"x"),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "last page lost": lambda path: os.truncate(path, path.stat().st_size - 4096),
    "scribbled": _scribble,
    "another database": lambda path: (path.unlink(), edited(path, "CREATE TABLE t (x)")),
    "another application": _sql("PRAGMA application_id = 7"),
    "lowered count": _sql("UPDATE items SET used = 1"),
    "entry removed": _sql("DELETE FROM entries"),
    "entry removed and another one in its place": _sql(
        "INSERT INTO entries (time, item, count, caller) VALUES ('', 1, 3, ''); DELETE FROM entries WHERE id = 1"
    ),
    "entry and count removed": _sql("DELETE FROM entries; UPDATE items SET used = 0"),
    "count above its maximum": _sql("PRAGMA ignore_check_constraints = ON; UPDATE items SET max_count = 2"),
    "raised claim": _sql("UPDATE plans SET epsilon = 4"),
    "no budget": _sql("DELETE FROM ledger"),
    "no table": _sql("DROP TABLE entries"),
    "no rule": lambda path: sqlite3.connect(path).execute("DROP TRIGGER no_refund").connection.close(),
    "orphan item": _sql("PRAGMA foreign_keys = OFF; UPDATE items SET plan = 9"),
}


@pytest.mark.parametrize("version", [1, 2, 9])
def test_a_ledger_of_another_version_is_refused(path: pathlib.Path, version: int) -> None:
    """If this fails, a ledger of another schema is misread, and its budget spent twice."""
    _sql(f"PRAGMA user_version = {version}")(path)
    for opened in (lambda: PrivacyLedger(BUDGET, path), lambda: open_ledger(path)):
        with pytest.raises(LedgerCorrupt, match=rf"schema={version} .*ledger\.db to be 5\. Use the version"):
            opened()


@on_both
def test_a_plan_for_other_settings_is_refused(path: pathlib.Path) -> None:
    """If this fails, a restart with other settings goes on with a plan that was made for the old ones."""
    settings = {"shots": 4, "rate": 0.5, "partitions": None}
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.reserve([(FAINT, 2)], name="q", delta=1e-6, settings=settings)
    with PrivacyLedger(BUDGET, path) as ledger:
        for again in (settings, None):
            assert ledger.reserve([(FAINT, 2)], name="q", settings=again).settings == settings
        with pytest.raises(PlanError, match=r"partitions was None, now 8; shots was 4, now 5.*another name"):
            ledger.reserve([(FAINT, 2)], name="q", settings={**settings, "shots": 5, "partitions": 8})
        for wrong in ({"shots": object()}, {"rate": math.nan}, {1: 2}, [1]):
            with pytest.raises(InvalidParameter, match="settings"):
                ledger.reserve([(FAINT, 2)], name="r", settings=wrong)  # type: ignore[arg-type]


def test_a_journal_is_written_in_place_of_the_one_that_was_read(path: pathlib.Path) -> None:
    """If this fails, two processes write over each other's outcomes, or one is kept whose charge is gone."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        plan.save_journal("one", expected="")
        for known in ("", "two"):
            with pytest.raises(LedgerError, match="somebody else"):
                plan.save_journal("three", expected=known)
        older = path.read_bytes()
        plan.spend(VOTE)
        path.write_bytes(older)
        with pytest.raises(LedgerCorrupt, match="older copy"):
            plan.save_journal("two", expected="one")
    with PrivacyLedger(BUDGET, path) as again:
        plan = again.plan("p")
        assert plan.journal == "one"


@on_both
def test_a_key_is_made_once_and_found_again(path: pathlib.Path) -> None:
    """If this fails, what was hashed yesterday matches nobody today, or two ledgers share their hashes."""
    with PrivacyLedger(BUDGET, path) as ledger, PrivacyLedger(BUDGET, path) as twin, PrivacyLedger(BUDGET) as other:
        said = ledger.digest("a", "text")
        assert twin.digest("a", "text") == said == ledger.digest("a", "text")
        assert said != ledger.digest("b", "text")
        assert other.digest("a", "text") not in (said, PrivacyLedger(BUDGET).digest("a", "text"))
    with PrivacyLedger(BUDGET, path) as again:
        assert again.digest("a", "text") == said


def test_a_ledger_switched_to_a_log_of_writes_is_refused(path: pathlib.Path) -> None:
    """If this fails, another program moves later spends out of the file, and a copy of it forgets them."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        _sql("PRAGMA journal_mode = WAL")(path)
        with pytest.raises(LedgerCorrupt, match="journal_mode=wal"):
            plan.spend(VOTE)
        with pytest.raises(LedgerCorrupt, match="journal_mode = DELETE"):
            PrivacyLedger(BUDGET, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with PrivacyLedger(BUDGET, path) as ledger:
        assert [entry.count for entry in ledger.entries()] == [3]


SAID = {"empty": "empty file.*lost", "data of somebody": r"another kind of file\. Give the ledger a path of its own"}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_and_left_alone(path: pathlib.Path, damage: str) -> None:
    """If this fails, a damaged ledger is trusted, or replaced by a new one that forgets every spend."""
    DAMAGE[damage](path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match=SAID.get(damage)):
            PrivacyLedger(BUDGET, path)
    assert path.read_bytes() == before


def test_the_file_itself_refuses_refunds(path: pathlib.Path) -> None:
    """If this fails, a plain SQL statement lowers a used count or raises a maximum."""
    connection = sqlite3.connect(path)
    for statement in (
        "UPDATE items SET used = used - 1",
        "UPDATE items SET used = 11",
        "UPDATE items SET max_count = 100",
        "UPDATE plans SET epsilon = 0",
        "DELETE FROM entries",
        "DELETE FROM items",
        "UPDATE entries SET count = 1",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    connection.close()


def test_a_folder_or_a_missing_folder_is_refused(tmp_path: pathlib.Path) -> None:
    """If this fails, the error for a wrong path does not say what to do."""
    with pytest.raises(LedgerCorrupt, match="to be a file"):
        PrivacyLedger(BUDGET, tmp_path)
    with pytest.raises(LedgerUnwritable, match="Create it"):
        PrivacyLedger(BUDGET, tmp_path / "absent" / "ledger.db")
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerUnwritable, match="another path"):
        PrivacyLedger(BUDGET, tmp_path / "file" / "ledger.db")


def test_a_journal_without_its_ledger_is_not_a_fresh_start(path: pathlib.Path) -> None:
    """If this fails, deleting the main file after a crash starts a new budget, and none of its spends are missed."""
    (path.parent / "ledger.db-journal").write_bytes(b"pages")
    path.unlink()
    with pytest.raises(LedgerCorrupt, match="removed"):
        PrivacyLedger(BUDGET, path)


def test_two_names_of_one_file_are_refused(path: pathlib.Path) -> None:
    """If this fails, a crash under one name stays half done under the other, which then loses its own spends."""
    second = path.with_name("second.db")
    os.link(path, second)
    with pytest.raises(LedgerError, match="hard links"):
        PrivacyLedger(BUDGET, second)
    second.unlink()
    left_over = path.with_name(".ledger-0123.new")  # a creator died between link and unlink
    os.link(path, left_over)
    PrivacyLedger(BUDGET, path).close()
    assert not left_over.exists()


def test_a_symlink_leads_to_the_same_ledger(path: pathlib.Path) -> None:
    """If this fails, a symlink to a ledger is a second ledger."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    with PrivacyLedger(BUDGET, link) as ledger:
        assert ledger.path == str(path.resolve())
        assert len(ledger.plans()) == 1


def _replace(path: pathlib.Path) -> None:
    copied = path.with_name("copy")
    shutil.copyfile(path, copied)
    os.replace(copied, path)


@pytest.mark.parametrize("harm", [pathlib.Path.unlink, _replace])
def test_a_file_taken_from_under_a_running_ledger_stops_it(
    path: pathlib.Path, harm: Callable[[pathlib.Path], None]
) -> None:
    """If this fails, spends go into a file that nobody will ever read again."""
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        plan.spend(VOTE)
        harm(path)
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"vanished|replaced"):
                plan.spend(VOTE)


def test_nothing_is_read_from_an_older_copy(path: pathlib.Path) -> None:
    """If this fails, a certificate says that less was spent than was, or a new plan is made beside it."""
    older = path.read_bytes()
    with PrivacyLedger(BUDGET, path) as ledger, contextlib.closing(Watched(path)) as watched:
        plan = ledger.plan("p")
        plan.spend(VOTE)
        newest, left = path.read_bytes(), plan.remaining(VOTE)
        assert watched.figures().spent[0] > 0
        path.write_bytes(older)
        for read in (
            ledger.certificate, lambda: plan.remaining(VOTE), lambda: list(ledger.entries()), watched.figures,
            lambda: ledger.reserve([(VOTE, 1)], name="another", epsilon=0.01, delta=1e-9),
        ):  # fmt: skip
            with pytest.raises(LedgerCorrupt, match="older copy"):
                read()
        path.write_bytes(newest)
        assert plan.remaining(VOTE) == left
        assert watched.figures().spent[0] > 0


@pytest.mark.parametrize("spent_here", [0, 2])
@pytest.mark.parametrize("spent_by_others", [0, 4])
def test_an_older_copy_is_noticed_when_others_went_on_from_it(
    path: pathlib.Path, spent_here: int, spent_by_others: int
) -> None:
    """If this fails, a restored backup gives back what was spent, at once or once others have charged as much."""
    older = path.read_bytes()
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.reserve([(VOTE, 10)], name="p").spend(VOTE)
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.reserve([(VOTE, 10)], name="p")
        for _ in range(spent_here):
            plan.spend(VOTE)
        in_child(lambda: "")  # closes the connection, so that the next spend opens the file again
        path.write_bytes(older)
        with PrivacyLedger(BUDGET, path) as other:
            for _ in range(spent_by_others):
                other.reserve([(VOTE, 10)], name="p").spend(VOTE)
        with pytest.raises(LedgerCorrupt, match="older copy"):
            plan.spend(VOTE)
        with pytest.raises(LedgerCorrupt, match="older copy"):
            plan.save_journal("{}", expected="")


@pytest.mark.parametrize(("name", "event", "most"), [("theirs", CHOICE, 5), ("mine", FAINT, 9)])
def test_a_plan_whose_place_another_one_took_is_never_charged_to_it(
    path: pathlib.Path, name: str, event: NoisyMaxEvent | ExponentialEvent, most: int
) -> None:
    """If this fails, a backup put back in place lets one plan's releases be counted as another's, at its price."""
    older = path.read_bytes()
    with PrivacyLedger(BUDGET, path) as ledger:
        mine = ledger.reserve([(FAINT, 5)], name="mine", delta=1e-6)
        path.write_bytes(older)
        with PrivacyLedger(BUDGET, path) as other:
            theirs = other.reserve([(event, most)], name=name, delta=1e-6)  # in the row that was mine
            for ask in (lambda: mine.spend(FAINT), mine.spent, lambda: mine.remaining(FAINT), mine.certificate):
                with pytest.raises(LedgerCorrupt, match=r"no longer holds the plan 'mine'.*Restore the newest copy"):
                    ask()
            assert theirs.remaining(event) == most
            assert [entry.plan for entry in other.entries()] == ["p"]
    PrivacyLedger(BUDGET, path).close()  # counts and entries agree


def test_another_ledger_in_the_same_file_is_noticed(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """If this fails, another ledger copied over a running one is charged for its releases."""
    with PrivacyLedger(BUDGET, tmp_path / "other.db") as other:
        for name in ("p", "q", "r"):
            other.reserve([(FAINT, 10)], name=name, delta=1e-6)
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        path.write_bytes((tmp_path / "other.db").read_bytes())
        with pytest.raises(LedgerMismatch, match=r"replaced by another one.*restore the file that was there"):
            plan.spend(VOTE)
    with PrivacyLedger(BUDGET, path) as ledger:
        assert list(ledger.entries()) == []


@pytest.mark.parametrize("hold", ["BEGIN IMMEDIATE", "BEGIN; SELECT * FROM entries"])
def test_a_ledger_that_another_process_holds_is_refused_in_time(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, hold: str
) -> None:
    """If this fails, a stuck process makes every other one hang for ever, or answer without a charge."""
    monkeypatch.setattr(backend, "BUSY_SECONDS", 0.05)
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.plan("p")
        holder = sqlite3.connect(path, isolation_level=None)
        for statement in hold.split("; "):
            held = holder.execute(statement)
        held.fetchone()  # a reader keeps its lock until its transaction ends
        with pytest.raises(LedgerUnwritable, match="lock"):
            plan.spend(VOTE)
        assert ledger._store.backend._connection is None  # after an error of the database nobody knows its state
        holder.close()
        plan.spend(VOTE)
        assert plan.remaining(VOTE) == 6


@pytest.fixture
def open_folder() -> Iterator[pathlib.Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = pathlib.Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def _without_rights() -> None:
    if os.geteuid() == 0:  # to root nothing is read-only
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


@pytest.mark.parametrize("target", ["file", "folder", "new file"])
def test_a_file_that_cannot_be_written_is_refused_at_once(open_folder: pathlib.Path, target: str) -> None:
    """If this fails, a ledger opens read-only and the first question is answered without a charge."""
    path = open_folder / "ledger.db"
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.spend(VOTE)
    if target == "new file":
        path.unlink()
    elif target == "file":
        path.chmod(0o444)
    else:
        path.chmod(0o666)
    if target != "file":
        open_folder.chmod(0o555)

    def child() -> str:
        _without_rights()
        PrivacyLedger(BUDGET, path)
        return "opened"

    said = in_child(child)
    open_folder.chmod(0o777)
    if said.startswith("PermissionError") and os.geteuid() == 0:
        pytest.skip("this container lets root not become another user")
    assert said.startswith("LedgerUnwritable")
    assert "writable" in said


def test_a_full_disk_refuses_and_forgets_nothing(tmp_path: pathlib.Path) -> None:
    """If this fails, a spend that could not be written counts as done, or damages the ledger."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "ledger.db"
    with PrivacyLedger(BUDGET, path) as ledger:
        ledger.reserve([(NoisyMaxEvent(2000.0), 500)], name="p")
    full = path.stat().st_size + 8192  # room for some spends

    def child() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
        plan = PrivacyLedger(BUDGET, path).plan("p")
        done = 0
        try:
            while done < 500:
                plan.spend(NoisyMaxEvent(2000.0))
                done += 1
        except LedgerUnwritable:
            return str(done)
        return "never full"

    done = int(in_child(child))
    with PrivacyLedger(BUDGET, path) as ledger:
        assert 0 < done <= sum(entry.count for entry in ledger.entries()) <= done + 1


def test_a_home_folder_is_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a ledger lies in a folder named ~ of the working folder, and the next program finds none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    PrivacyLedger(BUDGET, "~/home.ledger").close()
    with MetricLedger(3.0, "~/metric.ledger"):
        assert {file.name for file in tmp_path.glob("*.ledger")} == {"home.ledger", "metric.ledger"}
        assert is_there("~/home.ledger")
    MetricLedger.open("~/metric.ledger").close()
    with open_ledger("~/home.ledger") as opened:
        assert isinstance(opened, PrivacyLedger)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda: PrivacyLedger(BUDGET, "a\0b"), "no NUL character"),
        (lambda: PrivacyLedger(BUDGET, ":memory:"), "':memory:' to be a path of a file, or None for a"),
        (lambda: MetricLedger.open("a\0b"), "no NUL character"),
        (lambda: MetricLedger.open(3.0), "path=3.0 to be the path"),
        (lambda: PrivacyLedger(BUDGET, BUDGET), "of type PrivacyBudget to be the path"),
        (lambda: PrivacyLedger("x.ledger", BUDGET), "the budget comes first, then the path"),
        (lambda: PrivacyBudget("3"), "epsilon='3' to be a number, got a str. Write 3, without quotes"),
        (lambda: PrivacyBudget(3.0, "1e-5"), "Write 1e-5, without quotes"),
        (lambda: NoisyMaxEvent("4"), "Write 4, without quotes"),
    ],
)  # fmt: skip
def test_what_is_no_path_and_no_number_is_refused_in_our_words(use: Callable[[], object], says: str) -> None:
    """If it breaks, a slip ends in an error of Python's own, or in advice on something else."""
    with pytest.raises(InvalidParameter, match=re.escape(says)):
        use()


def _ten_entries(path: pathlib.Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten entries, of which eight are added up."""
    monkeypatch.setattr(plans, "_ADDED_UP", 4)
    with PrivacyLedger(BUDGET, path) as ledger:
        plan = ledger.reserve([(FAINT, 100)], name="q", delta=1e-6)
        for _ in range(9):
            plan.spend(FAINT, 2)
        ledger.verify()


@on_both
def test_opening_adds_up_new_entries_alone(path: pathlib.Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a ledger of millions of entries opens for many seconds."""
    _ten_entries(path, monkeypatch)
    before: list[int] = []
    real = PlanStore._checked

    def seen(self: PlanStore, connection: Connection) -> int:
        before.append(real(self, connection))
        return before[-1]

    monkeypatch.setattr(PlanStore, "_checked", seen)
    with PrivacyLedger(BUDGET, path) as ledger:
        assert ledger.plan("q").remaining(FAINT) == 82
    assert before == [8]


@pytest.mark.parametrize(
    ("change", "at_opening"),
    [
        ("UPDATE entries SET count = count + 1 WHERE id = 2", False),
        ("UPDATE entries SET count = count + 1 WHERE id = 9", True),
        ("DELETE FROM entries WHERE id = 9", True),
        ("UPDATE checked SET total = total + 1", True),
        ("UPDATE items SET used = used + 1", True),
        ("UPDATE items SET used = used + 1; UPDATE checked SET total = total + 1", False),
    ],
)
def test_a_change_by_hand_is_found(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, change: str, at_opening: bool
) -> None:
    """If this fails, counts and entries of a large ledger may contradict each other, and nobody is told."""
    _ten_entries(path, monkeypatch)
    edited(path, change)
    if at_opening:
        with pytest.raises(LedgerCorrupt, match="is damaged"):
            PrivacyLedger(BUDGET, path)
        return
    with PrivacyLedger(BUDGET, path) as ledger, pytest.raises(LedgerCorrupt, match="do not equal the sum"):
        ledger.verify()
