"""Audits of whole chains: their laws are exact, their faults leave nothing behind, and no face goes unseen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from audits import planted_chains
from audits.faults import faults

from langchain_dp.accounting import LedgerPlan
from langchain_dp.audit.self_check import icl, laws, rapt
from langchain_dp.audit.self_check.suite import run
from langchain_dp.mechanisms import limited_domain

ERROR = 1e-6


def coins(rows: int = 60, columns: int = 48, q: float = 0.375, seed: int = 7) -> Any:
    """A table of fair coins."""
    return (np.random.default_rng(seed).random((rows, columns)) < q).astype(float)


def test_coins_of_their_own_pass() -> None:
    """If it breaks, an audit accuses sound sampling. The least of 100 tables is above 1e-5 but for a chance of 1e-3."""
    assert min(laws.coins(coins(seed=seed), 0.375) for seed in range(100)) > 1e-5


@pytest.mark.parametrize(
    ("fault", "table"),
    {
        "half as many again": coins(q=0.5),
        "one sample for two releases": np.repeat(coins(30), 2, axis=0),
        "one coin for two subsets": np.repeat(coins(columns=24), 2, axis=1),
        "a sample of fixed size": np.array([np.roll([1.0] * 18 + [0.0] * 30, 7 * k) for k in range(60)]),
        "coins that are tossed once": np.repeat(coins(1), 60, axis=0),
        "the others' turn": np.concatenate([half := coins(30, q=0.375), 1 - half]),
    }.items(),
)
def test_other_coins_are_seen(fault: str, table: Any) -> None:
    """If it breaks, an audit is blind to a way of sampling that is charged as Poisson's."""
    assert laws.coins(table, 0.375) < ERROR, fault


@pytest.mark.statistical
@pytest.mark.parametrize("moved", [True, False])
def test_the_law_of_a_token_is_that_of_the_mechanism(moved: bool) -> None:
    """If it breaks, runs are audited against another law than the documented one. Error rate 1e-6."""
    votes = {3: 9, 7: 8, 11: 8, 12: 1}
    law = laws.limited_domain_law(votes, epsilon0=1.0, delta0=1 / 8, kbar=2, threshold=2 if moved else 1)
    drawn = Counter(
        limited_domain(votes, epsilon0=1.0, delta0=1 / 8, kbar=2, domain=64, moved_votes=moved) for _ in range(2_000)
    )
    assert laws.frequencies(drawn, law) > ERROR
    other = laws.limited_domain_law(votes, epsilon0=1.0, delta0=1 / 8, kbar=2, threshold=1 if moved else 2)
    assert laws.frequencies(drawn, other) < ERROR


def test_sums_and_divergences_are_exact() -> None:
    """If it breaks, how unlikely a run was is worked out wrongly."""
    assert laws.tally(0, [0.5] * 10) == pytest.approx(2 / 1024)
    assert laws.total(12, [{0: 0.5, 6: 0.5}] * 2) == pytest.approx(0.5)
    assert laws.divergence({0: 0.75, 1: 0.25}, {0: 0.25, 1: 0.75}, np.log(2)) == pytest.approx(0.25)
    assert laws.mixed({0: 1.0}, {1: 1.0}, 0.25) == {0: 0.75, 1: 0.25}


@pytest.mark.statistical
@pytest.mark.parametrize("setting", icl.SETTINGS, ids=str)
def test_every_face_under_every_setting(setting: Any) -> None:
    """If it breaks, a way to ask under one of the schemes charges less than it releases. Error rate 1e-7 a setting."""
    found = icl.calls([(setting, face) for face in icl.FACES])
    assert not found.broken, found.seen
    found = icl.subset_prompts([setting])
    assert not found.broken, found.seen


@pytest.mark.parametrize("face", rapt.FACES)
def test_every_face_of_a_sanitizer_is_watched(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, a free release through this face goes unseen."""
    monkeypatch.setattr(rapt, "FACES", {face: rapt.FACES[face]})
    for fault in ("every third text free", "unknown names in clear"):
        swaps = {fault: planted_chains.FACES[fault]}
        if (fault, face) not in _WORD_BY_WORD:
            assert planted_chains.under(rapt.faces, swaps)[fault]().broken, fault


_WORD_BY_WORD = {("unknown names in clear", "chunks"), ("unknown names in clear", "async chunks")}
"""Streams draw word by word, and not through the part in which this fault is planted."""


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
        planted_chains.under(fail, {"fault": planted_chains.ANSWERS["overdrawn plan"]})["fault"]()
    assert [vars(owner)[name] for owner, name, _ in parts] == before


def test_two_processes_give_the_rows_of_one() -> None:
    """If it breaks, the command prints a fault's runs beside another's name."""
    names = ["candidates", "partition"]
    alone, shared = (run(names, sound=2, planted=2, faults=faults, jobs=jobs, quiet=True) for jobs in (1, 2))
    assert [(row.audit, row.name, row.runs, row.broken) for row in alone] == [
        (row.audit, row.name, row.runs, row.broken) for row in shared
    ]
    assert len(shared) == 2 + sum(len(faults()[name]) for name in names)
