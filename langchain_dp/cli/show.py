"""Results, plans, notes and progress."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_dp._util.rounding import rounded_up
from langchain_dp.cli.parser import DONE, FAILED, INTERRUPTED, NOTES, PROGRAM, WRONG
from langchain_dp.errors import MissingExtra

if TYPE_CHECKING:
    from langchain_dp.cli.options import JsonOptions
    from langchain_dp.icl import ICLPlanReport
    from langchain_dp.opt import OptPlanReport
    from langchain_dp.rapt import Calibration
    from langchain_dp.synth import AnswersPlan, SynthesisPlan

    Plan = ICLPlanReport | OptPlanReport | SynthesisPlan | AnswersPlan


def epilog(examples: str, notes: str = "") -> str:
    codes = (
        f"exit codes: {DONE} done, {FAILED} refused or failed (one line on stderr says why), {WRONG} wrong arguments,\n"
        f"{INTERRUPTED} interrupted"
    )
    notes = f"{notes.strip()}\n\n" if notes else ""
    return f"examples:\n{examples.rstrip()}\n\n{NOTES}{notes}{NOTES}{codes}"


def line(message: object) -> str:
    return f"{PROGRAM}: {' '.join(str(message).split())}"


def note(message: object) -> None:
    """Print on stderr."""
    print(line(message), file=sys.stderr)


def print_json(value: object, *, file: Any = None) -> None:
    print(strict_json(value), file=file)


def strict_json(value: object) -> str:
    """Infinity becomes "inf"."""
    return json.dumps(_strict(value), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _strict(each) for key, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, (list, tuple)) else value


def columns(rows: Iterable[tuple[str, str]], *, indent: int = 2) -> str:
    found = list(rows)
    width = max((len(name) for name, _ in found), default=0)
    return "\n".join(f"{' ' * indent}{name:<{width}}  {value}".rstrip() for name, value in found)


_BAR = 24


def score_table(last: str, rows: Iterable[tuple[str, float | None, float, float, str]]) -> str:
    """Draw rows of name, epsilon, accuracy, error, last column."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("method", "epsilon", "accuracy", "", last):
        table.add_column(name, justify="right" if name in ("epsilon", "accuracy") else "left", no_wrap=True)
    for method, epsilon, accuracy, error, said in rows:
        shown = "inf" if epsilon is None else f"{epsilon:g}"
        table.add_row(method, shown, f"{accuracy:.1%} ± {error:>5.1%}", f"{'█' * round(accuracy * _BAR):<{_BAR}}", said)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@dataclasses.dataclass(frozen=True)
class Score:
    """``epsilon``: None without promise, 0 without examples."""

    method: str
    epsilon: float | None
    accuracy: float
    n: int

    @property
    def error(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n)


def draw_scores(
    path: Path,
    title: str,
    private: Sequence[Score],
    label: str,
    others: Iterable[tuple[Score, str, str, str]],
    *,
    axis: str,
    bottom: float = 0.0,
) -> bool:
    """Save an image, or return False without matplotlib.

    ``others`` are horizontal lines: score, name, color, style.
    """
    from langchain_dp._util.pictures import new_figure

    try:
        figure, axes = new_figure(7, 4.2)
    except MissingExtra as missing:
        note(missing)
        return False
    budgets = [score.epsilon or 0.0 for score in private]
    heights, errors = [score.accuracy for score in private], [score.error for score in private]
    axes.errorbar(budgets, heights, yerr=errors, marker="o", capsize=3, color="#1f6f8b", label=label)
    for score, name, color, style in others:
        axes.axhline(score.accuracy, color=color, linestyle=style, label=name)
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{value:g}" for value in budgets])
    axes.minorticks_off()
    axes.set_ylim(bottom, 1)
    axes.set_xlabel("epsilon (smaller is more private)")
    axes.set_ylabel(axis)
    axes.set_title(title)
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
    return True


class Advance:
    """Advances a bar, and shows lines above it."""

    def __init__(self, step: Callable[[int], None], show: Callable[[str], None] | None) -> None:
        self._step, self._show = step, show

    def __call__(self, more: int, said: str = "") -> None:
        self._step(more)
        if said and self._show is not None:
            self._show(line(said))
        elif said:
            note(said)


@contextlib.contextmanager
def progress(what: str, total: int | None, unit: str, *, shown: bool = True) -> Iterator[Advance]:
    """Show a bar on terminals."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    counted = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    seen = ("{task.description}", BarColumn(), counted, "" if unit == "bytes" else unit, TimeRemainingColumn())
    settings: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}  # leave printed text unchanged
    quiet = not (shown and sys.stderr.isatty())
    with Progress(*seen, console=Console(stderr=True), disable=quiet, **settings) as bar:
        task = bar.add_task(what, total=total)
        above = functools.partial(bar.console.print, markup=False, highlight=False, soft_wrap=True)
        yield Advance(functools.partial(bar.advance, task), None if quiet else above)


def show(found: Plan, options: JsonOptions, *, counted_by: str, on_rows: bool = True, after: Any = None) -> None:
    """Show a forecast, and ``after``, the ledger that the run would leave."""
    if on_rows:
        counted_by += ", on the private rows: keep these figures to yourself"
    if options.json:
        plain = found.to_dict()
        plain["weak"] = [options.in_options(point) for point in plain["weak"]]
        if "warning" in plain:
            plain["warning"] = options.in_options(plain["warning"])
        left = {} if after is None else after.in_json()
        print_json(plain | {"tokens_counted_by": counted_by} | left)
    else:
        lines = [options.in_options(line) if "WARNING" in line else line for line in str(found).split("\n")]
        left_line = [] if after is None else [f"\nNothing was spent. It would leave: {after}"]
        print("\n".join([*lines, f"  counted by   {counted_by}", *left_line]))


def show_calibration(calibration: Calibration, *, as_json: bool, releases: int | None = None) -> None:
    needed = None if releases is None else releases * calibration.eta
    if as_json:
        fields = dataclasses.asdict(calibration) | {"neighbor_loss": calibration.neighbor_loss}
        print_json(fields if needed is None else fields | {"releases": releases, "limit": needed})
        return
    print(calibration)
    if needed is not None:
        print(columns([(f"{releases:,} releases", f"need --limit {rounded_up(needed, digits=6):.12g}")], indent=0))
    factor = math.exp(min(calibration.neighbor_loss, 700.0))
    print(
        f"\nOf two words {calibration.neighbor_distance:.3g} apart, no word is released more than {factor:,.4g} times "
        "as often from one as\nfrom the other. This is metric privacy: eta is no epsilon. Words near one another are "
        "hidden among each other,\nfar ones less. Releases of one text, and of one user's texts, add up."
    )
