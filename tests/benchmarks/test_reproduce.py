"""The reproduction of the papers' tables: the page holds what the result files hold, and the papers' figures."""

from __future__ import annotations

import argparse
import dataclasses
import html
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import codes_picture
import layers_picture
import reproduce
import reproduce_picture
import reproduce_rows
from reproduce import JSON, PAGE, TABLES
from reproduce_claims import CLAIMS, claims
from reproduce_page import NOT_RUN, as_json, render, shown
from reproduce_prompts import prompts
from reproduce_rows import RESULTS, Cell, Line, Paper, Results, Run, Table

BY_NAME = {table.name: table for table in TABLES}
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
    assert PAGE.read_text(encoding="utf-8") == render(TABLES, results, claims(results), prompts(results))
    assert JSON.read_text(encoding="utf-8") == as_json(TABLES, results)


def test_every_claim_has_its_figures() -> None:
    """If it breaks, a claim of a paper is judged by figures that nobody measured, or by none where some are quoted."""
    for claim in CLAIMS:
        assert claim.why.count("{}") == len(claim.cells), claim.says
        assert NOT_RUN not in claim.line(COMMITTED), claim.says
        assert bool(claim.cells) or claim.verdict == "not testable here", claim.says
    assert {claim.paper for claim in CLAIMS} == {table.paper.name for table in TABLES}


def test_the_picture_is_drawn_from_the_committed_results() -> None:
    """If it breaks, the picture shows figures that nobody measured: run reproduce.py --render."""
    (said,) = re.findall("<dc:description>(.*)</dc:description>", reproduce.PICTURE.read_text(encoding="utf-8"))
    assert json.loads(html.unescape(said)) == reproduce_picture.points(Results(RESULTS))
    for name, drawn in (("codes", codes_picture.bars(RESULTS)), ("layers", layers_picture.distances(RESULTS))):
        text = reproduce.PICTURE.with_name(f"{name}.svg").read_text(encoding="utf-8")
        (said,) = re.findall("<dc:description>(.*)</dc:description>", text)
        assert drawn
        assert json.loads(html.unescape(said)) == drawn


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
        ("rapt-1", "Prompt tuning, privatized", 48.9),
        ("rapt-1", "Prompt tuning, with reconstruction", 59.1),
        ("rapt-1", "Prefix tuning, privatized", 50.1),
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
    for arm in ("privatized", "with reconstruction"):
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
    assert text == render([SMALL], results, claims(results), prompts(results))
    assert text.replace("75.0 ± 5.0", "95.0 ± 5.0") != render([SMALL], results, claims(results), prompts(results))
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


def test_states_and_privatized_rows_are_left_where_git_does_not_see_them(bench: argparse.Namespace) -> None:
    """If it breaks, privatized training rows could be committed."""
    reproduce.run_missing([table_of("one")], bench)
    work = bench.results.with_name("results.work")
    assert (work / ".gitignore").read_text(encoding="utf-8") == "*\n"
