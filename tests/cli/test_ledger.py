"""The command that shows a ledger: what it says, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langchain_dp._util.rounding import bound
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    MetricLedger,
    NoisyMaxEvent,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    Quotas,
    epsilon,
)
from langchain_dp.accounting.metric import Owner
from langchain_dp.audit.report import report
from langchain_dp.audit.report.page import page
from langchain_dp.cli import main

SECRET = "Zebedee Quillfeather was treated for gout on Monday"
ANSWER = NoisyMaxEvent(4.0, 0.1)
TOKEN = PartEvent("training", LimitedDomainEvent(0.2, 1e-8, 0.1, "fixed"))
CHOICE = PartEvent("validation", ExponentialEvent(0.5))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "privacy.ledger"
    with PrivacyLedger(PrivacyBudget(3.0, 1e-5), path) as made:
        made.reserve([(ANSWER, 10)], name="tickets", epsilon=1.0, delta=4e-6).spend(ANSWER, 2, caller="web")
        prompts = made.reserve([(TOKEN, 10), (CHOICE, 1)], name="prompts", epsilon=1.5, delta=4e-6)
        prompts.spend(TOKEN, 3)
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.ledger"
    with MetricLedger(20.0, path, document_limit=9.0) as made:
        made.spend(2.0, [Owner(SECRET, SECRET), Owner("another", SECRET)], table="glove-50d", caller="mail")
        made.spend(3.0, [Owner(SECRET)], table="glove-50d")
    return path


def shown(path: Path, capsys: Any) -> tuple[str, dict[str, Any]]:
    """What the command prints for people and for programs; the file and its folder stay as they are."""
    before = {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.parent.iterdir()}
    assert main(["ledger", str(path)]) == 0
    text, error = capsys.readouterr()
    assert not error
    assert main(["ledger", str(path), "--json"]) == 0
    out, error = capsys.readouterr()
    assert not error
    assert {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.parent.iterdir()} == before
    assert "Zebedee" not in text + out
    return text, json.loads(out)


def test_budget_plans_parts_and_releases(ledger: Path, capsys: Any) -> None:
    """If it breaks, somebody believes that more is left than is, or a release is not shown."""
    text, found = shown(ledger, capsys)
    with PrivacyLedger(PrivacyBudget(3.0, 1e-5), ledger) as opened:
        spent = opened.spent()
    assert (found["kind"], found["unit"], found["total"]) == ("ledger", "epsilon", 5)
    assert found["budget"] == {"epsilon": 3.0, "delta": 1e-5}
    assert found["reserved"] == pytest.approx({"epsilon": 2.5, "delta": 8e-6})
    assert found["left"] == pytest.approx({"epsilon": 0.5, "delta": 2e-6})
    assert (found["spent"]["epsilon"], found["spent"]["delta"]) == pytest.approx(spent)
    tickets, prompts = found["plans"]
    assert (tickets["name"], tickets["epsilon"], tickets["parts"]) == ("tickets", 1.0, {})
    (release,) = tickets["releases"]
    assert [release[name] for name in ("mechanism", "used", "most", "left")] == ["Report noisy max", 2, 10, 8]
    assert release["chains"] == {"web": 2}
    assert release["first"] == release["last"] != ""
    assert prompts["parts"] == {"training": pytest.approx(epsilon([(TOKEN, 3)], 4e-6)), "validation": 0.0}
    assert [release["left"] for release in prompts["releases"]] == [7, 1]
    for part in (
        "budget           epsilon = 3, delta = 1e-05",
        "left to reserve  epsilon = 0.5, delta = 2e-06",
        "Plan tickets, made 20",
        "2 of 10 used, 8 left",
        "asked for by web (2)",
        f"part training: epsilon = {bound(prompts['parts']['training'])} of 1.5 spent",
        "0 of 1 used, 1 left",
    ):
        assert part in text


def test_accounts_in_eta(texts: Path, capsys: Any) -> None:
    """If it breaks, a ledger of sanitized texts is shown in the wrong unit, or with the wrong account."""
    text, found = shown(texts, capsys)
    assert (found["kind"], found["unit"], found["total"]) == ("metric ledger", "eta", 3)
    assert found["budget"] == {"user": 20.0, "document": 9.0}
    assert found["spent"] == {"user": 4.0, "document": 5.0}
    assert found["left"] == {"user": 16.0, "document": 4.0}
    (plan,) = found["plans"]
    assert [(each["used"], each["chains"]) for each in plan["releases"]] == [(2, {"mail": 2}), (1, {"(no name)": 1})]
    assert found["facts"]["Users with an account"] == "1"
    assert "fullest user                 eta = 4 of 20 spent, 16 left" in text
    assert "epsilon" not in text
    with MetricLedger(None, texts.with_name("open.ledger")):
        pass
    assert shown(texts.with_name("open.ledger"), capsys)[1]["left"] == {"user": "inf", "document": "inf"}


def test_an_empty_ledger_and_names_that_are_texts(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a new ledger cannot be shown, or a name that somebody filled with private text is printed."""
    path = tmp_path / "new.ledger"
    with PrivacyLedger(PrivacyBudget(1.0), path) as made:
        assert "Nothing was reserved" in shown(path, capsys)[0]
        made.reserve([(PartEvent(SECRET, ExponentialEvent(0.1)), 2)], name=SECRET).spend(
            PartEvent(SECRET, ExponentialEvent(0.1)), 1, caller=SECRET
        )
        text, found = shown(path, capsys)
    assert "reads like a text: not shown" in text
    assert found["total"] == 1


def test_shares_of_askers_are_listed(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, nobody sees who has used what, or a name that reads like a text is shown."""
    path = tmp_path / "privacy.ledger"
    with PrivacyLedger(PrivacyBudget(3.0, 1e-5), path) as made:
        shares = Quotas(default=5, overrides={"ward-3": 20, SECRET: 7})
        plan = made.reserve([(NoisyMaxEvent(400.0), 1500)], name="shared", delta=1e-6, quotas=shares)
        plan.spend(NoisyMaxEvent(400.0), 2, user_id="user-17")
        plan.spend(NoisyMaxEvent(400.0), 4, user_id="ward-3")
        made.reserve([(NoisyMaxEvent(400.0), 5)], name="plain", delta=1e-6)
    text, found = shown(path, capsys)
    hidden = f"(a name of {len(SECRET)} characters that reads like a text: not shown)"
    rows = [("ward-3", 4, 20), ("user-17", 2, 5), (hidden, 0, 7)]
    plan, plain = found["plans"]
    assert [(user_id["name"], user_id["used"], user_id["most"]) for user_id in plan["quotas"]] == rows
    assert (plan["each"], plain["quotas"], plain["each"]) == (5, [], None)
    for line in (
        "  user ward-3: 4 of 20 used, 16 left",
        "  user user-17: 2 of 5 used, 3 left",
        "  each other user: 5",
        "  (users can pool their answers: the promise is the whole plan's)",
    ):
        assert text.splitlines().count(line) == 1
    written = page(report(path))
    assert "Zebedee" not in written
    assert written.count("Users can pool their answers: the promise is the whole plan's.") == 1
    cells = [" of ".join(pair) for pair in (("16", "20"), ("3", "5"), ("7", "7"), ("5", "5"))]
    assert all(f">{cell}<" in written for cell in cells)


def test_parts_of_one_label_are_shown_apart(tmp_path: Path, capsys: Any) -> None:
    """If it breaks, a part that has spent everything is shown as one that has spent nothing."""
    event = NoisyMaxEvent(sigma=5.0)
    place = tmp_path / "parts.ledger"
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), place) as ledger:
        eu, us = PartEvent("eu/wards/1", event), PartEvent("us/wards/1", event)
        ledger.reserve([(eu, 3), (us, 3)], name="parts", delta=1e-5).spend(eu, 3)
    assert main(["ledger", str(place), "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["plans"][0]["parts"]
    assert list(parts) == ["1 (part 1)", "1 (part 2)"]
    assert parts["1 (part 1)"] > 1.0
    assert parts["1 (part 2)"] == 0.0
