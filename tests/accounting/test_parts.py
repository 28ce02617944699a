"""Parallel composition: releases from disjoint parts of the data cost the largest part, in epsilon and ledger."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent
from fakes.fair_semaphore import on_both

from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    MetricEvent,
    Neighbors,
    NoisyMaxEvent,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    epsilon,
    max_releases,
)
from langchain_dp.accounting.events import event_from_json
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError, UnsupportedEvent
from langchain_dp.mechanisms import LimitedDomain
from langchain_dp.mechanisms.exponential_choice import below_exp

ONE = Neighbors.REPLACE_ONE
TOKEN, CHOICE = LimitedDomainEvent(0.4, 1e-7, 0.2), ExponentialEvent(1.0)
TRAIN, VALIDATION = PartEvent("train", TOKEN), PartEvent("validation", CHOICE)


@pytest.mark.parametrize("neighbors", Neighbors, ids=lambda neighbors: neighbors.name)
def test_parts_cost_their_largest_and_the_rest_counts_everywhere(neighbors: Neighbors) -> None:
    """If it breaks, parts add up, or a release that reads all of the data is charged to one part only."""
    cost = functools.partial(epsilon, delta=1e-5, neighbors=neighbors)
    train, choice, whole = [(TOKEN, 50)], [(CHOICE, 1)], [(NoisyMaxEvent(9.0), 2)]
    split = [(TRAIN, 50), (VALIDATION, 1)]
    assert cost(split) == pytest.approx(max(cost(train), cost(choice)), rel=5e-3)
    assert cost(split) < 0.8 * cost([*train, *choice])
    assert cost([*split, *whole]) == pytest.approx(max(cost([*train, *whole]), cost([*choice, *whole])), rel=5e-3)
    assert cost([*split, *whole]) > cost(split)
    assert cost([(PartEvent("all", TOKEN), 50)]) == cost(train)
    assert cost([(PartEvent("train", TOKEN), 30), (PartEvent("train", TOKEN), 20)]) == pytest.approx(cost(train))
    assert cost([(TRAIN, 0), (VALIDATION, 1)]) == pytest.approx(cost(choice))


def test_a_part_holds_one_release_and_refusals_reach_into_it() -> None:
    """If it breaks, a part of a part is charged, or what has no proof, or no epsilon, enters one by way of a part."""
    for part, event in (("", TOKEN), (3, TOKEN), ("train", TRAIN), ("train", "token")):
        with pytest.raises(InvalidParameter):
            PartEvent(part, event)  # type: ignore[arg-type]  # wrong on purpose
    unproven = PartEvent("train", LimitedDomainEvent(1.0, 1e-6, 0.1, "resample"))
    with pytest.raises(UnsupportedEvent, match='use sampling="fixed"'):
        epsilon([(unproven, 5)], 1e-5, neighbors=ONE)
    inside = PartEvent("train", MetricEvent(10.0))
    with pytest.raises(UnsupportedEvent, match="unit of its own"):
        epsilon([(inside, 1), (VALIDATION, 1)], 1e-5)
    with PrivacyLedger(PrivacyBudget(3.0)) as ledger:
        for attempt in (lambda: ledger.reserve([(inside, 1)], name="p"), lambda: ledger.spend(inside)):
            with pytest.raises(UnsupportedEvent, match="metric privacy"):
                attempt()
        assert ledger.plans() == []


@on_both
def test_the_ledger_reserves_and_charges_parts(place: str) -> None:
    """If it breaks, a plan over two parts is stored, charged or reopened as something else."""
    events: list[tuple[DpEvent, int]] = [(TRAIN, 50), (VALIDATION, 1)]
    budget, path = PrivacyBudget(4.0, 1e-5), place
    with PrivacyLedger(budget, path) as ledger:
        plan = ledger.reserve(events, name="prompt", delta=8e-6)
        assert plan.epsilon == epsilon(events, 8e-6)
        plan.spend(TRAIN, 20)
        assert plan.spent()[0] == pytest.approx(epsilon([(TOKEN, 20)], 8e-6))
        for bare in (TOKEN, CHOICE, PartEvent("validation", TOKEN)):
            with pytest.raises(PlanError):
                plan.spend(bare)
    with PrivacyLedger(budget, path) as ledger:
        again = ledger.reserve([(VALIDATION, 1), (TRAIN, 50)], name="prompt")
        assert (again.remaining(TRAIN), again.remaining(VALIDATION)) == (30, 1)
        again.spend(VALIDATION)
        assert again.spent()[0] == pytest.approx(epsilon([(TRAIN, 20), (VALIDATION, 1)], 8e-6))
        with pytest.raises(BudgetExceeded, match="0 of 1 planned releases are left"):
            again.spend(VALIDATION)
        again.spend(TRAIN, 30)
        assert again.spent() == ledger.spent() == (again.epsilon, 8e-6)
        assert [event_from_json(entry.event) for entry in again.entries()] == [TRAIN, VALIDATION, TRAIN]
        shown = again.certificate(TRAIN)
        assert (shown.epsilon, shown.remaining, shown.parameters["part"]) == (again.epsilon, 0, "train")
    with PrivacyLedger(budget) as direct:
        assert direct.remaining(VALIDATION) == max_releases(CHOICE, budget) > 0
        direct.spend(VALIDATION, 2)
        assert direct.spent()[0] == pytest.approx(epsilon([(CHOICE, 2)], 1e-5))


Record = tuple[int, int]  # the token that its text favours, and the candidate that is right about it
Coin = Callable[[int, Record], bool]  # whether the record of a slot is for training

RECORDS: tuple[Record, ...] = tuple(itertools.product(range(3), range(2)))
SLOTS, TOKENS, CANDIDATES = 4, 3, 2
EPSILON0, DELTA0 = 1.6, 0.01
KNOWN = Counter({0: 20, 1: 20})  # votes of subsets that the attacker knows
DELTAS = (0.02, 0.06, 0.1, 0.2)


@functools.cache
def token_law(votes: tuple[int, ...]) -> np.ndarray:
    """Law of LimitedDomain over the three tokens and bottom."""
    base = below_exp(Fraction(EPSILON0) / 2)
    mechanism = LimitedDomain(LimitedDomainEvent(EPSILON0, DELTA0), domain=TOKENS, kbar=2)
    triples = mechanism._candidates(Counter(votes) + KNOWN)
    weights = {outcome: float(m * base**x) for outcome, x, m in triples}
    return np.array([weights.get(outcome, 0.0) for outcome in (0, 1, 2, None)]) / sum(weights.values())


@functools.cache
def choice_law(right: tuple[int, ...], choice: float) -> np.ndarray:
    """For each token released before, the law of the exponential mechanism over the two candidates."""
    counts = np.array([right.count(candidate) for candidate in range(CANDIDATES)], dtype=float)
    weights = np.exp(choice * counts)
    law = weights / weights.sum()
    return np.array([law, law, law, law[::-1]])  # after a bottom the candidates change places: an adaptive choice


def run(data: tuple[Record, ...], coin: Coin, choice: float) -> np.ndarray:
    """Law of (token, choice): slots 0 and 1, and 2 and 3, vote together; the validation part chooses."""
    votes = []
    for subset in ((0, 1), (2, 3)):
        members = [data[slot][0] for slot in subset if coin(slot, data[slot])]
        votes += [sum(members) % TOKENS] if members else []
    right = [record[1] for slot, record in enumerate(data) if not coin(slot, record)]
    return token_law(tuple(sorted(votes)))[:, None] * choice_law(tuple(sorted(right)), choice)


def divergence(coin: Coin, choice: float, price: float) -> float:
    """Largest H_g, g = e^price, over all data sets and all replacements of one record."""
    laws = np.empty((len(RECORDS),) * SLOTS + (8,))
    for index in itertools.product(range(len(RECORDS)), repeat=SLOTS):
        laws[index] = run(tuple(RECORDS[i] for i in index), coin, choice).ravel()
    worst = 0.0
    for slot in range(SLOTS):
        by_slot = np.moveaxis(laws, slot, 0)
        for here, there in itertools.permutations(by_slot, 2):
            worst = max(worst, float(np.maximum(here - math.exp(price) * there, 0).sum(axis=-1).max()))
    return worst


def tiny_plan(choice: float) -> list[tuple[DpEvent, int]]:
    token, selection = LimitedDomainEvent(EPSILON0, DELTA0), ExponentialEvent(choice)
    return [(PartEvent("train", token), 1), (PartEvent("validation", selection), 1)]


@pytest.mark.parametrize("choice", [0.3, 0.8, 1.1])
def test_two_parts_never_exceed_the_accountant(choice: float) -> None:
    """If it breaks, a split by slots does not earn the largest part, or the other part is left out of it.

    Every data set of four records, every replacement, with the coins of the split known to the attacker.
    """
    splits = ["1111", "0000", "1110", "1010", "1100", "1000"]  # which slots train; the others are the same by symmetry
    coins = [lambda slot, _, split=split: split[slot] == "1" for split in splits]
    events = tiny_plan(choice)
    for delta in DELTAS:
        price = epsilon(events, delta, neighbors=ONE)
        assert max(divergence(coin, choice, price) for coin in coins) <= delta + 1e-12
        cheaper = min(epsilon([event], delta, neighbors=ONE) for event in events)
        if cheaper < 0.9 * price:  # the check has power: it rejects the price of the other part alone
            assert max(divergence(coin, choice, cheaper) for coin in coins) > delta


def test_a_split_by_content_does_not_earn_the_largest_part() -> None:
    """If it breaks, the check above would also pass for a coin that hangs on what the record says."""
    choice, delta, events = 0.8, 0.02, tiny_plan(0.8)
    by_content: Coin = lambda _, record: record[1] == 0  # noqa: E731  # a one-line closure
    unsplit = [(event.event, count) for event, count in events]
    assert divergence(by_content, choice, epsilon(events, delta, neighbors=ONE)) > 1.5 * delta
    assert divergence(by_content, choice, epsilon(unsplit, delta, neighbors=ONE)) <= delta
