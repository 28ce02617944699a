"""All audits of this package: runs them on the sound code and on the planted faults, and prints a table."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from langchain_dp.audit._checks import Check, Finding

_ROOMS = ("draws", "coins", "chains", "icl", "opt", "rapt", "accountant")
_DETECTED = 0.9
"""Share of runs in which a planted fault must be seen."""

CORE = (
    "sensitivity",
    "Gumbel scale",
    "threshold",
    "uncharged retry",
    "chunked partition",
    "reused noise",
    "missing sampling",
    "ball noise",
    "n-dependent rate",
    "noiseless branch",
)
"""The faults of published code that every auditor of these mechanisms should see."""

_WIDTH = 124


@dataclasses.dataclass(frozen=True)
class Row:
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
    found: list[Check] = []
    for room in _ROOMS:
        found += importlib.import_module(f"langchain_dp.audit._checks_{room}").CHECKS
    return found


def run(names: Sequence[str] = (), *, sound: int = 20, planted: int = 10, quiet: bool = False) -> list[Row]:
    """Run audits on the sound code and on the planted faults.

    Args:
        names: Names of audits; none are all.
        sound: Runs of the sound code, at least 1. Audits whose answer cannot change run once.
        planted: Runs of each planted fault, at least 1.
        quiet: Show no progress.
    """
    chosen = [check for check in checks() if not names or check.name in names]
    jobs: list[tuple[Check, str, bool, Callable[[], Finding], int]] = []
    for check in chosen:
        jobs.append((check, check.promise, False, check.sound, 1 if check.once else sound))
        jobs += [(check, name, True, fault, 1 if check.once else planted) for name, fault in check.planted.items()]
    rows = []
    with tqdm(total=sum(job[-1] for job in jobs), desc="audits", unit="run", disable=quiet, file=sys.stderr) as bar:
        for check, name, is_planted, audit, runs in jobs:
            bar.set_postfix_str(name[:30])
            findings = []
            for _ in range(runs):
                findings.append(audit())
                bar.update()
            broken = sum(finding.broken for finding in findings)
            rows.append(Row(check.name, name, is_planted, broken, runs, findings[-1].seen))
    return rows


def table(rows: Sequence[Row]) -> str:
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
