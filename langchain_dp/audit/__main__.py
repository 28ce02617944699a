"""``python -m langchain_dp.audit``: audits this installation, and shows that the audits see what is broken."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from langchain_dp.audit.self_check.suite import CORE, Row, checks, run, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audits; returns 0 if all of them came out as they must, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m langchain_dp.audit",
        description="Audits this package's mechanisms and chains, and broken stand-ins that the audits must reject. "
        "Needs no model and no data.",
    )
    parser.add_argument("names", nargs="*", metavar="AUDIT", help="only these (default: all)")
    parser.add_argument("--sound", type=int, default=20, help="runs of the sound code (default: %(default)s)")
    parser.add_argument("--planted", type=int, default=10, help="runs of every planted fault (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run them in (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one run of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args(arguments)
    known = [check.name for check in checks()]
    for name in options.names:
        if name not in known:
            parser.error(f"no audit {name!r}: choose from {', '.join(map(repr, known))}")
    if min(options.sound, options.planted, options.jobs) < 1:
        parser.error("--sound, --planted and --jobs must be at least 1")
    sound, planted = (1, 1) if options.quick else (options.sound, options.planted)
    started = time.monotonic()
    quiet = options.json or not sys.stderr.isatty()
    rows = run(options.names, sound=sound, planted=planted, jobs=options.jobs, quiet=quiet)
    seconds = time.monotonic() - started
    if options.json:
        print(json.dumps({"seconds": round(seconds, 1), "rows": [row.to_dict() for row in rows]}))
    else:
        print(table(rows))
        print(f"\n{verdict(rows)} ({seconds:.0f} s)")
    return 0 if all(row.fine for row in rows) else 1


def verdict(rows: Sequence[Row]) -> str:
    """One sentence over all rows."""
    sound, planted = ([row for row in rows if row.planted == kind] for kind in (False, True))
    alarms = sum(row.broken for row in sound)
    core = [row for row in planted if row.name in CORE]
    seen = sum(row.fine for row in planted)
    return (
        f"Sound code: {alarms} alarms in {sum(row.runs for row in sound)} runs of {len(sound)} audits. Planted faults: "
        f"{seen} of {len(planted)} detected in at least nine tenths of their runs, {_each(planted)} "
        f"({sum(row.fine for row in core)} of {len(core)} of the classic ones)."
    )


def _each(rows: Sequence[Row]) -> str:
    """How many runs each had."""
    least, most = (pick((row.runs for row in rows), default=0) for pick in (min, max))
    return f"{least} each" if least == most else f"{least} to {most} each"


if __name__ == "__main__":
    raise SystemExit(main())
