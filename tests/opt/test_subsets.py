"""Who sits with whom: one record moves one vote, whatever the coins; and the coins are what the accountant was told."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from audit_tools import lower, upper
from fakes.next_token import WordEngine

from langchain_dp.ensemble.scheme import Scheme
from langchain_dp.ensemble.subsets import KeyedCoins, SubsetSampler
from langchain_dp.mechanisms import NotPrivateSeededRandomness, Randomness, SystemRandomness
from langchain_dp.opt.data import split
from langchain_dp.opt.voters import SubsetVotes

IDS = [f"r{i}" for i in range(24)]
EVEN = Scheme("fixed", 8, 1.0, True)
OWN_COINS = Scheme("fixed", 8, 1.0, False)
RESAMPLED = Scheme("resample", 8, 0.5, False)


def contents(ids: Sequence[str], scheme: Scheme, rng: Randomness) -> list[tuple[str, ...]]:
    """What every subset of one draw holds, by its number."""
    groups: list[tuple[str, ...]] = [()] * scheme.groups
    for subset in SubsetSampler(ids, scheme, rng).draw():
        _, _, number = subset.member  # type: ignore[misc]  # opaque to everyone else
        groups[number] = subset.record_ids
    return groups


def moved(one: list[tuple[str, ...]], other: list[tuple[str, ...]]) -> int:
    """Number of subsets that differ."""
    return sum(a != b for a, b in zip(one, other, strict=True))


def seeded(ids: Sequence[str], scheme: Scheme, seed: int) -> list[tuple[str, ...]]:
    return contents(ids, scheme, NotPrivateSeededRandomness(seed))


def chunks_of_a_shuffle(ids: Sequence[str], scheme: Scheme, seed: int) -> list[tuple[str, ...]]:
    """The planted fault: shuffle, where every record keeps its own coin, and cut into equal chunks."""
    order = sorted(ids, key=lambda name: random.Random(f"{seed} {name}").random())
    return [tuple(order[i :: scheme.groups]) for i in range(scheme.groups)]


def chunks_in_order(ids: Sequence[str], scheme: Scheme, seed: int) -> list[tuple[str, ...]]:
    """The planted fault of the published code: chunks in the order of the data."""
    size = -(-len(ids) // scheme.groups)
    return [tuple(ids[i * size : (i + 1) * size]) for i in range(scheme.groups)]


Cut = Callable[[Sequence[str], Scheme, int], list[tuple[str, ...]]]


@pytest.mark.parametrize("scheme", [EVEN, OWN_COINS, RESAMPLED], ids=["even", "own coins", "resampled"])
def test_replacing_one_record_changes_one_subset_at_most(scheme: Scheme) -> None:
    """If it breaks, one record moves two votes, and every epsilon is twice as large as printed."""
    most = 0
    for seed in range(1000):
        changed = list(IDS)
        changed[seed % 24] = "someone else"
        most = max(most, moved(seeded(IDS, scheme, seed), seeded(changed, scheme, seed)))
    assert most == 1


@pytest.mark.parametrize("scheme", [OWN_COINS, RESAMPLED], ids=["own coins", "resampled"])
def test_adding_one_record_changes_one_subset_at_most(scheme: Scheme) -> None:
    """If it breaks, a record that joins moves the votes of others: half of them, in the published code."""
    most = 0
    for seed in range(1000):
        # the last record draws its coins last, so that all others have theirs
        most = max(most, moved(seeded(IDS, scheme, seed), seeded([*IDS, "one more"], scheme, seed)))
    assert most == 1


@pytest.mark.parametrize("cut", [chunks_in_order, chunks_of_a_shuffle])
def test_the_two_tests_above_see_a_wrong_partition(cut: Cut) -> None:
    """If it breaks, equal chunks pass for a sound partition under add/remove."""
    most = max(moved(cut(IDS, OWN_COINS, seed), cut(["one more", *IDS], OWN_COINS, seed)) for seed in range(50))
    assert most >= 2


@pytest.mark.parametrize("even", [True, False])
def test_two_neighbours_differ_within_one_part(even: bool) -> None:
    """If it breaks, one record is read by tokens and selection, and the larger cost does not cover both."""
    for i in range(1000):
        key = i.to_bytes(32, "big")
        training, validation = split(IDS, 0.3, key, even=even)
        other = list(IDS)
        if even:
            other[i % 24] = "someone else"
        else:
            other.insert(i % 25, "one more")
        differing = [
            a for a, b in zip((training, validation), split(other, 0.3, key, even=even), strict=True) if a != b
        ]
        assert len(differing) == 1


def test_the_test_above_sees_a_split_that_hangs_on_the_record() -> None:
    """If it breaks, a coin on the id of a record passes where a record is replaced, and its id with it."""
    both = 0
    for i in range(200):
        key = i.to_bytes(32, "big")
        other = list(IDS)
        other[i % 24] = "someone else"
        pairs = zip(split(IDS, 0.3, key, even=False), split(other, 0.3, key, even=False), strict=True)
        both += all(a != b for a, b in pairs)
    assert both > 20


@pytest.mark.parametrize("even", [True, False])
def test_the_split_is_whole_disjoint_and_of_its_key(even: bool) -> None:
    """If it breaks, a record teaches and selects, or a run that is taken up deals the records anew."""
    key, other = secrets.token_bytes(32), secrets.token_bytes(32)
    ids = [f"r{i}" for i in range(400)]
    training, validation = split(ids, 0.25, key, even=even)
    assert sorted([*training, *validation]) == sorted(ids)
    assert split(ids, 0.25, key, even=even) == (training, validation)
    assert split(ids, 0.25, other, even=even) != (training, validation)
    # own coins: Binomial(400, 1/4) is within 100 +- 54 but for a chance of 1e-9
    assert len(validation) == 100 if even else 46 < len(validation) < 154


def test_own_coins_keep_every_other_record_in_its_part() -> None:
    """If it breaks, a record that joins or is forgotten moves others to the other part."""
    key = secrets.token_bytes(32)
    whole = split(IDS, 0.4, key, even=False)
    for gone in IDS:
        rest = split([name for name in IDS if name != gone], 0.4, key, even=False)
        assert rest == tuple([name for name in part if name != gone] for part in whole)


@pytest.mark.statistical
@pytest.mark.parametrize("sampling", ["fixed", "resample"])
def test_every_place_is_drawn_at_the_rate_that_is_accounted_for(sampling: Any) -> None:
    """If it breaks, sampling is not Poisson (a fixed batch, or a rate of another size), and amplification is not due.

    Per place Clopper-Pearson at 1e-6; the variance of the number drawn is K q (1 - q) within 25%: 5.6 s.d. of its
    estimate over 1000 draws. A batch of fixed size has variance 0; a rate of 2q or q/2 is 10 s.d. off at every place.
    """
    q, runs = 0.25, 1000
    groups = 24 if sampling == "fixed" else 400
    ensemble = SubsetSampler(IDS, Scheme(sampling, groups, q, False), SystemRandomness())
    draws = [[name for subset in ensemble.draw() for name in subset.record_ids] for _ in range(runs)]
    hits = Counter(name for draw in draws for name in draw)
    for name in IDS:
        assert lower(hits[name], runs) <= q <= upper(hits[name], runs)
        for wrong in (q / 2, 2 * q):
            assert not lower(hits[name], runs) <= wrong <= upper(hits[name], runs)
    if sampling == "resample":
        sizes = [len(draw) for draw in draws]
        mean = sum(sizes) / runs
        variance = sum((size - mean) ** 2 for size in sizes) / runs
        assert variance == pytest.approx(24 * q * (1 - q), rel=0.25)


@pytest.mark.statistical
def test_the_number_of_subsets_drawn_is_binomial() -> None:
    """If it breaks, a batch of subsets of fixed size is drawn: the privacy of a random one is claimed for it.

    Variance of 2000 draws: 1.6e-2 s.d. relative per 1/sqrt(n/2); 20% are 6 s.d.
    """
    ensemble = SubsetSampler(IDS, Scheme("fixed", 24, 0.25, True), SystemRandomness())
    sizes = [len(ensemble.draw()) for _ in range(2000)]
    mean = sum(sizes) / 2000
    assert mean == pytest.approx(6, abs=0.3)
    assert sum((size - mean) ** 2 for size in sizes) / 2000 == pytest.approx(24 * 0.25 * 0.75, rel=0.2)


def test_two_records_share_a_subset_no_more_often_than_chance() -> None:
    """If it breaks, subsets are cut in the order of the data: who sits with whom is known from outside.

    Neighbours in 8 subsets of three share one with probability 2/23; 1000 draws: 87 expected, 150 is 7 s.d.
    """
    together = 0
    for _ in range(1000):
        groups = contents(IDS, EVEN, SystemRandomness())
        assert {len(group) for group in groups} == {3}
        together += any("r0" in group and "r1" in group for group in groups)
    assert together < 150


def test_fixed_subsets_come_back_under_their_key_and_dealt_ones_do_not() -> None:
    """If it breaks, a cache is used for other records than it was made of."""
    fixed = SubsetSampler(IDS, EVEN, SystemRandomness())
    first, again = fixed.draw(), fixed.draw()
    assert [(one.member, one.record_ids) for one in first] == [(one.member, one.record_ids) for one in again]
    assert fixed.lasting
    dealt = SubsetSampler(IDS, RESAMPLED, SystemRandomness())
    keys = [one.member for _ in range(20) for one in dealt.draw()]
    assert len(set(keys)) == len(keys)
    assert not dealt.lasting
    other = SubsetSampler(IDS, EVEN, SystemRandomness())
    assert not {one.member for one in other.draw()} & {one.member for one in first}


@pytest.mark.parametrize("scheme", [OWN_COINS, RESAMPLED])
def test_subsets_without_records_are_left_out(scheme: Scheme) -> None:
    """If it breaks, an empty prompt votes, or an empty data set raises."""

    def drawn(ids: list[str]) -> list[Any]:
        sampler = SubsetSampler(ids, scheme, SystemRandomness())
        votes = SubsetVotes(WordEngine(), sampler, None, watch=lambda: None, text=None, rng=SystemRandomness())  # type: ignore[arg-type]  # nobody is asked
        return votes.draw()

    assert drawn([]) == []
    assert len(drawn(["a"])) <= 1


def test_nothing_of_a_subset_is_printed() -> None:
    """If it breaks, a log line or a traceback shows who sits in a subset."""
    [subset] = SubsetSampler(["patient 7"], Scheme("fixed", 1, 1.0, True), SystemRandomness()).draw()
    assert "patient" not in repr(subset) + repr(subset.member)


def test_a_record_that_is_called_like_a_coin_of_a_round_has_a_coin_of_its_own() -> None:
    """If it breaks, an id that names a round's coin of another record has that coin: two records share one."""
    key, names = secrets.token_bytes(32), [str(number) for number in range(200)]
    drawn = set(KeyedCoins(key, {name: name for name in names}).drawn(0, 0.5))
    _, chosen = split([f"round\n0\n{name}" for name in names], 0.5, key, even=False)
    same = sum((f"round\n0\n{name}" in chosen) == (name in drawn) for name in names)
    assert 50 < same < 150  # red by chance below 1e-12
