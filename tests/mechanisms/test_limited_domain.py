"""LimitedDomain: its law, and its price by enumeration of every small vote, with planted faults that must cost more."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from audit_tools import limited_domain

from langchain_dp.accounting import LimitedDomainEvent, Neighbors, profiles
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import LimitedDomain, NotPrivateSeededRandomness
from langchain_dp.mechanisms.exponential_choice import below_exp

ADD, ONE, ZERO = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_ONE, Neighbors.REPLACE_SPECIAL
TOKENS = 4
EPSILONS = np.linspace(0.0, 2.5, 26)
PARAMETERS = [(1.8, 0.01), (0.8, 0.05), (0.5, 0.3)]  # epsilon0, delta0

Votes = tuple[int, ...]


def triples(votes: Mapping[Any, int], *, delta0: float, **settings: Any) -> list[tuple[Any, int, int]]:
    """What the law is made of; it is raised to a base elsewhere."""
    return LimitedDomain(LimitedDomainEvent(1.0, delta0), **settings)._candidates(votes)


def exact(votes: dict[int, int], epsilon0: float, **candidates: Any) -> dict[int | None, Fraction]:
    """The law that is drawn, as fractions."""
    base = below_exp(Fraction(epsilon0) / 2)
    weights = {outcome: m * base**x for outcome, x, m in triples(votes, **candidates)}
    return {outcome: weight / sum(weights.values()) for outcome, weight in weights.items()}


@functools.cache
def law(votes: Votes, epsilon0: float, delta0: float, kbar: int, moved_votes: bool, fault: str = "") -> np.ndarray:
    """Probabilities of tokens 0 to 3 and of bottom; ``fault`` plants what published code does."""
    domain: object = TOKENS if kbar < TOKENS else range(TOKENS)
    voted = [token for token, count in enumerate(votes) if count]
    if fault == "gumbel 1/epsilon0":
        epsilon0 *= 2
    if fault == "threshold +1":
        moved_votes = False
    if fault == "observed only" and voted:
        domain, kbar = voted, TOKENS
    if fault == "clamped":
        kbar = max(min(kbar, len(voted) - 1), 1)
    got = exact(dict(enumerate(votes)), epsilon0, delta0=delta0, domain=domain, kbar=kbar, moved_votes=moved_votes)
    return np.array([float(got.get(outcome, 0)) for outcome in [*range(TOKENS), None]])


def add(votes: Votes, token: int) -> Votes:
    return tuple(count + (index == token) for index, count in enumerate(votes))


def histograms(most: int) -> Iterator[Votes]:
    return (votes for votes in itertools.product(range(most + 1), repeat=TOKENS) if sum(votes) <= most)


def excess(here: list[np.ndarray], there: list[np.ndarray], claim: np.ndarray) -> float:
    """Largest amount by which H_g(here || there) exceeds the claimed delta, over all pairs and epsilons."""
    p, r = np.array(here)[:, None, :], np.array(there)[:, None, :]
    return float((np.maximum(p - np.exp(EPSILONS)[:, None] * r, 0).sum(axis=2) - claim).max())


@pytest.mark.parametrize(("moved_votes", "above"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("delta0", [0.01, 0.4, 0.9, 3e-7])
def test_the_law_is_gumbel_noise_and_a_threshold(moved_votes: bool, above: int, delta0: float) -> None:
    """If it breaks, what is drawn is not Gumbel noise of scale 2/epsilon0 over kbar tokens and a bottom."""
    epsilon0, kbar = 1.8, 3
    for counts, left_out in (((9, 7, 7, 4, 1), 4), ((9, 2, 1, 0, 0), 0), ((0, 0, 3, 0, 0), 0), ((0,) * 5, 0)):
        got = exact(dict(enumerate(counts)), epsilon0, delta0=delta0, domain=50, kbar=kbar, moved_votes=moved_votes)
        threshold = left_out + above + 2 / epsilon0 * math.log(math.ceil((1 - Fraction(delta0)) / Fraction(delta0)))
        assert threshold >= left_out + above + 2 / epsilon0 * math.log((1 - delta0) / delta0) - 1e-12
        height = {token: float(count) for token, count in enumerate(counts[:kbar]) if count} | {None: threshold}
        total = sum(math.exp(h * epsilon0 / 2) for h in height.values())
        expected = {outcome: math.exp(h * epsilon0 / 2) / total for outcome, h in height.items()}
        assert {outcome: float(p) for outcome, p in got.items()} == pytest.approx(expected, rel=1e-9)


def test_which_tokens_are_candidates() -> None:
    """If it breaks, labels without votes cannot win, ties hang on an order, or what fits no label is released."""
    got = exact({"b": 2}, 1.0, delta0=1e-6, domain=["a", "b", "c"], kbar=3, moved_votes=True)
    weights = {"a": 1.0, "b": math.e, "c": 1.0}
    assert {k: float(v) for k, v in got.items()} == pytest.approx({k: v / (2 + math.e) for k, v in weights.items()})
    drawn = {limited_domain({}, epsilon0=0.5, delta0=1e-6, domain=["a", "b", "c"], kbar=5) for _ in range(200)}
    assert drawn == {"a", "b", "c"}
    same = {"delta0": 0.1, "domain": 99, "kbar": 1, "moved_votes": True}
    ranked = [{2: 3, 1: 3, 0: 1}, {0: 1, 1: 3, 2: 3}, {"b": 3, "B": 3}, {"1": 3, 7: 3}]  # whole numbers before strings
    assert [triples(votes, **same)[0][0] for votes in ranked] == [1, 1, "B", 7]
    labels = ["a", "b", "c"]
    for kbar in (3, 2):
        inside, outside = (
            triples(votes, delta0=0.1, domain=labels, kbar=kbar, moved_votes=True)
            for votes in ({"a": 2}, {"a": 2, "zzz": 9})
        )
        assert inside == outside


class Counting(NotPrivateSeededRandomness):
    asked = 0

    def randbelow(self, upper: int) -> int:
        self.asked += 1
        return super().randbelow(upper)


def test_the_draw_is_made_whatever_the_votes() -> None:
    """If it breaks, an empty or unanimous vote answers without a draw, and its time tells so."""
    for votes in ({}, {1: 0}, {1: 900}):
        rng = Counting(1)
        limited_domain(votes, epsilon0=1.0, delta0=1e-6, domain=50_000, rng=rng)
        assert rng.asked == 1
    assert limited_domain({}, epsilon0=np.float32(1), delta0=np.float32(1e-6), domain=50_000) is None


@pytest.mark.parametrize("fault", ["", "gumbel 1/epsilon0", "threshold +1", "observed only"])
def test_a_moved_vote_is_bounded_range(fault: str) -> None:
    """If it breaks, of all votes of up to six over four tokens two neighbors can be told apart beyond the claim."""
    assert (max(_moved(e, d, kbar, fault) for e, d in PARAMETERS for kbar in (1, 2, 3)) <= 1e-12) == (not fault)


def _moved(epsilon0: float, delta0: float, kbar: int, fault: str) -> float:
    pairs = [
        [law(add(rest, token), epsilon0, delta0, kbar, True, fault) for token in moved]
        for rest in histograms(5)
        for moved in itertools.permutations(range(TOKENS), 2)
    ]
    here, there = zip(*pairs, strict=True)
    return excess(list(here), list(there), profiles.bounded_range(EPSILONS, bound=epsilon0, delta0=delta0))


@pytest.mark.parametrize("fault", ["", "gumbel 1/epsilon0", "observed only"])
def test_a_vote_that_appears_costs_half_the_range(fault: str) -> None:
    """If it breaks, zero-out with the threshold +1 is charged too little."""
    worst = -1.0
    for (epsilon0, delta0), kbar in itertools.product(PARAMETERS, (1, 2, 3)):
        claim = profiles.bounded_range(EPSILONS, bound=epsilon0 / 2, delta0=delta0)
        pairs = [
            [law(votes, epsilon0, delta0, kbar, False, fault) for votes in (rest, add(rest, token))]
            for rest in histograms(5)
            for token in range(TOKENS)
        ]
        without, with_it = (list(side) for side in zip(*pairs, strict=True))
        worst = max(worst, excess(without, with_it, claim), excess(with_it, without, claim))
    assert (worst <= 1e-12) == (not fault)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon0": 0.0}, "epsilon0=0.0"),
        ({"epsilon0": math.inf}, "epsilon0=inf"),
        ({"delta0": 0.0}, "delta0=0.0"),
        ({"delta0": 1.0}, "delta0=1.0"),
        ({"kbar": 0}, "kbar=0"),
        ({"kbar": 2.0}, "kbar=2.0"),
        ({"moved_votes": None}, "moved_votes=None"),
        ({"domain": 10}, r"domain=10 .* sequence"),
        ({"domain": []}, "type list"),
        ({"domain": "abc"}, "type str"),
        ({"domain": [1, 2, 2]}, "3 outcomes to hold each of them once"),
        ({"votes": {7717: -1}}, "every count"),
        ({"votes": {7717: True}}, "every count"),
        ({"votes": {(7717,): 1}}, "Expected votes"),
        ({"votes": [7717]}, "Expected votes"),
    ],
)
def test_bad_input_is_named_and_votes_are_not(wrong: dict[str, object], message: str) -> None:
    """If it breaks, a wrong parameter goes through, or an error prints a vote."""
    good: dict[str, object] = {"votes": {7717: 3}, "epsilon0": 1.0, "delta0": 1e-6, "domain": 50_000}
    with pytest.raises(InvalidParameter, match=message) as refused:
        limited_domain(**{**good, **wrong})  # type: ignore[arg-type]  # wrong on purpose
    assert "7717" not in str(refused.value)
