"""The ledger against a model of a few lines, over random histories."""

from __future__ import annotations

import functools
import pathlib
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from langchain_dp._util.rounding import rounded_up
from langchain_dp.accounting import pld
from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import ExponentialEvent, NoisyMaxEvent
from langchain_dp.accounting.ledger import PrivacyLedger
from langchain_dp.errors import BudgetExceeded, LedgerError, PlanError

BUDGET = PrivacyBudget(3.0, 1e-5)
EVENTS = (NoisyMaxEvent(8.0), ExponentialEvent(0.1))
DELTAS = (1e-6, 4e-6)

Event = NoisyMaxEvent | ExponentialEvent
Counts = tuple[tuple[Event, int], ...]


@functools.cache
def cost(counts: Counts, delta: float) -> float:
    """Epsilon of the counts; the ledger asks for the same few again and again, so they are cached here."""
    return pld.epsilon(list(counts), delta)


class Histories(RuleBasedStateMachine):
    """Reserve, spend and reopen in any order; the model is a dictionary of claims and used counts."""

    server: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.claims: dict[str, tuple[float, float]] = {}
        self.most: dict[str, dict[Event, int]] = {}
        self.used: dict[str, dict[Event, int]] = {}

    @initialize(in_memory=st.booleans())
    def start(self, in_memory: bool) -> None:
        self.in_memory = in_memory and self.server is None
        self.path = self.folder / "l.db" if self.server is None else self.server.fresh(self.folder)
        self.ledger = PrivacyLedger(BUDGET, None if self.in_memory else self.path)

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    @rule(
        name=st.sampled_from("abc"),
        counts=st.dictionaries(st.sampled_from(EVENTS), st.integers(1, 6), min_size=1),
        delta=st.sampled_from(DELTAS),
    )
    def reserve(self, name: str, counts: dict[Event, int], delta: float) -> None:
        claim = cost(tuple(sorted(counts.items(), key=repr)), delta)
        known = name in self.most
        fits = (
            sum(epsilon for epsilon, _ in self.claims.values()) + claim <= 3.0 * (1 + 1e-9)
            and sum(share for _, share in self.claims.values()) + delta <= 1e-5 * (1 + 1e-9)
        )  # fmt: skip
        try:
            plan = self.ledger.reserve(list(counts.items()), name=name, delta=delta)
        except PlanError:
            assert known
            assert self.most[name] != counts
        except BudgetExceeded:
            assert not known
            assert not fits
        else:
            assert self.most[name] == counts if known else fits
            if not known:
                assert plan.reserved() == (pytest.approx(claim), delta)
                self.claims[name] = (claim, delta)
                self.most[name] = dict(counts)
                self.used[name] = dict.fromkeys(counts, 0)

    @precondition(lambda self: self.most)
    @rule(data=st.data(), event=st.sampled_from(EVENTS), count=st.integers(1, 4))
    def spend(self, data: st.DataObject, event: Event, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.most)))
        plan = self.ledger.plan(name)
        if event not in self.most[name]:
            with pytest.raises(PlanError):
                plan.spend(event, count, caller="machine")
        elif self.used[name][event] + count > self.most[name][event]:
            with pytest.raises(BudgetExceeded) as refused:
                plan.spend(event, count, caller="machine")
            assert refused.value.fits == self.most[name][event] - self.used[name][event]
        else:
            plan.spend(event, count, caller="machine")
            self.used[name][event] += count

    @precondition(lambda self: not self.in_memory)
    @rule(close_first=st.booleans())
    def reopen(self, close_first: bool) -> None:
        old = self.ledger
        if close_first:
            old.close()
        self.ledger = PrivacyLedger(BUDGET, self.path)
        old.close()
        with pytest.raises(LedgerError):
            old.spent()

    @invariant()
    def the_ledger_agrees_with_the_model(self) -> None:
        plans = {plan.name: plan for plan in self.ledger.plans()}
        assert plans.keys() == self.most.keys()
        charged = dict.fromkeys(plans, 0)
        for entry in self.ledger.entries():
            charged[entry.plan] += entry.count
        for name, plan in plans.items():
            assert dict(plan.events) == self.most[name]
            for event in EVENTS:
                left = self.most[name].get(event, 0) - self.used[name].get(event, 0)
                assert plan.remaining(event) == left >= 0
            assert charged[name] == sum(self.used[name].values())

    @invariant()
    def never_above_the_budget_and_never_under_counted(self) -> None:
        spent, reserved = self.ledger.spent(), self.ledger.reserved()
        expected = [0.0, 0.0]
        for name, used in self.used.items():
            counts = tuple(sorted(((event, count) for event, count in used.items() if count), key=repr))
            if counts:
                delta = self.claims[name][1]
                expected[0] += min(cost(counts, delta), self.claims[name][0])
                expected[1] += delta
        assert spent == (pytest.approx(expected[0]), pytest.approx(expected[1]))
        assert spent[0] <= reserved[0] * (1 + 1e-12) <= 3.0 * (1 + 2e-9)
        assert spent[1] <= reserved[1] * (1 + 1e-12) <= 1e-5 * (1 + 2e-9)


TestHistories = Histories.TestCase
SETTINGS = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestHistories.settings = SETTINGS


class DatabaseHistories(Histories):
    """The same in a PostgreSQL database."""


@pytest.fixture
def _server(postgres: Any) -> None:
    DatabaseHistories.server = postgres


@pytest.mark.usefixtures("_server")
class TestDatabaseHistories(DatabaseHistories.TestCase):
    settings = settings(SETTINGS, max_examples=12)


@given(st.integers(1, 10**12))
def test_rounding_up_never_rounds_down(count: int) -> None:
    """If this fails, a quick certificate understates what was spent, or is as slow as an exact one."""
    rounded = int(rounded_up(count, digits=1))
    assert count <= rounded <= 2 * count
    assert set(str(rounded)[1:]) <= {"0"}
