"""The live page, from a real server on loopback: what it shows, whom it answers, and that it changes nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fakes.canary import CANARY
from fakes.voters import classifier
from prometheus_client.parser import text_string_to_metric_families

from langchain_dp.accounting import MetricLedger, NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting.metric import Owner
from langchain_dp.audit.report import report
from langchain_dp.audit.report.page import page
from langchain_dp.audit.watch import live_app
from langchain_dp.errors import InvalidParameter

ANSWER = NoisyMaxEvent(2.0, 0.1)


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.text = response.read().decode()


class Site:
    """A server of the page."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str = "/", *, method: str = "GET", **headers: str) -> Answer:
        """One request; ``Host`` is what a browser would send, unless it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
                if value:
                    connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            return Answer(connection.getresponse())


@contextlib.contextmanager
def serving(ledger: Any, **settings: Any) -> Iterator[Site]:
    """A real server on loopback."""
    config = uvicorn.Config(live_app(ledger, **settings), port=0, log_config=None, log_level="debug", lifespan="off")
    server = uvicorn.Server(config)
    started = threading.Event()
    begin = server.startup

    async def begun(*given: Any, **named: Any) -> None:
        await begin(*given, **named)
        started.set()

    server.startup = begun  # type: ignore[method-assign]  # to know when it is there
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(10)
        yield Site(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)


def test_the_page_is_the_report_and_keeps_up(ledger: Path) -> None:
    """If it breaks, the page shows other figures than the report, or yesterday's."""
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), ledger) as made, serving(ledger) as site:
        first = site.ask()
        assert first.status == 200
        body = re.compile(r"<main>.*</main>", re.DOTALL)
        shown, reported = (body.findall(text)[0] for text in (first.text, page(report(ledger))))
        moment = re.compile(r"read \S+ \S+ UTC")
        assert moment.sub("", shown) == moment.sub("", reported)
        assert "<dd>6</dd>" in first.text
        tag = first.headers["etag"]
        same = site.ask(If_None_Match=tag)
        assert (same.status, same.text, same.headers["etag"]) == (304, "", tag)
        made.plans()[0].spend(ANSWER)
        news = site.ask(If_None_Match=tag)
        assert news.status == 200
        assert "<dd>7</dd>" in news.text
        assert news.headers["etag"] != tag


def test_it_loads_its_own_script_and_nothing_else(ledger: Path) -> None:
    """If it breaks, opening the page tells somebody, a script of another site runs in it, or it stands still."""
    with serving(ledger) as site:
        shown = site.ask()
        script = site.ask("/live.js")
    assert re.findall(r"(?:src|href|srcset|action)=\S+", shown.text) == ['src="/live.js"></script>']
    assert not re.search(r"https?:|url\(|@import|\son\w+=", shown.text)
    assert shown.text.count("<script") == 1
    assert 'id="live" data-every="3.0"' in shown.text
    assert re.findall(r"fetch\((.*?)[,)]", script.text) == ['"/"']
    assert not re.search(r"https?:|innerHTML|eval|import", script.text)
    assert script.headers["content-type"].startswith("text/javascript")
    for answer in (shown, script):
        policy = answer.headers["content-security-policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        assert {"script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= {*policy}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["referrer-policy"] == "no-referrer"


FOREIGN = ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.7", "[::2]"]
OWN = ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8787", "[::1]", "localhost.:80"]


def test_only_reading_is_answered_and_only_under_a_name_of_this_machine(ledger: Path) -> None:
    """If it breaks, there is a way to change something, or any page in the same browser reads this one."""
    before, paths = ledger.read_bytes(), ("/", "/metrics", "/healthz", "/live.js", "/none")
    with serving(ledger) as site:
        for path in paths:
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
                answer = site.ask(path, method=method)
                assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
            for host in FOREIGN:
                answer = site.ask(path, Host=host)
                assert (host, answer.status) == (host, 421)
                assert "Privacy" not in answer.text
                assert "langchain" not in answer.text
        assert site.ask(method="HEAD").status == 200
        assert site.ask(Host="").status == 400  # that is no HTTP/1.1
        for host in OWN:
            assert (host, site.ask("/healthz", Host=host).status) == (host, 200)
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    ("hosts", "host", "known"),
    [
        (None, "10.0.0.7:8787", True),
        (None, "[fe80::1]:80", True),
        (None, "evil.example", False),
        (("box.example",), "box.example:8787", True),
        (("box.example",), "evil.example", False),
        (("box.example",), "127.0.0.1", False),
    ],
)
def test_beyond_this_machine_only_addresses_or_the_given_name(hosts: Any, host: str, known: bool, ledger: Path) -> None:
    """If it breaks, to serve a second machine opens the page to every name."""
    with serving(ledger, hosts=hosts) as site:
        assert site.ask("/healthz", Host=host).status == (200 if known else 421)


def test_metrics_are_there_for_prometheus(metric: Path) -> None:
    """If it breaks, Prometheus cannot scrape the page's server, or reads another name or unit."""
    with serving(metric, name="letters") as site:
        answer = site.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {family.name: family.samples for family in text_string_to_metric_families(answer.text)}
    assert {each.labels["ledger"] for samples in found.values() for each in samples} == {"letters"}
    assert [each.value for each in found["langchain_dp_ledger_left_eta"]] == [10.0, 3.0]
    assert "langchain_dp_ledger_refusals" not in found


def test_without_prometheus_the_rest_is_there(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the page needs an extra that it has no use for, or does not say which one is missing."""
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with serving(ledger) as site:
        assert site.ask().status == 200
        missing = site.ask("/metrics")
        assert (missing.status, ".[prometheus]" in missing.text) == (404, True)


def test_trouble_is_said_and_what_was_read_last_stays(ledger: Path) -> None:
    """If it breaks, a ledger that was lost looks fine, or the page goes blank; or a path is on it."""
    with serving(ledger) as site:
        assert json.loads(site.ask("/healthz").text) == {"healthy": True}
        fine = site.ask()
        away = ledger.rename(ledger.with_name("away.db"))
        gone, health = site.ask(If_None_Match=fine.headers["etag"]), site.ask("/healthz")
        assert (gone.status, health.status) == (503, 503)
        assert json.loads(health.text) == {"healthy": False, "trouble": "LedgerError"}
        assert "cannot be read now (LedgerError)" in gone.text
        assert "<dd>6</dd>" in gone.text
        assert str(ledger.parent) not in gone.text + health.text
        away.rename(ledger)
        again = site.ask()
        assert (again.status, again.headers["etag"]) == (200, fine.headers["etag"])
    with serving(ledger.with_name("never.db")) as site:
        assert (site.ask().status, site.ask("/healthz").status) == (503, 503)


def test_no_row_question_or_user_is_on_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """If it breaks, private text is on the page, in its metrics, or in the log of its server."""
    caplog.set_level(logging.DEBUG)
    with PrivacyLedger(PrivacyBudget(50.0), tmp_path / "a.ledger") as made, MetricLedger(9.0, tmp_path / "b") as texts:
        chain = classifier(ledger=made, max_queries=4)
        chain.invoke(f"{CANARY} one")
        texts.spend(
            1.0, [Owner(f"{CANARY} letter", CANARY)], table="glove", caller=f"{CANARY} and four more plain words"
        )
        for each in (made, tmp_path / "a.ledger", texts):
            with serving(each) as site:
                chain.invoke(f"{CANARY} {each}")
                answers = [site.ask(path) for path in ("/", "/metrics", "/healthz", f"/{CANARY[:3]}")]
                assert [answer.status for answer in answers] == [200, 200, 200, 404]
                for answer in answers:
                    assert CANARY not in answer.text + str(answer.headers)
                    assert str(tmp_path) not in answer.text
    logged = capfd.readouterr()
    assert "GET /metrics" in caplog.text  # the server's own log, as loud as it can be
    assert CANARY not in caplog.text + logged.out + logged.err


def test_looks_are_not_without_a_pause(ledger: Path) -> None:
    """If it breaks, a page asks without end."""
    for every in (0, -1, 0.1, "3"):
        with pytest.raises(InvalidParameter, match="every"):
            live_app(ledger, every=every)  # type: ignore[arg-type]  # wrong on purpose
