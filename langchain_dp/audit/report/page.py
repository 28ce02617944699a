"""The report as an HTML page. The template escapes everything."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from langchain_dp._util.rounding import bound, room
from langchain_dp.audit.report import Report
from langchain_dp.audit.report.plot import Plot, spent_over_time
from langchain_dp.audit.report.results import ReportedAttack

_TITLE = "Privacy report: "


def is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return f"<title>{_TITLE}".encode() in file.read(1000)


@dataclasses.dataclass(frozen=True)
class Live:
    """Status of a live page."""

    every: float
    trouble: str = ""

    @property
    def said(self) -> str:
        if self.trouble:
            return f"The ledger cannot be read now ({self.trouble}). The last reading is below."
        return f"Live, looked at every {self.every:g} s"


def page(report: Report, *, live: Live | None = None) -> str:
    """Return the whole page."""
    import jinja2  # a report alone does without

    writer = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_one_line, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    filters: dict[str, Callable[..., Any]] = {
        "moment": lambda time: f"{time[:19].replace('T', ' ')} UTC",
        "number": lambda value: "no limit" if math.isinf(value) else bound(value, 5),
        "room": lambda value: "no limit" if math.isinf(value) else room(value, 5),
        "delta": lambda value: bound(value, 3),
        "setting": lambda value: f"{value:.4g}" if isinstance(value, float) else str(value),
        "whole": "{:,}".format,
        "least": _least,
        "most": _most,
        "apart": _apart,
    }
    writer.filters |= filters
    plot, caption = _plot(report)
    return writer.from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")).render(
        report=report, live=live, heading=_TITLE, plot=plot, caption=caption,
        meanings=list(dict.fromkeys(release.meaning for plan in report.plans for release in plan.releases)),
        alarms=[attack for attack in report.attacks if attack.contradicts],
    )  # fmt: skip


def _plot(report: Report) -> tuple[Plot | None, str]:
    if not report.curve:
        return None, ""
    if report.unit == "eta":
        place = 0 if report.spent[0] > 0 else 1
        whose = report.sides[place]
        lines = [(f"limit of a {whose}", report.budget[place], "budget")]
        caption = f"The largest account of any {whose}."
    else:
        lines = [("budget", report.budget[0], "budget"), ("reserved", report.reserved[0], "reserved")]
        if math.isclose(report.reserved[0], report.budget[0], rel_tol=1e-6):
            lines = [("budget, all of it reserved", report.budget[0], "budget")]
        caption = "The rest of the budget is the distance to its line."
    return spent_over_time(report.curve, begins=report.made, lines=lines, unit=report.unit), caption


def _least(share: float, places: int = 3) -> str:
    return f"{math.floor(share * 10**places + 1e-9) / 10**places:.{places}f}"


def _most(share: float, places: int = 3) -> str:
    return f"{math.ceil(share * 10**places - 1e-9) / 10**places:.{places}f}"


def _apart(attack: ReportedAttack) -> tuple[str, str]:
    written = [(_least(attack.low, places), _most(attack.bound or 0.0, places)) for places in range(3, 10)]
    return next((pair for pair in written if float(pair[0]) > float(pair[1])), written[-1])


def _one_line(value: Any) -> Any:
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    line = "".join(letter if letter.isprintable() else " " for letter in value)
    return re.sub(r"(?<=\de)-(?=\d)", "\u2011", line)
