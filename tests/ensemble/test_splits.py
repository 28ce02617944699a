"""The warning that one data set is charged to two ledgers."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.encoders import WordEncoder
from langchain_core.language_models import FakeListChatModel

from langchain_dp import (
    DPICLClassifier,
    DPLabelNamer,
    DPPrototypeClassifier,
    PrivacyBlocks,
    PrivacyBudget,
    PrivacyLedger,
    RecordShards,
)
from langchain_dp.errors import BudgetSplitWarning, OtherRecordsWarning
from langchain_dp.sample import load

BUDGET = PrivacyBudget(1.0, 1e-6)
ROWS = [{"text": f"the nurse was {'kind' if n % 2 else 'late'} in case {n}", "label": "AB"[n % 2]} for n in range(40)]
OTHERS = [{"text": f"another text {n}", "label": "AB"[n % 2]} for n in range(40)]
fit = functools.partial(DPPrototypeClassifier.fit, labels=["A", "B"], encoder=WordEncoder(), trust_opaque_model=True)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANGCHAIN_DP_STATE", str(tmp_path / "state"))
    return tmp_path / "state" / "langchain-dp"


def warned(work: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in caught if one.category is BudgetSplitWarning]


def test_a_second_ledger_over_the_same_records_names_the_first_and_the_sum(tmp_path: Path) -> None:
    """If it breaks, data that costs epsilon 4 shows 3 and 1 in two files, and nothing says so."""
    first = PrivacyLedger(PrivacyBudget(3.0, 1e-6), tmp_path / "names.ledger")
    second = PrivacyLedger(BUDGET, tmp_path / "tickets.ledger")
    namer = DPLabelNamer(["nurse", "delay"], encoder=WordEncoder(), trust_opaque_model=True)
    assert warned(lambda: namer.fit(ROWS, labels=["A", "B"], ledger=first)) == []
    [text] = warned(lambda: fit(ROWS[:20], ledger=second))
    assert "names.ledger (epsilon 3)" in text
    assert "tickets.ledger, that adds up to epsilon 4" in text


def test_a_budget_given_twice_warns() -> None:
    """If it breaks, a chain that is built anew for each web request spends a fresh budget each time, unseen."""
    assert warned(lambda: fit(ROWS, budget=BUDGET)) == []
    [text] = warned(lambda: fit(ROWS, budget=BUDGET))
    assert "one in memory (epsilon 1)" in text
    [third] = warned(lambda: fit(ROWS, budget=BUDGET))
    assert "epsilon 3" in third


def test_what_adds_nothing_does_not_warn(tmp_path: Path) -> None:
    """If it breaks, people learn to ignore the warning: of one ledger, of other records, of samples."""
    ledger = PrivacyLedger(BUDGET, tmp_path / "a.ledger")
    half = PrivacyBudget(0.5, 5e-7)

    def work() -> None:
        fit(ROWS, ledger=ledger, budget=half, name="first")
        fit(ROWS, ledger=ledger, budget=half, name="second")
        fit(OTHERS, budget=BUDGET)
        fit(ROWS, budget=BUDGET, not_private_seed=1)

    assert warned(work) == []
    rows = [{**row, "label": "AB"[row["label"] == "praise"]} for row in load()[0]]
    assert warned(lambda: [fit(rows, budget=BUDGET) for _ in range(2)]) == []


def test_a_vote_over_records_that_prototypes_were_charged_for_warns() -> None:
    """If it breaks, the classes that ask a model are not warned of."""
    fit(ROWS, budget=BUDGET)
    model = FakeListChatModel(responses=["A"])
    vote = functools.partial(DPICLClassifier, model=model, examples=ROWS, labels=["A", "B"], shots=1, subsets=4)
    [text] = warned(lambda: vote(budget=PrivacyBudget(2.0, 1e-6), max_queries=1))
    assert "epsilon 3" in text


def test_a_plan_that_goes_on_with_wholly_other_records_warns(tmp_path: Path) -> None:
    """If it breaks, a file of the wrong data is queried under the plan of the right one, without a word."""
    vote = functools.partial(
        DPICLClassifier, model=FakeListChatModel(responses=["A"]), labels=["A", "B"], shots=1, subsets=4, max_queries=1,
        budget=PrivacyBudget(2.0, 1e-6), ledger=tmp_path / "tickets.ledger",
    )  # fmt: skip
    for rows, warns in ((ROWS, False), (ROWS, False), (ROWS[:36] + OTHERS[:4], False), (OTHERS[5:], True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vote(examples=rows)
        found = [str(one.message) for one in caught if one.category is OtherRecordsWarning]
        assert len(found) == warns
    assert "tickets.ledger was charged for other records, and for none of these" in found[0]


def test_blocks_of_one_folder_do_not_warn(tmp_path: Path) -> None:
    """If it breaks, each new month is said to add up with the old one."""
    rows = [{**row, "time": f"2026-1{n % 2}-01"} for n, row in enumerate(ROWS)]
    blocks = PrivacyBlocks(tmp_path, PrivacyBudget(2.0, 1e-5))

    def work() -> None:
        for names in (["2026-10"], ["2026-10", "2026-11"]):
            records, ledger = blocks.select(rows, names)
            fit(records, ledger=ledger, budget=PrivacyBudget(1.0, 1e-6), name=str(len(names)))

    assert warned(work) == []


def test_records_in_parts_are_known_again() -> None:
    """If it breaks, the largest data sets are never warned of."""
    parts = RecordShards([functools.partial(list, ROWS)], workers=1)
    assert warned(lambda: fit(parts, budget=BUDGET)) == []
    assert len(warned(lambda: fit(parts, budget=BUDGET))) == 1


def test_the_notes_hold_no_text_and_are_for_the_user_alone(state: Path) -> None:
    """If it breaks, private text lies in the user's state folder, or a key to guess it by is open to all."""
    fit(ROWS, budget=BUDGET)
    assert state.stat().st_mode & 0o077 == 0
    assert (state / "records.key").stat().st_mode & 0o077 == 0
    assert b"nurse" not in b"".join(file.read_bytes() for file in state.iterdir())


@pytest.mark.parametrize("value", ["", "a file"])
def test_no_folder_costs_the_warning_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path, value: str
) -> None:
    """If it breaks, a release fails where nothing may be written, or the switch does not work."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("LANGCHAIN_DP_STATE", value and str(tmp_path / "file"))
    assert warned(lambda: [fit(ROWS, budget=BUDGET) for _ in range(2)]) == []
    assert not state.exists()
