"""Every reference number of the privacy specification, within 1%: sigma for noisy max, epsilon for LimitedDomain."""

from __future__ import annotations

import pytest

from langchain_dp.accounting import (
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_limited_domain,
    calibrate_noisy_max,
    epsilon,
    max_releases,
)
from langchain_dp.errors import InvalidParameter

RECORDS = 6920
RATE = 40 / RECORDS
QUERIES = 10_000
ADD, ONE, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL

NOISY_MAX = [  # delta, epsilon, resample add/remove, fixed add/remove, fixed zero-out
    (1 / RECORDS, 1, 2.7296, 2.6216, 1.9301),
    (1 / RECORDS, 3, 1.3519, 1.1767, 0.9559),
    (1 / RECORDS, 8, 0.9219, 0.7276, 0.6519),
    (1e-5, 1, 3.2285, 3.1283, 2.2829),
    (1e-5, 3, 1.4893, 1.3175, 1.0531),
]


@pytest.mark.parametrize(("delta", "target", "resample", "fixed", "zero_out"), NOISY_MAX)
def test_noise_for_ten_thousand_votes(
    delta: float, target: float, resample: float, fixed: float, zero_out: float
) -> None:
    """If it breaks, the printed epsilon of DP-ICL is wrong in one of the two schemes."""
    for sampling, neighbors, expected in [
        ("resample", ADD, resample),
        ("fixed", ADD, fixed),
        ("fixed", ONE, fixed),  # replace-one costs the same as add/remove when subsets are fixed
        ("fixed", ZERO, zero_out),
    ]:
        sigma = calibrate_noisy_max(
            PrivacyBudget(target, delta, neighbors), queries=QUERIES, sampling_probability=RATE, sampling=sampling
        )
        assert sigma == pytest.approx(expected, rel=0.01), (sampling, neighbors)
        event = NoisyMaxEvent(sigma, RATE, sampling)
        assert epsilon([(event, QUERIES)], delta, neighbors=neighbors) <= target
        cheaper = NoisyMaxEvent(sigma * 0.99, RATE, sampling)
        assert epsilon([(cheaper, QUERIES)], delta, neighbors=neighbors) > target, "calibration wastes budget"


def test_sensitivity_one_would_have_cost_28() -> None:
    """If it breaks, the accountant agrees with the paper's sensitivity 1, which is wrong for subsets of examples."""
    delta = 1 / RECORDS
    # a vote that only appears or vanishes has sensitivity 1: that is what the paper's accountant charges for
    wrong = calibrate_noisy_max(PrivacyBudget(8, delta, ZERO), queries=QUERIES, sampling_probability=RATE)
    true = epsilon([(NoisyMaxEvent(wrong, RATE, "resample"), QUERIES)], delta, neighbors=ADD)
    assert true == pytest.approx(28.2, rel=0.01)


TASKS = {"SST-2": (66_674, 205 * 5, 1.8, 5e-7), "Trec": (5_452, 102 * 3, 0.8, 4e-6)}
TASKS |= {"Mpqa": (8_603, 102 * 3, 1.6, 5e-6), "Disaster": (4_430, 102 * 3, 0.8, 4e-6)}
PAPER = {"SST-2": 0.504, "Trec": 0.556, "Mpqa": 0.884, "Disaster": 0.687}
LIMITED_DOMAIN = {  # 50 / 2000 tokens: resample, fixed, fixed zero-out
    "SST-2": ((0.503, 3.487), (0.365, 2.842), (0.195, 1.414)),
    "Trec": ((0.552, 4.556), (0.505, 4.343), (0.239, 1.954)),
    "Mpqa": ((0.877, 6.949), (0.681, 5.865), (0.347, 2.745)),
    "Disaster": ((0.683, 5.781), (0.625, 5.512), (0.295, 2.447)),
}


@pytest.mark.parametrize("task", TASKS)
def test_tokens_of_dp_opt(task: str) -> None:
    """If it breaks, the printed epsilon of a private prompt is wrong."""
    records, batch, epsilon0, delta0 = TASKS[task]
    rate, delta = batch / records, 1 / records
    paper = epsilon([(LimitedDomainEvent(epsilon0, delta0, rate, "resample"), 50)], delta, neighbors=ADD)
    assert paper == pytest.approx(PAPER[task], rel=0.01)
    spread = 0.1 * delta / (2000 * rate)
    cases = [("resample", ADD), ("fixed", ADD), ("fixed", ZERO)]
    for (sampling, neighbors), expected in zip(cases, LIMITED_DOMAIN[task], strict=True):
        event = LimitedDomainEvent(epsilon0, spread, rate, sampling)
        for tokens, value in zip((50, 2000), expected, strict=True):
            got = epsilon([(event, tokens)], delta, neighbors=neighbors)
            assert got == pytest.approx(value, rel=0.01), (sampling, neighbors, tokens)
            if (sampling, neighbors) == ("fixed", ADD):
                assert epsilon([(event, tokens)], delta, neighbors=ONE) == pytest.approx(got, rel=1e-9)


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
