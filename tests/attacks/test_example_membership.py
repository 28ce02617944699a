"""Whose rows were examples made of? Copies are found, what has nothing of the rows is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from langchain_dp.accounting import PrivacyBudget
from langchain_dp.attacks import attack_examples, find_leaks
from langchain_dp.errors import InvalidParameter
from langchain_dp.synth import SyntheticExamples

LABELS = ("praise", "complaint")


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Rows of a handful of common words and one of their own each."""
    coins = random.Random(seed)
    words = ("nurse", "doctor", "waiting", "room", "kind", "slow", "clean", "parking", "bill", "phone", "visit")
    return [
        {"text": f"{' '.join(coins.choices(words, k=8))} case{seed}x{number}", "label": LABELS[number % 2]}
        for number in range(count)
    ]


MEMBERS, OTHERS = rows(60, 1), rows(60, 2)


def test_copies_of_the_rows_are_found_and_others_are_not() -> None:
    """If it breaks, an operator is told that examples which are the rows themselves tell nothing."""
    copied = attack_examples(MEMBERS[:30], members=MEMBERS, others=OTHERS)
    assert copied.rate > 0.7
    assert copied.interval[0] > 0.5
    assert copied.by_candidate["rare words"][0] > 0.6
    none = attack_examples(rows(30, 3), members=MEMBERS, others=OTHERS)
    assert none.interval[0] <= 0.5
    assert none.settings["examples"] == 30


def test_a_scorer_is_asked_with_the_examples_and_without() -> None:
    """If it breaks, what the examples teach a model about the labels of the rows goes unseen."""
    asked: list[str] = []

    def scorer(instruction: str, scored: Sequence[Any]) -> list[float]:
        asked.append(instruction)
        return [float(row["text"] in instruction) for row in scored]

    found = attack_examples(MEMBERS[:30], members=MEMBERS[:30], others=OTHERS, candidates={"model": scorer})
    assert found.by_candidate["model"][0] == 1.0
    assert MEMBERS[0]["text"] in asked[0]
    assert f"Kind: {MEMBERS[0]['label']}" in asked[0]
    assert asked[1] == "Sort each text. The kinds: complaint, praise.\n\n"


def test_the_nearest_example_is_measured_by_the_embedding_that_is_given() -> None:
    """If it breaks, an embedding of one's own is not used."""

    def embed(texts: Sequence[str]) -> Any:
        return np.array([[1.0, 0.0] if "case1x" in text else [0.0, 1.0] for text in texts])

    found = attack_examples(rows(4, 1), members=MEMBERS, others=OTHERS, embed=embed)
    assert found.by_candidate["nearest"][0] == 1.0


def test_examples_of_the_synthesizer_are_taken_as_they_are(made: SyntheticExamples) -> None:
    """If it breaks, what was released must be taken apart by hand before it can be attacked."""
    assert attack_examples(made, members=MEMBERS, others=OTHERS).rate >= 0.5
    assert find_leaks(made, [*MEMBERS, *made.rows()]).leaked_rows
    assert not find_leaks(made, [row["text"] for row in MEMBERS], held_out=OTHERS).spans


@pytest.fixture
def made() -> SyntheticExamples:
    from fakes.synthesizers import rows as records
    from fakes.synthesizers import synthesizer

    return synthesizer(budget=PrivacyBudget(8.0, 1e-5)).invoke(records())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "changed",
    [{"examples": []}, {"members": []}, {"others": [{"text": "x"}]}, {"examples": ["a text alone"]},
     {"members": [{"text": 1, "label": "a"}]}, {"candidates": {"m": lambda prompt, some: [1.0]}}],
)  # fmt: skip
def test_what_is_none_is_refused_without_its_text(changed: dict[str, Any]) -> None:
    """If it breaks, a slip is a traceback that shows the rows."""
    given: dict[str, Any] = {"examples": MEMBERS, "members": MEMBERS, "others": OTHERS} | changed
    with pytest.raises(InvalidParameter) as caught:
        attack_examples(given.pop("examples"), **given)
    assert "case" not in str(caught.value)
