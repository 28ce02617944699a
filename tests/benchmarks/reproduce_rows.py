"""What a reproduced table is made of: calls of benchmarks, and cells that are computed from the rows these wrote.

A cell names the arm it shows; its mean, standard error and number of seeds come from the result files and from nothing
else. An arm without rows has no value.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from made import UNKNOWN

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEEDS = (1, 2, 3)
TUNING_DEFAULTS = {
    "table": "minilm",
    "plain_seed": 0,
    "plain_length": 40,
    "sets": 5,
    "vocabulary": 7_630,
    "head_size": 96,
}
"""What bench_tuning writes into a key only if it differs."""
_TUNING_TEST_ROWS = 1_821
"""The test file of SST-2, which it takes whole."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of a benchmark, which goes on where its results file ends.

    Args:
        script: File beside this one.
        out: Results file.
        options: What the command line holds besides --out.
        minutes: A guess at its length for all seeds, on two cores that do nothing else.
    """

    script: str
    out: str
    options: tuple[str, ...]
    minutes: int

    def command(self) -> str:
        """The command, as a person would type it."""
        quoted = (f'"{part}"' if " " in part else part for part in self.options)
        return " ".join((self.script, *quoted, "--out", f"results/{self.out}"))

    def unknown_options(self) -> list[str]:
        """Options that the benchmark's source does not name."""
        source = (HERE / self.script).read_text(encoding="utf-8")
        return [part for part in self.options if part.startswith("--") and f'"{part}"' not in source]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One figure of ours.

    Args:
        run: The call that measures it.
        where: What its rows hold; other keys of a row may be anything.
        value: Which figure of a row.
        minus: Figure of the same row that is taken away, or "".
        kind: "percent" of a share, or "number".
        seeds: Seeds it should have been measured with.
    """

    run: Run
    where: Mapping[str, Any]
    value: str
    minus: str = ""
    kind: str = "percent"
    seeds: tuple[int, ...] = SEEDS


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table: what it shows, whose figures ("paper" or "here"), and a cell for every column.

    A cell of the paper is a text as printed there, or None. A cell of ours is a Cell, or None: there is no run for it.
    """

    label: str
    whose: str
    cells: tuple[str | Cell | None, ...]


@dataclasses.dataclass(frozen=True)
class Paper:
    """One paper, and what differs from it in all tables."""

    name: str
    citation: str
    differences: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure of a paper beside ours.

    Args:
        paper: Where it is from.
        name: For --only.
        title: Heading.
        source: Table and section.
        measure: What the figures are.
        columns: Headings of the cells.
        lines: The table.
        differences: What differs besides, as far as it is known.
        says: What the paper's text says of a figure whose points it does not print.
        picture: What a picture below the table shows, and where it lies beside the page; empty where there is none.
    """

    paper: Paper
    name: str
    title: str
    source: str
    measure: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    differences: tuple[str, ...]
    says: str = ""
    picture: tuple[str, ...] = ()

    def cells(self) -> list[Cell]:
        """Our cells."""
        return [cell for line in self.lines for cell in line.cells if isinstance(cell, Cell)]

    def runs(self) -> list[Run]:
        """The calls these need, in order."""
        return list(dict.fromkeys(cell.run for cell in self.cells()))


@dataclasses.dataclass(frozen=True)
class Measured:
    """One figure or several of one arm under one seed, as a benchmark wrote them.

    ``left_out`` is why there are none, and never will be, or "".
    """

    what: Mapping[str, Any]
    seed: int
    values: Mapping[str, float]
    rows: int | None
    errors: Mapping[str, float]
    settings: Mapping[str, Any]
    made: str
    commit: str
    left_out: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """What is known of a cell: mean, standard error over seeds (None for one seed), and where it comes from.

    ``within`` is the standard error over test rows, given for one seed only.
    """

    mean: float
    error: float | None
    within: float | None
    rows: int | None
    measured: tuple[Measured, ...]

    @property
    def seeds(self) -> list[int]:
        """Seeds it was measured with."""
        return sorted(one.seed for one in self.measured)


# ------------------------------------------------------------------------------------------------- reading results


class Results:
    """The result files of a folder, read once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._files: dict[tuple[str, str], list[Measured]] = {}

    def measured(self, run: Run) -> list[Measured]:
        """Everything in a run's results file."""
        key = (run.script, run.out)
        if key not in self._files:
            path = self.folder / run.out
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            rows = [json.loads(line) for line in lines if line.strip()]
            self._files[key] = [one for row in rows for one in READERS[run.script](row)]
        return self._files[key]

    def found(self, cell: Cell) -> Found | None:
        """What is known of a cell; None if nothing is.

        Raises:
            ValueError: A seed was measured twice.
        """
        rows = [
            one
            for one in self._rows(cell)
            if not one.left_out and cell.value in one.values and (not cell.minus or cell.minus in one.values)
        ]
        if not rows:
            return None
        seeds = [one.seed for one in rows]
        if len(set(seeds)) < len(seeds):
            raise ValueError(
                f"Expected one row for every seed of {dict(cell.where)} in {cell.run.out}, but found seeds {seeds}. "
                "Take one of them out, or tell them apart."
            )
        values = [one.values[cell.value] - (one.values[cell.minus] if cell.minus else 0.0) for one in rows]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        within = _within(rows[0], cell) if len(rows) == 1 else None
        return Found(statistics.fmean(values), error, within, rows[0].rows, tuple(rows))

    def missing(self, run: Run, tables: Sequence[Table]) -> list[Cell]:
        """Cells of a run that lack a seed. One that was left out is not lacking: it would be left out again."""
        cells = (cell for table in tables for cell in table.cells() if cell.run == run)
        return [cell for cell in cells if self._seeds(cell) < set(cell.seeds)]

    def _seeds(self, cell: Cell) -> set[int]:
        found = self.found(cell)
        return {*(found.seeds if found else ()), *(one.seed for one in self._rows(cell) if one.left_out)}

    def _rows(self, cell: Cell) -> list[Measured]:
        return [
            one
            for one in self.measured(cell.run)
            if one.seed in cell.seeds
            and all(name in one.what and one.what[name] == value for name, value in cell.where.items())
        ]


def _within(one: Measured, cell: Cell) -> float | None:
    """Standard error over the test rows: as the benchmark wrote it, or that of a share."""
    if cell.kind != "percent" or cell.minus or not one.rows:
        return None
    share = one.values[cell.value]
    return one.errors.get(cell.value, math.sqrt(share * (1 - share) / one.rows))


def _accuracy(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_accuracy: one arm, with a line for every method."""
    key = dict(row["key"])
    seed = key.pop("seed")
    settings = {**key, "groups": row["groups"], "train_rows": row["train_rows"], "engine": row["engine"]}
    compared = {line["method"]: line["accuracy"] for line in row["methods"] if line["method"] in ("zero-shot", "vote")}
    for line in row["methods"]:
        values = {name: line[name] for name in ("accuracy", "sigma") if line[name] is not None}
        values |= compared
        values |= {name: row[name] for name in ("agreement",) if name in row}
        errors = {"accuracy": line["standard_error"]}
        yield Measured({**key, "method": line["method"]}, seed, values, line["n"], errors, settings, **_made(row))


def _opt(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_opt or bench_targets: one prompt, scored on the model that wrote it and on another."""
    source, target, task, seed, arm = row["key"]
    settings = dict(row["settings"])
    what = {**settings, "source": source, "target": target, "task": task, "arm": arm}
    values = {name: row[name] for name in ("source_accuracy", "target_accuracy") if name in row}
    if "target" in row.get("scored", {}):
        values["target_scored"] = row["scored"]["target"]["calibrated" if task in CALIBRATED else "plain"]
    values |= {
        name: float(row["certificate"][name])
        for name in ("votes_needed", "delta")
        if name in row.get("certificate", {})
    }
    left_out = row.get("left_out", "")
    rows = None if left_out else row["test_rows"]
    yield Measured(what, seed, values, rows, {}, {"source": source, **settings}, **_made(row), left_out=left_out)


def _tuning(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_tuning: one tuned prompt; the seed 0 of its searches is none of ours."""
    key = {**TUNING_DEFAULTS, **row["key"]}
    seed = key.pop("seed")
    values = {name: row[name] for name in ("test", "eta", "parameters", "steps") if row.get(name) is not None}
    values["replacement"] = key["replacement"]
    names = ("rows", "tokens", "batch", "epochs", "mechanism", "rate", "choice", "reduction")
    yield Measured(key, seed, values, _TUNING_TEST_ROWS, {}, {name: key[name] for name in names}, **_made(row))


def _comparators(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_comparators: one arm under one seed."""
    key = dict(row["key"])
    seed = key.pop("seed")
    names = ("train_rows", "test_rows", "steps", "batch", "learning_rate")
    settings = {name: row[name] for name in names if name in row}
    values = {name: row[name] for name in ("accuracy", "before") if name in row}
    yield Measured(key, seed, values, row["test_rows"], {}, settings, **_made(row))


def _cost(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_cost: what a plan says. No seed stands behind it; it is shown as the first one's."""
    values = {"dollars": row["dollars"], "thousands": row["tokens"] / 1000}
    settings = {name: row["key"][name] for name in ("shots", "rows", "questions")} | {"price": row["price"]}
    yield Measured(row["key"], SEEDS[0], values, None, {}, settings, **_made(row))


def _secrecy(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_secrecy: the prompts of one seed under one sentence."""
    engine, task, seed, sentence = row["key"]
    runs = row["longest_runs"]
    values = {"area": row["area"], "chance": row["chance"]}
    values |= {"held": sum(words > 0 for words in runs) / len(runs), "longest": max(runs)}
    what = {"engine": engine, "task": task, "sentence": sentence}
    yield Measured(what, seed, values, None, {}, row["settings"], **_made(row))


def _attacks(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_attacks: an attack and what it found. One whose settings name no seed is shown as the first's."""
    settings = row["settings"]
    what = {**settings, "piece": row["key"][0]}
    shown = {name: settings[name] for name in ("source", "rows", "members", "candidates") if name in settings}
    yield Measured(what, settings.get("seed", SEEDS[0]), {"rate": row["rate"]}, None, {}, shown, **_made(row))


def _layers(row: Mapping[str, Any]) -> Iterator[Measured]:
    """A row of bench_layers: three models of one seed, and how far apart their representations lie."""
    key = dict(row["key"])
    seed = key.pop("seed")
    settings = {name: key[name] for name in ("replacement", "rows")}
    for arm, accuracy in row["test"].items():
        values = {"test": accuracy, "gender": row["gender"][arm]["rate"], "chance": row["gender"][arm]["baseline"]}
        yield Measured({**key, "arm": arm}, seed, values, None, {}, settings, **_made(row))
    for pair, distances in row["distances"].items():
        layers = {f"layer {number}": value for number, value in enumerate(distances)}
        yield Measured({**key, "pair": pair}, seed, layers, None, {}, settings, **_made(row))


def _made(row: Mapping[str, Any]) -> dict[str, str]:
    return {"made": row.get("made", UNKNOWN), "commit": row.get("commit", UNKNOWN)}


CALIBRATED = ("trec",)
"""Tasks of bench_opt whose labels' probabilities are calibrated."""
READERS: dict[str, Callable[[Mapping[str, Any]], Iterator[Measured]]] = {
    "bench_attacks.py": _attacks,
    "bench_accuracy.py": _accuracy,
    "bench_opt.py": _opt,
    "bench_targets.py": _opt,
    "bench_tuning.py": _tuning,
    "bench_layers.py": _layers,
    "bench_comparators.py": _comparators,
    "bench_cost.py": _cost,
    "bench_secrecy.py": _secrecy,
}
