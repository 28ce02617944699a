"""``langchain-dp start`` and ``langchain-dp doctor``: the first hour of a new user."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.encoders import fitted

from langchain_dp import PrivacyBudget, PrivacyLedger
from langchain_dp.aggregate import StaticEncoder
from langchain_dp.cli import main
from langchain_dp.records import read_file
from langchain_dp.sample import load_tickets

TICKETS = load_tickets()[0][:300]
NAMES = ",".join(sorted({row["label"] for row in TICKETS}))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CSV of 300 tickets with columns of the user's own names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANGCHAIN_DP_STATE", "")
    with open("tickets.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "customer", "body", "queue"])
        writer.writerows([place, row["customer"], row["text"], row["label"]] for place, row in enumerate(TICKETS))
    return Path("tickets.csv")


def test_a_csv_becomes_forecasts_a_ledger_and_a_script_that_answers(data: Path, capsys: Any) -> None:
    """If it breaks, a new user's first command leads nowhere, or the script pays for the same release again."""
    with pytest.warns(UserWarning, match="'customer' may name a person with several"):
        assert main(["start", str(data), "--labels", NAMES, "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "300 rows. Texts are under 'body', labels under 'queue'." in shown
    assert TICKETS[0]["text"][:20] not in shown
    (data.parent / "other").mkdir()
    for _ in range(2):
        command = [sys.executable, "../private_tickets.py"]
        asked: dict[str, Any] = {"input": "Where is my parcel?\n\n", "cwd": "other", "text": True}
        done = subprocess.run(command, **asked, capture_output=True, check=True)
        assert done.stdout.split()[-1] in NAMES.split(",")
        assert done.stdout.index("expected: right on") < done.stdout.index("Privacy certificate")
        with PrivacyLedger(PrivacyBudget(3.0), "tickets.csv.ledger") as ledger:
            assert [plan.name for plan in ledger.plans()] == ["prototypes"]
            assert len(list(ledger.entries())) == 1


def test_the_service_of_the_page_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, the web service of the first page ends in an error."""
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.chdir(tmp_path)
    fitted(encoder=StaticEncoder(), texts=None).save("private_tickets.json")
    page = (Path(__file__).parents[2] / "docs" / "start.md").read_text(encoding="utf-8")
    data, block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(data, "start.md", "exec", dont_inherit=True), names)
    assert len(read_file("tickets.csv")) == len(load_tickets()[0])
    exec(compile(block, "start.md", "exec", dont_inherit=True), names)
    web = testclient.TestClient(names["app"])
    assert web.post("/label", json={"text": "my parcel"}).json()["label"] in ("A", "B")
    blank = web.post("/label", json={"text": " "})
    assert (blank.status_code, "non-empty text" in blank.json()["detail"]) == (422, True)


def test_more_epsilon_never_forecasts_less(data: Path, capsys: Any) -> None:
    """If it breaks, a larger budget seems to buy a worse result."""
    assert main(["start", str(data), "--labels", NAMES, "--yes", "--json", "--user-key", "customer"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["users"]) == (300, len({row["customer"] for row in TICKETS}))
    for end in (0, 2):  # "28 to 50 of 100 right"
        right = [int(cell.split()[end]) for cell in found["forecasts"][0]["by_epsilon"].values()]
        assert right == sorted(right)


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["--labels", NAMES], "Expected --yes, which agrees that column names", 2),
        (["--yes"], "Expected --labels to name the labels", 2),
        (["--labels", "account,billing", "--yes"], "to be one of --labels", 1),
        (["--labels", NAMES, "--yes", "--text-key", "mail"], "--text-key", 1),
        (["--labels", NAMES, "--yes", "--out", "tickets.csv"], "Expected the script tickets.csv to be new", 1),
    ],
)
def test_a_start_that_would_mislead_is_refused(data: Path, capsys: Any, words: list[str], says: str, code: int) -> None:
    """If it breaks, a script of wrong columns is written, or a file of the user's is overwritten."""
    assert main(["start", str(data), *words]) == code
    assert says in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in Path().iterdir()) == ["tickets.csv"]


def test_columns_without_usual_names_are_asked_for(data: Path, capsys: Any) -> None:
    """If it breaks, a column is taken by chance, and a classifier learns from the wrong text."""
    data.write_text(data.read_text().replace("body", "x", 1))
    assert main(["start", str(data), "--labels", NAMES, "--yes"]) == 1
    assert "Name it with --text-key" in capsys.readouterr().err


def test_doctor_names_versions_extras_and_the_state_of_a_ledger(data: Path, capsys: Any) -> None:
    """If it breaks, a bug report lacks what one asks for first, or shows a private path."""
    assert main(["start", str(data), "--labels", NAMES, "--yes", "--json"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--ledger", "tickets.csv.ledger", "--json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)
    assert found["ledger"] == "sound"
    assert found["versions"]["langchain-core"]
    assert found["extras"]["encoder"] == []
    assert "tickets" not in shown
    assert main(["doctor", "--ledger", "tickets.csv"]) == 1
    assert "is not a ledger" in capsys.readouterr().out
