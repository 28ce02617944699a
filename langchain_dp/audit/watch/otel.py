"""OpenTelemetry gauges of ledgers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from langchain_dp._util import forks
from langchain_dp._util.extras import needs
from langchain_dp.accounting.certificate import library_version
from langchain_dp.audit.watch.reading import MEASURES, PREFIX, LedgerStats, Measure, Watchable, Watched, named

with needs("otel", "opentelemetry-api", why=" for gauges of a ledger"):
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation


def register_otel_metrics(ledgers: Mapping[str, Watchable], *, meter_provider: MeterProvider | None = None) -> None:
    """Register the gauges ``langchain_dp.ledger.*``, read when OpenTelemetry collects.

    Attributes are ``ledger`` (the given name), ``mechanism`` and ``account`` (the fullest "user" or "document"). A
    ledger that is closed or cannot be read has ``healthy`` 0 and nothing else. Call it once: gauges cannot be
    unregistered.

    Args:
        ledgers: Open ledgers, paths or URLs by short name. Paths and URLs are only read, without refusals.
        meter_provider: Provider of the meter.

    Raises:
        MissingExtra: opentelemetry-api is not installed.

    Examples:
        >>> register_otel_metrics({"mailbox": PrivacyLedger(PrivacyBudget(3.0))})
    """
    readings = _Readings(named(ledgers))
    meter = metrics.get_meter("langchain_dp", library_version(), meter_provider)
    for measure in MEASURES:
        create = meter.create_observable_counter if measure.counts else meter.create_observable_gauge
        create(f"{PREFIX}.{measure.name}", [readings.of(measure)], description=measure.what)


class _Readings:
    """One reading per collection. A gauge's second call begins the next."""

    def __init__(self, watched: Mapping[str, Watched]) -> None:
        self._watched = watched
        self._lock = threading.Lock()
        forks.renew_lock(self)
        self._looked: dict[str, LedgerStats | None] = {}
        self._served = {measure.name for measure in MEASURES}

    def _for(self, asking: str) -> dict[str, LedgerStats | None]:
        with self._lock:
            if asking in self._served:
                self._looked = {name: watched.look()[0] for name, watched in self._watched.items()}
                self._served = set()
            self._served.add(asking)
            return self._looked

    def of(self, measure: Measure) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> Iterable[Observation]:
            for name, found in self._for(measure.name).items():
                for labels, value in measure.of(found):
                    yield Observation(value, {"ledger": name, **labels})

        return observed
