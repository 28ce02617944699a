"""The reproduction: the page holds the figures of the result files and of the papers, and the rule decides verdicts."""

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
import accuracy_picture
import codes_picture
import layers_picture
import reproduce
import reproduce_opt
import reproduce_rapt
import reproduce_rows
from reproduce import PAGE, PAPERS
from reproduce_claims import NOT_FAIR, Claim, Trial, above, beats, judged, moves, never, shown
from reproduce_page import Line, Table, render
from reproduce_rows import RESULTS, Cell, Found, Results, Run

CELLS = [cell for paper in PAPERS for cell in paper.cells()]
CLAIMS = [(paper.name, claim) for paper in PAPERS for claim in paper.claims]
BY_NAME = {table.name: table for paper in PAPERS for table in paper.tables}
OPT = Run("bench_opt.py", "opt.jsonl", (), 1)
WHERE = {"source": "a", "arm": "opt", "rows": 10}
CELL = Cell(OPT, WHERE, "source_accuracy")
TARGET = dataclasses.replace(CELL, value="target_accuracy")
FIRST = Cell(OPT, {**WHERE, "arm": "0-shot"}, "source_accuracy", seeds=(1,))


def opt_row(seed: int, source: float, *, arm: str = "opt", rows: int = 10, **more: Any) -> dict[str, Any]:
    """A row as bench_opt writes it."""
    key, settings = ["a", "b", "sst2", seed, arm], {"rows": rows}
    return {"key": key, "settings": settings, "source_accuracy": source, "test_rows": 100, "instruction": arm, **more}


def write(folder: Path, *rows: dict[str, Any], name: str = "opt.jsonl") -> Results:
    """Results of a folder with one more file."""
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Results(folder)


# ---------------------------------------------------------------------------------------------------- committed files


def test_the_page_is_what_the_committed_results_give() -> None:
    """If it breaks, a figure was typed by hand, or results came without a new page: run reproduce.py --render."""
    assert PAGE.read_text(encoding="utf-8") == render(PAPERS, Results(RESULTS))


def test_the_page_is_short_and_opens_with_the_claims() -> None:
    """If it breaks, a reader has to search for the verdicts."""
    page = PAGE.read_text(encoding="utf-8")
    first = page.split("## Claims\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    assert len(first) <= 40
    assert len(first) == 2 + len(CLAIMS)
    assert page.index("## Claims") < page.index("## DP-ICL")
    assert len(page.split()) <= 6_000


def test_the_pictures_are_drawn_from_the_committed_results() -> None:
    """If it breaks, a picture shows figures that nobody measured: run reproduce.py --render."""
    for name, drawn in (
        ("accuracy", accuracy_picture.points(Results(RESULTS))),
        ("codes", codes_picture.bars(RESULTS)),
        ("layers", layers_picture.distances(RESULTS)),
    ):
        text = reproduce.PICTURE.with_name(f"{name}.svg").read_text(encoding="utf-8")
        (description,) = re.findall("<dc:description>(.*)</dc:description>", text)
        assert drawn
        assert json.loads(html.unescape(description)) == drawn


def test_a_picture_without_rows_replaces_no_other(tmp_path: Path) -> None:
    """If it breaks, an empty picture replaces a good one."""
    assert not accuracy_picture.draw(Results(tmp_path), tmp_path / "picture.svg")
    assert not (tmp_path / "picture.svg").exists()


def test_the_committed_results_hold_rows_of_the_shape_that_is_read() -> None:
    """If it breaks, rows exist and the page says that there are none."""
    results = Results(RESULTS)
    for name in {cell.run.out for cell in CELLS}:
        if (RESULTS / name).exists():
            assert any(results.found(cell) for cell in CELLS if cell.run.out == name), name


def test_benchmarks_know_the_options_they_are_called_with() -> None:
    """If it breaks, --run stops at an option that a benchmark does not have."""
    for run in {cell.run for cell in CELLS}:
        source = (reproduce_rows.HERE / run.script).read_text(encoding="utf-8")
        assert [part for part in run.options if part.startswith("--") and f'"{part}"' not in source] == []


def test_the_page_names_the_arms_of_the_frozen_head() -> None:
    """If it breaks, rows of bench_frozen_head are not found."""
    pytest.importorskip("peft")
    import bench_frozen_head

    assert bench_frozen_head.ARMS == reproduce_rapt.FROZEN_ARMS
    assert {cell.where["task"] for cell in CELLS if cell.run.out == "rapt_frozen.jsonl"} <= set(bench_frozen_head.TASKS)


def test_public_lessons_share_no_row_with_private_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the frozen model has learned the labels that a prompt is tuned and tested on."""
    pytest.importorskip("peft")
    import bench_frozen_head

    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    for task in ("amazon", "sst2"):
        (tmp_path / task).mkdir()
        for part in ("train", "test"):
            rows = [{"text": f"{part} {number}", "label": "positive"} for number in range(10)]
            write(tmp_path / task, *rows, name=f"{part}.jsonl")
    options = argparse.Namespace(task="amazon", rows=3, test_rows=2)
    for seed, count in ((bench_frozen_head.TRIAL, 2), (1, 2)):
        rows, asked = ([row["text"] for row in part] for part in bench_frozen_head.split(seed, options))
        assert {text.split()[1] for text in rows} < {"1", "3", "5", "7", "9"}
        assert (len(rows), len(asked), set(rows) & set(asked)) == (3, count, set())
        assert all(text.startswith("test") or text.split()[1] in "13579" for text in asked)
    other = argparse.Namespace(task="sst2", rows=10, test_rows=2)  # its lessons are of other data
    assert len({row["text"] for row in bench_frozen_head.split(1, other)[0]}) == 10


# ------------------------------------------------------------------------------------------------ figures of the papers


def printed(table: str, label: str) -> list[float]:
    """Figures of the paper in one line, without those in brackets."""
    line = next(one for one in BY_NAME[table].lines if one.label == label)
    return [float(cell.removeprefix("about ").split()[0]) for cell in line.cells if isinstance(cell, str) and cell]


def test_figures_of_dp_opt_agree_with_others_that_it_prints() -> None:
    """If it breaks, a figure of the paper was mistyped."""
    private = [printed("dp-opt-2", f"{task}: paper, Vicuna-7b")[-1] for task in reproduce_opt.TASKS]
    assert private == [89.5, 65.3, 80.7, 65.6]  # Table 9
    for arm, mean in (("0-shot", 76.3), ("DLN-1", 80.4)):  # averages of Table 2
        found = [printed("dp-opt-1", f"{task}: {arm}")[-1] for task in reproduce_opt.TASKS]
        assert statistics.fmean(found) == pytest.approx(mean, abs=0.105)


@pytest.mark.parametrize(
    ("label", "mean"),
    [
        ("Prompt, privatized: paper", 48.9),
        ("Prompt, reconstruction: paper", 59.1),
        ("Prefix, privatized: paper", 50.1),
        ("Prefix, reconstruction: paper", 71.1),
    ],
)
def test_figures_of_rapt_give_the_averages_that_it_prints(label: str, mean: float) -> None:
    """If it breaks, a figure of the paper was mistyped."""
    assert statistics.fmean(printed("rapt-1", label)) == pytest.approx(mean, abs=0.105)


def test_figures_of_the_papers_that_are_not_averaged() -> None:
    """If it breaks, a figure of a paper was mistyped."""
    assert printed("dp-icl-1", "SST-2: paper") == [91.0, 95.06, 95.8, 95.92, 96.05]
    assert printed("dp-icl-1", "Amazon: paper") == [91.0, 93.83, 94.18, 94.25, 94.26]
    assert printed("dp-icl-1", "AGNews: paper") == [46.0, 73.16, 78.98, 79.77, 81.43]
    assert printed("dp-icl-1", "TREC: paper") == [20.0, 25.83, 26.75, 27.18, 28.42]
    assert printed("dp-icl-2", "4 shots: paper") == printed("dp-icl-1", "SST-2: paper")[2:]
    assert printed("dp-icl-2", "16 shots: paper") == [91.64, 96.32, 96.13]
    assert printed("dp-opt-2", "Disaster: paper, Vicuna-7b") == [67.4, 65.6]
    assert printed("dp-opt-soft", "PromptSGD: paper, Vicuna-7b") == [93.7, 56.1, 88.1, 79.4]
    assert printed("rapt-4", "RoBERTa: paper") == [0.14, 50, 84.6]
    assert printed("rapt-1", "Prefix, clear: paper") == [90.6] * 3


# -------------------------------------------------------------------------------------------------------------- cells


def test_a_cell_is_mean_and_standard_error_over_seeds(tmp_path: Path) -> None:
    """If it breaks, the page shows another error than it states, or mixes up arms, settings or seeds."""
    results = write(
        tmp_path,
        opt_row(1, 0.70, target_accuracy=0.5),
        opt_row(2, 0.80, target_accuracy=0.7),
        opt_row(3, 0.90),
        opt_row(4, 0.10),
        opt_row(1, 0.20, arm="dln-1"),
        opt_row(1, 0.30, rows=20),
    )
    # Deviations are 10 points over 3 seeds, and 14.1 over 2.
    assert [shown(results.found(cell)) for cell in (CELL, TARGET)] == ["80.0 ± 5.8", "60.0 ± 10.0 (2)"]
    assert shown(results.difference(TARGET, CELL), sign="+") == "-15.0 ± 5.0 (2)"


def test_one_seed_gives_the_error_over_rows(tmp_path: Path) -> None:
    """If it breaks, one run looks like several, or looks exact."""
    results = write(tmp_path, opt_row(2, 0.80, target_accuracy=0.5))
    assert shown(results.found(CELL)) == "80.0 ± 4.0 (1)"
    assert shown(results.difference(CELL, TARGET), sign="+") == "+30.0 ± 6.4 (1)"  # of two independent sets of rows


def test_the_initial_instruction_is_compared_with_every_seed(tmp_path: Path) -> None:
    """If it breaks, two of three seeds are lost in a difference from an arm without a seed."""
    results = write(tmp_path, opt_row(1, 0.5, arm="0-shot"), *(opt_row(seed, 0.6 + 0.1 * seed) for seed in (1, 2, 3)))
    assert shown(results.difference(CELL, FIRST), sign="+") == "+30.0 ± 5.8"


def test_a_prompt_that_was_left_out_has_no_figure_and_is_not_asked_for_again(tmp_path: Path) -> None:
    """If it breaks, every call of the reproduction begins with a run that has nothing to do."""
    first, second, third = opt_row(1, 0.70), opt_row(2, 0.80), opt_row(3, 0.80)
    assert write(tmp_path, first, second).missing(OPT, [CELL]) == [CELL]
    results = write(tmp_path, first, second, {**third, "left_out": "its words"})
    assert results.missing(OPT, [CELL]) == []
    assert shown(results.found(CELL)) == "75.0 ± 5.0 (2)"


def test_a_seed_that_was_measured_twice_is_an_error(tmp_path: Path) -> None:
    """If it breaks, a mean counts one seed twice."""
    with pytest.raises(ValueError, match=r"one row for every seed .* found seeds \[1, 1\]"):
        write(tmp_path, opt_row(1, 0.70), opt_row(1, 0.80)).found(CELL)


def test_rows_of_tuning_hold_the_defaults_that_they_leave_out() -> None:
    """If it breaks, an ablation's row is taken for the main arm, or the seed 0 of a search for a result."""
    key = {"method": "prefix", "seed": 1, "replacement": 0.15}
    row = {"key": key, "test": 0.8, "eta": None, "parameters": 5}
    (plain,) = reproduce_rows._tuning(row)
    (glove,) = reproduce_rows._tuning({**row, "key": {**key, "table": "glove"}})
    assert (plain.what["table"], plain.what["plain_seed"], glove.what["table"]) == ("minilm", 0, "glove")
    assert plain.values == {"test": 0.8, "parameters": 5, "replacement": 0.15}
    assert all(0 not in cell.seeds for cell in CELLS)


# ----------------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("mean", "error", "least", "verdict"),
    [
        (0.021, 0.01, 0.0, "shown"),
        (0.019, 0.01, 0.0, "undecided"),
        (-0.019, 0.01, 0.0, "undecided"),
        (-0.021, 0.01, 0.0, "contradicted"),
        (-0.005, 0.007, -0.02, "shown"),
        (-0.005, 0.008, -0.02, "undecided"),
        (-0.05, 0.01, -0.02, "contradicted"),
        (0.0, 0.0, 0.0, "undecided"),
    ],
)
def test_the_rule_wants_two_standard_errors_from_the_bound(
    mean: float, error: float, least: float, verdict: str
) -> None:
    """If it breaks, noise is called a result, or a result noise."""
    assert judged(Found(mean, error, None, None, (1, 2, 3)), least) == verdict


def test_a_trial_that_could_not_show_its_effect_has_no_verdict(tmp_path: Path) -> None:
    """If it breaks, "contradicted" is printed of an arm in which nothing could have happened."""
    results = write(tmp_path, *(opt_row(seed, 0.7, target_accuracy=0.9) for seed in (1, 2, 3)))
    trials = {check: Trial("A", above(CELL, check), TARGET, CELL) for check in (0.65, 0.75)}
    assert [trial.verdict(results) for trial in trials.values()] == ["shown", NOT_FAIR]
    claim = Claim("Table 1", "it helps", "clear arm above 75", (trials[0.75],))
    line = "| Nobody Table 1 | it helps | no: clear arm above 75: 70.0 ± 0.0 (fails) |  | not tested fairly yet |"
    assert claim.line("Nobody", results) == line
    assert Trial("", never("no model"), TARGET, CELL).verdict(results) == NOT_FAIR


def test_a_line_names_the_data_sets_that_were_tested_fairly(tmp_path: Path) -> None:
    """If it breaks, a claim looks tested on data on which it was not."""
    results = write(tmp_path, *(opt_row(seed, 0.7, target_accuracy=0.9) for seed in (1, 2, 3)))
    trials = (Trial("A", beats(TARGET, CELL), TARGET, CELL), Trial("B", beats(CELL, TARGET), TARGET, CELL))
    line = Claim("Table 1", "it helps", "gain", trials).line("Nobody", results)
    assert "| in part: gain: A +20.0 ± 0.0, B -20.0 ± 0.0 (fails) | A +20.0 ± 0.0 |" in line
    assert line.endswith("| shown: A. not tested fairly yet: B |")


def test_prompts_that_repeat_the_initial_instruction_are_counted(tmp_path: Path) -> None:
    """If it breaks, a copy of the initial instruction is judged as a written prompt."""
    first = opt_row(1, 0.5, arm="0-shot", instruction="Classify.")
    rows = [opt_row(seed, 0.5, instruction=text) for seed, text in ((1, "Classify.\n"), (2, "Sort."), (3, "Classify."))]
    assert moves(OPT, "opt")(write(tmp_path, first, *rows)) == (False, "1 of 3")
    assert moves(OPT, "opt")(write(tmp_path, first, *rows[:2])) == (True, "1 of 2")
    assert moves(OPT, "opt", task="trec")(Results(tmp_path)) == (False, "no rows yet")


def test_without_results_no_claim_has_a_verdict_and_no_table_a_figure(tmp_path: Path) -> None:
    """If it breaks, the page shows a figure that nothing has measured."""
    results = Results(tmp_path)
    assert all(claim.line(name, results).endswith(f"|  | {NOT_FAIR} |") for name, claim in CLAIMS)
    page = render(PAPERS, results)
    assert page.count("No rows yet: ") == len(BY_NAME)
    assert " ± " not in page.split("## Claims")[1].split("\n## ")[0]


def test_a_table_is_left_out_until_its_check_is_met(tmp_path: Path) -> None:
    """If it breaks, a reader takes figures for a result that they could not have shown."""
    lines = (
        Line("paper", ("92.4",)),
        Line("opt", (CELL,)),
        Line("later", (dataclasses.replace(CELL, where={"rows": 9}),)),
    )
    results = write(tmp_path, *(opt_row(seed, 0.7) for seed in (1, 2, 3)))
    table = Table("t", "Table 1", "Accuracy.", ("it",), lines)
    checks = {least: ("above", {"": above(CELL, least)}) for least in (0.5, 0.9)}
    section = {least: dataclasses.replace(table, check=check).section("X", results) for least, check in checks.items()}
    assert "| paper | 92.4 |\n| opt | 70.0 ± 0.0 |\n\nCheck met: above.\n" in section[0.5]
    assert section[0.9] == "### X, Table 1\n\nCheck not met: above. Left out: `opt.jsonl`.\n"


def test_rows_that_come_later_change_their_claims(tmp_path: Path) -> None:
    """If it breaks, a long run ends and the page does not show it."""
    names = ("clear", "privatized", "plain", "reconstruction sum", "reconstruction mean")
    values = dict(zip(names, (0.8, 0.6, 0.6, 0.7, 0.5), strict=True))
    write(
        tmp_path,
        *({"task": "sst2", "seed": seed, "arm": arm, "accuracy": value + seed / 1e3, "test_rows": 100}
          for seed in (1, 2, 3) for arm, value in values.items()),
        name="rapt_frozen.jsonl",
    )  # fmt: skip
    write(
        tmp_path,
        *({"key": ["smollm2", "smollm2", "trec", seed, arm], "settings": {}, "instruction": text, "test_rows": 100,
           "source_accuracy": value + seed / 1e3}
          for arm, text, value in (("0-shot", "a", 0.5), ("opt paper", "b", 0.6), ("dp-opt-paper 8", "c", 0.4))
          for seed in ((1,) if arm == "0-shot" else (1, 2, 3))),
        name="opt_paper.jsonl",
    )  # fmt: skip
    methods = {"zero-shot": 0.5, "vote": 0.7, "dp-icl 3": 0.7}
    lines = [{"method": f"{method}, uncalibrated", "accuracy": value, "standard_error": 0.01, "n": 500, "sigma": None}
             for method, value in methods.items()]  # fmt: skip
    rows = [{"key": {"task": "trec", "seed": seed}, "methods": lines} for seed in (1, 2, 3)]
    results = write(tmp_path, *rows, name="icl_15b.jsonl")
    later = {
        f"{name} {claim.says}": claim.line(name, results).rsplit(" | ", 1)[1].removesuffix(" |")
        for name, claim in CLAIMS
    }
    assert {says: verdict for says, verdict in later.items() if verdict != NOT_FAIR} == {
        **dict.fromkeys(
            (
                "DP-ICL epsilon 3 minus the vote without noise is above -2 (1.5B, uncalibrated)",
                "DP-ICL epsilon 3 minus no example is above 0 (1.5B, uncalibrated)",
            ),
            f"{NOT_FAIR}: SST-2, AGNews. shown: TREC",
        ),
        "DP-OPT OPT minus 0-shot is above 0 (paper's format)": f"{NOT_FAIR}: 7. shown: 1",
        "DP-OPT DP-OPT, epsilon 8 minus 0-shot is above 0 (paper's format)": f"{NOT_FAIR}: 7. contradicted: 1",
        "DP-OPT DP-OPT, epsilon 8 minus OPT is above -2 (paper's format)": f"{NOT_FAIR}: 7. contradicted: 1",
        **{
            f"RAPT {says} (frozen head{loss})": f"{verdict}: SST-2. {NOT_FAIR}: Amazon, AGNews"
            for says, loss, verdict in (
                ("prompts on privatized texts do poorly: clear minus privatized is above 0", "", "shown"),
                ("reconstruction minus privatized is above 0", ", loss sum", "shown"),
                ("reconstruction minus privatized is above 0", ", loss mean", "contradicted"),
            )
        },
    }
    page = render(PAPERS, results)
    assert "| privatized | 49.4 | 49.1 | 60.2 ± 0.1 | not run | not run |" in page
    assert "| Trec 135M | 50.1 ± 5.0 (1) | 60.2 ± 0.1 | not run | not run | 40.2 ± 0.1 |" in page


# ------------------------------------------------------------------------------------------------------------ running

BENCH = """
import json, signal, sys
out, arm = sys.argv[sys.argv.index("--out") + 1], sys.argv[1]
if arm == "fails": sys.exit(3)
if arm == "waits": signal.pause()
row = {"key": ["a", "b", "sst2", 1, arm], "settings": {"rows": 10}, "source_accuracy": 0.5, "test_rows": 9}
with open(out, "a") as file: file.write(json.dumps(row) + "\\n")
"""


def cells_of(*arms: str) -> list[Cell]:
    """A run and a cell for every arm."""
    return [
        Cell(Run("bench_opt.py", "opt.jsonl", (arm,), 1), {**WHERE, "arm": arm}, "source_accuracy", seeds=(1,))
        for arm in arms
    ]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """A folder whose benchmark follows its first option."""
    monkeypatch.setattr(reproduce, "HERE", tmp_path)
    monkeypatch.setenv("LANGCHAIN_DP_DATA", str(tmp_path))
    (tmp_path / "bench_opt.py").write_text(BENCH, encoding="utf-8")
    return argparse.Namespace(results=tmp_path / "results", minutes=None, threads=None)


def arms(options: argparse.Namespace) -> list[str]:
    lines = (options.results / "opt.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["key"][4] for line in lines]


def test_missing_rows_are_measured_and_none_twice(bench: argparse.Namespace, capfd: pytest.CaptureFixture[str]) -> None:
    """If it breaks, a restart repeats runs, or one failure stops the other runs."""
    assert not reproduce.run_missing(cells_of("one", "fails", "two"), bench)
    assert arms(bench) == ["one", "two"]
    assert "bench_opt.py ended with 3" in capfd.readouterr().err
    assert reproduce.run_missing(cells_of("one", "three", "two"), bench)
    assert arms(bench) == ["one", "two", "three"]
    assert "[1/1] bench_opt.py three" in capfd.readouterr().err


def test_runs_that_are_started_by_hand_are_listed_and_not_started(bench: argparse.Namespace) -> None:
    """If it breaks, `make reproduce` starts a run of days with the wrong options."""
    by_hand = [dataclasses.replace(cell, run=dataclasses.replace(cell.run, minutes=0)) for cell in cells_of("one")]
    assert reproduce.run_missing(by_hand, bench)
    assert not (bench.results / "opt.jsonl").exists()
    assert "1 cells missing, started by hand" in reproduce.listing(by_hand, Results(bench.results))


def test_time_that_is_over_ends_a_run_without_an_error(bench: argparse.Namespace) -> None:
    """If it breaks, --minutes does not bound the call, or begins another run after it."""
    bench.minutes = 0.001
    assert reproduce.run_missing(cells_of("waits", "two"), bench)
    assert not (bench.results / "opt.jsonl").exists()


def test_states_and_privatized_rows_are_left_where_git_does_not_see_them(bench: argparse.Namespace) -> None:
    """If it breaks, privatized training rows could be committed."""
    reproduce.run_missing(cells_of("one"), bench)
    work = bench.results.with_name("results.work")
    assert (work / ".gitignore").read_text(encoding="utf-8") == "*\n"
