"""Assignment and sampling coins: at most one subset changes, and the sampling is Poisson."""

from __future__ import annotations

from fractions import Fraction

from langchain_dp.ensemble.subsets import FixedPartition, resample
from langchain_dp.mechanisms import NotPrivateSeededRandomness

IDS = [f"r{i}" for i in range(24)]


def test_even_subsets_are_of_one_size_and_empty_ones_are_drawn_too() -> None:
    """If it breaks, equal subsets are not sound under replace-one, or who takes part shows which subsets are empty."""
    for seed in range(20):
        partition = FixedPartition(IDS, 6, even=True, rng=NotPrivateSeededRandomness(seed))
        assert {len(frozenset(partition.members(place))) for place in range(len(partition))} == {4}
    empty = FixedPartition((), 5, even=False, rng=NotPrivateSeededRandomness(2))
    assert empty.draw(Fraction(1), NotPrivateSeededRandomness(3)) == [0, 1, 2, 3, 4]


def test_resample_puts_a_record_into_at_most_one_slot() -> None:
    """If it breaks, a sampled record votes twice in one release."""
    rng = NotPrivateSeededRandomness(5)
    for _ in range(500):
        slots = resample(IDS, 5, Fraction(1, 3), rng)
        members = [member for slot in slots for member in slot]
        assert len(members) == len(set(members))
        assert len(slots) == 5


def test_empty_subsets_are_drawn_like_any_other() -> None:
    """If it breaks, which subsets take part shows which ones are empty."""
    empty = FixedPartition((), 5, even=False, rng=NotPrivateSeededRandomness(2))
    assert empty.draw(Fraction(1), NotPrivateSeededRandomness(3)) == [0, 1, 2, 3, 4]
