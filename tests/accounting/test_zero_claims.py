"""A plan that its delta covers alone costs epsilon 0: what was written must be read again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from langchain_dp import DPICLClassifier
from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger
from langchain_dp.audit import NamingEngine, canary_pair
from langchain_dp.icl import SamplingOptions

ROOMY = PrivacyBudget(500.0, 0.99)
EVENT = NoisyMaxEvent(0.929)


def chain(ledger: PrivacyLedger) -> DPICLClassifier:
    return DPICLClassifier(
        model=NamingEngine(), examples=canary_pair(["a", "b"], [0, 1]).one, labels=["a", "b"], ledger=ledger,
        max_queries=1, shots=1, subsets=1, sampling=SamplingOptions("fixed", 2, 1.0), calibrate=False,
    )  # fmt: skip


def test_a_plan_of_epsilon_0_is_resumed(tmp_path: Path) -> None:
    """If it breaks, a chain refuses the plan that its own ledger reserved, or that its owner reserved."""
    path = tmp_path / "zero.db"
    with PrivacyLedger(ROOMY, path) as ledger:
        ledger.reserve([(EVENT, 1)], name="dp-icl")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT epsilon FROM plans").fetchone() == (0.0,)
    with PrivacyLedger(ROOMY, path) as ledger:
        made = chain(ledger)
        plan = ledger.plans()[0]
        assert 0 < plan.epsilon <= 1e-12
        assert ledger.reserve([(EVENT, 1)], name="dp-icl", epsilon=plan.epsilon, delta=plan.delta).name == "dp-icl"
        assert made.invoke("question") in ("a", "b")
        assert ledger.spent() == (0.0, 0.99)
        assert made.certificate().epsilon == plan.epsilon
