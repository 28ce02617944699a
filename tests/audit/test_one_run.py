"""The one-run auditor: its bound by exact enumeration, sound pipelines never accused, leaking ones accused."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binom

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.audit import NamingEngine, OneRunAudit, audit_pipeline, canaries_needed, one_run_bound
from langchain_dp.audit.one_run import _p_value
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import SamplingOptions

pytestmark = pytest.mark.statistical


def answered(coins: Sequence[bool], epsilon: float, delta: float, rng: random.Random) -> list[bool]:
    """Randomized response to every coin; with probability delta everything is shown: (epsilon, delta)-private."""
    if rng.random() < delta:
        return list(coins)
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    return [coin if rng.random() < right else not coin for coin in coins]


def audited(epsilon: float, claim: float, seed: int, *, delta: float = 0.0, canaries: int = 200) -> OneRunAudit:
    rng = random.Random(seed)
    return audit_pipeline(
        lambda coins: answered(coins, epsilon, delta, rng), lambda seen, number: float(seen[number]),
        canaries=canaries, epsilon=claim, delta=delta, error=0.05,
    )  # fmt: skip


def test_pure_privacy_is_the_binomial_tail() -> None:
    """If it breaks, the bound is not that of the theorem at delta = 0, where randomized response meets it."""
    for epsilon, right in ((0.0, 0.5), (1.0, 1 / (1 + math.exp(-1)))):
        got = _p_value(100, 40, 30, epsilon, 0.0)
        assert got == pytest.approx(float(binom.sf(29, 40, right)))
    assert _p_value(10, 0, 0, 1.0, 0.0) == 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.02), (1.0, 0.1), (0.0, 0.05)])
def test_no_private_mechanism_guesses_better_than_the_bound(epsilon: float, delta: float) -> None:
    """If it breaks, sound pipelines are accused: the worst ones known, enumerated over all 16 coins, stay below it.

    Everything is shown with probability delta; or, coin by coin, each with probability delta. Half of the promised
    excess is reached, so a bound without the factor m delta would be wrong.
    """
    canaries, right = 4, math.exp(epsilon) / (1 + math.exp(epsilon))
    law = binom.pmf(np.arange(canaries + 1), canaries, right)
    everything = (1 - delta) * law
    everything[canaries] += delta
    each = delta + (1 - delta) * right
    coinwise = binom.pmf(np.arange(canaries + 1), canaries, each)
    for correct in range(canaries + 1):
        bound = _p_value(canaries, canaries, correct, epsilon, delta)
        assert everything[correct:].sum() <= bound + 1e-12
        assert coinwise[correct:].sum() <= bound + 1e-12
    pure = _p_value(canaries, canaries, canaries, epsilon, 0.0)
    assert coinwise[canaries] > pure


def test_the_bound_grows_with_right_guesses_and_lies_where_the_p_value_crosses_the_error() -> None:
    """If it breaks, the bound runs the wrong way, or excludes more, or less, than the stated error."""
    bounds = [one_run_bound(canaries=100, guesses=50, correct=v, delta=0.0, error=0.05) for v in range(51)]
    assert bounds == sorted(bounds)
    assert bounds[25] == 0.0
    assert bounds[50] > 2.5
    with_delta = one_run_bound(canaries=100, guesses=50, correct=50, delta=1e-4, error=0.05)
    assert 0 < with_delta < bounds[50]
    found = one_run_bound(canaries=1000, guesses=1000, correct=800, delta=1e-5, error=0.05)
    below, above = (_p_value(1000, 1000, 800, found + step, 1e-5) for step in (-1e-4, 1e-4))
    assert below <= 0.05 <= above
    assert found == pytest.approx(1.2, abs=0.15)  # of log 4 = 1.39, which 1000 coins settle within 0.25


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_sound_pipelines_are_accused_as_rarely_as_stated(delta: float) -> None:
    """If it breaks, the coins or the guesses are not what the theorem assumes.

    At the claim itself a run may accuse with probability 0.05: of 60 more than 12 do so with 1e-5.
    """
    assert sum(audited(1.0, 1.0, seed, delta=delta).violated for seed in range(60)) <= 12
    assert not any(audited(0.7, 1.5, seed, delta=delta).violated for seed in range(20))


def test_a_leaking_pipeline_is_accused() -> None:
    """If it breaks, the auditor is blind."""
    assert all(audited(3.0, 1.0, seed).violated for seed in range(10))
    shown = audited(50.0, 1.0, 1, canaries=60)
    assert (shown.correct, shown.guesses) == (30, 30)  # sixty coins show fewer than 15 of a side with 3e-5
    assert "DISPROVED" in str(shown)


def chain(coins: Sequence[bool], budget: PrivacyBudget, engine: NamingEngine) -> DPICLClassifier:
    """DP-ICL over one canary a slot, which says "in" or "out"."""
    examples = [{"text": f"canary {number}", "label": "in" if coin else "out"} for number, coin in enumerate(coins)]
    return DPICLClassifier(
        model=engine, examples=examples, labels=["in", "out"], budget=budget, shots=1, subsets=1,
        sampling=SamplingOptions("fixed", len(coins), 1.0), calibrate=False, max_queries=len(coins),
    )  # fmt: skip


def test_a_whole_chain_is_audited_in_one_run() -> None:
    """If it breaks, DP-ICL shows who is in its records, or a chain that prints its prompts passes."""
    engine = NamingEngine()
    budget = PrivacyBudget(1.0, 1e-5)

    def released(coins: Sequence[bool]) -> list[str]:
        made = chain(coins, budget, engine)
        return [made.invoke(f"Is canary {number} in?") for number in range(len(coins))]

    def guess(answers: list[str], number: int) -> float:
        return float(answers[number] == "in")

    assert not audit_pipeline(released, guess, canaries=60, epsilon=1.0, delta=1e-5).violated

    def leaking(coins: Sequence[bool]) -> list[str]:
        chain(coins, budget, engine := NamingEngine()).warm()
        said = "".join(engine.asked.values())
        return ["in" if f"canary {number}\nLabel: in" in said else "out" for number in range(len(coins))]

    # Of 200 fair coins at least 50 show either side, but for 3e-13: a hundred guesses can all be right.
    assert audit_pipeline(leaking, guess, canaries=200, epsilon=1.0, delta=1e-5).violated


def test_every_coin_is_fair_and_fresh() -> None:
    """If it breaks, guesses can be right without a look at what was released. Error rate 1e-6 (5 s.d. of 2,000)."""
    seen: list[list[bool]] = []

    def keep(coins: Sequence[bool]) -> int:
        seen.append(list(coins))
        return 0

    for _ in range(2):
        audit_pipeline(keep, lambda made, number: 0.0, canaries=1000, epsilon=1.0, delta=0.0)
    assert seen[0] != seen[1]
    assert abs(sum(map(sum, seen)) - 1000) < 112


@pytest.mark.parametrize(
    ("canaries", "epsilon", "delta", "error", "guesses"),
    [(20, 0.5, 0.0, 1e-3, None), (40, 1.0, 1e-5, 1e-3, None), (36, 1.0, 0.0, 0.01, 36), (60, 1.0, 1e-5, 1e-3, 60)],
)
def test_the_number_of_canaries_that_the_refusal_names_is_enough(
    canaries: int, epsilon: float, delta: float, error: float, guesses: int | None
) -> None:
    """If it breaks, a pipeline that shows every coin passes with as many canaries as the message asks for.

    It must be disproved with probability 0.9: of 60 runs fewer than 42 are with probability 1e-5.
    """

    def audit(count: int) -> OneRunAudit:
        return audit_pipeline(
            list, lambda shown, at: float(shown[at]), canaries=count, epsilon=epsilon, delta=delta, error=error,
            guesses=guesses,
        )  # fmt: skip

    with pytest.raises(InvalidParameter, match=r"at least \d+: half of the guesses.* guesses a pipeline") as refused:
        audit(canaries)
    enough = int(re.findall(r"at least (\d+)", str(refused.value))[0])
    assert canaries < enough < 3 * canaries
    assert sum(audit(enough).violated for _ in range(60)) >= 42


def test_too_few_canaries_and_bad_scores_are_refused() -> None:
    """If it breaks, an audit that could never accuse is read as a clean bill."""
    least = canaries_needed(3.0, error=0.05)
    assert one_run_bound(canaries=least, guesses=least, correct=least, delta=0.0, error=0.05) >= 3.0 - 1e-6
    assert one_run_bound(canaries=least, guesses=least - 1, correct=least - 1, delta=0.0, error=0.05) < 3.0
    with pytest.raises(InvalidParameter, match=rf"guesses={least - 1} to be at least {least}"):
        audit_pipeline(list, lambda a, b: 0.0, canaries=least - 1, epsilon=3.0, delta=0.0, error=0.05,
                       guesses=least - 1)  # fmt: skip
    with pytest.raises(InvalidParameter, match="no number up to 10,000"):
        audit_pipeline(list, lambda a, b: 0.0, canaries=40, epsilon=3.0, delta=0.5)
    for wrong in (1, 41, 0):
        with pytest.raises(InvalidParameter, match="guesses"):
            audit_pipeline(list, lambda a, b: 0.0, canaries=40, epsilon=1.0, delta=0.0, guesses=wrong)
    with pytest.raises(InvalidParameter, match="NaN"):
        audit_pipeline(list, lambda a, b: math.nan, canaries=100, epsilon=1.0, delta=0.0)
    for correct, guesses in itertools.product((-1, 5), (4, 11)):
        with pytest.raises(InvalidParameter):
            one_run_bound(canaries=10, guesses=guesses, correct=correct, delta=0.0, error=0.05)
