"""``python -m langchain_dp.audit``: audits this installation."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Collection, Sequence

from langchain_dp.audit.self_check.suite import AuditRow, Faults, checks, run, table


def main(
    arguments: Sequence[str] | None = None,
    *,
    faults: Callable[[], Faults] | None = None,
    classic: Collection[str] = (),
) -> int:
    """Run the audits; returns 0 if all of them came out as they must, else 1.

    Args:
        arguments: Command line; that of the process by default.
        faults: Makes planted faults, which the audits must find; None audits the sound code alone.
        classic: Names of faults that are counted by themselves.
    """
    stand_ins = ", and broken stand-ins that the audits must reject" if faults else ""
    parser = argparse.ArgumentParser(
        prog=None if faults else "python -m langchain_dp.audit",
        description=f"Audits this package's mechanisms and chains{stand_ins}. Needs no model and no data.",
    )
    parser.add_argument("names", nargs="*", metavar="AUDIT", help="only these (default: all)")
    parser.add_argument("--sound", type=int, default=8, help="runs of the sound code (default: %(default)s)")
    parser.set_defaults(planted=3)
    if faults:
        parser.add_argument("--planted", type=int, help="runs of every planted fault (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run them in (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one run of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args(arguments)
    known = [check.name for check in checks()]
    for name in options.names:
        if name not in known:
            parser.error(f"no audit {name!r}: choose from {', '.join(map(repr, known))}")
    if min(options.sound, options.planted, options.jobs) < 1:
        parser.error(f"{'--sound, --planted' if faults else '--sound'} and --jobs must be at least 1")
    sound, planted = (1, 1) if options.quick else (options.sound, options.planted)
    started = time.monotonic()
    rows = run(
        options.names, sound=sound, planted=planted, faults=faults or dict, jobs=options.jobs, quiet=options.json
    )
    seconds = time.monotonic() - started
    if options.json:
        print(json.dumps({"seconds": round(seconds, 1), "rows": [row.to_dict() for row in rows]}))
    else:
        print(table(rows))
        print(f"\n{verdict(rows, classic)} ({seconds:.0f} s)")
    return 0 if all(row.fine for row in rows) else 1


def verdict(rows: Sequence[AuditRow], classic: Collection[str] = ()) -> str:
    """One sentence over the sound code, and one over the planted faults if there are any."""
    sound, planted = ([row for row in rows if row.planted == kind] for kind in (False, True))
    alarms = sum(row.broken for row in sound)
    said = f"Sound code: {alarms} alarms in {sum(row.runs for row in sound)} runs of {len(sound)} audits."
    if not planted:
        return said
    known = [row.fine for row in planted if row.name in classic]
    runs = sorted({row.runs for row in planted})
    each = f"{runs[0]} each" if len(runs) == 1 else f"{runs[0]} to {runs[-1]} each"
    return (
        f"{said} Planted faults: {sum(row.fine for row in planted)} of {len(planted)} detected in at least nine tenths "
        f"of their runs, {each} ({sum(known)} of {len(known)} of the classic ones)."
    )


if __name__ == "__main__":
    raise SystemExit(main())
