"""Whose records a run is taken up with: the same, or fewer, and each in its own part."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
from fakes.canary import CANARY
from fakes.optimizers import (
    ADD_OR_REMOVE,
    BUDGET,
    ZERO_OUT,
    Looking,
    examples,
    journal_text,
    ledger_in,
    notes,
    optimizer,
    stopping,
    used,
)

from langchain_dp import PrivacyBudget, PrivateRecords
from langchain_dp.errors import PlanError


def changed(rows: list[dict[str, str]], how: str) -> list[dict[str, str]]:
    other = [dict(row) for row in rows]
    if how == "edited":
        other[7]["text"] += "!"
    elif how == "one more":
        other += examples(1, start=90)
    elif how == "one less":
        del other[7]
    elif how == "last one less":
        del other[-1]
    elif how == "reordered":
        other[3], other[4] = other[4], other[3]
    elif how == "relabelled":
        other[7]["label"] = "negative"
    elif how == "with ids":
        other = [{**row, "id": f"r{i}"} for i, row in enumerate(other)]
    return other


CHANGES = ["edited", "one more", "one less", "last one less", "reordered", "relabelled", "with ids"]


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE], ids=lambda budget: budget.neighbors.name)
def test_other_data_are_refused(complete: bool, budget: PrivacyBudget, tmp_path: Path) -> None:
    """If it breaks, records move between training and validation, and are paid for once; or data go unnoticed."""
    with ledger_in(tmp_path, budget) as ledger:
        made = optimizer(Looking() if complete else stopping(2), ledger=ledger)
        try:
            made.invoke(examples())
        except KeyboardInterrupt:
            assert not complete
        spent, kept = used(ledger), journal_text(tmp_path)
        for how in CHANGES:
            for other in (made, optimizer(Looking(), ledger=ledger)):
                message = r"complete, and was over other examples" if complete else r"was started with other examples"
                if how.endswith("one less") and other is made and not complete:
                    continue  # forgetting, in the process that has seen them all
                with pytest.raises(PlanError, match=rf"{message}(?s:.*)another name") as caught:
                    other.invoke(changed(examples(), how))
                assert CANARY not in str(caught.value)
                assert not re.search(r"\b(39|40|41)\b", str(caught.value))
        assert used(ledger) == spent
    assert journal_text(tmp_path) == kept


@pytest.mark.parametrize("budget", [BUDGET, ADD_OR_REMOVE, ZERO_OUT], ids=lambda budget: budget.neighbors.name)
def test_a_forgotten_record_is_never_shown_again_and_nobody_changes_its_part(budget: PrivacyBudget) -> None:
    """If it breaks, a deleted record is still read; or the records behind it move up, and one is taught and selects."""
    records = PrivateRecords(examples())
    engine = stopping(3)
    made = optimizer(engine, budget=budget)
    with pytest.raises(KeyboardInterrupt):
        made.invoke(records)
    taught = notes([body for body in engine.shown if "Student" in body])
    gone = {sorted(taught)[0], sorted({f"{i:03d}" for i in range(40)} - taught)[0]}  # one of either part
    for name in list(records.ids()):
        if any(f"note {note} " in records.get(name)["text"] for note in gone):
            records.forget(name)
    engine.shown.clear()
    made.invoke(records)
    after = notes([body for body in engine.shown if "Student" in body])
    assert not gone & notes(engine.shown)
    assert after == taught - gone
    selecting = notes([body for body in engine.shown[-20:] if "Student" not in body])
    assert not selecting & taught
    assert engine.cache == {}
    made.invoke(records)  # complete, over what is left
    with pytest.raises(PlanError, match="complete"):
        made.invoke(examples())


def test_the_parts_of_a_run_stay_disjoint_in_a_new_process(tmp_path: Path) -> None:
    """If it breaks, a restart deals the records anew: one teaches before and selects after, for the larger cost."""
    seen: list[Looking] = [stopping(4), stopping(4), Looking()]
    for engine in seen:
        with ledger_in(tmp_path) as ledger:
            made = optimizer(engine, ledger=ledger)
            if engine is seen[-1]:
                made.invoke(examples())
            else:
                with pytest.raises(KeyboardInterrupt):
                    made.invoke(examples())
        gc.collect()
    taught = [notes([body for body in engine.shown if "Student" in body]) for engine in seen]
    assert len(set.union(*taught)) == 32
    everyone = notes([body for engine in seen for body in engine.shown])
    assert len(everyone) == 40
