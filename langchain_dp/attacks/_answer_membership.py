"""Membership inference from DP-ICL's answers, asked again and again on two neighbouring data sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from langchain_dp import _validate
from langchain_dp._binomial import clopper_pearson
from langchain_dp.attacks._intervals import accuracy_bound
from langchain_dp.attacks._lira import Row
from langchain_dp.attacks._result import AttackResult, Setting
from langchain_dp.errors import InvalidParameter


def attack_answers(
    build: Callable[[list[Row]], Callable[[str], str]],
    rows: Sequence[Row],
    neighbor: Sequence[Row],
    *,
    questions: Sequence[str],
    runs: int = 100,
    repeats: int = 1,
    epsilon: float | None = None,
    delta: float = 0.0,
    name: str = "membership in answers",
) -> AttackResult:
    """Tell which of two neighbouring data sets a chain answered from.

    Half of the runs show the attacker how often each answer comes from each data set; in the other half it guesses, by
    the product of the likelihood ratios of all answers.

    Args:
        build: Data to a fresh chain with a budget of its own: question -> answer. Called ``2 runs`` times.
        rows: One data set.
        neighbor: The same with one record added, removed or replaced.
        questions: Questions; a canary record that one of them names makes the attack strong.
        runs: Chains on each data set, at least 10 and even.
        repeats: How often each question is asked of one chain. A chain that keeps its answers gives the same one.
        epsilon: What each chain promises for all its answers together, if anything: gives ``settings["bound"]``, the
            largest accuracy that the promise allows.
        delta: Likewise.
        name: Name of the result.

    Returns:
        The share of right guesses, ties counting half, with a Clopper-Pearson interval; the baseline is 0.5.

    Raises:
        InvalidParameter: The data sets are no neighbours, there are no questions, or there are too few runs.
    """
    _validate.integer("runs", runs, at_least=10)
    _validate.integer("repeats", repeats, at_least=1)
    if runs % 2:
        raise InvalidParameter(f"Expected runs={runs} to be even: half of them teach, half are guessed.")
    if isinstance(questions, str) or not len(questions):
        raise InvalidParameter("Expected questions to be a list that holds at least one.")
    _check_neighbors(rows, neighbor)
    asked = [question for question in questions for _ in range(repeats)]
    worlds = [list(rows), list(neighbor)]
    answers: list[list[list[str]]] = [[], []]
    for _ in range(runs):
        for world in (0, 1):  # in turn, so that a drift of the machine meets both
            chain = build(list(worlds[world]))
            answers[world].append([chain(question) for question in asked])
    half = runs // 2
    ratios = _ratios([world[:half] for world in answers], questions, asked)
    hits = 0.0
    for world in (0, 1):
        for given in answers[world][half:]:
            score = sum(ratios(question, answer) for question, answer in zip(asked, given, strict=True))
            hits += 0.5 if score == 0 else float((score > 0) == (world == 1))
    settings: dict[str, Setting] = {"runs": runs, "questions": len(questions), "repeats": repeats}
    if epsilon is not None:
        _validate.number("epsilon", epsilon, at_least=0.0)
        _validate.number("delta", delta, at_least=0.0, at_most=1.0)
        settings |= {"epsilon": float(epsilon), "delta": float(delta), "bound": accuracy_bound(epsilon, delta)}
    return AttackResult(
        name=name,
        rate=hits / runs,
        interval=clopper_pearson(hits, runs),
        baseline=0.5,
        n=runs,
        measure="chains told apart",
        interval_method="Clopper-Pearson over chains",
        settings=settings,
    )


def _ratios(taught: list[list[list[str]]], questions: Sequence[str], asked: list[str]) -> Callable[[str, str], float]:
    """Logarithm of how much more often an answer comes from the second data set; half a count is added to each."""
    counts: list[dict[str, Counter[str]]] = [{q: Counter() for q in questions} for _ in (0, 1)]
    for world in (0, 1):
        for given in taught[world]:
            for question, answer in zip(asked, given, strict=True):
                counts[world][question][answer] += 1
    return lambda question, answer: float(
        np.log(counts[1][question][answer] + 0.5) - np.log(counts[0][question][answer] + 0.5)
    )


def _check_neighbors(rows: Sequence[Row], neighbor: Sequence[Row]) -> None:
    one, other = (
        Counter(json.dumps(dict(row), sort_keys=True, default=repr) for row in data) for data in (rows, neighbor)
    )
    lost, gained = (one - other).total(), (other - one).total()
    if max(lost, gained) != 1:
        raise InvalidParameter(
            f"Expected neighbor to differ from rows in one record, but {lost} are missing and {gained} are new. Add, "
            "remove or replace one."
        )
