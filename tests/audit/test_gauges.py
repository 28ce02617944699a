"""What Prometheus and OpenTelemetry are given of ledgers, as their own readers read it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.voters import classifier
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from langchain_dp.accounting import MetricLedger, NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import Owner
from langchain_dp.audit.watch import LedgerCollector, register_otel_metrics
from langchain_dp.audit.watch.reading import Watched
from langchain_dp.errors import BudgetExceeded

ANSWER = NoisyMaxEvent(2.0, 0.1)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def sample(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def scraped(registry: CollectorRegistry) -> Samples:
    """What Prometheus reads off a scrape, by the names that both have in common."""
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.name.startswith("langchain_dp_ledger_")
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for each in family.samples:
            name = each.name.removeprefix("langchain_dp_ledger_").removesuffix("_total").replace("_", ".")
            key = sample(name, **each.labels)
            assert key not in found
            found[key] = each.value
    return found


def collected(reader: InMemoryMetricReader) -> Samples:
    """The same of a collection of OpenTelemetry."""
    data: Any = reader.get_metrics_data()
    found: Samples = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        assert metric.name.startswith("langchain_dp.ledger.")
        assert isinstance(metric.data, (Gauge, Sum))
        assert not isinstance(metric.data, Sum) or metric.data.is_monotonic
        for point in metric.data.data_points:
            found[sample(metric.name.removeprefix("langchain_dp.ledger."), **point.attributes)] = point.value
    return found


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


def test_both_show_the_same_of_every_ledger(ledger: Path, metric: Path, reader: InMemoryMetricReader) -> None:
    """If it breaks, one of two dashboards is wrong, a name is given twice, or a unit is added to another."""
    with PrivacyLedger(PrivacyBudget(1.0)) as fresh:
        ledgers = {"tickets": ledger, "texts": metric, "fresh": fresh}
        registry = CollectorRegistry()
        registry.register(LedgerCollector(ledgers))
        register_otel_metrics(ledgers, meter_provider=MeterProvider([reader]))
        found = scraped(registry)
        assert collected(reader) == found
    assert {name for name, _ in found} == {
        "healthy", "budget.epsilon", "budget.delta", "reserved.epsilon", "reserved.delta", "spent.epsilon",
        "spent.delta", "left.epsilon", "left.delta", "limit.eta", "spent.eta", "left.eta", "plans", "plans.open",
        "releases", "releases.left", "refusals",
    }  # fmt: skip
    assert found[sample("releases", ledger="tickets", mechanism="Report noisy max")] == 6
    assert found[sample("left.eta", ledger="texts", account="document")] == 3.0
    assert found[sample("left.epsilon", ledger="fresh")] == 1.0
    assert found[sample("refusals", ledger="fresh")] == 0
    assert sample("refusals", ledger="tickets") not in found
    assert sample("spent.epsilon", ledger="texts") not in found


def test_every_collection_reads_anew_and_reads_once(
    ledger: Path, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a gauge stands still, gauges of one moment disagree, or 17 gauges open 17 transactions."""
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), ledger) as made:
        registry = CollectorRegistry()
        registry.register(LedgerCollector({"it": made}))
        register_otel_metrics({"it": made}, meter_provider=MeterProvider([reader]))
        looks: list[int] = []
        real = Watched.look
        monkeypatch.setattr(Watched, "look", lambda self: (looks.append(1), real(self))[1])
        used = sample("releases", ledger="it", mechanism="Report noisy max")
        for number in range(3):
            made.plans()[0].spend(ANSWER)
            assert collected(reader)[used] == scraped(registry)[used] == 7 + number
        assert len(looks) == 6


def test_to_register_reads_nothing_and_doubles_are_refused(tmp_path: Path) -> None:
    """If it breaks, a program cannot start before its ledger is there; or two collectors write one gauge twice."""
    registry = CollectorRegistry()
    registry.register(LedgerCollector({"late": tmp_path / "late.db"}))
    assert scraped(registry) == {sample("healthy", ledger="late"): 0.0}
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(LedgerCollector({"more": tmp_path / "more.db"}))
    PrivacyLedger(PrivacyBudget(1.0), tmp_path / "late.db").close()
    found = scraped(registry)
    assert found[sample("healthy", ledger="late")] == found[sample("left.epsilon", ledger="late")] == 1.0


def test_a_ledger_that_cannot_be_read_says_so_beside_those_that_can(ledger: Path, reader: InMemoryMetricReader) -> None:
    """If it breaks, one broken ledger hides all others, or shows its last figures as if they were true."""
    closed = PrivacyLedger(PrivacyBudget(1.0))
    ledgers = {"closed": closed, "open": ledger}
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledgers))
    register_otel_metrics(ledgers, meter_provider=MeterProvider([reader]))
    assert scraped(registry)[sample("healthy", ledger="closed")] == 1.0
    closed.close()
    for found in (scraped(registry), collected(reader)):
        assert found[sample("healthy", ledger="closed")] == 0.0
        assert [name for name, labels in found if ("ledger", "closed") in labels] == ["healthy"]
        assert found[sample("healthy", ledger="open")] == 1.0
        assert found[sample("plans", ledger="open")] == 2.0


def test_no_row_question_or_user_is_in_any_gauge(
    tmp_path: Path, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    """If it breaks, private text stands in a time series that is kept for years."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / f"{CANARY}.ledger"
    with PrivacyLedger(PrivacyBudget(50.0), path) as made, MetricLedger(9.0, tmp_path / f"{CANARY}.texts") as texts:
        chain = classifier(ledger=made, max_queries=2)
        registry = CollectorRegistry()
        ledgers = {"mailbox": made, "read": path, "texts": texts}
        registry.register(LedgerCollector(ledgers))
        register_otel_metrics(ledgers, meter_provider=MeterProvider([reader]))
        for question in (f"{CANARY} one", f"{CANARY} two"):
            chain.invoke(question)
        with pytest.raises(BudgetExceeded):
            chain.invoke(f"{CANARY} three")
        texts.spend(1.0, [Owner(f"{CANARY} letter", CANARY)], table="glove")
        shown = generate_latest(registry).decode()
        whole = str(reader.get_metrics_data().to_json())  # type: ignore[union-attr]  # there is some
        found = scraped(registry)
        path.unlink()
        assert scraped(registry)[sample("healthy", ledger="read")] == 0.0  # nor in what is said of trouble
        shown += generate_latest(registry).decode()
    assert found[sample("releases", ledger="mailbox", mechanism="Report noisy max")] == 2
    assert found[sample("refusals", ledger="mailbox")] == 1
    for place in (shown, whole, caplog.text):
        assert CANARY not in place
        assert str(tmp_path) not in place
