"""What a round of private texts costs: reference figures, brute force over adaptive releases, and whole rounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.optimize import brentq

from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    PrivacyBudget,
    calibrate_text_round,
    epsilon,
    profiles,
    text_rounds,
)
from langchain_dp.accounting.pld import privacy_loss
from langchain_dp.errors import InvalidParameter

Pair = tuple[np.ndarray, np.ndarray]


def divergence(first: np.ndarray, second: np.ndarray, eps: float) -> float:
    """Hockey-stick divergence of two laws over the same outcomes."""
    return float(np.maximum(first - math.exp(eps) * second, 0.0).sum())


def composed(eps: float, bound: float, times: int) -> float:
    return float(text_rounds.composed_bounded_range(np.array([eps]), bound=bound, times=times)[0])


@pytest.mark.parametrize(("eps", "eta"), [(1.0, 0.0868), (3.0, 0.2385), (8.0, 0.568)])
def test_thirty_tokens_are_charged_as_the_reference_has_it(eps: float, eta: float) -> None:
    """If it breaks, the composition of a text's tokens is loose or unsound: the figures are from two derivations."""
    found = brentq(lambda bound: composed(eps, bound, 30) - 1e-6, 0.02, 2.0, xtol=1e-6)
    assert found == pytest.approx(eta, rel=2e-3)


CLIPS = [
    (500, 4, 30, 1, 1.07), (500, 4, 30, 3, 2.27), (500, 4, 30, 8, 4.17),
    (2000, 16, 30, 1, 1.93), (2000, 16, 30, 3, 3.38), (2000, 16, 30, 8, 5.56),
    (8000, 66, 30, 1, 3.04), (8000, 66, 30, 3, 4.47), (8000, 66, 30, 8, 6.84),
    (500, 2, 60, 1, 1.62), (500, 2, 60, 3, 3.74), (500, 2, 60, 8, 7.56),
    (2000, 8, 60, 1, 2.89), (2000, 8, 60, 3, 5.61), (2000, 8, 60, 8, 9.67),
    (8000, 33, 60, 1, 4.95), (8000, 33, 60, 3, 7.85), (8000, 33, 60, 8, 12.4),
    (2000, 64, 30, 1, 1.21), (2000, 64, 30, 3, 2.72), (2000, 64, 30, 8, 4.64),
    (8000, 250, 30, 1, 2.29), (8000, 250, 30, 3, 4.03), (8000, 250, 30, 8, 6.18),
]  # fmt: skip


def assert_fits(eps: float, clip: float, members: int, *, rounds: int, tokens: int, rate: float) -> None:
    """The clip that costs ``eps`` lies within 2 percent of ``clip``."""
    below, above = (
        epsilon([(ClippedSumRoundEvent(4 * share * clip / members, tokens, rate), rounds)], 1e-6)
        for share in (0.98, 1.02)
    )
    assert below <= eps <= above


@pytest.mark.parametrize(("records", "rounds", "members", "eps", "clip"), CLIPS)
def test_the_clip_that_fits_is_that_of_the_reference(
    records: int, rounds: int, members: int, eps: float, clip: float
) -> None:
    """If it breaks, the round's subsampling or composition is off by more than its tolerance of 2%."""
    assert_fits(eps, clip, members, rounds=rounds, tokens=30, rate=4 * members / records)


@pytest.mark.parametrize(
    ("records", "answers", "eps", "clip"),
    [(1000, 100, 1, 1.43), (1000, 100, 3, 2.72), (1000, 100, 8, 4.31),
     (10_000, 1000, 1, 3.09), (10_000, 1000, 3, 4.16), (10_000, 1000, 8, 5.95)],
)  # fmt: skip
def test_answers_cost_what_the_reference_says(records: int, answers: int, eps: float, clip: float) -> None:
    """If it breaks, many rounds of one text are charged wrongly."""
    assert_fits(eps, clip, 30, rounds=answers, tokens=50, rate=30 / records)


@pytest.mark.parametrize("bound", [0.05, 0.4, 2.0, 9.0])
def test_one_token_is_the_closed_form(bound: float) -> None:
    """If it breaks, the recursion does not start from the tight profile of one bounded-range release."""
    eps = np.linspace(0, 1.1 * bound, 60)
    ours = text_rounds.composed_bounded_range(eps, bound=bound, times=1)
    exact = profiles.bounded_range(eps, bound=bound)
    assert (ours >= exact - 1e-13).all()
    assert ours == pytest.approx(exact, abs=1e-4 * max(1.0, bound))


def binary(loss: float, bound: float) -> Pair:
    """The release with losses ``loss`` and ``loss - bound``: every bounded-range one is a mixture of such."""
    high = (math.exp(bound - loss) - 1) / (math.exp(bound - loss) - math.exp(-loss))
    first = np.array([high, 1 - high])
    return first, first * np.exp([-loss, bound - loss])


@pytest.mark.parametrize("bound", [0.3, 1.5])
def test_no_adaptive_pair_of_tokens_exceeds_the_bound_and_the_best_one_reaches_it(bound: float) -> None:
    """If it breaks, some sequence of two releases costs more than is charged (or far more is charged than it costs)."""
    losses = np.linspace(0.0, bound, 41)
    for eps in (0.1 * bound, 0.6 * bound, 1.3 * bound):
        allowed = composed(eps, bound, 2)
        worst = 0.0
        for first in losses:
            (p0, p1), (q0, q1) = binary(float(first), bound)
            # The second release is chosen by the first one's outcome: each branch takes its own worst.
            branches = [
                max(divergence(p * law[0], q * law[1], eps) for law in (binary(float(t), bound) for t in losses))
                for p, q in ((p0, q0), (p1, q1))
            ]
            worst = max(worst, sum(branches))
        assert worst <= allowed + 1e-12
        assert worst >= 0.99 * allowed


def written(weights: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """Law of texts of ``count`` tokens over a vocabulary, by exponential weights that hang on what was written."""
    vocabulary = len(weights)
    law = []
    for text in itertools.product(range(vocabulary), repeat=count):
        chance = 1.0
        for i, token in enumerate(text):
            row = weights * np.exp(scores[i, text[i - 1] if i else 0])
            chance *= row[token] / row.sum()
        law.append(chance)
    return np.array(law)


@pytest.mark.parametrize("q", [0.1, 0.6, 1.0])
def test_whole_rounds_by_enumeration(q: float) -> None:
    """If it breaks, a round with sampling costs more than its event: replaced record, with and without its label."""
    rng = np.random.default_rng(7)
    eta, tokens, vocabulary = 0.8, 2, 3
    event = ClippedSumRoundEvent(eta, tokens, q)
    charged = privacy_loss(event, Neighbors.REPLACE_ONE, 1e-3)
    absent_charged = privacy_loss(event, Neighbors.ADD_OR_REMOVE_ONE, 1e-3)
    closest = 0.0
    for trial in range(40):
        weights = rng.dirichlet(np.ones(vocabulary))
        nothing = np.zeros((tokens, vocabulary, vocabulary))

        def moved(trial: int = trial) -> np.ndarray:
            corners = (
                rng.choice([-1.0, 1.0], (tokens, vocabulary, vocabulary))
                if trial % 2
                else rng.uniform(-1, 1, (tokens, vocabulary, vocabulary))
            )
            return corners * eta / 4  # a member moves log-weights within a range of eta / 2

        old, new = moved(), -moved() if trial % 3 else moved()
        without = written(weights, nothing, tokens)
        same_label = written(weights, old, tokens), written(weights, new, tokens), without
        # The record's label changes: it is in the first text before, in the second one after.
        other_label = np.outer(same_label[0], without).ravel(), np.outer(without, same_label[1]).ravel()
        for before, after, out in (same_label, (*other_label, np.outer(without, without).ravel())):
            first, second = (1 - q) * out + q * before, (1 - q) * out + q * after
            for eps in (0.0, 0.2 * q, 0.5, 1.0):
                paid = charged.get_delta_for_epsilon(eps)
                found = divergence(first, second, eps)
                assert found <= paid + 1e-9
                closest = max(closest, found / paid if paid > 1e-6 else 0.0)
                assert divergence(first, out, eps) <= absent_charged.get_delta_for_epsilon(eps) + 1e-9
                assert divergence(out, first, eps) <= absent_charged.get_delta_for_epsilon(eps) + 1e-9
    assert closest > 0.3, "no trial comes near: the bound would not be tested"


def test_half_the_charge_is_refuted_by_a_replaced_record() -> None:
    """If it breaks, the test above could not see a round that is charged as if a record only came or went."""
    eta, eps = 0.8, 0.3
    up, down = np.array([[[eta / 4, -eta / 4]] * 2]), np.array([[[-eta / 4, eta / 4]] * 2])
    weights = np.array([0.5, 0.5])
    found = divergence(written(weights, up, 1), written(weights, down, 1), eps)
    assert found <= composed(eps, eta, 1) + 1e-12
    assert found > composed(eps, eta / 2, 1) + 0.01


def test_the_adaptive_optimum_is_below_the_composition_of_single_tokens() -> None:
    """If it breaks, the finer composition is no gain, or unsound against the coarse upper bound."""
    event, delta = ClippedSumRoundEvent(0.2, 30), 1e-6
    fine = epsilon([(event, 1)], delta)
    one = privacy_loss(ExponentialEvent(0.1), Neighbors.REPLACE_ONE, 1e-4)  # 0.2-bounded-range
    coarse = float(PrivacyLossDistribution.get_epsilon_for_delta(one.self_compose(30), delta))
    assert 0.8 * coarse < fine < 0.95 * coarse


def test_a_record_that_comes_or_goes_costs_less_than_one_that_is_replaced() -> None:
    """If it breaks, the relation of the promise is not the one that is charged."""
    events = [(ClippedSumRoundEvent(0.3, 20, 0.2), 4)]
    replaced, added, ghost = (
        epsilon(events, 1e-6, neighbors=neighbors)
        for neighbors in (Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL)
    )
    assert added == ghost < replaced < 2.5 * added


@pytest.mark.parametrize(
    ("fields", "named"),
    [((0.0, 20), "epsilon0"), ((21.0, 20), "epsilon0"), ((0.3, 0), "tokens"), ((0.3, 2.5), "tokens"),
     ((0.3, 5000), "tokens"), ((0.3, 20, 0.0), "sampling_probability")],
)  # fmt: skip
def test_an_event_that_cannot_be_is_refused(fields: tuple[float, ...], named: str) -> None:
    """If it breaks, a wrong figure reaches the accountant."""
    with pytest.raises(InvalidParameter, match=named):
        ClippedSumRoundEvent(*fields)  # type: ignore[arg-type]


def test_what_was_calibrated_fits_the_budget() -> None:
    """If it breaks, a plan with the calibrated noise cannot be reserved."""
    for neighbors in Neighbors:
        budget = PrivacyBudget(2.0, 1e-6, neighbors)
        fits = calibrate_text_round(budget, rounds=7, tokens=25, sampling_probability=0.15)
        events = [(ClippedSumRoundEvent(fits, 25, 0.15), 7)]
        assert 0.99 * 2.0 < epsilon(events, 1e-6, neighbors=neighbors) <= 2.0


@pytest.mark.parametrize("neighbors", [Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL])
def test_tokens_that_everybody_votes_on_are_charged_together(neighbors: Neighbors) -> None:
    """If it breaks, DP-OPT without sampling pays a tenth too much, or less than the exact worst sequence."""
    event, delta, count = LimitedDomainEvent(0.2, 1e-9), 1e-6, 50
    together = epsilon([(event, count)], delta, neighbors=neighbors)
    one = privacy_loss(event, neighbors, 2.0**-9)
    apart = float(one.self_compose(count).get_epsilon_for_delta(delta))
    assert 0.85 * apart < together < 0.95 * apart
    # The same sequence of tokens as a round of one text of that many.
    bound = 0.1 if neighbors is Neighbors.REPLACE_SPECIAL else 0.2
    as_text = epsilon([(ClippedSumRoundEvent(bound, count), 1)], delta - count * 1e-9, neighbors=Neighbors.REPLACE_ONE)
    assert together == pytest.approx(as_text, rel=0.01)
    assert epsilon([(event, 256)], delta, neighbors=neighbors) < epsilon([(event, 257)], delta, neighbors=neighbors)
