"""`make audit`: audits this package, and broken copies of its parts, which the audits must reject."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, from anywhere, and by its worker processes

from audits.faults import CLASSIC, faults
from langchain_dp.audit.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main(faults=faults, classic=CLASSIC))
