"""The attack on answers sees the order in which a chain gave them, and pays for its choice with fresh runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from langchain_dp.attacks import attack_answers

ROWS: list[Any] = [{"text": "a"}]
CANARY: list[Any] = [{"text": "canary"}]
BITS = ("yes", "no")


def second_answer_leaks(data: list[Any], coins: random.Random) -> Callable[[str], str]:
    """A cache that keeps another answer than the one that was released: the first is a coin, the second the truth."""
    said: list[str] = []

    def answer(question: str) -> str:
        said.append(BITS[data == CANARY] if len(said) == 1 else coins.choice(BITS))
        return said[-1]

    return answer


def agreement_leaks(data: list[Any], coins: random.Random) -> Callable[[str], str]:
    """Each answer alone is a coin; whether two are equal tells the data."""
    said: list[str] = []

    def answer(question: str) -> str:
        if not said:
            said.append(coins.choice(BITS))
            return said[0]
        return said[0] if data == CANARY else BITS[said[0] == BITS[0]]

    return answer


@pytest.mark.parametrize(
    ("chain", "questions", "repeats", "attacker"),
    [
        (second_answer_leaks, ["q"], 2, "answers by place"),
        (agreement_leaks, ["q"], 2, "answers in order"),
        (agreement_leaks, ["q", "r"], 1, "all answers together"),
    ],
)
def test_what_only_the_order_tells_is_found(
    chain: Callable[..., Callable[[str], str]], questions: list[str], repeats: int, attacker: str
) -> None:
    """If it breaks, a chain that tells everything at its second answer scores as one that tells half."""
    coins = random.Random(1)
    done = attack_answers(
        lambda data: chain(data, coins),
        ROWS,
        CANARY,
        questions=questions,
        repeats=repeats,
        runs=60,
        epsilon=1.0,
    )
    assert done.rate == 1.0
    assert done.settings["attacker"] == attacker
    assert done.interval[0] > float(str(done.settings["bound"]))


@pytest.mark.statistical
def test_the_choice_is_not_made_on_what_is_reported() -> None:
    """If it breaks, the best of four attackers is reported on the runs that made it look best.

    Coins tell nothing: the mean of 200 rates of 20 guesses each is 0.5, with a spread of 0.008 at most. It exceeds
    0.535 with 1e-5, and does so where the attacker is picked on the reported runs.
    """
    coins = random.Random(2)
    rates = [
        attack_answers(
            lambda data: lambda question: coins.choice(BITS), ROWS, CANARY, questions=["q", "r"], repeats=2, runs=20
        ).rate
        for _ in range(200)
    ]
    assert sum(rates) / len(rates) < 0.535
