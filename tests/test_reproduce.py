"""The reproduction of the papers' tables: the page holds what the result files hold, and the papers' figures."""

from __future__ import annotations

import argparse
import dataclasses
import html
import itertools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.voters import VotingEngine

from langchain_dp.icl.plan import Electorate

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
import made
import reproduce
import reproduce_icl
import reproduce_opt
import reproduce_picture
import reproduce_rapt
import reproduce_rows
from reproduce import JSON, PAGE, TABLES
from reproduce_page import NOT_RUN, as_json, render, shown
from reproduce_rows import RESULTS, Cell, Line, Paper, Results, Run, Table

BY_NAME = {table.name: table for table in TABLES}
README = Path(__file__).parent.parent / "README.md"
COMMITTED = Results(RESULTS)
OPT = Run("bench_opt.py", "opt.jsonl", (), 1)
WHERE = {"source": "a", "arm": "opt", "rows": 10}
CELL = Cell(OPT, WHERE, "source_accuracy")
SMALL = Table(
    paper=Paper("Nobody", "Nobody. Nothing. 2000", ("All is small.",)),
    name="small",
    title="Table 1",
    source="Table 1",
    measure="Accuracy.",
    columns=("source", "target", "gain", "votes"),
    lines=(
        Line("opt", "paper", ("92.4 (0.5)", None, None, None)),
        Line(
            "opt",
            "here",
            (
                CELL,
                dataclasses.replace(CELL, value="target_accuracy"),
                dataclasses.replace(CELL, value="target_accuracy", minus="source_accuracy"),
                dataclasses.replace(CELL, value="votes_needed", kind="number"),
            ),
        ),
        Line("planned by nobody", "here", (None, None, None, "")),
    ),
    differences=("It is invented.",),
)


def opt_row(seed: int, source: float, *, arm: str = "opt", rows: int = 10, **more: Any) -> dict[str, Any]:
    """A row as bench_opt writes it."""
    key, settings = ["a", "b", "sst2", seed, arm], {"rows": rows}
    return {"key": key, "settings": settings, "source_accuracy": source, "test_rows": 100, **more}


def write(folder: Path, *rows: dict[str, Any]) -> Results:
    """Results of a folder with one file."""
    (folder / "opt.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Results(folder)


# ---------------------------------------------------------------------------------------------------- committed files


def test_the_page_and_the_json_are_what_the_committed_results_give() -> None:
    """If it breaks, a figure was typed by hand, or results came without a fresh page: run reproduce.py --render."""
    results = Results(RESULTS)
    assert PAGE.read_text(encoding="utf-8") == render(TABLES, results)
    assert JSON.read_text(encoding="utf-8") == as_json(TABLES, results)


README_OPT = {
    "initial instruction": "0-shot",
    "DLN-1 (not private)": "dln-1",
    "OPT (not private)": "opt",
    "DP-OPT, epsilon 8": "dp-opt 8",
    "DP-OPT, epsilon 1": "dp-opt 1",
}


README_TUNING = {
    "texts in clear": "clear",
    "privatised only": "privatised",
    "with plain tokens, without their loss": "plain",
    "with reconstruction": "reconstruction",
}


def quoted(cell: Cell | None, form: str = ".1f") -> str:
    """A cell as the README writes it."""
    assert cell is not None
    found = COMMITTED.found(cell)
    assert found is not None, cell.where
    return f"{100 * found.mean:{form}}" + (f" ± {100 * found.error:.1f}" if found.error is not None else "")


@pytest.mark.parametrize("task", ["sst2", "agnews", "trec", "amazon"])
def test_the_readme_quotes_what_was_measured_of_dp_icl(task: str) -> None:
    """If it breaks, the README shows accuracies that no row in the results has."""
    methods = ("zero-shot", "single votes", "vote", "dp-icl 1", "dp-icl 3", "dp-icl 8")
    shown = [quoted(reproduce_icl.cell(task, method)) for method in methods]
    shown.append(quoted(reproduce_icl.cell(task, "dp-icl 3", minus="zero-shot"), "+.1f"))
    assert f"| {reproduce_icl.NAMES[task]} | {' | '.join(shown)} |" in README.read_text("utf-8").replace("**", "")


@pytest.mark.parametrize("label", README_OPT)
@pytest.mark.parametrize("writer", reproduce_opt.WRITERS)
def test_the_readme_quotes_what_was_measured_of_dp_opt(writer: str, label: str) -> None:
    """If it breaks, the README shows accuracies that no row in the results has."""
    answers = itertools.product(("sst2", "trec"), ("source", "target"))
    shown = [quoted(reproduce_opt.cell(writer, task, README_OPT[label], on)) for task, on in answers]
    assert f"| {label} | {' | '.join(shown)} |" in README.read_text("utf-8").replace("**", "")


@pytest.mark.parametrize("label", README_OPT)
def test_the_readme_quotes_what_was_measured_on_the_second_target(label: str) -> None:
    """If it breaks, the README shows accuracies that no row in the results has."""
    tasks = ("sst2", "trec", "mpqa")
    shown = [quoted(reproduce_opt.cell("smollm2", task, README_OPT[label], "second")) for task in tasks]
    assert f"| {label} | {' | '.join(shown)} |" in README.read_text("utf-8")


@pytest.mark.parametrize(("label", "arm"), README_TUNING.items())
@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_the_readme_quotes_what_was_measured_of_tuning(method: str, label: str, arm: str) -> None:
    """If it breaks, the README shows accuracies that no row in the results has."""
    replaced = (0.0,) if arm == "clear" else (0.1, 0.15, 0.3)
    shown = [quoted(reproduce_rapt.cell(method, arm, share)) for share in replaced]
    cells = [*shown, "", "", ""] if arm == "clear" else ["", *shown]
    line = f"| {method}, {label} | {' | '.join(cells)} |"
    assert re.sub(" +", " ", line) in README.read_text("utf-8")


def test_the_readme_quotes_what_was_measured_of_the_ablations() -> None:
    """If it breaks, the README shows accuracies that no row in the results has."""
    text = " ".join(README.read_text("utf-8").split())
    said = text[text.index("Nothing that section 4.5") : text.index("single seeds differ")]
    tables = (reproduce_rapt.TABLE_4, reproduce_rapt.TABLE_7, reproduce_rapt.FIGURE_4)
    cells = [
        cell
        for table in tables
        for cell in table.cells()
        if cell.value == "test" and cell.where["replacement"] == 0.15 and cell.where["arm"] == "reconstruction"
    ]
    assert len(cells) == 17
    assert [cell.where for cell in cells if f"{quoted(cell)}" not in said] == []
    fixed = [COMMITTED.found(cell).mean for cell in reproduce_rapt.TABLE_5.cells()]  # type: ignore[union-attr]  # all run
    assert f"five fixed rows {100 * min(fixed):.1f} to {100 * max(fixed):.1f}" in said


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
def test_the_readme_quotes_what_was_measured_of_sanitising(mechanism: str) -> None:
    """If it breaks, the README shows accuracies, or an eta, that no row in the results has."""
    rows = {
        (row["key"][1], row["key"][2]): row
        for row in made.so_far(RESULTS / "sanitized.jsonl")
        if row["key"][0] == "glove"
    }
    some = [rows[None, 0.0], *(rows[mechanism, share] for share in (0.1, 0.3, 0.5, 0.9))]
    shown = [f"{100 * row['accuracy']:.1f} ± {100 * row['standard_error']:.1f}" for row in some]
    etas = [f"{row['eta']:.3g}" for row in some[1:]]
    name = {"exponential": "exponential", "laplace": "metric Laplace"}[mechanism]
    for line in (f"| {name}: accuracy | {' | '.join(shown)} |", f"| {name}: eta | | {' | '.join(etas)} |"):
        assert line in README.read_text("utf-8")


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("released words, metric Laplace", "inversion, words (laplace, "),
        ("released words, exponential", "inversion, words (exponential, "),
        ("noisy vectors, if they were released instead of words", "inversion, noisy vectors ("),
    ],
)
def test_the_readme_quotes_the_better_attacker(label: str, name: str) -> None:
    """If it breaks, the README says that less is guessed than the results show."""
    rows = [row for row in made.so_far(RESULTS / "attacks.jsonl") if row["key"][:2] == ["inversion", "trustpilot"]]
    best = [
        max(row["rate"] for row in rows if row["name"].startswith(name) and row["key"][2] == share)
        for share in (0.1, 0.5, 0.9)
    ]
    shown = [f"{100 * rate:.1f}" for rate in best]
    assert f"| {label} | {' | '.join(shown)} |" in README.read_text("utf-8").replace("**", "")


@pytest.mark.parametrize("mechanism", ["laplace", "exponential"])
def test_the_readme_quotes_what_attackers_guess_of_authors(mechanism: str) -> None:
    """If it breaks, the README shows rates that no row in the results has."""
    rates = {
        (row["key"][1], row["settings"]["mechanism"], row["settings"]["representation"]): row["rate"]
        for row in made.so_far(RESULTS / "attacks.jsonl")
        if row["name"].startswith("attribute inference (gender")
    }
    shares = (0.0, 0.1, 0.5, 0.9)
    pairs = [[rates[share, mechanism if share else "plain", how] for how in ("mean", "contextual")] for share in shares]
    shown = [" / ".join(f"{100 * rate:.1f}" for rate in pair) for pair in pairs]
    name = {"exponential": "exponential", "laplace": "metric Laplace"}[mechanism]
    assert f"| gender, {name} | {' | '.join(shown)} | 50.8 |" in README.read_text("utf-8")


def test_the_picture_is_drawn_from_the_committed_results() -> None:
    """If it breaks, the picture shows figures that nobody measured: run reproduce.py --render."""
    (said,) = re.findall("<dc:description>(.*)</dc:description>", reproduce.PICTURE.read_text(encoding="utf-8"))
    assert json.loads(html.unescape(said)) == reproduce_picture.points(Results(RESULTS))


def test_a_picture_shows_the_larger_error_and_nothing_without_rows(tmp_path: Path) -> None:
    """If it breaks, bars are too short for so few rows, or an empty picture replaces a good one."""
    assert not reproduce_picture.draw(Results(tmp_path), tmp_path / "picture.svg")
    assert not (tmp_path / "picture.svg").exists()
    cell = dataclasses.replace(CELL, seeds=(1, 2))
    results = write(tmp_path, opt_row(1, 0.5), opt_row(2, 0.5))
    assert reproduce_picture._percent(results, cell) == [50.0, 5.0]  # of 100 test rows
    results = write(tmp_path, opt_row(1, 0.3), opt_row(2, 0.7))
    assert reproduce_picture._percent(results, cell) == [50.0, 20.0]


def test_the_committed_results_hold_rows_of_the_shape_that_is_read() -> None:
    """If it breaks, results lie there and the page says "not run" all the same."""
    results = Results(RESULTS)
    for table in TABLES:
        for run in table.runs():
            if (RESULTS / run.out).exists():
                cells = [cell for one in TABLES for cell in one.cells() if cell.run.out == run.out]
                assert any(results.found(cell) for cell in cells), run.out


def test_benchmarks_know_the_options_they_are_called_with() -> None:
    """If it breaks, --run stops at an option that a benchmark does not have."""
    runs = {run for table in TABLES for run in table.runs()}
    assert not {run.script: unknown for run in runs if (unknown := run.unknown_options())}


# ------------------------------------------------------------------------------------------------ figures of the papers


def printed(table: str, label: str) -> list[float]:
    """Figures of the paper in one line, without what stands in brackets."""
    line = next(one for one in BY_NAME[table].lines if one.label == label and one.whose in ("paper", "both"))
    cells = [cell for cell in line.cells if isinstance(cell, str) and cell]
    return [float(cell.split()[0]) for cell in cells]


@pytest.mark.parametrize(
    ("table", "label", "mean"),
    [
        ("dp-opt-2", "DLN-1", 80.4),
        ("dp-opt-2", "OPT", 82.2),
        ("dp-opt-2", "0-shot", 76.3),
        ("dp-opt-2", "DP-OPT, epsilon 8", 81.4),
        ("dp-opt-3", "SST-2: OPT", 92.0),
        ("dp-opt-3", "SST-2: DP-OPT, epsilon 8", 92.0),
        ("dp-opt-3", "Trec: DLN-1", 57.9),
        ("dp-opt-3", "Trec: OPT", 62.2),
        ("dp-opt-3", "Trec: DP-OPT, epsilon 8", 63.8),
        ("dp-opt-3", "Mpqa: DLN-1", 73.2),
        ("dp-opt-3", "Mpqa: OPT", 79.2),
        ("dp-opt-3", "Mpqa: DP-OPT, epsilon 8", 79.8),
        ("dp-opt-3", "Disaster: DLN-1", 68.1),
        ("dp-opt-3", "Disaster: OPT", 62.8),
        ("dp-opt-3", "Disaster: DP-OPT, epsilon 8", 61.8),
        ("rapt-1", "Prompt tuning, privatised", 48.9),
        ("rapt-1", "Prompt tuning, with reconstruction", 59.1),
        ("rapt-1", "Prefix tuning, privatised", 50.1),
        ("rapt-1", "Prefix tuning, with reconstruction", 71.1),
    ],
)
def test_figures_of_the_papers_give_the_averages_that_the_papers_print(table: str, label: str, mean: float) -> None:
    """If it breaks, a figure of a paper was mistyped. The papers' own rounding is up to 0.1 off."""
    assert statistics.fmean(printed(table, label)) == pytest.approx(mean, abs=0.105)


def test_figures_of_the_papers_that_are_not_averaged() -> None:
    """If it breaks, a figure of a paper was mistyped."""
    assert printed("dp-icl-1", "SST-2")[:5] == [91.0, 95.06, 95.8, 95.92, 96.05]
    assert printed("dp-icl-1", "Amazon")[:5] == [91.0, 93.83, 94.18, 94.25, 94.26]
    assert printed("dp-icl-1", "AGNews")[:5] == [46.0, 73.16, 78.98, 79.77, 81.43]
    assert printed("dp-icl-1", "TREC")[:5] == [20.0, 25.83, 26.75, 27.18, 28.42]
    for task in ("SST-2", "Amazon", "AGNews", "TREC"):
        without, _, three, _, _, gain = printed("dp-icl-1", task)
        assert gain == pytest.approx(three - without)
    assert printed("dp-icl-2", "DP-ICL (4-shot)") == printed("dp-icl-1", "SST-2")[2:5]
    assert printed("dp-icl-2", "DP-ICL (16-shot)") == [91.64, 96.32, 96.13]
    assert printed("dp-opt-3", "SST-2: DLN-1") == [92.8, 92.5, 93.5, 93.3, 92.7]
    for task in ("SST-2", "Trec", "Mpqa", "Disaster"):
        source, first, gain, second, more = printed("dp-opt-1", f"{task}: Vicuna-7b, Llama-2-70b, DaVinci-003")
        assert printed("dp-opt-3", f"{task}: DLN-1")[::3] == [source, first]
        # One gain of the paper's table is rounded from figures that are not printed.
        assert (gain, more) == pytest.approx((first - source, second - source), abs=0.41)
    assert printed("rapt-4", "GPT-2") == [0.15, 60, 85.3]
    assert printed("rapt-5", "BERT-base") == [76.1, 76.2, 75.8, 76.3, 76.1]
    for arm in ("privatised", "with reconstruction"):
        line = next(one for one in BY_NAME["rapt-7"].lines if one.label == f"10 vectors, {arm}")
        assert [float(str(cell)) for cell in line.cells[1:]] == printed("rapt-1", f"Prefix tuning, {arm}")


def test_every_figure_of_a_paper_is_on_the_page() -> None:
    """If it breaks, the page shows ours without theirs."""
    page = render(TABLES, Results(Path("no such folder")))
    for table in TABLES:
        section = page.split(f", {table.title}\n\n", 1)[1].split("\n### ", 1)[0]
        figures = [cell for line in table.lines for cell in line.cells if isinstance(cell, str)]
        assert all(figure in section for figure in figures)
        assert table.source in section
        assert all(sentence in page for sentence in (*table.differences, *table.paper.differences))


# -------------------------------------------------------------------------------------------------------------- cells


def test_without_results_no_cell_of_ours_has_a_figure(tmp_path: Path) -> None:
    """If it breaks, the page shows a figure that nothing has measured."""
    for table in json.loads(as_json(TABLES, Results(tmp_path))):
        for line in table["lines"]:
            ours = [cell for cell in line["cells"] if line["whose"] == "here"]
            assert all(cell in ("", None) or cell["state"] == NOT_RUN for cell in ours)
    lines = [line.split(" | ") for line in render(TABLES, Results(tmp_path)).splitlines() if " | here | " in line]
    assert len(lines) > 40
    assert {cell.strip(" |") for line in lines for cell in line[2:]} == {NOT_RUN, ""}


def test_a_cell_is_mean_and_standard_error_over_seeds(tmp_path: Path) -> None:
    """If it breaks, the page shows another spread than it says, or mixes up arms, settings or seeds."""
    results = write(
        tmp_path,
        opt_row(1, 0.70, target_accuracy=0.5, certificate={"votes_needed": 54}),
        opt_row(2, 0.80, target_accuracy=0.7),
        opt_row(3, 0.90),
        opt_row(4, 0.10),
        opt_row(1, 0.20, arm="dln-1"),
        opt_row(1, 0.30, rows=20),
    )
    cells = SMALL.lines[1].cells
    texts = [shown(cell, results.found(cell)) for cell in cells if isinstance(cell, Cell)]
    # deviations of 10 points over 3 seeds; of 14.1 over 2; gains of -20 and -10
    assert texts == ["80.0 ± 5.8 (n = 3)", "60.0 ± 10.0 (n = 2)", "-15.0 ± 5.0 (n = 2)", "54 (n = 1)"]


def test_one_seed_gives_the_error_over_rows_and_says_so(tmp_path: Path) -> None:
    """If it breaks, one run looks like several."""
    results = write(tmp_path, opt_row(2, 0.80))
    assert shown(CELL, results.found(CELL)) == "80.0 (n = 1, ± 4.0 over 100 rows)"


def test_a_prompt_that_was_left_out_has_no_figure_and_is_not_asked_for_again(tmp_path: Path) -> None:
    """If it breaks, every call of the reproduction begins with a run that has nothing to do."""
    first, second, third = opt_row(1, 0.70), opt_row(2, 0.80), opt_row(3, 0.80)
    results = write(tmp_path, first, second)
    assert CELL in results.missing(CELL.run, [SMALL])
    results = write(tmp_path, first, second, {**third, "left_out": "its words"})
    assert CELL not in results.missing(CELL.run, [SMALL])
    assert shown(CELL, results.found(CELL)) == "75.0 ± 5.0 (n = 2)"


def test_a_seed_that_was_measured_twice_is_an_error(tmp_path: Path) -> None:
    """If it breaks, a mean counts one seed twice."""
    with pytest.raises(ValueError, match=r"one row for every seed .* found seeds \[1, 1\]"):
        write(tmp_path, opt_row(1, 0.70), opt_row(1, 0.80)).found(CELL)


def test_the_page_says_when_from_which_commit_and_with_what(tmp_path: Path) -> None:
    """If it breaks, nobody can tell how a figure was made."""
    first = opt_row(1, 0.70, made="2026-11-22", commit="0123456789ab")
    page = render([SMALL], write(tmp_path, first, opt_row(2, 0.80)))
    assert "made 2026-11-22, not recorded; commit 0123456789ab, not recorded; source a, rows 10." in page
    assert "| opt | here | 75.0 ± 5.0 (n = 2) | not run | not run | not run |" in page
    assert "| planned by nobody | here | not run | not run | not run |  |" in page
    assert "| opt | paper | 92.4 (0.5) |  |  |  |" in page
    assert "| [Nobody, Table 1](#nobody-table-1) | 0 | 1 | 7 |" in page
    found = json.loads(as_json([SMALL], Results(tmp_path)))[0]["lines"][1]["cells"][0]
    assert found["seeds"] == [1, 2]
    assert (found["mean"], found["standard_error"]) == pytest.approx((0.75, 0.05))
    assert found["made"] == ["2026-11-22", "not recorded"]


def test_a_hand_edited_page_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the comparison above lets a typed figure pass."""
    monkeypatch.setattr(reproduce, "TABLES", (SMALL,))
    results = write(tmp_path, opt_row(1, 0.70), opt_row(2, 0.80))
    page, found = tmp_path / "page.md", tmp_path / "tables.json"
    written = ["--page", str(page), "--json", str(found), "--picture", str(tmp_path / "picture.svg")]
    assert reproduce.main(["--render", "--results", str(tmp_path), *written]) == 0
    text = page.read_text(encoding="utf-8")
    assert text == render([SMALL], results)
    assert text.replace("75.0 ± 5.0", "95.0 ± 5.0") != render([SMALL], results)
    assert found.read_text(encoding="utf-8") == as_json([SMALL], results)


def test_what_is_said_of_a_table_comes_in_sentences() -> None:
    """If it breaks, a comma is missing and the page lists letters."""
    for table in TABLES:
        assert all(len(sentence.split()) > 2 for sentence in (*table.differences, *table.paper.differences))


def test_rows_of_tuning_stand_for_what_they_leave_out() -> None:
    """If it breaks, an ablation's row is taken for the main arm, or the seed 0 of a search for a result."""
    key = {"method": "prefix", "seed": 1, "rows": 1, "tokens": 1, "batch": 1, "epochs": 1, "mechanism": "m", "rate": 1}
    key |= {"choice": "fresh", "reduction": "mean", "replacement": 0.15}
    row = {"key": key, "test": 0.8, "eta": None, "parameters": 5}
    (plain,) = reproduce_rows._tuning(row)
    (glove,) = reproduce_rows._tuning({**row, "key": {**key, "table": "glove"}})
    assert (plain.what["table"], plain.what["plain_seed"], glove.what["table"]) == ("minilm", 0, "glove")
    assert plain.values == {"test": 0.8, "parameters": 5, "replacement": 0.15}
    assert 0 not in BY_NAME["rapt-1"].cells()[0].seeds


# ------------------------------------------------------------------------------------------------------------ running

BENCH = """
import json, signal, sys
out, arm = sys.argv[sys.argv.index("--out") + 1], sys.argv[1]
if arm == "fails": sys.exit(3)
if arm == "waits": signal.pause()
row = {"key": ["a", "b", "sst2", 1, arm], "settings": {"rows": 10}, "source_accuracy": 0.5, "test_rows": 9}
with open(out, "a") as file: file.write(json.dumps(row) + "\\n")
"""


def table_of(*arms: str) -> Table:
    """A table with one run and one cell for every arm."""
    cells = (
        Cell(Run("bench_opt.py", "opt.jsonl", (arm,), 1), {**WHERE, "arm": arm}, "source_accuracy", seeds=(1,))
        for arm in arms
    )
    return dataclasses.replace(SMALL, columns=arms, lines=(Line("", "here", tuple(cells)),))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """A folder whose benchmark does what its first option says."""
    monkeypatch.setattr(reproduce, "HERE", tmp_path)
    monkeypatch.setattr(reproduce_rows, "HERE", tmp_path)
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    (tmp_path / "bench_opt.py").write_text(BENCH, encoding="utf-8")
    return argparse.Namespace(results=tmp_path / "results", minutes=None, threads=None)


def arms(options: argparse.Namespace) -> list[str]:
    lines = (options.results / "opt.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["key"][4] for line in lines]


def test_what_is_missing_is_run_and_nothing_twice(bench: argparse.Namespace, capfd: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a restart begins anew, or one failure keeps the other tables from being made."""
    assert not reproduce.run_missing([table_of("one", "fails", "two")], bench)
    assert arms(bench) == ["one", "two"]
    assert "bench_opt.py ended with 3" in capfd.readouterr().err
    assert reproduce.run_missing([table_of("one", "three", "two")], bench)
    assert arms(bench) == ["one", "two", "three"]
    assert "[1/1] bench_opt.py three" in capfd.readouterr().err


def test_time_that_is_over_ends_a_run_without_an_error(bench: argparse.Namespace) -> None:
    """If it breaks, --minutes does not bound the call, or begins another run after it."""
    bench.minutes = 0.001
    assert reproduce.run_missing([table_of("waits", "two")], bench)
    assert not (bench.results / "opt.jsonl").exists()


def test_an_option_that_a_benchmark_lacks_is_said_and_not_tried(
    bench: argparse.Namespace, capfd: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, a benchmark ends with a usage text in the middle of the night."""
    assert not reproduce.run_missing([table_of("--arms")], bench)
    assert "does not know --arms: left out" in capfd.readouterr().err
    assert "does not know --arms" in reproduce.listing([table_of("--arms")], bench.results)


def test_states_and_privatised_rows_are_left_where_git_does_not_see_them(bench: argparse.Namespace) -> None:
    """If it breaks, privatised training rows could be committed."""
    reproduce.run_missing([table_of("one")], bench)
    work = bench.results.with_name("results.work")
    assert (work / ".gitignore").read_text(encoding="utf-8") == "*\n"


# ---------------------------------------------------------------------------------------------- bench_accuracy, made.py


class OpenedEngine(VotingEngine):
    """An engine that counts how often one was opened."""

    opened = 0

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        type(self).opened += 1

    def __enter__(self) -> OpenedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def write_sst2(folder: Path) -> None:
    """Forty private rows, all positive but one, and four questions, all but one."""
    (folder / "sst2").mkdir()
    for part, labels in (("train", ["positive"] * 39 + ["negative"]), ("test", ["positive"] * 3 + ["negative"])):
        rows = [{"text": f"{part} {i} {CANARY}", "label": label} for i, label in enumerate(labels)]
        (folder / "sst2" / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def test_bench_accuracy_goes_on_where_it_stopped_and_keeps_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, a finished arm is measured again, a row cannot be read, or results hold private text."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    OpenedEngine.opened = 0
    write_sst2(tmp_path)
    out = tmp_path / "out.jsonl"
    monkeypatch.setattr(bench_accuracy, "LlamaCppEnsemble", OpenedEngine)
    monkeypatch.setattr(bench_accuracy, "NOISE_RUNS", 3)
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    command = ["bench_accuracy.py", "--tasks", "sst2", "--queries", "5", "--more-queries", "2", "--thin", "4"]
    command += ["--together", "3"]
    for seeds in (["1"], ["1", "2"]):
        monkeypatch.setattr(sys, "argv", [*command, "--seeds", *seeds, "--out", str(out)])
        bench_accuracy.main()
    assert OpenedEngine.opened == 2
    text = out.read_text(encoding="utf-8")
    assert CANARY not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["key"]["seed"] for row in rows] == [1, 2]
    assert all(row["made"] and row["commit"] for row in rows)
    found = {one.what["method"]: one for one in reproduce_rows._accuracy(rows[0])}
    # Every subset but one has positive examples only; three of four questions are positive.
    assert found["vote"].values["accuracy"] == 0.75
    assert {"zero-shot", "single votes", "dp-icl 1", "dp-icl 3", "dp-icl 8"} < set(found)
    sigmas = {name: one.values.get("sigma") for name, one in found.items()}
    assert sigmas["vote"] is None
    assert sigmas["dp-icl 3"] > sigmas["dp-icl 3, 2 queries"]
    assert sigmas["dp-icl 3"] > sigmas["dp-icl 3, 4 subsets"]
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 3 * len(found)
    assert {"task", "method", "accuracy", "standard_error", "n", "sigma", "subsets"} <= set(printed[0])


def test_a_second_target_answers_each_prompt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, prompts are scored on other rows or twice, or one without its words stands for the whole.

    The server, its model and the chat model are real.
    """
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    import bench_targets
    from langchain_dp.integrations.llama_cpp import embedded_model_path

    write_sst2(tmp_path)
    kept, other, withheld = (
        "Say whether a film was liked.",
        "Positive or negative?",
        "As in [7 words of a training row]:",
    )
    written = [("opt", 1, kept), ("dp-opt 8", 1, kept), ("dln-1", 1, withheld), ("dln-1", 2, other)]
    (tmp_path / "opt.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "key": ["smollm2", "gemma", "sst2", seed, arm],
                    "settings": {"rows": 400, "target_rows": 200},
                    "instruction": instruction,
                    "source_accuracy": 0.5,
                }
            )
            + "\n"
            for arm, seed, instruction in written
        ),
        encoding="utf-8",
    )
    out = tmp_path / "targets.jsonl"
    asked = []
    evaluate = bench_targets.evaluate_prompt

    def counting(template: Any, model: Any, rows: Any, *rest: Any, **more: Any) -> Any:
        asked.append((template.format_messages(text="x")[0].content, len(rows)))
        return evaluate(template, model, rows, *rest, **more)

    monkeypatch.setattr(bench_targets, "evaluate_prompt", counting)
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    command = ["bench_targets.py", "--prompts", "opt.jsonl", "--model", str(embedded_model_path()), "--name", "third"]
    monkeypatch.setattr(sys, "argv", [*command, "--target-rows", "3", "--threads", "1", "--out", str(out)])
    bench_targets.main()
    left_out, *rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["key"] for row in (*rows, left_out)] == [
        ["smollm2", "third", "sst2", seed, arm] for arm, seed, _ in (written[0], written[1], written[3], written[2])
    ]
    assert "target_accuracy" not in left_out
    assert [one.left_out for one in reproduce_rows.READERS["bench_targets.py"](left_out)] == [left_out["left_out"]]
    assert [kept in asked[0][0], other in asked[1][0]] == [True, True]
    assert [number for _, number in asked] == [3, 3]
    assert all(row["target_answered"] == 1 and row["settings"]["target_rows"] == 3 for row in rows)
    assert rows[0]["target_accuracy"] == rows[1]["target_accuracy"]
    found = next(reproduce_rows.READERS["bench_targets.py"](rows[0]))
    assert (found.what["target"], found.rows) == ("third", 3)
    bench_targets.main()
    assert len(asked) == 2
    assert CANARY not in out.read_text(encoding="utf-8") + capsys.readouterr().out


def test_rows_of_accuracy_are_those_that_the_tables_ask_for() -> None:
    """If it breaks, the benchmark writes rows that no cell takes."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    written = {"task", "seed", "shots", "subsets", "model", *bench_accuracy.SETTINGS}
    cells = [cell for table in TABLES for cell in table.cells() if cell.run.script == "bench_accuracy.py"]
    assert {name for cell in cells for name in cell.where} == written - {"seed"} | {"method"}
    assert {cell.where["task"] for cell in cells} == set(bench_accuracy.TASKS)


def test_questions_that_share_a_draw_are_one_measurement() -> None:
    """If it breaks, ten questions that met the same subsets are shown with the error of ten independent ones."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    together, alone = bench_accuracy._line("vote", [[0, 0], [1, 1]], {}), bench_accuracy._line("vote", [[0], [1]], {})
    assert together["standard_error"] == alone["standard_error"] == 0.5
    assert (together["n"], alone["n"], together["accuracy"]) == (4, 2, 0.5)


@pytest.mark.parametrize(("together", "draws"), [(1, 4), (3, 2), (10, 1)])
def test_so_many_questions_share_a_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, draws: int
) -> None:
    """If it breaks, the results say how often subsets were drawn, and they were drawn more or less often."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    drawn = []
    draw = Electorate.draw
    monkeypatch.setattr(Electorate, "draw", lambda self, asked: drawn.append(asked) or draw(self, asked))
    monkeypatch.setattr(bench_accuracy, "LlamaCppEnsemble", OpenedEngine)
    monkeypatch.setattr(bench_accuracy, "NOISE_RUNS", 1)
    write_sst2(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["bench_accuracy.py", "--tasks", "sst2", "--together", str(together), "--queries", "5"]
    )
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bench_accuracy.main()
    assert len(drawn) == draws
    row = json.loads((tmp_path / "bench_accuracy.jsonl").read_text(encoding="utf-8"))
    assert row["key"]["together"] == together
    assert all(line["n"] == 4 for line in row["methods"])


@pytest.mark.statistical
def test_thinned_votes_are_a_share_of_all() -> None:
    """If it breaks, fewer subsets are accounted for than are counted. False alarms: below 1e-8."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import bench_accuracy

    assert bench_accuracy._thinned([1, 0], 1) == [1, 0]
    assert abs(len(bench_accuracy._thinned([0] * 4_000, 0.25)) - 1_000) < 165  # six standard deviations


def test_a_commit_is_named_and_changes_are_marked(tmp_path: Path) -> None:
    """If it breaks, results name a commit that they were not made from."""
    assert made.commit_of(tmp_path) == made.UNKNOWN

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    source = tmp_path / "langchain_dp" / "a.py"
    source.parent.mkdir()
    source.write_text("A = 1\n", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--no-verify", "-m", "first")
    name = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "other.txt").write_text("none of the sources", encoding="utf-8")
    assert made.commit_of(tmp_path) == name
    source.write_text("A = 2\n", encoding="utf-8")
    assert made.commit_of(tmp_path) == f"{name}+"
