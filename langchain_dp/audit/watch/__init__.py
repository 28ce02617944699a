"""Watching ledgers while they are charged: public figures for Prometheus, OpenTelemetry and a live local page.

All of it reads, and nothing of it writes. A figure is a budget, a count, or how healthy a ledger is: no row, no
question, no answer, no user, no path is in any. A ledger is called by the name that it is given here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazily

if TYPE_CHECKING:
    from langchain_dp.audit.watch.live import live_app
    from langchain_dp.audit.watch.otel import observe
    from langchain_dp.audit.watch.prometheus import LedgerCollector
    from langchain_dp.audit.watch.reading import Figures, figures

__all__ = ["Figures", "LedgerCollector", "figures", "live_app", "observe"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Figures": ".reading",
        "figures": ".reading",
        "LedgerCollector": ".prometheus",
        "live_app": ".live",
        "observe": ".otel",
    },
)
