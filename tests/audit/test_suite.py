"""The audits of this package: none accuses the sound code, each sees its planted faults, and the command says so."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from audits import planted, planted_chains, planted_neighbors, planted_texts
from audits.faults import CLASSIC, faults

import langchain_dp
from langchain_dp import PrivacyBudget
from langchain_dp.audit import __main__ as command
from langchain_dp.audit.self_check import suite
from langchain_dp.audit.self_check.accountant import order
from langchain_dp.audit.self_check.chains import tightness
from langchain_dp.audit.self_check.check import Check, Finding
from langchain_dp.audit.self_check.suite import AuditRow, checks, run, table
from langchain_dp.errors import BudgetRunsLow, MostlyNoiseWarning, NothingKept, WeakPromiseWarning

CHECKS = {check.name: check for check in checks()}
FAULTS = faults()
HELPERS = ("instead", "method", "under")  # of the stand-ins, not broken themselves
REPEATED = [name for name, check in CHECKS.items() if not check.once]
LONG = ("text canary",)  # each run takes 15 seconds: `make audit` plants the other faults
SOUND, BROKEN = Finding(False, "well"), Finding(True, "ill")


@pytest.mark.statistical
@pytest.mark.parametrize("name", REPEATED)
def test_the_sound_code_passes_and_every_planted_fault_is_seen(name: str) -> None:
    """If it breaks, the code lost a guarantee or the audit its eyes. Error rate 4e-7 an audit, power above 0.999."""
    check = CHECKS[name]
    found = check.sound()
    assert not found.broken, found.seen
    planted_here = list(FAULTS.get(name, {}).items())
    for fault, broken in planted_here[:2] if name in LONG else planted_here:
        seen = broken()
        assert seen.broken, (fault, seen.seen)


@pytest.mark.statistical
def test_the_claim_of_one_answer_is_tight() -> None:
    """If it breaks, DP-ICL wastes budget, or costs more than it says. Above 60% but for a chance of 1e-4."""
    found = tightness(PrivacyBudget(2.0, 0.1), runs=8_000)
    assert not found.violated
    assert 0.6 <= found.share <= 1.0


def test_schemes_stand_in_order() -> None:
    """If it breaks, the cheaper scheme is charged more, or the weaker promise is dearer."""
    assert not order().broken


def test_every_classic_fault_is_planted_once() -> None:
    """If it breaks, the table leaves out a fault that published code has had."""
    names = [name for made in FAULTS.values() for name in made]
    assert len(CLASSIC) == 10
    assert set(CLASSIC) <= set(names)
    assert len(set(names)) == len(names)
    assert set(FAULTS) <= set(CHECKS)


def test_stand_ins_are_not_offered() -> None:
    """If it breaks, something deliberately broken is installed with the package."""
    parts = (planted, planted_chains, planted_neighbors, planted_texts)
    made = [name for part in parts for name, thing in vars(part).items()
            if getattr(thing, "__module__", "").startswith("audits.") and name not in HELPERS]  # fmt: skip
    assert "half_the_gumbel_scale" in made
    assert "every_third_free" in made
    written = "\n".join(path.read_text("utf-8") for path in Path(langchain_dp.__file__).parent.rglob("*.py"))
    assert not [name for name in made if f"def {name}(" in written or f"class {name}(" in written]
    assert "import audits" not in written
    assert "from audits" not in written


def two_faults() -> Any:
    return {"good": {"fault": lambda: BROKEN}, "blind": {"unseen": lambda: SOUND}}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Three audits without any work: a good one, one that accuses, one that is blind."""
    made = [
        Check("good", "holds", lambda: SOUND),
        Check("nervous", "holds", lambda: BROKEN),
        Check("blind", "holds", lambda: SOUND, once=True),
    ]
    monkeypatch.setattr(suite, "checks", lambda: made)
    monkeypatch.setattr(command, "checks", lambda: made)
    return made


def test_rows_count_runs_and_verdicts(few: list[Check]) -> None:
    """If it breaks, a blind or nervous audit is printed as a good one."""
    rows = run(sound=4, planted=3, faults=two_faults, quiet=True)
    assert [(row.audit, row.planted, row.broken, row.runs, row.fine) for row in rows] == [
        ("good", False, 0, 4, True),
        ("good", True, 3, 3, True),
        ("nervous", False, 4, 4, False),
        ("blind", False, 0, 1, True),
        ("blind", True, 0, 1, False),
    ]
    printed = table(rows)
    for said in ("holds", "detected", "BROKEN", "MISSED", "planted: unseen"):
        assert said in printed
    assert "2 alarms" not in command.verdict(rows)
    assert "4 alarms in 9 runs of 3 audits. Planted faults: 1 of 2 detected" in command.verdict(rows)


@pytest.mark.parametrize(("broken", "fine"), [(10, True), (9, True), (8, False)])
def test_nine_of_ten_are_enough(broken: int, fine: bool) -> None:
    """If it breaks, the bar is another than the one that is promised."""
    assert AuditRow("a", "b", True, broken, 10, "").fine == fine
    assert not AuditRow("a", "b", False, 1, 20, "").fine


def test_each_audit_says_so_when_it_ends(few: list[Check], capsys: Any) -> None:
    """If it breaks, make audit is silent for minutes, in a terminal or in CI, or warns of its own stubs."""

    def talking() -> Finding:
        printed.append(capsys.readouterr().err)
        for kind in (WeakPromiseWarning, MostlyNoiseWarning, NothingKept, BudgetRunsLow):
            warnings.warn("as stubs make the package say", kind, stacklevel=1)
        return SOUND

    printed: list[str] = []
    few.insert(1, Check("talking", "holds", talking, once=True))
    run(sound=2, planted=1, faults=two_faults)
    printed.append(capsys.readouterr().err)
    assert re.fullmatch(r"\[1 of 4, \d+ s\] good: holds in 2 of 2 runs, 1 of 1 planted faults detected\n", printed[0])
    assert [line.partition("] ")[2] for line in printed[1].splitlines()] == [
        "talking: holds in 1 of 1 runs",
        "nervous: BROKEN in 0 of 2 runs",
        "blind: holds in 1 of 1 runs, 0 of 1 planted faults detected; MISSED: unseen",
    ]


@pytest.mark.parametrize(("names", "code"), [(["good"], 0), (["nervous"], 1), (["blind"], 1), ([], 1)])
def test_the_exit_code_tells(few: list[Check], names: list[str], code: int, capsys: Any) -> None:
    """If it breaks, make goes on although an audit failed."""
    assert command.main(["--quick", *names], faults=two_faults) == code
    assert "Sound code:" in capsys.readouterr().out


def test_an_installation_is_audited_without_faults(few: list[Check], capsys: Any) -> None:
    """If it breaks, the installed command misses an alarm, or speaks of faults that it does not have."""
    assert command.main(["--quick", "good", "blind"]) == 0
    assert "planted" not in capsys.readouterr().out.lower()
    assert command.main(["--quick"]) == 1


def test_the_command_prints_one_json_object(few: list[Check], capsys: Any) -> None:
    """If it breaks, a program cannot read the audits."""
    assert command.main(["--json", "--sound", "2", "--planted", "2", "good"], faults=two_faults) == 0
    out, err = capsys.readouterr()
    assert not err
    assert [row["runs"] for row in json.loads(out)["rows"]] == [2, 2]


@pytest.mark.parametrize("arguments", [["nobody"], ["--sound", "0"], ["--planted", "-1"]])
def test_wrong_arguments_are_refused(few: list[Check], arguments: list[str], capsys: Any) -> None:
    """If it breaks, a misspelt audit passes as one without findings."""
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments, faults=two_faults)
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_every_row_fits_its_column() -> None:
    """If it breaks, the table is crooked."""
    for check in CHECKS.values():
        assert len(check.name) <= 12
        assert len(check.promise) <= 38
        assert all(len(f"planted: {name}") <= 38 for name in FAULTS.get(check.name, {}))
    assert max(map(len, table([AuditRow("a", "b", True, 1, 1, "word " * 90)]).splitlines())) <= 124
