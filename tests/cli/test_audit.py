"""The command that writes the report of a ledger."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from langchain_dp import Pseudonymizer
from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.cli import main

SECRET = "Zebedee Quillfeather was treated for gout"
GOOD = {"name": "inversion", "rate": 0.5, "low": 0.4, "high": 0.6, "baseline": 0.1, "n": 10, "settings": {"eta": 7.0}}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "budget.db"
    with PrivacyLedger(PrivacyBudget(3.0, 1e-5), path) as made:
        made.reserve([(NoisyMaxEvent(4.0, 0.1), 10)], name="tickets").spend(NoisyMaxEvent(4.0, 0.1), 2)
    return path


def run(*arguments: object) -> int:
    return main(["audit", *map(str, arguments)])


def test_a_page_is_written(ledger: Path, capsys: Any) -> None:
    """If it breaks, there is no report, its writer alone can read it, or the ledger is another one after it."""
    before, out = ledger.read_bytes(), ledger.with_name("report.html")
    assert run("--ledger", ledger, "--out", out) == 0
    assert capsys.readouterr().out.endswith("report.html: ledger with 2 releases\n")
    written = out.read_text("utf-8")
    assert written.startswith("<!DOCTYPE html>")
    assert "tickets" in written
    assert "Attacks" not in written
    assert ledger.read_bytes() == before
    assert sorted(path.name for path in ledger.parent.iterdir()) == ["budget.db", "report.html"]
    assert run("--ledger", ledger, "--out", out) == 0  # written again
    (other := ledger.with_name("other")).touch()
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_what_is_left_is_written_as_in_the_other_command(ledger: Path, capsys: Any) -> None:
    """If it breaks, a program that reads both commands finds one thing under two names."""
    said = []
    for command in (["audit", "--ledger"], ["ledger"]):
        assert main([*command, str(ledger), "--json"]) == 0
        said.append(json.loads(capsys.readouterr().out))
    names = ("kind", "unit", "file", "made", "neighbors", "budget", "reserved", "spent", "left", "total")
    one, other = ({name: found[name] for name in names} for found in said)
    assert one == other


def test_attacks_stand_in_the_report_and_texts_of_theirs_do_not(ledger: Path, capsys: Any) -> None:
    """If it breaks, attacks are left out, one that beats guessing is not said to, or a span that one found is shown."""
    attacks, out = ledger.with_name("attacks.json"), ledger.with_name("report.html")
    attacks.write_text(json.dumps([GOOD, GOOD | {"name": "membership", "baseline": 0.5, "settings": {}}]))
    assert run("--ledger", ledger, "--out", out, "--attacks", attacks, "--json") == 0
    assert [attack["name"] for attack in json.loads(capsys.readouterr().out)["attacks"]] == ["inversion", "membership"]
    written = out.read_text("utf-8")
    assert written.count(">better than guessing<") == 1
    assert written.count(">no better than guessing<") == 1
    assert "0.500 <small>[0.400, 0.600]" in written
    attacks, out = ledger.with_name("attacks.json"), ledger.with_name("report.html")
    attacks.write_text(json.dumps(GOOD | {"name": SECRET, "settings": {"span": SECRET, "rows": [SECRET], SECRET: 1}}))
    assert run("--ledger", ledger, "--out", out, "--attacks", attacks, "--json") == 0
    for shown in (out.read_text("utf-8"), capsys.readouterr().out):
        assert "Zebedee" not in shown
        assert "not shown" in shown


def test_pseudonyms_stand_in_the_report(ledger: Path, capsys: Any) -> None:
    """If it breaks, the page of what left the building leaves out what left it without a promise."""
    told, out = ledger.with_name("pseudonyms.json"), ledger.with_name("report.html")
    pseudonymizer = Pseudonymizer()
    pseudonymizer.invoke("Write to zebedee@example.org")
    told.write_text(json.dumps([pseudonymizer.report().to_dict()]))
    assert run("--ledger", ledger, "--out", out, "--pseudonyms", told, "--json") == 0
    [hidden] = json.loads(capsys.readouterr().out)["pseudonyms"]
    assert (hidden["private"], hidden["counts"]) == (False, {"EMAIL": 1})
    assert "NOT formal privacy" in out.read_text("utf-8")
    told.write_text(SECRET)
    assert run("--ledger", ledger, "--out", out, "--pseudonyms", told) == 1
    assert "to be JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "to be JSON"),
        (json.dumps([GOOD, SECRET]), "attack 1 to be an object"),
        (json.dumps([GOOD | {"text": SECRET}]), "and nothing else"),
        (json.dumps([GOOD | {"rate": 1.5}]), "rate of attack 0=1.5"),
        (json.dumps([GOOD | {"rate": float("nan")}]), "rate of attack 0"),
        (json.dumps([GOOD | {"low": SECRET}]), "low of attack 0"),
        (json.dumps([GOOD | {"low": 0.9}]), "low <= rate <= high"),
        (json.dumps([GOOD | {"n": -1}]), "n of attack 0"),
        (json.dumps([GOOD | {"n": 1.5}]), "n of attack 0"),
        (json.dumps([GOOD | {"n": 10**400}]), "n of attack 0"),
        (json.dumps([GOOD | {"name": ""}]), "name of attack 0"),
        (json.dumps([GOOD | {"settings": [SECRET]}]), "settings of attack 0"),
    ],
)
def test_a_wrong_file_of_attacks_is_one_line_without_its_content(
    content: str, said: str, ledger: Path, capsys: Any
) -> None:
    """If it breaks, half a result is shown, or what an attack found is printed."""
    attacks = ledger.with_name("attacks.json")
    attacks.write_text(content)
    out = ledger.with_name("report.html")
    assert run("--ledger", ledger, "--out", out, "--attacks", attacks) == 1
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err
    assert "Zebedee" not in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ledger", "gone.db", "--out", "r.html"], "nothing is there"),
        (["--ledger", "budget.db", "--out", "budget.db"], "to be new, or an earlier report"),
        (["--ledger", "budget.db", "--out", "link.html"], "to be new, or an earlier report"),
        (["--ledger", "budget.db", "--out", "notes.txt"], "to be new, or an earlier report"),
        (["--ledger", "budget.db", "--out", "nowhere/r.html"], "folder of --out nowhere"),
        (["--ledger", "budget.db", "--out", "."], "to be new, or an earlier report"),
        (["--ledger", "budget.db", "--out", "r.html", "--attacks", "gone.json"], "gone.json"),
    ],
)
def test_what_cannot_be_is_one_line_and_costs_nothing(
    arguments: list[str], said: str, ledger: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a slip overwrites the ledger, creates one, or ends in a traceback."""
    monkeypatch.chdir(ledger.parent)
    Path("notes.txt").write_text("a note\n" * 100)
    os.symlink("budget.db", "link.html")
    before = {path.name: path.read_bytes() for path in ledger.parent.iterdir()}
    assert main(["audit", *arguments]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert said in err
    assert {path.name: path.read_bytes() for path in ledger.parent.iterdir()} == before
