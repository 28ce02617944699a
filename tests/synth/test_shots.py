"""Members that show several records: what they cost by brute force, who is in them, restarts, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes.scorer import Draws
from fakes.stops import press_ctrl_c
from fakes.synthesizers import BUDGET, LABELS, rows, synthesizer

from langchain_dp.accounting import ClippedSumRoundEvent, LedgerPlan, Neighbors, PrivacyBudget, PrivacyLedger, epsilon
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import ClippedSum
from langchain_dp.synth.members import Members
from langchain_dp.synth.settings import Design

RATE, RANGE, UP = 0.05, 4.0, 0.1


def entries(ledger: PrivacyLedger) -> int:
    return sum(entry.count for entry in ledger.entries())


def token(side: int | None) -> tuple[float, float]:
    """Law of a token of two: the member is as sure of one as its clip allows, or does not take part."""
    moved = 0.0 if side is None else side * RANGE / 4
    up, down = UP * math.exp(moved), (1 - UP) * math.exp(-moved)
    return up / (up + down), down / (up + down)


def law(sides: tuple[int, int], *, one_coin: bool) -> dict[tuple[int, int], float]:
    """Law of the texts of two labels, a token each, where a block shows one side to the one and one to the other."""
    found = Counter[tuple[int, int]]()
    for taken in itertools.product((True, False), repeat=2):
        if one_coin and taken[0] != taken[1]:
            continue
        coins = taken[:1] if one_coin else taken
        chance = math.prod(RATE if each else 1 - RATE for each in coins)
        laws = [token(side if there else None) for side, there in zip(sides, taken, strict=True)]
        for said in itertools.product(range(2), repeat=2):
            found[said] += chance * laws[0][said[0]] * laws[1][said[1]]
    return dict(found)


@pytest.mark.parametrize(("one_coin", "charges", "holds"), [(False, 2, True), (False, 1, False), (True, 2, False)])
def test_a_label_that_changes_costs_two_rounds_if_each_text_has_a_coin_of_its_own(
    one_coin: bool, charges: int, holds: bool
) -> None:
    """If it breaks, a record in a block moves two texts and pays for one; one coin for both costs more than two."""
    event = ClippedSumRoundEvent(RANGE, 1, RATE)
    both = [law(sides, one_coin=one_coin) for sides in ((1, 1), (-1, -1))]
    kept = []
    for before, after in (both, both[::-1]):
        for loss in (0.05, 0.2, 0.35, 0.5):
            lost = sum(max(0.0, before[said] - math.exp(loss) * after[said]) for said in before)
            kept.append(lost < 1e-9 or epsilon([(event, charges)], lost * 0.999) >= loss)
    assert all(kept) == holds


def test_one_label_cannot_change_and_one_record_moves_half_as_far() -> None:
    """If it breaks, runs pay twice for nothing."""
    noise = ClippedSum(ClippedSumRoundEvent(RANGE, 1, RATE), 2)
    assert [Design("rounds", 1, noise, 9, texts=t, shots=s).charges for t, s in ((1, 4), (2, 1), (2, 4))] == [1, 1, 2]


@pytest.mark.parametrize("scheme", ["rounds", "groups"])
def test_every_round_is_charged_twice_within_the_budget(scheme: str) -> None:
    """If it breaks, texts leave for half of their price."""
    ledger = PrivacyLedger(BUDGET)
    chain = synthesizer(ledger=ledger, scheme=scheme, shots=2, members=5)
    examples = chain.invoke(rows())
    assert Counter(one.label for one in [*examples, *examples.dropped]) == {"delivery": 3, "billing": 3}
    assert entries(ledger) == 6
    assert ledger.spent()[0] <= BUDGET.epsilon
    certificate = examples.certificate
    assert certificate.parameters["shots"] == 2
    assert "two texts" in str(certificate)
    assert certificate.epsilon <= BUDGET.epsilon


def test_a_member_shows_its_block_and_only_the_texts_label() -> None:
    """If it breaks, a record stands in the text of another label, or alone as before."""
    engine = Draws()
    synthesizer(engine, shots=3, members=5).invoke(rows(240))
    bodies = {one.prompt.body for members in engine.asked for one in members}
    assert all(len({"parcel" in line for line in body.splitlines()}) == 1 for body in bodies)
    assert max(len(body.splitlines()) for body in bodies) >= 3
    lines = [line for body in bodies for line in body.splitlines()]
    assert len(lines) == len(set(lines)), "a record is always shown in the same company"


def test_blocks_hang_on_slots_alone_and_fall_apart_for_each_label() -> None:
    """If it breaks, who is in a prompt tells of content, or one coin serves two texts."""
    noise = ClippedSum(ClippedSumRoundEvent(0.5, 4, 0.4), 10)
    design = Design("rounds", 20, noise, 200, texts=2, shots=2)
    drawn = [Members(b"k" * 32, {f"{kind}{i}": str(i) for i in range(200)}) for kind in "ab"]
    for number in range(20):
        first, second = ([[name[1:] for name in block] for block in one.of_text(design, number, "x")] for one in drawn)
        assert first == second
        assert {len(block) for block in first} <= {4}
        assert first != [[name[1:] for name in block] for block in drawn[0].of_text(design, number, "y")]


@pytest.mark.parametrize("charged", [False, True])
def test_a_kill_around_the_two_charges_of_a_round_goes_on(
    charged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, a restart writes a round that is half paid for, or pays for it thrice."""
    spend, calls = LedgerPlan.spend_up_to, 0

    def killed(self: LedgerPlan, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 and not charged:
            press_ctrl_c()
        spend(self, *args, **kwargs)
        if calls == 2:
            press_ctrl_c()

    monkeypatch.setattr(LedgerPlan, "spend_up_to", killed)
    path = tmp_path / "ledger.db"
    with pytest.raises(KeyboardInterrupt):
        synthesizer(ledger=PrivacyLedger(BUDGET, path), shots=2, members=5).invoke(rows())
    ledger = PrivacyLedger(BUDGET, path)
    assert entries(ledger) == (4 if charged else 2)
    examples = synthesizer(ledger=ledger, shots=2, members=5).invoke(rows())
    assert entries(ledger) == 6
    assert len([*examples, *examples.dropped]) == 6


def test_without_it_a_plan_and_its_journal_are_what_they_were() -> None:
    """If it breaks, runs that were begun before cannot be taken up."""
    assert "shots" not in synthesizer().settings.public()
    assert synthesizer(shots=2).settings.public()["shots"] == 2


@pytest.mark.parametrize("neighbors", [Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL])
def test_other_relations_are_refused(neighbors: Neighbors) -> None:
    """If it breaks, a member of several is charged as if a record of it moved it by half."""
    chain = synthesizer(budget=PrivacyBudget(3.0, 1e-5, neighbors), shots=2, sampling_probability=0.2)
    with pytest.raises(InvalidParameter, match="shots=2 to be 1 unless"):
        chain.plan(rows())


@pytest.mark.parametrize("shots", [0, -1, 1.5, 101, True, "2"])
def test_bad_shots_are_named(shots: Any) -> None:
    """If it breaks, a wrong value is found out after spending."""
    with pytest.raises(InvalidParameter, match="shots"):
        synthesizer(shots=shots)


def test_the_plan_says_what_they_cost() -> None:
    """If it breaks, nobody sees that the clip falls."""
    one, four = (synthesizer(shots=shots, members=5).plan(2_000) for shots in (1, 4))
    assert four.design.noise.clip < 0.7 * one.design.noise.clip
    assert four.design.noise.event.sampling_probability == pytest.approx(
        4 * one.design.noise.event.sampling_probability
    )
    assert "each of about 4 records" in str(four)
    assert four.to_dict()["shots"] == 4
    assert four.tokens > one.tokens
    with pytest.raises(InvalidParameter, match=r"10 \* 2 \* 100 = 2000 records, but there are 1990"):
        synthesizer(shots=100).plan(1_990)


def test_labels_are_those_of_the_fakes() -> None:
    """If it breaks, the charges above count another number of texts."""
    assert len(LABELS) == 2
