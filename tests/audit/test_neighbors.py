"""Neighbors under the same coins: the sound code passes, and each planted fault is found."""

from __future__ import annotations

import asyncio
import logging

import pytest
from audits.faults import faults

from langchain_dp.audit.self_check import neighbors, suite
from langchain_dp.audit.self_check.check import Check, Finding

AUDITS = {check.name: check for check in neighbors.CHECKS}
PLANTED = [(audit, fault) for audit in AUDITS for fault in faults()[audit]]


@pytest.mark.parametrize("name", AUDITS)
def test_sound_code_passes(name: str) -> None:
    """If it breaks, one record moves two prompts, two votes, a log line, or how a release ends."""
    found = AUDITS[name].sound()
    assert not found.broken, found.seen


@pytest.mark.parametrize(("audit", "fault"), PLANTED)
def test_planted_faults_are_found(audit: str, fault: str) -> None:
    """If it breaks, the audit is blind to a fault that moves more than one record may."""
    found = faults()[audit][fault]()
    assert found.broken, found.seen


@pytest.mark.parametrize("damage", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_no_record_ends_a_release_by_what_an_engine_raises(damage: type[BaseException]) -> None:
    """If it breaks, an engine that raises for one record's content tells two neighbors apart."""
    for found in (neighbors.votes(seeds=2, damage=damage), neighbors.written(damage=damage)):
        assert not found.broken, found.seen


def test_a_record_in_the_log_breaks_every_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a chain logs a record at DEBUG, and no audit listens."""

    def sound() -> Finding:
        logging.getLogger("langchain_dp.icl").debug("asked with %s", "record 7")
        return Finding(False, "fine")

    monkeypatch.setattr(suite, "checks", lambda: [Check("loud", "holds", sound)])
    [row] = suite.run(sound=1, quiet=True)
    assert (row.fine, row.seen) == (False, "1 log lines hold a record, the first by langchain_dp.icl")


@pytest.mark.parametrize("fault", faults()["cost caches"])
def test_a_cost_that_is_kept_for_others_is_found(fault: str) -> None:
    """If it breaks, a cache that leaves out delta or the neighbors says less than was spent."""
    assert faults()["cost caches"][fault]().broken
