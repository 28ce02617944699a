"""Records in parts: the same release as in memory, whoever dies, and no text in what leaves a worker."""

from __future__ import annotations

import functools
import json
import os
import signal
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from langchain_core.language_models import FakeListChatModel

from langchain_dp import (
    DPLabelNamer,
    DPPrototypeClassifier,
    DPSurvey,
    PrivacyBudget,
    PrivacyLedger,
    Question,
    RecordShards,
    private_accuracy,
)
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PlanError
from langchain_dp.records import shards

BUDGET = PrivacyBudget(1.0, 1e-6)
LABELS = ["praise", "complaint"]
ROWS = [
    {"text": f"the nurse {word} number {n}", "label": LABELS[n % 2]}
    for n, word in enumerate(["was kind", "was late"] * 40)
]
FIT = {"labels": LABELS, "budget": BUDGET, "not_private_seed": 3}


def written(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def fitted(examples: Any, **options: Any) -> DPPrototypeClassifier[str]:
    return DPPrototypeClassifier.fit(examples, **{**FIT, **options})


def rows_between(start: int, end: int) -> list[dict[str, str]]:
    return ROWS[start:end]


def rows_after_a_kill(mark: Path) -> list[dict[str, str]]:
    """The first process that reads them in a second pass is killed."""
    seen = mark.read_text(encoding="utf-8") if mark.exists() else ""
    mark.write_text(f"{seen}x", encoding="utf-8")
    if seen == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    return ROWS[40:]


def no_rows() -> list[Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


@pytest.mark.parametrize("batch_size", [7, 20_000])
def test_parts_give_the_same_release_as_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """If it breaks, a record at the edge of a part is lost or counted twice."""
    monkeypatch.setattr(shards, "_PART_BYTES", 300)
    path = written(tmp_path / "rows.jsonl", ROWS)
    parts = RecordShards([path], workers=1, batch_size=batch_size)
    assert len(parts._parts) > 10
    assert repr(fitted(parts)) == repr(fitted(ROWS))
    names = DPLabelNamer(["nurses", "delays", "kindness"])
    assert names.fit(parts, **FIT).names == names.fit(ROWS, **FIT).names


def test_a_survey_of_parts_is_that_of_memory() -> None:
    """If it breaks, finer questions are counted over one part alone."""
    asked = [Question("topic", ["kindness", "delay"], below=lambda choice: [f"{choice} today", f"{choice} tomorrow"])]
    texts = functools.partial(rows_between, 0, 30), functools.partial(rows_between, 30, 80)
    run = functools.partial(DPSurvey(asked).run, budget=PrivacyBudget(50.0, 1e-6), not_private_seed=3)
    survey = run(RecordShards(texts, workers=1))
    assert survey.to_rows() == run(ROWS).to_rows()
    assert len(survey["topic"].below) == 2
    assert survey.records == len(ROWS)


def test_a_killed_worker_changes_nothing_but_time(tmp_path: Path) -> None:
    """If it breaks, a part is counted twice, or not at all, after a death."""
    mark = tmp_path / "mark"
    parts = [functools.partial(rows_between, 0, 40), functools.partial(rows_after_a_kill, mark)]
    assert repr(fitted(RecordShards(parts, workers=2))) == repr(fitted(ROWS))
    assert len(mark.read_text(encoding="utf-8")) == 3


def test_workers_that_always_die_are_an_error(tmp_path: Path) -> None:
    """If it breaks, a run goes round forever."""
    with pytest.raises(ModelUnavailable, match=r"died 4 times in a row.*__main__"):
        fitted(RecordShards([no_rows], workers=1 + 1), ledger=PrivacyLedger(BUDGET, tmp_path / "a.ledger"))


def test_a_ledger_knows_the_records_however_they_are_divided(tmp_path: Path) -> None:
    """If it breaks, the same records are paid for twice, or other records get the old release."""
    ledger = PrivacyLedger(BUDGET, tmp_path / "a.ledger")
    fit = functools.partial(DPPrototypeClassifier.fit, labels=LABELS, ledger=ledger)
    whole = fit(RecordShards([functools.partial(rows_between, 0, 80)], workers=1))
    halves = [functools.partial(rows_between, 40, 80), functools.partial(rows_between, 0, 40)]
    assert repr(fit(RecordShards(halves, workers=1))) == repr(whole)
    with pytest.raises(PlanError, match="from other records"):
        fit(RecordShards(halves[:1], workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_row_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    """If it breaks, an error of a worker quotes the record, or nobody knows which line to repair."""
    monkeypatch.setattr(shards, "_PART_BYTES", 300)
    ledger = PrivacyLedger(BUDGET, tmp_path / "a.ledger")
    path = written(tmp_path / "rows.jsonl", ROWS)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[60] = f"{CANARY} {{"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InvalidParameter, match=r"Expected line 61 of rows\.jsonl to be a JSON object") as caught:
        fitted(RecordShards(path, workers=workers), ledger=ledger)
    shown = [*traceback.format_exception(caught.value), *capfd.readouterr()]
    assert CANARY not in "".join(shown)
    assert [*ledger.entries()] == []


def test_a_missing_label_names_its_part() -> None:
    """If it breaks, nobody finds the row."""
    parts = [functools.partial(rows_between, 0, 40), functools.partial(rows_between, 40, 80)]
    with pytest.raises(InvalidParameter, match=r"In part 0 of the records: Expected the label of examples 1, 3"):
        fitted(RecordShards(parts, workers=1), labels=["praise", "thanks"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RecordShards([]), "at least one part"),
        (lambda: RecordShards(ROWS), "not of type dict"),
        (lambda: RecordShards(7), "or a dataset of Ray"),
        (lambda: RecordShards([list], workers=0), "workers"),
        (lambda: RecordShards([list], text_key=""), "text_key"),
        (lambda: fitted(RecordShards([list], workers=1)), "at least one record"),
        (
            lambda: private_accuracy(FakeListChatModel(responses=["a"]), RecordShards([list]), budget=BUDGET),
            "RecordShards",
        ),
        (lambda: DPLabelNamer(model=FakeListChatModel(responses=["a"])).fit(RecordShards([list]), **FIT), "an encoder"),
        (
            lambda: DPSurvey([Question("a", ["b", "c"])]).run(RecordShards([list]), budget=BUDGET, user_key="u"),
            "user_key",
        ),
        (lambda: fitted(RecordShards([lambda: ROWS], workers=2)), "of a module that workers can import"),
    ],
)
def test_what_cannot_be_added_up_is_refused(make: Any, says: str) -> None:
    """If it breaks, a mistake costs budget, or ends in an error of another library."""
    with pytest.raises(InvalidParameter, match=says):
        make()


def test_a_dataset_is_divided_by_rows() -> None:
    """If it breaks, rows of a Hugging Face dataset are lost."""
    datasets = pytest.importorskip("datasets")
    parts = RecordShards(datasets.Dataset.from_list(ROWS), workers=1, batch_size=7)
    assert repr(fitted(parts)) == repr(fitted(ROWS))
