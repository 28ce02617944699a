"""``langchain-dp audit``: the report of a ledger as one page, for whoever has to judge what was released."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from langchain_dp._util.whole_files import write_whole
from langchain_dp.cli import options as shared
from langchain_dp.cli.parts import DONE, FAILED, WrongArguments, new_command, print_json
from langchain_dp.errors import InvalidParameter

EXAMPLES = """\
  langchain-dp audit --ledger privacy.ledger --out report.html
  langchain-dp audit --ledger privacy.ledger --out report.html --attacks attacks.json
  langchain-dp audit --ledger privacy.ledger --json
  langchain-dp audit --self-check
"""

_NOTES = """\
The ledger is read and not changed, be it counted in epsilon or in eta. The page makes no request and holds no text of
any record. --attacks: a JSON list of {"name", "rate", "low", "high", "baseline", "n", "settings"}.
--self-check: tries to disprove what this installation promises; takes minutes, no model and no data. Exit code 1 where
it succeeds. With --json: {"rows": [{"audit", "name", "broken", "runs", "fine", ...}]}. One audit, or several processes:
python -m langchain_dp.audit --help
--json: what the page shows, {"kind", "unit", "budget", "reserved", "spent", "left", "total", "plans", "curve",
"limits", "attacks", ...}; budget, reserved, spent and left by name as in ledger --json.
For the state of a ledger on a terminal: langchain-dp ledger
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser = new_command(
        commands, "audit", "report of a ledger: what was released, when, and what is left", EXAMPLES, _NOTES
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--ledger", type=Path, help="file of a ledger, of either kind")
    what.add_argument("--self-check", action="store_true", help="audit the code of this installation instead")
    parser.add_argument("--out", type=Path, help="HTML file to write (required without --json)")
    parser.add_argument("--attacks", type=Path, help="JSON of attack results to show beside it")
    shared.add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from langchain_dp.audit.report import report
    from langchain_dp.audit.report.page import page
    from langchain_dp.audit.report.results import read_attacks

    if options.self_check:
        if options.out or options.attacks:
            raise WrongArguments("Expected --self-check without --out and --attacks: it prints what it finds.")
        return _self_check(as_json=options.json)
    if options.out is None and not options.json:
        raise WrongArguments("Expected --out to name the page to write, or --json to print the report instead.")
    if options.out is not None:
        _check_out(options.out)
    attacks = () if options.attacks is None else read_attacks(options.attacks)
    found = report(options.ledger, attacks=attacks)
    if options.out is not None:
        write_whole(options.out, page(found))
    if options.json:
        print_json(found.to_dict())
    else:
        print(f"{options.out}: {found.kind} with {found.total:,} releases")
    return DONE


def _self_check(*, as_json: bool) -> int:
    """Audit the installed code."""
    from langchain_dp.audit.self_check import suite

    rows = suite.run(quiet=as_json or not sys.stderr.isatty())
    if as_json:
        print_json({"rows": [row.to_dict() for row in rows]})
    else:
        print(suite.table(rows))
    return DONE if all(row.fine for row in rows) else FAILED


def _check_out(out: Path) -> None:
    """Nothing but an earlier report may be replaced."""
    from langchain_dp.audit.report.page import is_page

    if out.is_dir() or not out.parent.is_dir():
        raise InvalidParameter(f"Expected --out {out} to be a file in an existing folder.")
    if out.exists() and not is_page(out):
        raise InvalidParameter(f"Expected --out {out} to be new, or an earlier report. Name another file.")
