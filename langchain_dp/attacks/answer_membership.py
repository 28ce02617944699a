"""Membership inference from answers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.accounting import Neighbors
from langchain_dp.accounting.budget import neighbors_from
from langchain_dp.attacks import checks
from langchain_dp.attacks.membership import Row
from langchain_dp.attacks.result import AttackResult, Setting, accuracy_bound
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
    neighbors: Neighbors | str = Neighbors.REPLACE_ONE,
    name: str = "membership in answers",
) -> AttackResult:
    """Tell which of two neighboring data sets a chain answered from.

    Half of the runs show the attacker the frequencies of answers, and it guesses the other half by likelihood ratios.
    On the first half alone it chooses their events: single answers, answers by place, a query's answers in order, or
    all answers. With k answers and r repeats use ``runs`` of about 20 k^r, or effects of the order are missed.

    Args:
        build: Data to a fresh chain (query -> answer) with its own budget. Called ``2 runs`` times.
        rows: One data set.
        neighbor: The same with one record added, removed or replaced.
        questions: Queries. One that names a canary record makes the attack strong.
        runs: Chains on each data set, even, at least 10.
        repeats: Times that one chain gets each query.
        epsilon: The promise of each chain for all its answers. ``settings["bound"]`` is the accuracy that it allows.
        delta: Delta of that promise.
        neighbors: Its relation. Zero-out has no bound here.
        name: Name of the result.

    Returns:
        The share of right guesses, ties counting half, with a Clopper-Pearson interval. The baseline is 0.5.

    Examples:
        >>> def build(rows):
        ...     return DPICLClassifier(model=llm, examples=rows, labels=labels, budget=PrivacyBudget(3.0)).invoke
        >>> found = attack_answers(build, rows, neighbor, questions=["Where is my parcel?"], epsilon=3.0, delta=1e-5)
        >>> found.rate, found.settings["bound"]
    """
    validate.integer("runs", runs, at_least=10)
    validate.integer("repeats", repeats, at_least=1)
    if runs % 2:
        raise InvalidParameter(f"Expected runs={runs} to be even: half of them teach, half are guessed.")
    questions = checks.texts("questions", questions)
    validate.function("build", build, of="the rows")
    relation = None
    if epsilon is not None:
        validate.number("epsilon", epsilon, at_least=0.0)
        validate.number("delta", delta, at_least=0.0, at_most=1.0)
        relation = neighbors_from(neighbors)
    _check_neighbors(rows, neighbor, relation)
    queries = [question for question in questions for _ in range(repeats)]
    worlds = [list(rows), list(neighbor)]
    answers: list[list[list[str]]] = [[], []]
    for _ in tqdm(range(runs), desc="attack", unit="run", disable=None, delay=2):
        for world in (0, 1):  # in turn, so that a drift of the machine affects both
            chain = validate.function("what build returns", build(list(worlds[world])), of="a question")
            answers[world].append([checks.answer("the function that build returns", chain(each)) for each in queries])
    half = runs // 2
    training, tested = [world[:half] for world in answers], [world[half:] for world in answers]
    best = max(_VIEWS, key=lambda name: _hits_leaving_one_out(training, _VIEWS[name], repeats))  # the first of equals
    counts = [_counted(world, _VIEWS[best], repeats) for world in training]
    hits = sum(_hit(_score(counts, _VIEWS[best](one, repeats)), world) for world in (0, 1) for one in tested[world])
    settings: dict[str, Setting] = {"runs": runs, "questions": len(questions), "repeats": repeats, "attacker": best}
    if epsilon is not None:
        settings |= {"epsilon": float(epsilon), "delta": float(delta), "bound": accuracy_bound(epsilon, delta)}
    return AttackResult(
        name=name, rate=hits / runs, interval=clopper_pearson(hits, runs), baseline=0.5, n=runs,
        measure="chains told apart", interval_method="Clopper-Pearson over chains", settings=settings,
    )  # fmt: skip


View = Callable[[Sequence[str], int], list[Hashable]]

_VIEWS: dict[str, View] = {
    "single answers": lambda answers, repeats: [(place // repeats, answer) for place, answer in enumerate(answers)],
    "answers by place": lambda answers, repeats: list(enumerate(answers)),
    "answers in order": lambda answers, repeats: [
        (at, *answers[at : at + repeats]) for at in range(0, len(answers), repeats)
    ],
    "all answers together": lambda answers, repeats: [tuple(answers)],
}


def _counted(chains: Sequence[Sequence[str]], view: View, repeats: int) -> Counter[Hashable]:
    return Counter(event for answers in chains for event in view(answers, repeats))


def _score(counts: Sequence[Counter[Hashable]], events: Sequence[Hashable]) -> float:
    return math.fsum(math.log((counts[1][event] + 0.5) / (counts[0][event] + 0.5)) for event in events)


def _hit(score: float, world: int) -> float:
    return 0.5 if score == 0 else float((score > 0) == (world == 1))


def _hits_leaving_one_out(training: Sequence[Sequence[Sequence[str]]], view: View, repeats: int) -> float:
    counts = [_counted(world, view, repeats) for world in training]
    hits = 0.0
    for pair in zip(*training, strict=True):
        events = [view(answers, repeats) for answers in pair]
        for world in (0, 1):
            counts[world].subtract(events[world])
        hits += sum(_hit(_score(counts, events[world]), world) for world in (0, 1))
        for world in (0, 1):
            counts[world].update(events[world])
    return hits


def _check_neighbors(rows: Sequence[Row], neighbor: Sequence[Row], relation: Neighbors | None) -> None:
    one, other = (
        Counter(json.dumps(checks.record(name, row), sort_keys=True, default=repr) for row in data)
        for name, data in (("rows", rows), ("neighbor", neighbor))
    )
    lost, gained = (one - other).total(), (other - one).total()
    if max(lost, gained) != 1:
        raise InvalidParameter(
            f"Expected neighbor to differ from rows in one record, but {lost} are missing and {gained} are new. Add, "
            "remove or replace one."
        )
    if relation is None:
        return
    changed = {Neighbors.REPLACE_ONE: lost == gained == 1, Neighbors.ADD_OR_REMOVE_ONE: lost + gained == 1}
    if not changed.get(relation, False):
        raise InvalidParameter(
            f"Expected data sets that are neighbors under neighbors={relation.name}, which epsilon is about, but "
            f"{lost} records are missing and {gained} are new. Give the relation of the promise, or leave epsilon out."
        )
