"""Calibration agrees both ways, is done once, and refuses what is absurd or what rounding would hide."""

from __future__ import annotations

import itertools
import math
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import mpmath
import pytest

from langchain_dp import DPICLClassifier
from langchain_dp.accounting import (
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    PrivacyLedger,
    _account,
    calibrate,
    calibrate_limited_domain,
    calibrate_noisy_max,
    calibrate_text_round,
    epsilon,
    max_releases,
)
from langchain_dp.audit import NamingEngine, canary_pair
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import SamplingOptions

RECORDS = 6920
RATE = 40 / RECORDS
QUERIES = 10_000
ADD, ONE, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL


def test_sensitivity_one_would_have_cost_28() -> None:
    """If it breaks, the accountant agrees with the paper's sensitivity 1, which is wrong for subsets of examples."""
    delta = 1 / RECORDS
    # a vote that only appears or vanishes has sensitivity 1: that is what the paper's accountant charges for
    wrong = calibrate_noisy_max(PrivacyBudget(8, delta, ZERO), queries=QUERIES, sampling_probability=RATE)
    true = epsilon([(NoisyMaxEvent(wrong, RATE, "resample"), QUERIES)], delta, neighbors=ADD)
    assert true == pytest.approx(28.2, rel=0.01)
    assert epsilon([(NoisyMaxEvent(wrong, RATE, "resample"), QUERIES)], delta, neighbors=ONE) >= true


def test_calibration_both_ways_agrees() -> None:
    """If it breaks, a plan asks for noise that its own number of releases does not match."""
    budget = PrivacyBudget(3.0, 1e-5)
    sigma = calibrate_noisy_max(budget, queries=500, sampling_probability=0.02)
    fits = max_releases(NoisyMaxEvent(sigma, 0.02), budget)
    assert 500 <= fits <= 503
    epsilon0, delta0 = calibrate_limited_domain(budget, tokens=400, sampling_probability=0.05)
    event = LimitedDomainEvent(epsilon0, delta0, 0.05)
    assert epsilon([(event, 400)], 1e-5) <= 3.0 < epsilon([(event, 404)], 1e-5)


@pytest.mark.parametrize("tiny", [1e-4, 1e-9])
def test_a_budget_that_only_noise_could_keep_is_refused_at_once(tiny: float) -> None:
    """If it breaks, a slip of the pen in epsilon takes minutes of the accountant's time, and then all memory."""
    with pytest.raises(InvalidParameter, match=r"sigma up to 1,000,000 votes to reach epsilon=.* fewer releases"):
        calibrate_noisy_max(PrivacyBudget(tiny, 1e-5), queries=10_000)


def exact(sigma: float, count: int, delta: float) -> float:
    """Epsilon of ``count`` votes in which everybody takes part: of one Gaussian mechanism, to 40 digits."""
    with mpmath.workdps(40):
        mu = mpmath.sqrt(2 * count) / sigma

        def too_small(eps: mpmath.mpf) -> bool:
            return bool(mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu) > delta)

        low, high = mpmath.mpf(0), mpmath.mpf(100)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if too_small(middle) else (low, middle)
        return float(low)


@pytest.mark.parametrize("calibrate", [
    lambda budget: calibrate_noisy_max(budget, queries=100),
    lambda budget: calibrate_limited_domain(budget, tokens=1000),
    lambda budget: calibrate_text_round(budget, rounds=50, tokens=10),
])  # fmt: skip
def test_a_delta_that_cannot_be_resolved_is_refused_and_the_smallest_is_named(calibrate: object) -> None:
    """If it breaks, a tiny delta silently gives noise that drowns every answer: a thousand times too much, and more."""
    with pytest.raises(InvalidParameter, match=r"rounding hides what they cost\. Raise delta") as refused:
        calibrate(PrivacyBudget(3.0, 1e-15))  # type: ignore[operator]
    [least] = re.findall(r"at least (\S+) for", str(refused.value))
    assert 1e-15 < float(least) < 1e-11
    calibrate(PrivacyBudget(3.0, float(least)))  # type: ignore[operator]


def test_noise_grows_gently_down_to_the_smallest_delta() -> None:
    """If it breaks, ten times less delta asks for a hundred times the noise, somewhere on the way down."""
    scales = [calibrate_noisy_max(PrivacyBudget(3.0, 10.0**-digits), queries=10) for digits in (6, 8, 10, 12, 13)]
    assert all(1 < after / before < 1.25 for before, after in itertools.pairwise(scales))


@pytest.mark.parametrize(
    ("sigma", "count", "delta"),
    [(20.0, 100, 2e-13), (20.0, 100, 1e-12), (60.0, 1000, 2e-12), (200.0, 10_000, 2e-11), (600.0, 100_000, 2e-10),
     (2000.0, 1_000_000, 2e-9), (6000.0, 10_000_000, 2e-8)],
)  # fmt: skip
def test_the_epsilon_of_many_releases_is_no_less_than_the_exact_one(sigma: float, count: int, delta: float) -> None:
    """If it breaks, rounding takes off what was lost, and a printed epsilon is too small."""
    found, true = epsilon([(NoisyMaxEvent(sigma), count)], delta), exact(sigma, count, delta)
    assert true <= found <= 1.05 * true
    assert math.isinf(epsilon([(NoisyMaxEvent(sigma), count)], delta / 1000))


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    real = getattr(module, name)

    def counting(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return real(*given, **named)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_noise_is_calibrated_once_for_each_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every fresh chain of an audit calibrates anew; or one promise gets the noise of another."""
    calls = counted(monkeypatch, calibrate, "epsilon")
    first = calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=3)
    once = len(calls)
    assert once > 1
    assert calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=3) == first
    assert len(calls) == once
    others = [
        calibrate_noisy_max(PrivacyBudget(2.25, 1e-4), queries=3),
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-3), queries=3),
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-4, "replace_special"), queries=3),  # type: ignore[arg-type]
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=4),
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=3, sampling_probability=0.5),
    ]
    assert first not in others
    assert len(calls) > once + 4


def test_what_a_plan_costs_is_composed_once_for_all_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every fresh ledger composes its plan anew."""
    calls = counted(monkeypatch, _account, "composed_epsilon")
    for _ in range(3):
        with PrivacyLedger(PrivacyBudget(9.0, 1e-4)) as ledger:
            ledger.reserve([(NoisyMaxEvent(2.3125), 5)], name="p")
    assert len(calls) == 1
    with PrivacyLedger(PrivacyBudget(9.0, 1e-4, "replace_special")) as ledger:  # type: ignore[arg-type]
        ledger.reserve([(NoisyMaxEvent(2.3125), 5)], name="p")
    assert len(calls) == 2


def test_a_plan_of_epsilon_0_is_resumed(tmp_path: Path) -> None:
    """If it breaks, a chain refuses the plan that its own ledger reserved, or that its owner reserved."""
    path, roomy, event = tmp_path / "zero.db", PrivacyBudget(500.0, 0.99), NoisyMaxEvent(0.929)
    with PrivacyLedger(roomy, path) as ledger:
        ledger.reserve([(event, 1)], name="dp-icl")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT epsilon FROM plans").fetchone() == (0.0,)
    with PrivacyLedger(roomy, path) as ledger:
        made = DPICLClassifier(
            model=NamingEngine(), examples=canary_pair(["a", "b"], [0, 1]).one, labels=["a", "b"], ledger=ledger,
            max_queries=1, shots=1, subsets=1, sampling=SamplingOptions("fixed", 2, 1.0), calibrate=False,
        )  # fmt: skip
        plan = ledger.plans()[0]
        assert 0 < plan.epsilon <= 1e-12
        assert ledger.reserve([(event, 1)], name="dp-icl", epsilon=plan.epsilon, delta=plan.delta).name == "dp-icl"
        assert made.invoke("question") in ("a", "b")
        assert ledger.spent() == (0.0, 0.99)
        assert made.certificate().epsilon == plan.epsilon
