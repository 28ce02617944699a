"""Faults planted into surveys and scores. NOT PRIVATE."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from audits.planted import StandIn, Swap, method
from audits.planted_aggregate import each_alone
from langchain_dp import DPExampleSelector
from langchain_dp.aggregate import accuracy, survey
from langchain_dp.aggregate.counts import VOTE, VoteCounts
from langchain_dp.records import PrivateRecords


class _OneVote:
    """Stands in for the class: the noise is that of one vote, whatever a record has."""

    def __init__(self, real: Any, **changes: Any) -> None:
        self._real, self._changes = real, changes

    def of(self, budget: Any, **options: Any) -> Any:
        return self._real.of(budget, **{**options, **self._changes})


def noise_per_block(real: Any) -> Any:
    """Each question gets noise of its own for one vote, and one of them is charged."""
    return _OneVote(real, votes=1)


def root_of_q(real: Any) -> Any:
    """A replaced record is taken to move sqrt(q), where it moves sqrt(2q)."""
    return _OneVote(real, yes_or_no=True)


def finer_by_exact_counts(real: StandIn, self: Any, question: Any, noisy: Any, deviation: float) -> Any:
    """The leading choices are those that some record chose."""
    return real(self, question, exact_of[-1][: len(noisy)] * 1e6, deviation)


exact_of: list[Any] = []


def remembers(real: StandIn, counts: VoteCounts, totals: Any, rng: Any) -> Any:
    """The exact counts are kept for the next round."""
    exact_of.append(totals / VOTE)
    return real(counts, totals, rng)


def without_failures(real: StandIn, sizes: Any, choices: Sequence[int | None], cells: int) -> Any:
    """Failed answers are dropped, and the others are scaled up to all records."""
    answered = sum(choice is not None for choice in choices)
    total = real(sizes, choices, cells)
    total[-1] -= VOTE * (len(choices) - answered)
    return total * len(choices) // max(answered, 1)


def empty_cells_without_noise(real: StandIn, counts: VoteCounts, totals: Any, rng: Any) -> Any:
    """Cells that nobody chose stay empty."""
    return np.where(totals > 0, real(counts, totals, rng), 0.0)


def whole_votes(real: StandIn, selector: Any, records: Any, labels: Any) -> Any:
    """Each of the nearest candidates gets a whole vote, and one vote is charged."""
    return (real(selector, records, labels) * selector._nearest**0.5).astype(np.int64)


def logged(real: StandIn, counts: VoteCounts, totals: Any, rng: Any) -> Any:
    """A worker logs the exact counts that it hands over."""
    logging.getLogger("worker").warning("counted %s", np.asarray(totals).tolist())
    return real(counts, totals, rng)


def half_of_the_noise(real: StandIn, counts: VoteCounts, totals: Any, rng: Any) -> Any:
    """Half of the noise."""
    return (real(counts, totals, rng) + totals / VOTE) / 2


MOVED: dict[str, Sequence[Swap]] = {
    "noise per question": [(survey, "VoteCounts", noise_per_block)],
    "sqrt q for sqrt 2q": [(survey, "VoteCounts", root_of_q)],
    "finer by exact counts": [
        (survey.DPSurvey, "_finer", method(finer_by_exact_counts)),
        (VoteCounts, "release", method(remembers)),
    ],
    "failures dropped": [(survey, "_total", method(without_failures))],
    "partial sums in a log": [(VoteCounts, "release", method(logged))],
    "m chains charged once": [(accuracy, "VoteCounts", noise_per_block)],
    "eight votes charged as one": [(DPExampleSelector, "_total", method(whole_votes))],
    "conversations of a user apart": [(PrivateRecords, "users", method(each_alone))],
}
NOISE: dict[str, Sequence[Swap]] = {
    "empty cells without noise": [(VoteCounts, "release", method(empty_cells_without_noise))],
    "half of the noise": [(VoteCounts, "release", method(half_of_the_noise))],
    "noise of one question": [(survey, "VoteCounts", noise_per_block)],
}
