"""``langchain-dp audit``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import ClassVar

from typer import Option

from langchain_dp._util.whole_files import write_whole
from langchain_dp.cli.options import JsonOptions
from langchain_dp.cli.parser import DONE, WrongArguments
from langchain_dp.cli.runs import check_folder
from langchain_dp.cli.show import print_json
from langchain_dp.errors import InvalidParameter


class Audit(JsonOptions):
    """Writes the report."""

    said: ClassVar = {"path": "--ledger"}
    path = "audit"
    what = "Write the report of a ledger for an auditor."
    examples = """\
  langchain-dp audit --ledger privacy.ledger --out report.html
  langchain-dp audit --ledger privacy.ledger --out report.html --attacks attacks.json
  langchain-dp audit --ledger privacy.ledger --out report.html --pseudonyms pseudonyms.json
  langchain-dp audit --ledger privacy.ledger --json
"""
    notes = """\
The ledger is not changed. The page makes no request and holds no text of any record.
--attacks: a JSON list of {"name", "rate", "low", "high", "baseline", "n", "settings"}.
--pseudonyms: a JSON list of PseudonymReport.to_dict(), one per conversation.
--json: the contents of the page, {"kind", "unit", "budget", "reserved", "spent", "left", "total", "plans", "curve",
"limits", "attacks", "pseudonyms", ...}; budget, reserved, spent and left by name as in ledger --json.
"""
    ledger: str = Option(metavar="PLACE", help="file or postgresql:// URL of a ledger, of either kind")
    out: Path | None = Option(None, help="HTML file to write (required without --json)")
    attacks: Path | None = Option(None, help="JSON of attack results to show beside it")
    pseudonyms: Path | None = Option(None, help="JSON of reports of pseudonyms to show beside it")

    def run(self) -> int:
        from langchain_dp.audit.report import report
        from langchain_dp.audit.report.page import page
        from langchain_dp.audit.report.results import reported_attacks, rows_of, summed_pseudonyms

        if self.out is None and not self.json:
            raise WrongArguments("Expected --out to name the page to write, or --json to print the report instead.")
        if self.out is not None:
            _check_out(self.out)
        attacks = () if self.attacks is None else reported_attacks(rows_of(self.attacks, "attacks"))
        hidden = () if self.pseudonyms is None else summed_pseudonyms(rows_of(self.pseudonyms, "pseudonyms"))
        found = dataclasses.replace(report(self.ledger, attacks=attacks), pseudonyms=hidden)
        if self.out is not None:
            write_whole(self.out, page(found))
        if self.json:
            print_json(found.to_dict())
        else:
            print(f"{self.out}: {found.kind} with {found.total:,} release{'s' * (found.total != 1)}")
            for attack in found.attacks:
                if attack.contradicts:
                    print(f"An attack contradicts a promise: {attack.name}. See the page.", file=sys.stderr)
        return DONE


def _check_out(out: Path) -> None:
    """Refuse to replace other files."""
    from langchain_dp.audit.report.page import is_page

    check_folder(out, "--out")
    if out.exists() and not (out.is_file() and is_page(out)):
        raise InvalidParameter(f"Expected --out {out} to be new, or an earlier report. Name another file.")
