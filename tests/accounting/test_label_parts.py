"""Releases that show one label each: what one record pays for, in epsilon and ledger, and by brute force."""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from langchain_dp.accounting import (
    ExponentialEvent,
    LabelPartEvent,
    LimitedDomainEvent,
    MetricEvent,
    Neighbors,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
    epsilon,
)
from langchain_dp.accounting.events import event_from_json, event_to_json
from langchain_dp.errors import InvalidParameter, PlanError, UnsupportedEvent
from langchain_dp.mechanisms import LimitedDomain
from langchain_dp.mechanisms.exponential_choice import below_exp

ONE, ADD, ZERO = Neighbors.REPLACE_ONE, Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL
TOKEN, OTHER = LimitedDomainEvent(0.4, 1e-7, 0.2), LimitedDomainEvent(0.5, 1e-7, 0.2)


def labelled(counts: dict[str, int], token: DpEvent = TOKEN) -> list[tuple[DpEvent, int]]:
    return [(LabelPartEvent(label, token), count) for label, count in counts.items()]


@pytest.mark.parametrize(("neighbors", "paid"), [(ONE, 22), (ADD, 12), (ZERO, 29)])
def test_one_record_pays_for_the_labels_that_it_can_be_in(neighbors: Neighbors, paid: int) -> None:
    """If it breaks, a run over many labels is charged for too few of them, or the largest are not the ones charged."""
    cost = functools.partial(epsilon, delta=1e-5, neighbors=neighbors)
    assert cost(labelled({"a": 7, "b": 12, "c": 10})) == cost([(TOKEN, paid)])
    assert cost(labelled({"a": 7})) == cost([(TOKEN, 7)])
    assert cost([(LabelPartEvent("a", TOKEN), 3), (LabelPartEvent("a", TOKEN), 4)]) == cost([(TOKEN, 7)])


def test_labels_stand_inside_parts_and_beside_the_rest() -> None:
    """If it breaks, the label parts of one half of the data are paid for by the other, or what all read by nobody."""
    cost = functools.partial(epsilon, delta=1e-5)
    choice = ExponentialEvent(0.2)
    texts = [(PartEvent("training", event), count) for event, count in labelled({"a": 12, "b": 12, "c": 12})]
    assert cost([*texts, (PartEvent("validation", choice), 1)]) == pytest.approx(cost([(TOKEN, 24)]), rel=5e-3)
    assert cost([*texts, (choice, 1)]) == cost([(choice, 1), (TOKEN, 24)])


def test_labels_with_events_of_their_own() -> None:
    """If it breaks, which two labels cost most is taken from counts, and a dearer event is overlooked."""
    mixed = [
        (LabelPartEvent("a", TOKEN), 20), (LabelPartEvent("b", TOKEN), 19), (LabelPartEvent("c", OTHER), 18),
        (LabelPartEvent("d", dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(9.0)])), 1),
    ]  # fmt: skip
    assert epsilon(mixed, 1e-5, neighbors=ADD) == epsilon([(OTHER, 18)], 1e-5, neighbors=ADD)
    without = mixed[:3]
    pairs = [[(TOKEN, 39)], [(TOKEN, 20), (OTHER, 18)], [(TOKEN, 19), (OTHER, 18)]]
    assert epsilon(without, 1e-5) == max(epsilon(pair, 1e-5) for pair in pairs)
    assert epsilon(mixed, 1e-5) >= epsilon(without, 1e-5)


def test_many_labels_are_composed_once() -> None:
    """If it breaks, two hundred labels are twenty thousand compositions: a plan that nobody waits for."""
    assert epsilon(labelled({f"label {i}": 9 for i in range(200)}), 1e-5) == epsilon([(TOKEN, 18)], 1e-5)


def test_a_label_holds_one_release_and_a_part_may_hold_a_label() -> None:
    """If it breaks, a part within a label is charged, of which nobody says what it costs."""
    label = LabelPartEvent("a", TOKEN)
    for name, event in (("", TOKEN), (3, TOKEN), ("a", label), ("a", PartEvent("training", TOKEN)), ("a", "token")):
        with pytest.raises(InvalidParameter):
            LabelPartEvent(name, event)  # type: ignore[arg-type]  # wrong on purpose
    whole = PartEvent("training", label)
    assert event_from_json(event_to_json(whole)) == whole
    with pytest.raises(UnsupportedEvent, match="unit of its own"):
        epsilon([(LabelPartEvent("a", MetricEvent(1.0)), 1)], 1e-5)
    with PrivacyLedger(PrivacyBudget(3.0)) as ledger, pytest.raises(UnsupportedEvent, match="metric privacy"):
        ledger.reserve([(PartEvent("training", LabelPartEvent("a", MetricEvent(1.0))), 1)], name="p")


def test_the_ledger_reserves_and_charges_labels(tmp_path: pathlib.Path) -> None:
    """If it breaks, a plan over labels is stored, charged or reopened as something else."""
    events = [(PartEvent("training", event), count) for event, count in labelled({"a": 12, "b": 12, "c": 12})]
    (first, _), (second, _), (third, _) = events
    budget, path = PrivacyBudget(4.0, 1e-5), tmp_path / "ledger.db"
    with PrivacyLedger(budget, path) as ledger:
        plan = ledger.reserve(events, name="glossary", delta=8e-6)
        assert plan.epsilon == epsilon([(TOKEN, 24)], 8e-6)
        plan.spend(first, 12)
        assert plan.spent()[0] == epsilon([(TOKEN, 12)], 8e-6)
        for bare in (TOKEN, LabelPartEvent("a", TOKEN), PartEvent("training", LabelPartEvent("d", TOKEN))):
            with pytest.raises(PlanError):
                plan.spend(bare)
    with PrivacyLedger(budget, path) as ledger:
        again = ledger.reserve(events, name="glossary")
        assert [again.remaining(event) for event in (first, second, third)] == [0, 12, 12]
        again.spend(second, 5)
        again.spend(third, 7)
        assert again.spent()[0] == epsilon([(TOKEN, 19)], 8e-6)
        assert again.certificate(second).mechanism == "LimitedDomainEvent"


# --- brute force: every tiny data set, every coin, every answer ------------------------------------------------

Record = tuple[int, int] | None  # label, and the token that its text favours; None is a ghost, or nobody
EPSILON0, DELTA0, TOKENS = 1.6, 0.01, 2
KNOWN = Counter({0: 20, 1: 20})  # votes of subsets that the attacker knows


@functools.cache
def token_law(votes: tuple[int, ...], moved: bool) -> np.ndarray:
    """Law of LimitedDomain over the tokens and bottom."""
    base = below_exp(Fraction(EPSILON0) / 2)
    mechanism = LimitedDomain(LimitedDomainEvent(EPSILON0, DELTA0), domain=9, kbar=2, moved_votes=moved)
    triples = mechanism._candidates(Counter(votes) + KNOWN)
    weights = {outcome: float(m * base**x) for outcome, x, m in triples}
    return np.array([weights.get(outcome, 0.0) for outcome in (*range(TOKENS), None)]) / sum(weights.values())


@functools.cache
def call_law(data: tuple[Record, ...], label: int, before: int, q: float, ghosts: bool) -> np.ndarray:
    """Law of one call for one label, over a fresh coin; the vote turns with what came before."""
    shown = [row[1] for row in data if row is not None and row[0] == label]
    absent = token_law((), not ghosts)
    if not shown or (ghosts and None in data):
        return absent
    return q * token_law(((sum(shown) + before) % TOKENS,), not ghosts) + (1 - q) * absent


def run(data: tuple[Record, ...], labels: int, calls: int, q: float, ghosts: bool) -> np.ndarray:
    """Law of all that leaves: ``calls`` outcomes a label, labels in turn, each call looking at all before it."""
    laws: dict[tuple[int, ...], float] = {(): 1.0}
    for label in (label for label in range(labels) for _ in range(calls)):
        after: dict[tuple[int, ...], float] = {}
        for seen, chance in laws.items():
            for outcome, share in enumerate(call_law(data, label, sum(seen) % TOKENS, q, ghosts)):
                after[(*seen, outcome)] = chance * share
        laws = after
    return np.array(list(laws.values()))


def divergence(labels: int, calls: int, price: float, neighbors: Neighbors, q: float) -> float:
    """Largest H_g, g = e^price, over all subsets of three records and all changes of the first."""
    kinds: list[Record] = list(itertools.product(range(labels), range(TOKENS)))
    worst = 0.0
    for others in itertools.product(kinds, repeat=2):
        changed: list[Record] = kinds if neighbors is ONE else [None, *kinds]
        laws = {kind: run((kind, *others), labels, calls, q, neighbors is ZERO) for kind in changed}
        for here, there in itertools.permutations(changed, 2):
            if neighbors is ONE or here is None or there is None:
                worst = max(worst, float(np.maximum(laws[here] - math.exp(price) * laws[there], 0).sum()))
    return worst


@pytest.mark.parametrize(
    ("neighbors", "labels", "calls", "paid", "too_few", "q"),
    [
        (ONE, 2, 1, 2, 1, 1.0),
        (ONE, 2, 2, 4, 2, 1.0),
        (ONE, 3, 1, 2, 1, 1.0),
        (ONE, 4, 1, 2, 1, 0.5),
        (ONE, 2, 2, 4, 2, 0.5),
        (ADD, 3, 1, 1, None, 1.0),
        (ADD, 2, 2, 2, 1, 0.5),
        (ZERO, 2, 1, 2, 1, 1.0),
        (ZERO, 3, 1, 3, 1, 1.0),
    ],
)
def test_labels_never_exceed_the_accountant(
    neighbors: Neighbors, labels: int, calls: int, paid: int, too_few: int | None, q: float
) -> None:
    """If it breaks, a record that moves from one label to another loses more than was charged.

    Every subset of three records, every change of one record, a fresh coin for every call, and every vote hangs on all
    that was released before. With half of what is due the check is red: it has power.
    """
    token = LimitedDomainEvent(EPSILON0, DELTA0, q)
    charged = labelled({f"label {i}": calls for i in range(labels)}, token)
    for delta in (0.06, 0.2):
        price = epsilon(charged, delta, neighbors=neighbors)
        assert price == epsilon([(token, paid)], delta, neighbors=neighbors)
        assert divergence(labels, calls, price, neighbors, q) <= delta + 1e-12
    if too_few is not None:
        delta = 0.06
        cheaper = epsilon([(token, too_few)], delta, neighbors=neighbors)
        assert divergence(labels, calls, cheaper, neighbors, q) > delta
