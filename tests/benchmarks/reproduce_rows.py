"""Cells of the reproduction: a cell names an arm, and its mean and standard error come from the result files alone."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEEDS = (1, 2, 3)
CALIBRATED = ("trec",)
"""Tasks of bench_opt whose label probabilities are calibrated."""
TUNING_DEFAULTS = {"table": "minilm", "plain_seed": 0, "plain_length": 40, "sets": 5, "vocabulary": 7_630,
                   "head_size": 96}  # fmt: skip
"""Settings that bench_tuning writes into a key only if they differ."""
_SST2_TEST_ROWS = 1_821


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of a benchmark, which continues where its results file ends.

    Args:
        script: File beside this one.
        out: Results file.
        options: Command line without --out.
        minutes: Estimated duration for all seeds, on two idle cores. 0: not started by `make reproduce`.
    """

    script: str
    out: str
    options: tuple[str, ...] = ()
    minutes: int = 0

    def command(self) -> str:
        """The command as a person would type it."""
        quoted = (f'"{part}"' if " " in part else part for part in self.options)
        return " ".join((self.script, *quoted, "--out", f"results/{self.out}"))


@dataclasses.dataclass(frozen=True)
class Cell:
    """One figure of ours.

    Args:
        run: The call that measures it.
        where: Settings that its rows have. Other settings of a row may be anything.
        value: Name of the figure in the row.
        kind: "percent" for a share, or "number".
        seeds: Seeds to measure it with.
    """

    run: Run
    where: Mapping[str, Any]
    value: str
    kind: str = "percent"
    seeds: tuple[int, ...] = SEEDS


@dataclasses.dataclass(frozen=True)
class Measured:
    """Figures of one arm under one seed. ``left_out`` is the reason for missing figures, or ""."""

    what: Mapping[str, Any]
    seed: int
    values: Mapping[str, float]
    rows: int | None = None
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    left_out: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """Mean of a cell or of a difference. ``error`` is over seeds. With one seed ``within`` is over test rows."""

    mean: float
    error: float | None
    within: float | None
    rows: int | None
    seeds: tuple[int, ...]

    @property
    def spread(self) -> float | None:
        """The standard error over seeds, or over test rows with one seed."""
        return self.within if self.error is None else self.error


class Results:
    """The result files of a folder, each read once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._files: dict[tuple[str, str], list[Measured]] = {}

    def measured(self, run: Run) -> list[Measured]:
        """Every arm in the results file of a run. A missing file has none."""
        key = (run.script, run.out)
        if key not in self._files:
            self._files[key] = [one for row in self.rows(run.out) for one in READERS[run.script](row)]
        return self._files[key]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a file as they were written."""
        path = self.folder / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.strip()]

    def found(self, cell: Cell) -> Found | None:
        """Mean and standard error of a cell, or None without rows.

        Raises:
            ValueError: The file holds one seed twice.
        """
        rows = self._with_value(cell)
        if not rows:
            return None
        values = [one.values[cell.value] for one in rows.values()]
        first = next(iter(rows.values()))
        within = None
        if cell.kind == "percent" and len(rows) == 1 and first.rows:
            within = first.errors.get(cell.value, math.sqrt(values[0] * (1 - values[0]) / first.rows))
        return _of(values, tuple(rows), within, first.rows)

    def difference(self, more: Cell, less: Cell) -> Found | None:
        """Mean of the differences per seed, or None without a seed in common.

        A cell with the single seed 1 is compared with every seed of the other: the initial instruction has no seed.
        With one pair the error is that of two independent sets of test rows, which is too large for equal rows.
        """
        one, other = self._with_value(more), self._with_value(less)
        if len(less.seeds) == 1 and len(other) == 1:
            other = dict.fromkeys(one, next(iter(other.values())))
        seeds = tuple(seed for seed in one if seed in other)
        if not seeds:
            return None
        values = [one[seed].values[more.value] - other[seed].values[less.value] for seed in seeds]
        found = [self.found(cell) for cell in (more, less)]
        parts = [part.within for part in found if part and part.within is not None]
        within = math.hypot(*parts) if len(seeds) == 1 and len(parts) == 2 else None
        return _of(values, seeds, within, None)

    def missing(self, run: Run, cells: Sequence[Cell]) -> list[Cell]:
        """Cells of a run that lack a seed. A seed that was left out would be left out again."""
        return [cell for cell in cells if cell.run == run and self._done(cell) < set(cell.seeds)]

    def _done(self, cell: Cell) -> set[int]:
        return {*self._with_value(cell), *(one.seed for one in self._rows(cell) if one.left_out)}

    def _with_value(self, cell: Cell) -> dict[int, Measured]:
        rows = [one for one in self._rows(cell) if not one.left_out and cell.value in one.values]
        seeds = [one.seed for one in rows]
        if len(set(seeds)) < len(seeds):
            raise ValueError(
                f"Expected one row for every seed of {dict(cell.where)} in {cell.run.out}, but found seeds {seeds}. "
                "Remove one of them, or name a setting in which they differ."
            )
        return {one.seed: one for one in sorted(rows, key=lambda one: one.seed)}

    def _rows(self, cell: Cell) -> list[Measured]:
        return [
            one
            for one in self.measured(cell.run)
            if one.seed in cell.seeds
            and all(name in one.what and one.what[name] == value for name, value in cell.where.items())
        ]


def _of(values: Sequence[float], seeds: tuple[int, ...], within: float | None, rows: int | None) -> Found:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Found(statistics.fmean(values), error, within, rows, seeds)


# ------------------------------------------------------------------------------------------------- reading results


def _accuracy(row: Mapping[str, Any]) -> Iterator[Measured]:
    key = dict(row["key"])
    seed = key.pop("seed")
    for line in row["methods"]:
        values = {name: line[name] for name in ("accuracy", "sigma") if line[name] is not None}
        errors = {"accuracy": line["standard_error"]}
        yield Measured({**key, "method": line["method"]}, seed, values, line["n"], errors)


def _opt(row: Mapping[str, Any]) -> Iterator[Measured]:
    source, target, task, seed, arm = row["key"]
    what = {**row["settings"], "source": source, "target": target, "task": task, "arm": arm}
    values = {name: row[name] for name in ("source_accuracy", "target_accuracy") if name in row}
    if "target" in row.get("scored", {}):
        values["target_scored"] = row["scored"]["target"]["calibrated" if task in CALIBRATED else "plain"]
    left_out = row.get("left_out", "")
    yield Measured(what, seed, values, None if left_out else row["test_rows"], left_out=left_out)


def _tuning(row: Mapping[str, Any]) -> Iterator[Measured]:
    key = {**TUNING_DEFAULTS, **row["key"]}
    seed = key.pop("seed")
    values = {name: row[name] for name in ("test", "eta", "parameters", "steps") if row.get(name) is not None}
    yield Measured(key, seed, {**values, "replacement": key["replacement"]}, _SST2_TEST_ROWS)


def _frozen(row: Mapping[str, Any]) -> Iterator[Measured]:
    what = {name: row[name] for name in ("task", "arm")}
    yield Measured(what, row["seed"], {"accuracy": row["accuracy"]}, row.get("test_rows"))


def _comparators(row: Mapping[str, Any]) -> Iterator[Measured]:
    key = dict(row["key"])
    seed = key.pop("seed")
    yield Measured(key, seed, {name: row[name] for name in ("accuracy", "before") if name in row}, row["test_rows"])


def _cost(row: Mapping[str, Any]) -> Iterator[Measured]:
    yield Measured(row["key"], SEEDS[0], {"dollars": row["dollars"]})  # a plan has no seed


def _secrecy(row: Mapping[str, Any]) -> Iterator[Measured]:
    _, task, seed, sentence = row["key"]
    yield Measured({"task": task, "sentence": sentence}, seed, {name: row[name] for name in ("area", "chance")})


def _attacks(row: Mapping[str, Any]) -> Iterator[Measured]:
    what = {**row["settings"], "name": row.get("name", ""), "piece": row["key"][0], "key": row["key"][1:3]}
    values = {"rate": row["rate"], "chance": row.get("baseline", math.nan)}
    yield Measured(what, row["settings"].get("seed", SEEDS[0]), values, row.get("n"))


def _layers(row: Mapping[str, Any]) -> Iterator[Measured]:
    key = dict(row["key"])
    seed = key.pop("seed")
    for arm, accuracy in row["test"].items():
        gender = row["gender"][arm]
        values = {"test": accuracy, "gender": gender["rate"], "chance": gender["baseline"]}
        yield Measured({**key, "arm": arm}, seed, values)
    for pair, distances in row["distances"].items():
        yield Measured({**key, "pair": pair}, seed, {f"layer {n}": value for n, value in enumerate(distances)})


READERS: dict[str, Callable[[Mapping[str, Any]], Iterator[Measured]]] = {
    "bench_accuracy.py": _accuracy,
    "bench_attacks.py": _attacks,
    "bench_comparators.py": _comparators,
    "bench_cost.py": _cost,
    "bench_frozen_head.py": _frozen,
    "bench_layers.py": _layers,
    "bench_opt.py": _opt,
    "bench_secrecy.py": _secrecy,
    "bench_targets.py": _opt,
    "bench_tuning.py": _tuning,
}
"""Script -> the arms in one of its rows."""
