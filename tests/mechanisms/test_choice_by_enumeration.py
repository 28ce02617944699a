"""The exponential choice with points, and names of several labels, by brute force: what one record can move at most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest

from langchain_dp.accounting import ExponentialEvent
from langchain_dp.aggregate import names
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import Exponential, NotPrivateSeededRandomness
from langchain_dp.mechanisms.exponential_choice import below_exp

LAMBDA, WORDS = 0.7, 3
Table = tuple[tuple[int, ...], ...]


def shares(counts: Sequence[int], base: Fraction) -> list[float]:
    weights = [float(base ** (count - max(counts))) for count in counts]
    return [weight / sum(weights) for weight in weights]


class Chosen:
    """Stands for the mechanism: follows a path of choices, and notes how likely it is."""

    def __init__(self, path: Sequence[int], base: Fraction) -> None:
        self.path, self.base, self.chance = list(path), base, 1.0

    def release(self, counts: list[int], *, rng: Any) -> int:
        place = self.path.pop(0)
        if place >= len(counts):
            self.chance = 0.0
            return 0
        self.chance *= shares(counts, self.base)[place]
        return place


def law(table: Table, most: int, replacing: bool) -> dict[tuple[int, ...], float]:
    """Probability of every outcome for two labels."""
    base = below_exp(Fraction(LAMBDA) / most)
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(WORDS), repeat=2):
        chosen: Any = Chosen(path, base)
        if replacing:  # every label is offered all words
            outcome = tuple(chosen.release(list(row), rng=None) for row in table)
        else:
            outcome = tuple(names._chosen(chosen, table, NotPrivateSeededRandomness(0)))
        found[outcome] = found.get(outcome, 0.0) + chosen.chance
    assert sum(found.values()) == pytest.approx(1.0)
    return {outcome: chance for outcome, chance in found.items() if chance}


def ballots(most: int) -> list[tuple[int, ...]]:
    """What one record may add to the words of its label: points in ranks, and one word alone."""
    one_hot = [tuple(most * (place == word) for place in range(WORDS)) for word in range(WORDS)]
    ranks = itertools.permutations([most, max(most - 1, 0), max(most - 2, 0)]) if most > 1 else []
    return [*one_hot, *ranks, (most,) * WORDS, (0,) * WORDS]


def tables(most: int) -> Iterator[Table]:
    """Counts of the other records."""
    rows = [(0, 0, 0), (most, 0, 2 * most), (3 * most, most, 0), (5 * most // 2, most, 3 * most)]
    yield from itertools.product(rows, repeat=2)


def added(table: Table, label: int, ballot: Sequence[int]) -> Table:
    return tuple(
        tuple(a + b for a, b in zip(row, ballot, strict=True)) if place == label else row
        for place, row in enumerate(table)
    )


def gap(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """Largest log ratio of the chance of an outcome."""
    assert one.keys() == other.keys()
    return max(abs(math.log(one[each] / other[each])) for each in one)


def worst(most: int, replacing: bool, *, same_label: bool | None) -> float:
    """Worst log ratio over all records of one label, or of two; ``same_label=None``: a record that comes."""
    found = 0.0
    for table in tables(most):
        laws = {
            (label, ballot): law(added(table, label, ballot), most, replacing)
            for label in range(2)
            for ballot in ballots(most)
        }
        if same_label is None:
            found = max(found, *(gap(law(table, most, replacing), after) for after in laws.values()))
            continue
        for (one, before), (two, after) in itertools.combinations(laws, 2):
            if (one == two) is same_label:
                found = max(found, gap(laws[one, before], laws[two, after]))
    return found


@pytest.mark.parametrize("most", [1, 10])
@pytest.mark.parametrize("replacing", [True, False], ids=["every word", "no word twice"])
def test_a_record_moves_the_names_by_no_more_than_is_charged(most: int, replacing: bool) -> None:
    """If it breaks, names cost more than epsilon = 2 lambda under replace-one, or than lambda under add/remove.

    A charge of lambda under replace-one would be refuted: here two records differ by more.
    """
    assert worst(most, replacing, same_label=None) <= LAMBDA + 1e-9
    for same_label in (True, False):
        moved = worst(most, replacing, same_label=same_label)
        assert moved <= 2 * LAMBDA + 1e-9
        assert moved > 1.15 * LAMBDA


def test_the_choice_weighs_points_by_the_most_that_a_record_gives() -> None:
    """If it breaks, ten points weigh ten records, and each record costs ten times what is charged."""
    counts, runs = [30, 20, 0], 4000
    rng = NotPrivateSeededRandomness(1)
    mechanism = Exponential(ExponentialEvent(LAMBDA), most=10)
    seen = [mechanism.release(counts, rng=rng) for _ in range(runs)]
    expected = [runs * math.exp(LAMBDA * count / 10) for count in counts]
    total = sum(math.exp(LAMBDA * count / 10) for count in counts)
    square = sum((seen.count(place) - each / total) ** 2 / (each / total) for place, each in enumerate(expected))
    assert square < 27.6, "chi-square at an error rate of 1e-6"


@pytest.mark.parametrize("most", [0, -1, 1.5, True])
def test_a_most_that_is_no_number_of_points_is_refused(most: Any) -> None:
    """If it breaks, a draw fails after its charge, or the base falls below one and the lowest count wins."""
    with pytest.raises(InvalidParameter, match="most"):
        Exponential(ExponentialEvent(1.0), most=most)
