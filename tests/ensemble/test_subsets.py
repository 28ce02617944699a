"""Assignment and sampling coins: at most one subset changes, and the sampling is Poisson."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from langchain_dp.ensemble.subsets import FixedPartition, resample
from langchain_dp.mechanisms import NotPrivateSeededRandomness

IDS = [f"r{i}" for i in range(24)]


def subsets(partition: FixedPartition) -> list[frozenset[str]]:
    return [frozenset(partition.members(k)) for k in range(len(partition))]


def differing(a: Sequence[frozenset[str]], b: Sequence[frozenset[str]]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def test_even_subsets_are_of_one_size() -> None:
    """If it breaks, equal subsets are not sound under replace-one. What moves them: the audit "partition"."""
    for seed in range(20):
        partition = FixedPartition(IDS, 6, even=True, rng=NotPrivateSeededRandomness(seed))
        assert {len(subset) for subset in subsets(partition)} == {4}


def test_resample_puts_a_record_into_at_most_one_slot() -> None:
    """If it breaks, a sampled record votes twice in one release."""
    rng = NotPrivateSeededRandomness(5)
    for _ in range(500):
        slots = resample(IDS, 5, Fraction(1, 3), rng)
        members = [member for slot in slots for member in slot]
        assert len(members) == len(set(members))
        assert len(slots) == 5


def test_edits_leave_the_other_subsets_alone() -> None:
    """If it breaks, forgetting one record moves others, and their votes with them."""
    partition = FixedPartition(IDS, 6, even=True, rng=NotPrivateSeededRandomness(1))
    before = subsets(partition)
    home = partition.forget("r7")
    assert differing(before, subsets(partition)) == 1
    assert before[home] - subsets(partition)[home] == {"r7"}
    after = subsets(partition)
    joined = partition.add("r99")
    assert differing(after, subsets(partition)) == 1
    assert "r99" in partition.members(joined)


def test_empty_subsets_are_drawn_like_any_other() -> None:
    """If it breaks, which subsets take part shows which ones are empty."""
    empty = FixedPartition((), 5, even=False, rng=NotPrivateSeededRandomness(2))
    assert empty.draw(Fraction(1), NotPrivateSeededRandomness(3)) == [0, 1, 2, 3, 4]
