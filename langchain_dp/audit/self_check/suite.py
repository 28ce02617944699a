"""All audits of this package: runs them, on planted faults too where these are given, and prints a table."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from langchain_dp.audit.self_check import accountant, chains, coins, draws, icl, neighbors, opt, rapt, synth
from langchain_dp.audit.self_check.check import Check, Finding
from langchain_dp.audit.self_check.neighbors import Listening
from langchain_dp.audit.self_check.stubs import RECORD
from langchain_dp.errors import BudgetRunsLow, MostlyNoiseWarning, NothingKept, WeakPromiseWarning

Faults = Mapping[str, Mapping[str, Callable[[], Finding]]]
"""Audits of deliberately broken stand-ins, by the audit's name and the fault's. This package has none of its own."""

_DETECTED = 0.9
"""Share of runs in which a planted fault must be seen."""

_WIDTH = 124


@dataclasses.dataclass(frozen=True)
class AuditRow:
    """Runs of one audit on the sound code, or on one planted fault.

    Args:
        audit: Name of the audit.
        name: Name of the fault, or the promise that the sound code keeps.
        planted: Whether it is a fault.
        broken: Runs in which the promise was disproved.
        runs: All runs.
        seen: What the last run measured.
    """

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "fine": self.fine}


def checks() -> list[Check]:
    """All audits, in the order of the table."""
    return [
        check for room in (draws, coins, chains, icl, neighbors, opt, synth, rapt, accountant) for check in room.CHECKS
    ]


def run(
    names: Sequence[str] = (),
    *,
    sound: int = 8,
    planted: int = 3,
    faults: Callable[[], Faults] = dict,
    jobs: int = 1,
    quiet: bool = False,
) -> list[AuditRow]:
    """Run audits on the sound code, and on planted faults.

    Args:
        names: Names of audits; none are all.
        sound: Runs of the sound code, at least 1. Audits whose answer cannot change run once.
        planted: Runs of each planted fault, at least 1.
        faults: Makes the planted faults; a function that can be imported, for the other processes.
        jobs: Processes to run them in; 1 is this one.
        quiet: Print no line when an audit ends.
    """
    broken = faults()
    chosen = [check for check in checks() if not names or check.name in names]
    parts = [
        [(check, None, 1 if check.once else sound)]
        + [(check, fault, 1 if check.once else planted) for fault in broken.get(check.name, ())]
        for check in chosen
    ]
    order = [(faults, check.name, fault) for part in parts for check, fault, runs in part for _ in range(runs)]
    rows: list[AuditRow] = []
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        findings: Iterator[Finding]
        if jobs == 1:
            findings = map(_run, order)
        else:
            # New processes: a copy of this one would share its coins' buffers, and its threads' locks.
            spawned = multiprocessing.get_context("spawn")
            pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(jobs, mp_context=spawned))
            findings = pool.map(_run, order)
        for place, part in enumerate(parts, 1):
            ended = [_row(check, fault, list(itertools.islice(findings, runs))) for check, fault, runs in part]
            rows += ended
            if not quiet:
                seconds = time.monotonic() - started
                print(f"[{place} of {len(parts)}, {seconds:.0f} s] {_ended(ended)}", file=sys.stderr, flush=True)
    return rows


def _ended(rows: Sequence[AuditRow]) -> str:
    """One line on one audit."""
    sound, *planted = rows
    said = f"{sound.audit}: {'holds' if sound.fine else 'BROKEN'} in {sound.runs - sound.broken} of {sound.runs} runs"
    if not planted:
        return said
    missed = [row.name for row in planted if not row.fine]
    return f"{said}, {len(planted) - len(missed)} of {len(planted)} planted faults detected" + (
        f"; MISSED: {', '.join(missed)}" if missed else ""
    )


def _run(one: tuple[Callable[[], Faults], str, str | None]) -> Finding:
    """One run of an audit, by its name, on the sound code or on a planted fault."""
    faults, name, fault = one
    audit = next(check.sound for check in checks() if check.name == name) if fault is None else faults()[name][fault]
    with warnings.catch_warnings():
        # Audits promise little on purpose, and use plans up: a fault shows soonest there.
        for kind in (WeakPromiseWarning, MostlyNoiseWarning, NothingKept, BudgetRunsLow):
            warnings.simplefilter("ignore", kind)
        with Listening() as heard:
            found = audit()
    if shown := [line for line in heard.lines if RECORD.search(line[2])]:
        return Finding(True, f"{len(shown)} log lines hold a record, the first by {shown[0][0]}")
    return found


def _row(check: Check, fault: str | None, findings: Sequence[Finding]) -> AuditRow:
    broken = sum(finding.broken for finding in findings)
    return AuditRow(check.name, fault or check.promise, fault is not None, broken, len(findings), findings[-1].seen)


def table(rows: Sequence[AuditRow]) -> str:
    """The rows as text: what was audited, how often it was disproved, and what the last run measured."""
    lines = [f"{'audit':<12} {'code':<38} {'disproved':>10}  {'':<8} last measured"]
    lines.append("-" * _WIDTH)
    for row in rows:
        verdict = ("detected" if row.planted else "holds") if row.fine else ("MISSED" if row.planted else "BROKEN")
        code = f"planted: {row.name}" if row.planted else row.name
        head = f"{'' if row.planted else row.audit:<12} {code:<38} {row.broken:>4} of {row.runs:<3} {verdict:<9}"
        first, *rest = textwrap.wrap(row.seen, _WIDTH - len(head) - 1) or [""]
        lines += [f"{head} {first}", *(" " * (len(head) + 1) + more for more in rest)]
    return "\n".join(lines)
