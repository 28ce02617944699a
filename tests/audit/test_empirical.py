"""The auditor itself: it does not accuse what is sound, sees what is broken, and says when it cannot."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from langchain_dp.accounting import Neighbors
from langchain_dp.audit import AuditResult, audit_mechanism, epsilon_bound
from langchain_dp.audit.empirical import choose_event
from langchain_dp.errors import InvalidParameter

pytestmark = pytest.mark.statistical


def randomized_response(epsilon: float, delta: float, seed: int) -> Callable[[int], object]:
    """The worst mechanism there is: (epsilon, delta)-private, and nothing less."""
    rng = random.Random(seed)

    def release(bit: int) -> object:
        if rng.random() < delta:
            return "shown", bit
        truth = rng.random() < math.exp(epsilon) / (1 + math.exp(epsilon))
        return bit if truth else 1 - bit

    return release


def audit(mechanism: Callable[[int], object], **changes: Any) -> AuditResult:
    settings: dict[str, Any] = {"epsilon": 1.0, "delta": 0.0, "runs": 4000, "error": 0.01} | changes
    return audit_mechanism(mechanism, 0, 1, **settings)


@pytest.mark.parametrize("delta", [0.0, 0.1])
def test_a_worst_case_that_is_sound_is_accused_as_rarely_as_stated(delta: float) -> None:
    """If it breaks, looks or choices are not paid for in error.

    At the claim itself every run of the audit may accuse with probability 0.05: of 60 more than 12 do so with 1e-5.
    """
    runs = [audit(randomized_response(1.0, delta, seed), delta=delta, runs=1000, error=0.05) for seed in range(60)]
    assert sum(each.violated for each in runs) <= 12
    assert all(each.runs == 1000 for each in runs if not each.violated)


def test_a_weaker_mechanism_and_mass_that_delta_does_not_cover_are_accused() -> None:
    """If it breaks, the auditor is blind. It needs a quarter of its runs where the claim is far off."""
    for delta in [0.0, 0.1]:
        found = audit(randomized_response(2.5, delta, 1), delta=delta)
        assert found.violated
        assert 1.0 < found.epsilon <= 2.5
        assert audit(randomized_response(8.0, delta, 1), delta=delta).runs == 1000
        assert "DISPROVED" in str(found)
    found = audit(randomized_response(1.0, 0.2, 1), delta=0.1, epsilon=1.0)
    assert found.violated
    assert found.other_hits == 0 or found.hits / found.other_hits > math.e


def test_most_of_a_tight_claim_is_found() -> None:
    """If it breaks, the bound is loose by accident."""
    found = audit(randomized_response(1.0, 0.0, 5), runs=10_000)
    assert 0.85 < found.share <= 1.0
    assert found.tested <= 8000


def test_numbers_are_cut_at_the_best_threshold_of_the_pilot() -> None:
    """If it breaks, statistics are compared for equality, or at a threshold that the tested runs chose."""
    rng = random.Random(3)
    found = audit_mechanism(
        lambda shift: [rng.gauss(shift, 1.0)], 0.0, 2.0, epsilon=1.0, delta=0.05, statistic=lambda made: made[0],
        runs=4000,
    )  # fmt: skip
    assert found.violated
    assert "statistic" in found.event
    assert found.epsilon < 5


def test_an_event_is_chosen_on_runs_that_do_not_count() -> None:
    """If it breaks, what stood out by chance is tested on the runs in which it stood out."""
    outcomes = iter(range(10**6))
    # every outcome comes twice in a row only: each tells the data sets apart in hindsight, and none does in truth
    found = audit_mechanism(lambda bit: next(outcomes) // 2, 0, 1, epsilon=0.5, delta=0.0, runs=1000)
    assert found.epsilon == 0.0
    assert found.hits == 0


def test_releases_that_never_come_twice_need_a_statistic() -> None:
    """If it breaks, a release that shows everything counts as not disproved."""
    noise = random.Random(3)

    def mechanism(bit: int) -> float:
        return noise.gauss(1_000.0 * bit, 1.0)

    with pytest.raises(InvalidParameter, match=r"100% of 800 are unique.*statistic="):
        audit_mechanism(mechanism, 0, 1, epsilon=1.0, delta=1e-5, runs=2_000)
    assert audit_mechanism(mechanism, 0, 1, epsilon=1.0, delta=1e-5, runs=2_000, statistic=float).violated


def test_the_better_direction_and_set_is_chosen() -> None:
    """If it breaks, a leak in one direction only is missed."""
    event = choose_event([0] * 90 + [1] * 10, [0] * 50 + [1] * 50, numeric=False, runs=1000, delta=0.0, error=1e-3)
    assert event.swapped
    assert event.outcomes == {1}
    upright = choose_event([3] * 40 + [0] * 60, [0] * 100, numeric=False, runs=1000, delta=0.0, error=1e-3)
    assert (upright.swapped, upright.outcomes) == (False, {3})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": 10}, "at least"),
        ({"runs": 0}, "runs=0"),
        ({"epsilon": -1.0}, "epsilon="),
        ({"delta": 1.0}, "delta="),
        ({"error": 0.0}, "error="),
        ({"epsilon": 8.0, "runs": 4000}, r"at least \d+: with fewer"),
    ],
)
def test_what_cannot_be_audited_is_refused(changes: dict[str, Any], said: str) -> None:
    """If it breaks, an audit that could never accuse is read as a clean bill."""
    with pytest.raises(InvalidParameter, match=said):
        audit(randomized_response(1.0, 0.0, 1), **changes)


def test_the_number_of_runs_that_the_refusal_names_is_enough() -> None:
    """If it breaks, the remedy that is offered does not help."""
    with pytest.raises(InvalidParameter) as refused:
        audit(randomized_response(5.0, 0.0, 1), epsilon=5.0, runs=100)
    least = int(str(refused.value).split("at least ")[1].split(":")[0])
    assert audit(lambda bit: bit, epsilon=5.0, runs=math.ceil(least / 0.8) + 1).violated


def test_no_neighbors_and_other_outcomes_are_refused() -> None:
    """If it breaks, an audit of no neighbors, or of one data set, is read as a clean bill, or ends in a riddle."""
    with pytest.raises(InvalidParameter, match="differ in 2"):
        audit_mechanism(len, ["a", "b"], ["c", "d"], epsilon=1.0, delta=0.0, neighbors=Neighbors.REPLACE_ONE)
    with pytest.raises(InvalidParameter, match="hashable"):
        audit_mechanism(lambda data: [data], ["a"], ["b"], epsilon=1.0, delta=0.0, neighbors="replace-one")
    with pytest.raises(InvalidParameter, match="finite"):
        audit_mechanism(lambda data: math.nan, 0, 1, epsilon=1.0, delta=0.0, statistic=float)
    for data in [["a", "b"], {"a": 1}, np.zeros(3), 7]:
        with pytest.raises(InvalidParameter, match="they are equal"):
            audit_mechanism(lambda given: 1, data, copy.deepcopy(data), epsilon=1.0, delta=0.0, runs=100)


def test_data_that_cannot_be_compared_is_audited() -> None:
    """If it breaks, data of the caller's own kind ends in an error of its comparison."""
    unlike = np.zeros(3), np.array([0.0, 0.0, 1.0])
    assert audit_mechanism(lambda given: float(given.sum()), *unlike, epsilon=1.0, delta=0.0, runs=100).violated
    odd = (np.zeros(2), np.zeros(2)), (np.ones(2), np.zeros(2))  # whose == has no truth value
    assert audit_mechanism(lambda given: float(given[0].sum()), *odd, epsilon=1.0, delta=0.0, runs=100).violated


def test_five_looks_share_the_error() -> None:
    """If it breaks, an auditor that may stop at any of five looks claims the error of one."""
    for truth in (1.0, 6.0):
        found = audit(randomized_response(truth, 0.0, 2), runs=2000)
        alone = epsilon_bound(found.hits, found.other_hits, found.tested, delta=0.0, error=found.error / 5)
        assert found.epsilon == pytest.approx(alone)
        assert found.tested in (100, 200, 400, 800, 1600)
        assert found.runs - 400 in (100, 200, 400, 800, 1600)
