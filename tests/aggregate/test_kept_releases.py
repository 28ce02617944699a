"""What a ledger in a file keeps of a release: it is charged once, for one set of records and settings."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from fakes.encoders import PUBLIC, WordEncoder, failing_after, fitted, named, rows

from langchain_dp import PrivacyBudget, PrivacyLedger, PrivateRecords
from langchain_dp.errors import BudgetExceeded, ModelUnavailable, PlanError
from langchain_dp.mechanisms import VectorSum

BUDGET = PrivacyBudget(4.0)
FORK = get_context("fork") if hasattr(os, "fork") else None


def ledger_in(folder: Path) -> dict[str, Any]:
    return {"budget": BUDGET, "ledger": folder / "ledger"}


def shares(folder: Path, **settings: Any) -> list[float]:
    return list(fitted(**ledger_in(folder), **settings).probabilities("my parcel").values())


def in_process(work: Callable[[], Any]) -> Any:
    """What work returns in a process of its own; the name and text of its error."""
    assert FORK is not None
    ours, theirs = FORK.Pipe()

    def run() -> None:
        try:
            theirs.send(work())
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")

    process = FORK.Process(target=run)
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    return found


@pytest.mark.skipif(FORK is None, reason="forks")
def test_a_second_fit_in_another_process_is_the_same_and_free(tmp_path: Path) -> None:
    """If it breaks, a restart draws again: two releases at the price of one, or a budget spent on nothing."""
    first = in_process(lambda: shares(tmp_path))
    assert in_process(lambda: shares(tmp_path)) == shares(tmp_path) == first
    assert PrivacyLedger(BUDGET, tmp_path / "ledger").spent()[0] == pytest.approx(4.0, rel=1e-3)
    words = ledger_in(tmp_path / "names")
    (tmp_path / "names").mkdir()
    several = {"noise": "x", **{f"word {place}": f"about {place}" for place in range(8)}}
    names = in_process(lambda: named(words=several, **words).names)
    assert named(words=several, **words).names == names


OTHER: dict[str, dict[str, Any]] = {
    "a record more": {"examples": rows(202)},
    "another text": {"examples": [{**rows()[0], "text": "another"}, *rows()[1:]]},
    "another label": {"examples": [{**rows()[0], "label": "B"}, *rows()[1:]]},
    "another order": {"examples": rows()[::-1]},
    "users": {"examples": PrivateRecords(rows(), user_key="customer"), "components": 8},
    "other labels": {"labels": ["A", "B", "C"]},
    "components": {"components": 3},
    "other public texts": {"texts": [f"football {i}" for i in range(20)], "components": 8},
    "another encoder": {"encoder": WordEncoder(spoil=lambda texts, rows: [[3 * row[0], *row[1:]] for row in rows])},
}


@pytest.mark.parametrize("case", OTHER)
def test_other_records_or_settings_under_the_same_name_are_refused(case: str, tmp_path: Path) -> None:
    """If it breaks, a caller gets a classifier of other records, or draws twice for the price of one."""
    shares(tmp_path)
    match = "from other records" if "examples" in OTHER[case] else "other settings|another encoder"
    with pytest.raises(PlanError, match=match):
        fitted(**ledger_in(tmp_path), **OTHER[case])
    assert shares(tmp_path) == shares(tmp_path)


def test_another_number_of_records_per_user_is_another_set_of_records(tmp_path: Path) -> None:
    """If it breaks, a classifier of one record per user passes for one of two."""
    two, one = (PrivateRecords(rows(), user_key="customer", records_per_user=most) for most in (2, 1))
    fitted(two, components=8, **ledger_in(tmp_path))
    fitted(two, components=8, **ledger_in(tmp_path))
    with pytest.raises(PlanError, match="from other records"):
        fitted(one, components=8, **ledger_in(tmp_path))


def test_another_share_under_the_same_name_is_refused() -> None:
    """If it breaks, a release of epsilon 1 passes for one of epsilon .5."""
    ledger = PrivacyLedger(BUDGET)
    fitted(ledger=ledger, budget=PrivacyBudget(1.0, 1e-6))
    with pytest.raises(PlanError, match=r"budget\.epsilon"):
        fitted(ledger=ledger, budget=PrivacyBudget(0.5, 1e-6))
    named(ledger=ledger, budget=PrivacyBudget(1.0, 1e-6))
    with pytest.raises(PlanError, match=r"budget\.epsilon"):
        named(ledger=ledger, budget=PrivacyBudget(2.0, 1e-6))


def test_a_server_that_rounds_otherwise_today_gives_the_kept_release(tmp_path: Path) -> None:
    """If it breaks, vectors that differ in a late digit from day to day make the ledger refuse what it keeps."""
    first = fitted(**ledger_in(tmp_path))
    again = fitted(
        **ledger_in(tmp_path),
        encoder=WordEncoder(spoil=lambda texts, rows: [[x * (1 + 1e-5 * i) for i, x in enumerate(r)] for r in rows]),
    )
    for name, classifier in (("first", first), ("again", again)):
        classifier.save(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "again").read_bytes()


def test_an_update_of_another_classifier_is_not_taken(tmp_path: Path) -> None:
    """If it breaks, sums over other components are added up, and the certificate calls that a classifier."""
    ledger = {"ledger": tmp_path / "ledger", "budget": PrivacyBudget(1.0)}
    first, other = fitted(components=8), fitted(components=8, texts=PUBLIC[:40])
    first.update(rows(), **ledger)
    with pytest.raises(PlanError):
        other.update(rows(), **ledger)
    assert first.update(rows(), **ledger).invoke("my parcel") == "A"


def test_the_journal_holds_no_record_and_no_user(tmp_path: Path) -> None:
    """If it breaks, whoever may read the ledger reads the records, their ids or their users."""
    examples = [{**row, "id": f"canary-id-{place}"} for place, row in enumerate(rows(60, note="canary"))]
    for row in examples:
        row["customer"] = f"canary-{row['customer']}"
    fitted(PrivateRecords(examples, user_key="customer"), **ledger_in(tmp_path))
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) > 1
    assert not [path for path in files if b"canary" in path.read_bytes()]
    fitted(PrivateRecords(examples, user_key="customer"), **ledger_in(tmp_path))


def stop(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the exact sums are [1, 2, 3]")


def kill(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(FORK is None, reason="forks")
@pytest.mark.parametrize("ends", [stop, kill], ids=["an error", "SIGKILL"])
def test_a_release_that_ends_after_its_charge_goes_on_for_the_same_charge(
    ends: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a crash costs a budget for nothing, or the next attempt is charged or drawn twice."""
    with monkeypatch.context() as patch:
        patch.setattr(VectorSum, "release", ends)
        if ends is stop:
            found = in_process(lambda: shares(tmp_path))
            assert found == "Redacted: RuntimeError while a release was drawn, text withheld."
        else:
            with pytest.raises(EOFError):
                in_process(lambda: shares(tmp_path))
    spent = PrivacyLedger(BUDGET, tmp_path / "ledger").spent()
    assert spent[0] == pytest.approx(4.0, rel=1e-3)
    first = shares(tmp_path)
    assert shares(tmp_path) == first
    assert PrivacyLedger(BUDGET, tmp_path / "ledger").spent() == spent
    with pytest.raises(PlanError, match="from other records"):
        shares(tmp_path, examples=rows(202))


@pytest.mark.skipif(FORK is None, reason="forks")
def test_two_processes_that_fit_at_once_charge_once_and_agree(tmp_path: Path) -> None:
    """If it breaks, a race draws two classifiers from one charge: their difference shows the noise."""
    assert FORK is not None
    line, results = FORK.Barrier(4), FORK.SimpleQueue()

    def work() -> None:
        line.wait()
        for _ in range(3):
            try:
                results.put(shares(tmp_path))
            except PlanError as error:
                results.put(str(error))
            except BaseException as error:
                results.put([type(error).__name__, str(error)])

    processes = [FORK.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    found = [results.get() for _ in range(12)]
    for process in processes:
        process.join()
    drawn = [each for each in found if isinstance(each, list)]
    assert drawn
    assert all(each == drawn[0] for each in drawn)
    assert all(isinstance(each, float) for each in drawn[0])
    assert all("is at it" in each for each in found if isinstance(each, str))
    assert PrivacyLedger(BUDGET, tmp_path / "ledger").spent()[0] <= 4.0
    assert shares(tmp_path) == drawn[0]


@pytest.mark.parametrize("fit", [fitted, named])
def test_a_fit_that_looked_just_before_another_one_reserved_takes_its_release(
    fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, one of two processes that start together is told that the budget is spent."""
    ledger = PrivacyLedger(BUDGET)
    fit(ledger=ledger)
    real, calls = PrivacyLedger.plan, itertools.count()
    monkeypatch.setattr(PrivacyLedger, "plan", lambda self, name: real(self, name) if next(calls) else None)
    fit(ledger=ledger)


@pytest.mark.parametrize("fit", [fitted, named])
def test_an_outage_costs_the_budget_and_is_no_answer(fit: Any, tmp_path: Path) -> None:
    """If it breaks, a release after an outage is noise, or the budget of records that were seen is given back."""
    with pytest.raises(ModelUnavailable):
        fit(rows(note="seen"), encoder=failing_after("seen"), **ledger_in(tmp_path))
    spent = PrivacyLedger(BUDGET, tmp_path / "ledger").spent()
    assert spent[0] > 0
    fit(rows(note="seen"), **ledger_in(tmp_path))
    assert PrivacyLedger(BUDGET, tmp_path / "ledger").spent() == spent


def test_a_spent_budget_refuses_a_second_name(tmp_path: Path) -> None:
    """If it breaks, a new name is a new budget."""
    shares(tmp_path)
    with pytest.raises(BudgetExceeded):
        fitted(name="again", ledger=PrivacyLedger(BUDGET, tmp_path / "ledger"))
    with pytest.raises(BudgetExceeded):
        fitted(name="again", **ledger_in(tmp_path))
