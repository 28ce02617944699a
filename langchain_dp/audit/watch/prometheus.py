"""Prometheus gauges of ledgers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from langchain_dp._util.extras import needs
from langchain_dp.audit.watch.reading import MEASURES, PREFIX, Measure, Watchable, Watched, named

with needs("prometheus", "prometheus-client", why=" for gauges of a ledger"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

_PREFIX = PREFIX.replace(".", "_")


class LedgerCollector(Collector):
    """Gauges ``langchain_dp_ledger_*`` of ledgers, read at every scrape.

    Labels are ``ledger`` (the given name), ``mechanism`` and ``account`` (the fullest "user" or "document"). A ledger
    that cannot be read has ``healthy`` 0 and nothing else. Use one collector per registry.

    Args:
        ledgers: Open ledgers, paths or URLs by short name. Paths and URLs are only read, without refusals.

    Raises:
        MissingExtra: prometheus-client is not installed.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> registry.register(LedgerCollector({"mailbox": PrivacyLedger(PrivacyBudget(3.0))}))
        >>> registry.get_sample_value("langchain_dp_ledger_left_epsilon", {"ledger": "mailbox"})
        3.0
    """

    def __init__(self, ledgers: Mapping[str, Watchable | Watched]) -> None:
        self._watched = named(ledgers)

    def describe(self) -> Iterable[Metric]:
        """Yield families without values."""
        yield from map(self._family, MEASURES)

    def collect(self) -> Iterable[Metric]:
        """Read every ledger once."""
        looked = {name: watched.look() for name, watched in self._watched.items()}
        for measure in MEASURES:
            family = self._family(measure)
            for name, (found, _) in looked.items():
                for labels, value in measure.of(found):
                    family.add_metric([name, *(labels[label] for label in measure.labels)], value)
            if family.samples:
                yield family

    @staticmethod
    def _family(measure: Measure) -> GaugeMetricFamily | CounterMetricFamily:
        kind = CounterMetricFamily if measure.counts else GaugeMetricFamily
        name = f"{_PREFIX}_{measure.name.replace('.', '_')}"
        return kind(name, measure.what, labels=["ledger", *measure.labels])
