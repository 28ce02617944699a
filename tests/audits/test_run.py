"""`make audit`: each audit runs and finds a planted fault, and the command reports what it saw.

`make audit` itself runs all audits in full and plants all faults. Here dear ones are small.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from audits import accountant, aggregate, chains, icl, neighbors, opt, planted, planted_chains, rapt, run, synth
from audits.check import Check, Finding
from audits.faults import CLASSIC, faults
from langchain_dp import PrivacyBudget
from langchain_dp.accounting import LedgerPlan
from langchain_dp.errors import BudgetLowWarning, MostlyNoiseWarning, NoTextKeptWarning, WeakPromiseWarning

CHECKS = {check.name: check for check in run.checks()}
FAULTS = faults()
SOUND, BROKEN = Finding(False, "well"), Finding(True, "ill")

SMALL: dict[str, Callable[[], Finding]] = {
    "tightness": lambda: Finding(chains.tightness(PrivacyBudget(2.0, 0.1), runs=400, margin=0).violated, ""),
    "tightness 2": lambda: SOUND,  # the same chain under another bound
    "answers": lambda: icl.calls(icl.PAIRS[:2]),
    "prompts": lambda: icl.subset_prompts(icl.SETTINGS[1:2], 20),
    "neighbors": lambda: neighbors.votes(neighbors.PAIRS[:2], seeds=1),
    "asked again": lambda: neighbors.asked_again(15),
    "tokens": lambda: opt.tokens(opt.WRITING[:1], 2),
    "choice": lambda: opt.choice(opt.CHOOSING[:1], 2),
    "choose": lambda: opt.public_prompts(1),
    "text rounds": lambda: synth.rounds(["rounds"]),
    "text canary": lambda: synth.canary(60),
    "nobody": lambda: synth.nobody(50),
    "sums": lambda: aggregate.sums(aggregate.pairs()[11:]),
    "sum noise": lambda: aggregate.noise(12),
    "names": lambda: aggregate.named(aggregate.pairs()[11:]),
    "cost caches": lambda: accountant.caches(deltas=(1e-2, 1e-6)),
}
"""Smaller runs of dear audits."""

CHEAPEST = {
    "choice": "a choice for free",
    "choose": "a public choice for free",
    "text canary": "float softmax",
}
"""Faults that are found soonest, where it is not the first one."""
DEAR = ("randomness", "accountant", "cost caches")
"""Audits whose faults take seconds: `make audit` plants them."""


@pytest.mark.parametrize("name", CHECKS)
def test_an_audit_passes_sound_code(name: str) -> None:
    """If it breaks, the code lost a guarantee, or an audit cannot run. Error rate at most 4e-7 an audit."""
    finding = SMALL.get(name, CHECKS[name].sound)()
    assert not finding.broken, finding.seen


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in DEAR])
def test_an_audit_finds_a_planted_fault(name: str) -> None:
    """If it breaks, an audit is blind, or a fault is planted where nothing is any more. Power above 0.999."""
    finding = FAULTS[name][CHEAPEST.get(name, next(iter(FAULTS[name])))]()
    assert finding.broken, finding.seen


@pytest.mark.parametrize("damage", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_no_record_ends_a_release_by_what_an_engine_raises(damage: type[BaseException]) -> None:
    """If it breaks, an engine that raises for one record's content tells two neighbors apart."""
    pairs = [pair for pair in neighbors.PAIRS if "breaks a call" in pair.name]
    for finding in (neighbors.votes(pairs, seeds=2, damage=damage), neighbors.written(damage=damage)):
        assert not finding.broken, finding.seen


@pytest.mark.parametrize("face", rapt.FACES)
def test_every_face_of_a_sanitizer_is_watched(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a free release through this face goes unseen."""
    monkeypatch.setattr(rapt, "FACES", {face: rapt.FACES[face]})
    for fault in ("every third text free", "unknown names in clear"):
        swaps = {fault: planted_chains.FACES[fault]}
        assert planted.under(rapt.faces, swaps)[fault]().broken, fault


def test_a_planted_fault_is_taken_out_again() -> None:
    """If it breaks, what runs after an audit runs on broken code."""
    tables = (planted_chains.ANSWERS, planted_chains.TOKENS, planted_chains.FACES)
    parts = [swap for table in tables for swaps in table.values() for swap in swaps]
    before = [vars(owner)[name] for owner, name, _ in parts]
    real = LedgerPlan.spend

    def fail() -> None:
        assert LedgerPlan.spend is not real
        raise RuntimeError

    with pytest.raises(RuntimeError):
        planted.under(fail, {"fault": planted_chains.ANSWERS["overdrawn plan"]})["fault"]()
    assert [vars(owner)[name] for owner, name, _ in parts] == before


def test_every_classic_fault_is_planted_once() -> None:
    """If it breaks, the table leaves out a fault that published code has had, or a fault has no audit."""
    names = [name for made in FAULTS.values() for name in made]
    assert len(CLASSIC) == 10
    assert set(CLASSIC) <= set(names)
    assert len(set(names)) == len(names)
    assert set(FAULTS) <= set(CHECKS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Three audits without any work: a good one, one that accuses, one that is blind."""
    made = [
        Check("good", "holds", lambda: SOUND),
        Check("nervous", "holds", lambda: BROKEN),
        Check("blind", "holds", lambda: SOUND, once=True),
    ]
    planted = {"good": {"fault": lambda: BROKEN}, "blind": {"unseen": lambda: SOUND}}
    monkeypatch.setattr(run, "checks", lambda: made)
    monkeypatch.setattr(run, "faults", lambda: planted)
    return made


def test_rows_count_runs_and_verdicts(few: list[Check]) -> None:
    """If it breaks, a blind or nervous audit is printed as a good one."""
    rows = run.run(sound=4, planted=3, quiet=True)
    assert [(row.audit, row.planted, row.broken, row.runs, row.fine) for row in rows] == [
        ("good", False, 0, 4, True),
        ("good", True, 3, 3, True),
        ("nervous", False, 4, 4, False),
        ("blind", False, 0, 1, True),
        ("blind", True, 0, 1, False),
    ]
    printed = run.table(rows)
    for said in ("holds", "detected", "BROKEN", "MISSED", "planted: unseen"):
        assert said in printed
    assert "4 alarms in 9 runs of 3 audits. Planted faults: 1 of 2 detected" in run.verdict(rows)


@pytest.mark.parametrize(("broken", "fine"), [(10, True), (9, True), (8, False)])
def test_nine_of_ten_are_enough(broken: int, fine: bool) -> None:
    """If it breaks, the bar is another than the one that is promised."""
    assert run.AuditRow("a", "b", True, broken, 10, "").fine == fine
    assert not run.AuditRow("a", "b", False, 1, 20, "").fine


def test_each_audit_says_so_when_it_ends(few: list[Check], capsys: Any) -> None:
    """If it breaks, make audit is silent for minutes, in a terminal or in CI, or warns of its own stubs."""

    def talking() -> Finding:
        printed.append(capsys.readouterr().err)
        for kind in (WeakPromiseWarning, MostlyNoiseWarning, NoTextKeptWarning, BudgetLowWarning):
            warnings.warn("as stubs make the package say", kind, stacklevel=1)
        return SOUND

    printed: list[str] = []
    few.insert(1, Check("talking", "holds", talking, once=True))
    run.run(sound=2, planted=1)
    printed.append(capsys.readouterr().err)
    assert re.fullmatch(r"\[1 of 4, \d+ s\] good: holds in 2 of 2 runs, 1 of 1 planted faults detected\n", printed[0])
    assert [line.partition("] ")[2] for line in printed[1].splitlines()] == [
        "talking: holds in 1 of 1 runs",
        "nervous: BROKEN in 0 of 2 runs",
        "blind: holds in 1 of 1 runs, 0 of 1 planted faults detected; MISSED: unseen",
    ]


def test_a_record_in_the_log_breaks_every_audit(few: list[Check]) -> None:
    """If it breaks, a chain logs a record at DEBUG, and no audit listens."""

    def sound() -> Finding:
        logging.getLogger("langchain_dp.icl").debug("asked with %s", "record 7")
        return SOUND

    few.append(Check("loud", "holds", sound))
    [row] = run.run(["loud"], sound=1, quiet=True)
    assert (row.fine, row.seen) == (False, "1 log lines hold a record, the first by langchain_dp.icl")


@pytest.mark.parametrize(("names", "code"), [(["good"], 0), (["nervous"], 1), (["blind"], 1), ([], 1)])
def test_the_exit_code_tells(few: list[Check], names: list[str], code: int, capsys: Any) -> None:
    """If it breaks, make goes on although an audit failed."""
    assert run.main(["--quick", *names]) == code
    assert "Sound code:" in capsys.readouterr().out


def test_the_command_prints_one_json_object(few: list[Check], capsys: Any) -> None:
    """If it breaks, a program cannot read the audits."""
    assert run.main(["--json", "--sound", "2", "--planted", "2", "good"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert [(row["runs"], row["fine"]) for row in json.loads(out)["rows"]] == [(2, True), (2, True)]


@pytest.mark.parametrize("arguments", [["nobody"], ["--sound", "0"], ["--planted", "-1"]])
def test_wrong_arguments_are_refused(few: list[Check], arguments: list[str], capsys: Any) -> None:
    """If it breaks, a misspelt audit passes as one without findings."""
    with pytest.raises(SystemExit) as stopped:
        run.main(arguments)
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
