"""``langchain-dp ledger --watch``: the table, drawn anew when the ledger has changed; in a pipe one line a change."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from langchain_dp._util.rounding import bound, room
from langchain_dp.cli.parser import DONE
from langchain_dp.cli.runs import because
from langchain_dp.cli.show import note
from langchain_dp.errors import LangChainDPError

if TYPE_CHECKING:
    from langchain_dp.accounting import MetricLedger, PrivacyLedger
    from langchain_dp.audit.report import Report
    from langchain_dp.audit.watch import Figures
    from langchain_dp.audit.watch.reading import Watched

    Show = Callable[[Report, PrivacyLedger | MetricLedger], str]


def watch(watched: Watched, show: Show, *, every: float, as_json: bool) -> int:
    """Show a ledger until Ctrl-C, which is how it ends; returns the exit code.

    Args:
        watched: The ledger.
        show: What makes the text of its report.
        every: Seconds between two looks.
        as_json: Whether that text is for a program: then it is printed whole, in one line a change.

    Raises:
        InvalidParameter, LedgerError: It cannot be read at the start. Later on, that is said, and it is tried again.
    """
    seen = watched.figures()
    table = sys.stdout.isatty() and not as_json
    with contextlib.suppress(KeyboardInterrupt), _screen() if table else _lines() as tell:
        whole = table or as_json
        tell(_said(watched, show) if whole else _line(seen), "")
        trouble = ""
        while True:
            time.sleep(every)
            try:
                found = watched.figures()
                text = "" if found == seen and not trouble else _said(watched, show) if whole else _line(found)
            except (LangChainDPError, OSError) as error:
                if because(error) != trouble:
                    trouble = because(error)
                    tell("", trouble)
                continue
            if text:
                tell(text, "")
            seen, trouble = found, ""
    return DONE


def _said(watched: Watched, show: Show) -> str:
    return show(watched.report(), watched.open())


def _line(found: Figures) -> str:
    """The state in one line."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    metric = found.unit == "eta"
    names = ("spent", "budget", "left") if metric else ("spent", "reserved", "budget", "left")
    pairs = (
        f"{name} "
        + ", ".join(
            f"{side} = {(room if name == 'left' else bound)(value)}"
            for side, value in zip(found.sides, getattr(found, name), strict=True)
        )
        for name in names
    )
    return f"{now}  {'eta: ' if metric else ''}{'; '.join(pairs)}; releases {found.releases:,}"


Tell = Callable[[str, str], None]


@contextlib.contextmanager
def _lines() -> Iterator[Tell]:
    def tell(text: str, trouble: str) -> None:
        if trouble:
            note(trouble)
        else:
            print(text, flush=True)

    yield tell


@contextlib.contextmanager
def _screen() -> Iterator[Tell]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    shown = ""

    with Live(console=Console(highlight=False), auto_refresh=False) as live:

        def tell(text: str, trouble: str) -> None:
            nonlocal shown
            shown = text or shown
            now = f"{datetime.datetime.now():%H:%M:%S}"
            last = Text(trouble, style="bold red") if trouble else Text(f"as of {now}; Ctrl-C ends", style="dim")
            live.update(Group(Text(shown), Text(""), last), refresh=True)

        yield tell
