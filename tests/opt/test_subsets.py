"""Who sits with whom: one record moves one vote, whatever the coins; and the coins are what the accountant was told."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.canary import CANARY
from fakes.next_token import WordEngine
from fakes.optimizers import examples, optimizer

from langchain_dp import PrivateRecords
from langchain_dp.ensemble.subsets import KeyedCoins, Scheme, SubsetSampler
from langchain_dp.errors import InvalidParameter
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


@pytest.mark.parametrize("even", [True, False])
def test_two_neighbors_differ_within_one_part(even: bool) -> None:
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


LATER = "latercanary"


def of_users(per_user: int = 3) -> list[dict[str, Any]]:
    """Forty users; only the oldest record of each may be read."""
    first = [{**row, "user": f"u{number}"} for number, row in enumerate(examples(40))]
    later = [{**row, "text": f"{LATER} {row['text']}"} for row in first for _ in range(per_user - 1)]
    return [*first, *later]


def test_one_record_stands_for_each_user() -> None:
    """If it breaks, a user of many records moves many votes, and the certificate promises otherwise."""
    alone = optimizer(not_private_seed=7).invoke(examples(40))
    chosen = optimizer(not_private_seed=7)
    prompt = chosen.invoke(PrivateRecords(of_users(), user_key="user"))
    assert prompt.messages == alone.messages
    plan = chosen.plan(PrivateRecords(of_users(), user_key="user"))
    assert plan.to_dict() == optimizer().plan(examples(40)).to_dict()
    assert "the promise holds for all records of one user" in chosen.certificate().notes
    assert "the promise holds for all records of one user" in prompt.metadata["dp"]["notes"]
    assert CANARY not in repr(prompt)


def test_more_records_of_a_user_are_refused() -> None:
    """If it breaks, somebody asks for two records a user, and gets one without a word."""
    records = PrivateRecords(of_users(), user_key="user", records_per_user=2)
    with pytest.raises(InvalidParameter, match=r"records_per_user=2 to be 1"):
        optimizer().invoke(records)
