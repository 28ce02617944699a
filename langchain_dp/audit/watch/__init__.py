"""Monitoring of ledgers by public figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports

if TYPE_CHECKING:
    from langchain_dp.audit.watch.live import live_app
    from langchain_dp.audit.watch.otel import register_otel_metrics
    from langchain_dp.audit.watch.prometheus import LedgerCollector
    from langchain_dp.audit.watch.reading import LedgerStats, figures

__all__ = ["LedgerCollector", "LedgerStats", "figures", "live_app", "register_otel_metrics"]

_HOME = {
    ".live": ("live_app",),
    ".otel": ("register_otel_metrics",),
    ".prometheus": ("LedgerCollector",),
    ".reading": ("LedgerStats", "figures"),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
