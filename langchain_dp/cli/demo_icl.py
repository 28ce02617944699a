"""The demonstration: one table of accuracy against epsilon, from a model that runs on this machine."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from langchain_dp._util.pictures import new_figure
from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import DPICLClassifier, ICLPlanReport, ICLPrompt, NonPrivateICL
from langchain_dp.icl.baseline import BaselineMethod

Row = Mapping[str, Any]
_BASELINES: tuple[BaselineMethod, ...] = ("zero-shot", "few-shot", "vote")
_BAR = 24


@dataclasses.dataclass(frozen=True)
class Task:
    """What is shown: private rows, rows to score, labels in public order, and the prompt (None: a plain one)."""

    name: str
    train: Sequence[Row]
    test: Sequence[Row]
    labels: Sequence[str]
    prompt: ICLPrompt | None


@dataclasses.dataclass(frozen=True)
class Score:
    """One line of the table. ``epsilon`` is None for what is not private (zero-shot uses no example: 0)."""

    method: str
    epsilon: float | None
    accuracy: float
    n: int
    seconds_per_answer: float

    @property
    def resolution(self) -> float:
        """Standard error of the accuracy."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n)

    def to_dict(self) -> dict[str, Any]:
        """The public fields of a row."""
        return {"method": self.method, "epsilon": self.epsilon, "accuracy": self.accuracy, "n": self.n}


@dataclasses.dataclass(frozen=True)
class Result:
    """Scores in order, with plan and certificate of the middle budget."""

    task: Task
    scores: Sequence[Score]
    plan: ICLPlanReport
    certificate: PrivacyCertificate


def split(rows: list[dict[str, Any]], share: float = 0.2) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(private, held-out) rows: a fixed shuffle, so that two runs score the same rows."""
    order = list(rows)
    random.Random(0).shuffle(order)  # noqa: S311  # which rows are scored is no secret
    cut = len(order) - max(1, int(len(order) * share))
    return order[:cut], order[cut:]


def run(
    task: Task,
    llm: Any,
    *,
    epsilons: Sequence[float],
    delta: float,
    queries: int,
    shots: int,
    subsets: int,
    quiet: bool,
    first: Callable[[str], None] | None = None,
) -> Result:
    """Score every method on the task's test rows.

    ``first`` is given one private answer as text, question included, long before the table is done.

    Every private answer is a real release: fresh coins, fresh noise, charged to a ledger of its own budget. The three
    budgets are three promises side by side; somebody who sees all their answers has seen the sum.

    Raises:
        InvalidParameter: See ``DPICLClassifier``.
    """
    if not task.test:
        raise InvalidParameter("Expected at least one row to score, but there is none. Give --test FILE or more rows.")
    classifiers: list[DPICLClassifier] = []
    for value in epsilons:
        budget = PrivacyBudget(value, delta)
        if classifiers:
            classifiers.append(classifiers[0].with_budget(budget, max_queries=queries))
            continue
        classifiers.append(
            DPICLClassifier(
                llm=llm,
                examples=task.train,
                labels=task.labels,
                budget=budget,
                max_queries=queries,
                shots=shots,
                subsets=subsets,
                prompt=task.prompt,
            )
        )
    middle = classifiers[len(classifiers) // 2]
    if first is not None:
        first(_one_answer(middle, task))
    methods: list[tuple[str, float | None, DPICLClassifier | NonPrivateICL]] = [
        (name, 0.0 if name == "zero-shot" else None, classifiers[0].baseline(name, private=False))
        for name in _BASELINES
    ]
    methods += [("dp-icl", value, chain) for value, chain in zip(epsilons, classifiers, strict=True)]
    scores = [_score(name, value, chain, task.test, classifiers[0], quiet) for name, value, chain in methods]
    return Result(task, scores, middle.plan(), middle.certificate())


def _one_answer(chain: DPICLClassifier, task: Task) -> str:
    """The first question with its answer. It is asked again for the table, and answered from what was released."""
    row, started = task.test[0], time.perf_counter()
    answer = chain.invoke(_question(row, chain))
    seconds, promised, plan = time.perf_counter() - started, chain.certificate(), chain.plan()
    return "\n".join(
        [
            f"asked:    {row['text']}",
            f"answered: {answer}   (it is {row['label']}; {seconds:.0f} seconds)",
            f"promise:  epsilon = {promised.epsilon:g}, delta = {promised.delta:g} for {plan.queries:,} such "
            "answers together: by a vote, with noise,",
            f"          of about {plan.scheme.expected_subsets:.0f} subsets of the {len(task.train):,} private "
            "examples. Only the label came out.",
        ]
    )


def _question(row: Row, chain: DPICLClassifier) -> dict[str, Any]:
    return {key: row[key] for key in chain.prompt.variables if key in row}


def _score(
    name: str,
    value: float | None,
    chain: DPICLClassifier | NonPrivateICL,
    rows: Sequence[Row],
    first: DPICLClassifier,
    quiet: bool,
) -> Score:
    title = f"{name} at epsilon {value:g}" if name == "dp-icl" else name
    started = time.perf_counter()
    right = 0
    for row in tqdm(rows, desc=f"{title:<22}", unit="question", disable=quiet, file=sys.stderr):
        right += chain.invoke(_question(row, first)) == row["label"]
    seconds = (time.perf_counter() - started) / len(rows)
    return Score(name, value, right / len(rows), len(rows), seconds)


def table(result: Result) -> str:
    """The result as text for a terminal."""
    names = {"few-shot": f"{_shots(result)}-shot", "vote": "vote without noise", "dp-icl": "DP-ICL"}
    lines = [
        f"{result.task.name}: {len(result.task.train):,} private examples, {len(result.task.labels)} labels, "
        f"{result.scores[0].n} questions scored",
        "",
        f"  {'method':<20} {'epsilon':>8}  {'accuracy':>14}  {'':<{_BAR}}  private",
    ]
    for score in result.scores:
        shown = "inf" if score.epsilon is None else f"{score.epsilon:g}"
        bar = "█" * round(score.accuracy * _BAR)
        private = {"dp-icl": "yes", "zero-shot": "no example used"}.get(score.method, "NO")
        lines.append(
            f"  {names.get(score.method, score.method):<20} {shown:>8}  "
            f"{score.accuracy:>6.1%} ± {score.resolution:>5.1%}  {bar:<{_BAR}}  {private}"
        )
    return "\n".join([*lines, "", str(result.plan), "", str(result.certificate)])


def _shots(result: Result) -> int:
    scheme = result.plan.scheme
    return round(len(result.task.train) / scheme.groups)


def picture(result: Result, path: Path) -> None:
    """Save accuracy against epsilon as an image.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure, axes = new_figure(7, 4.2)
    private = [score for score in result.scores if score.method == "dp-icl"]
    budgets = [score.epsilon or 0.0 for score in private]
    axes.errorbar(
        budgets,
        [score.accuracy for score in private],
        yerr=[score.resolution for score in private],
        marker="o",
        capsize=3,
        color="#1f6f8b",
        label=f"DP-ICL, delta = {result.certificate.delta:g} (bars: one standard error)",
    )
    styles = {"zero-shot": ("#999999", ":"), "few-shot": ("#c97b2a", "--"), "vote": ("#444444", "-")}
    names = {"few-shot": f"{_shots(result)}-shot, not private", "vote": "vote without noise, not private"}
    for score in result.scores:
        if score.method in styles:
            color, line = styles[score.method]
            axes.axhline(score.accuracy, color=color, linestyle=line, label=names.get(score.method, score.method))
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{value:g}" for value in budgets])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_xlabel("epsilon (smaller is more private)")
    axes.set_ylabel(f"accuracy on {result.scores[0].n} questions")
    axes.set_title(result.task.name)
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=150)
