"""`make audit`: audits this package, and deliberately broken parts of it, which the audits must reject."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before numpy: threads of two processes would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, from anywhere, and by its worker processes

os.environ["LANGCHAIN_DP_STATE"] = ""  # audits charge one data set to many ledgers
from audits import accountant, aggregate, blocks, chains, coins, counts, draws, icl, neighbors, opt, rapt, synth
from audits.check import Check, Finding
from audits.faults import CLASSIC, faults
from audits.stubs import RECORD, LogRecorder
from langchain_dp.errors import BudgetLowWarning, MostlyNoiseWarning, NoTextKeptWarning, WeakPromiseWarning

_DETECTED = 0.9
"""Share of runs in which a planted fault must be seen."""

_WIDTH = 124


@dataclasses.dataclass(frozen=True)
class AuditRow:
    """Runs of one audit on the sound code, or on one planted fault."""

    audit: str
    name: str
    planted: bool
    broken: int
    runs: int
    seen: str

    @property
    def fine(self) -> bool:
        """No alarm on sound code; a fault is detected in nine of ten runs."""
        return self.broken >= math.ceil(_DETECTED * self.runs) if self.planted else not self.broken


def checks() -> list[Check]:
    """List all audits, in the order of the table."""
    modules = (draws, coins, chains, icl, neighbors, opt, synth, rapt, aggregate, counts, blocks, accountant)
    return [check for module in modules for check in module.CHECKS]


def run(
    names: Sequence[str] = (), *, sound: int = 8, planted: int = 3, jobs: int = 1, quiet: bool = False
) -> list[AuditRow]:
    """Run audits on the sound code and on their planted faults."""
    broken = faults()
    parts = [
        [(check, None, 1 if check.once else sound)]
        + [(check, fault, 1 if check.once else planted) for fault in broken.get(check.name, ())]
        for check in checks()
        if not names or check.name in names
    ]
    order = [(check.name, fault) for part in parts for check, fault, runs in part for _ in range(runs)]
    rows: list[AuditRow] = []
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        findings: Iterator[Finding]
        if jobs == 1:
            findings = map(run_once, order)
        else:
            # New processes: a copy of this one would share its coins' buffers, and its threads' locks.
            spawned = multiprocessing.get_context("spawn")
            pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(jobs, mp_context=spawned))
            findings = pool.map(run_once, order)
        for place, part in enumerate(parts, 1):
            ended = [_row(check, fault, list(itertools.islice(findings, runs))) for check, fault, runs in part]
            rows += ended
            if not quiet:
                seconds = time.monotonic() - started
                print(f"[{place} of {len(parts)}, {seconds:.0f} s] {_summary(ended)}", file=sys.stderr, flush=True)
    return rows


def run_once(audit: tuple[str, str | None]) -> Finding:
    """Run an audit, by its name, on the sound code or on a planted fault."""
    name, fault = audit
    run_audit = faults()[name][fault] if fault else next(check.sound for check in checks() if check.name == name)
    with warnings.catch_warnings():
        # Audits promise little on purpose, and use plans up: a fault shows soonest there.
        for kind in (WeakPromiseWarning, MostlyNoiseWarning, NoTextKeptWarning, BudgetLowWarning):
            warnings.simplefilter("ignore", kind)
        with LogRecorder() as log:
            finding = run_audit()
    if shown := [line for line in log.lines if RECORD.search(line[2])]:
        return Finding(True, f"{len(shown)} log lines hold a record, the first by {shown[0][0]}")
    return finding


def _row(check: Check, fault: str | None, findings: Sequence[Finding]) -> AuditRow:
    broken = sum(finding.broken for finding in findings)
    return AuditRow(check.name, fault or check.promise, fault is not None, broken, len(findings), findings[-1].seen)


def _summary(rows: Sequence[AuditRow]) -> str:
    """Summarize one audit in a line."""
    sound, *planted = rows
    line = f"{sound.audit}: {'holds' if sound.fine else 'BROKEN'} in {sound.runs - sound.broken} of {sound.runs} runs"
    if planted:
        missed = [row.name for row in planted if not row.fine]
        line += f", {len(planted) - len(missed)} of {len(planted)} planted faults detected"
        line += f"; MISSED: {', '.join(missed)}" if missed else ""
    return line


def table(rows: Sequence[AuditRow]) -> str:
    """Format the rows: what was audited, how often it was disproved, and what the last run measured."""
    lines = [f"{'audit':<12} {'code':<38} {'disproved':>10}  {'':<8} last measured"]
    lines.append("-" * _WIDTH)
    for row in rows:
        outcome = ("detected" if row.planted else "holds") if row.fine else ("MISSED" if row.planted else "BROKEN")
        code = f"planted: {row.name}" if row.planted else row.name
        head = f"{'' if row.planted else row.audit:<12} {code:<38} {row.broken:>4} of {row.runs:<3} {outcome:<9}"
        first, *rest = textwrap.wrap(row.seen, _WIDTH - len(head) - 1) or [""]
        lines += [f"{head} {first}", *(" " * (len(head) + 1) + more for more in rest)]
    return "\n".join(lines)


def verdict(rows: Sequence[AuditRow]) -> str:
    """Sum up: one sentence on the sound code, and one on the planted faults."""
    sound, planted = ([row for row in rows if row.planted == kind] for kind in (False, True))
    alarms = sum(row.broken for row in sound)
    classic = [row.fine for row in planted if row.name in CLASSIC]
    runs = sorted({row.runs for row in planted})
    return f"Sound code: {alarms} alarms in {sum(row.runs for row in sound)} runs of {len(sound)} audits." + (
        f" Planted faults: {sum(row.fine for row in planted)} of {len(planted)} detected in at least nine tenths "
        f"of their runs, {' to '.join(map(str, dict.fromkeys((runs[0], runs[-1]))))} each ({sum(classic)} of "
        f"{len(classic)} of the classic ones)."
        if planted
        else ""
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audits; return 0 if sound code raised no alarm and every planted fault was detected, else 1."""
    parser = argparse.ArgumentParser(description=f"{__doc__} Needs no model and no data.")
    parser.add_argument("names", nargs="*", metavar="AUDIT", help="only these (default: all)")
    parser.add_argument("--sound", type=int, default=8, help="runs of the sound code (default: %(default)s)")
    parser.add_argument("--planted", type=int, default=3, help="runs of every planted fault (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run them in (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one run of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options: Any = parser.parse_args(arguments)
    known = [check.name for check in checks()]
    for name in options.names:
        if name not in known:
            parser.error(f"no audit {name!r}: choose from {', '.join(map(repr, known))}")
    if min(options.sound, options.planted, options.jobs) < 1:
        parser.error("--sound, --planted and --jobs must be at least 1")
    sound, planted = (1, 1) if options.quick else (options.sound, options.planted)
    started = time.monotonic()
    rows = run(options.names, sound=sound, planted=planted, jobs=options.jobs, quiet=options.json)
    seconds = time.monotonic() - started
    if options.json:
        plain = [{**dataclasses.asdict(row), "fine": row.fine} for row in rows]
        print(json.dumps({"seconds": round(seconds, 1), "rows": plain}))
    else:
        print(f"{table(rows)}\n\n{verdict(rows)} ({seconds:.0f} s)")
    return 0 if all(row.fine for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
