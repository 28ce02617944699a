"""Choice: one member's token from its logits, its written tokens and its coin. No model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from audit_tools import lower, upper
from fakes.next_token import taken
from langchain_dp.integrations._engine import Choice

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, Decoding, MemberPrompt

VOCABULARY = 400
NEVER = np.zeros(VOCABULARY, dtype=bool)
NEVER[:5] = True


def logits(seed: int = 0) -> npt.NDArray[np.float32]:
    """Made-up logits, ties among them and the largest on tokens that are never taken."""
    row = np.round(np.random.default_rng(seed).normal(0, 3, VOCABULARY), 1).astype(np.float32)
    row[:5] = 50.0
    return row


def one(
    row: npt.NDArray[np.float32], decoding: Decoding, written: tuple[int, ...] = (), draw: float = 0.5
) -> int | None:
    return Choice(decoding, NEVER).token(row, written, draw)


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("penalty", [1.0, 1.3, 5.0])
def test_tokens_are_those_of_the_same_rules_in_plain_python(temperature: float, penalty: float) -> None:
    """If it breaks, two engines take different tokens from the same distribution."""
    decoding = Decoding(temperature=temperature, repetition_penalty=penalty, banned=frozenset({7, 8, 399}))
    rng = np.random.default_rng(1)
    for seed in range(20):
        row = logits(seed)
        best = int(row[5:].argmax()) + 5
        written = (best, *(int(token) for token in rng.integers(0, VOCABULARY, 30)))
        draw = float(rng.random())
        asked = Continuation(MemberPrompt("", "", "", 0), written, draw)
        expected = taken([float(value) for value in row], asked, decoding, never=set(range(5)))
        assert one(row, decoding, written, draw) == expected


@pytest.mark.statistical
@pytest.mark.parametrize(("told", "sound"), [(0.8, True), (0.8 * 1.5, False), (0.8 / 1.5, False)])
def test_tokens_are_drawn_as_often_as_the_softmax_says(told: float, sound: bool) -> None:
    """If it breaks, temperature does not mean what the papers mean; a wrong temperature must be rejected."""
    row, runs = logits(), 20_000
    decoding = Decoding(temperature=told)
    choice = Choice(decoding, NEVER)
    drawn = np.bincount([choice.token(row, (), draw) or 0 for draw in np.random.default_rng(2).random(runs)])
    weights = np.where(NEVER, 0, np.exp((row - row[5:].max()) / 0.8))
    expected = weights / weights.sum()
    likely = np.argsort(-expected)[:20]
    inside = [lower(int(drawn[token]), runs) <= expected[token] <= upper(int(drawn[token]), runs) for token in likely]
    assert all(inside) == sound


def test_ties_go_to_the_smaller_token_also_after_a_penalty() -> None:
    """If it breaks, equal logits are decided by the order of a library, and engines disagree."""
    row = np.full(VOCABULARY, -1.0, dtype=np.float32)
    row[[9, 30]] = 2.0
    assert one(row, Decoding()) == 9
    row[6] = 4.0
    assert one(row, Decoding(repetition_penalty=2.0), (6,)) == 6
    assert one(row, Decoding(repetition_penalty=2.0), (6, 9)) == 6
    row[[6, 9]], row[30] = -1.0, -1.0
    assert one(row, Decoding(repetition_penalty=2.0), (5,)) == 6


def test_the_coin_goes_through_the_tokens_in_order_from_end_to_end() -> None:
    """If it breaks, the same coin gives another token, or the largest coin one that has no weight."""
    row = np.full(VOCABULARY, -1e30, dtype=np.float32)
    row[[10, 20, 30]] = np.log([0.5, 0.25, 0.25]).astype(np.float32)
    decoding = Decoding(temperature=1.0)
    drawn = [one(row, decoding, draw=draw) for draw in (0.0, 0.499, 0.501, 0.749, 0.751, math.nextafter(1, 0))]
    assert drawn == [10, 10, 20, 20, 30, 30]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_no_number_is_an_abstention(value: float, temperature: float) -> None:
    """If it breaks, a member that overflowed votes for token 0, or the release stops."""
    row = logits()
    row[2] = value  # of a token that is never taken anyway: the member is broken all the same
    assert one(row, Decoding(temperature=temperature)) is None


@pytest.mark.parametrize("draw", [-0.1, 1.0, math.nan])
def test_a_coin_out_of_bounds_is_an_abstention(draw: float) -> None:
    """If it breaks, a caller's wrong coin votes for the last token of the vocabulary."""
    assert one(logits(), Decoding(temperature=1.0), draw=draw) is None


def test_with_everything_banned_nobody_votes() -> None:
    """If it breaks, a banned token is released."""
    for temperature in (0.0, 1.0):
        banned = frozenset(range(VOCABULARY))
        assert one(logits(), Decoding(temperature=temperature, banned=banned)) is None
        assert one(logits(), Decoding(temperature=temperature, banned=banned - {77})) == 77


def test_extreme_rules_give_no_warning_and_no_nonsense() -> None:
    """If it breaks, a tiny temperature or a huge penalty fills a log, which tells that a member was asked."""
    row = logits()
    best = int(row[5:].argmax()) + 5
    assert one(row, Decoding(temperature=1e-300)) == best
    assert one(row, Decoding(repetition_penalty=1e308), (best,)) != best
    assert one(row, Decoding(temperature=1e-300, repetition_penalty=1e308), tuple(range(VOCABULARY))) is not None


@pytest.mark.parametrize("token", [VOCABULARY, "the"])
def test_banned_tokens_out_of_bounds_are_refused(token: Any) -> None:
    """If it breaks, a typing error becomes a silently different distribution."""
    with pytest.raises(InvalidParameter, match="banned"):
        Choice(Decoding(banned=frozenset({token})), NEVER)


def test_a_choice_leaves_the_logits_and_the_mask_as_they_are() -> None:
    """If it breaks, one member's bans or penalties reach the next, whose logits lie in the same memory."""
    row, mask = logits(), NEVER.copy()
    before: Any = row.copy()
    for temperature in (0.0, 1.0):
        choice = Choice(Decoding(temperature=temperature, repetition_penalty=2.0, banned=frozenset({9})), mask)
        choice.token(row, (6, 7), 0.3)
    assert np.array_equal(row, before)
    assert np.array_equal(mask, NEVER)
