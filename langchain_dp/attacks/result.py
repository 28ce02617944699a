"""Results of attacks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from langchain_dp._util.binomial import clopper_pearson
from langchain_dp._util.pictures import new_figure, save_picture
from langchain_dp.attacks.leak_report import LeakReport, figures
from langchain_dp.errors import InvalidParameter

Setting = str | int | float | bool | None
Floats = NDArray[np.float64]
Interval = tuple[float, float]

_ERROR = 0.05
_FEW = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackResult:
    """A success rate with its interval, beside the rate of an attacker who saw no release.

    The figures of private texts are counted without noise, so publishing them is an uncovered release.

    Args:
        name: Name of the attack, of at most four words.
        rate: Success, in [0, 1].
        interval: Its 95% interval, over targets and noise. A better attack may exist.
        baseline: Success without the release, or by chance.
        n: Number of attempts.
        measure: Definition of the rate.
        interval_method: Method of the interval.
        settings: Public settings.

    Examples:
        >>> found = attack_answers(build, rows, neighbor, questions=questions)
        >>> found.rate, found.interval, found.baseline
    """

    name: str
    rate: float
    interval: tuple[float, float]
    baseline: float
    n: int
    measure: str
    interval_method: str
    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", dict(self.settings))  # frozen: the only way

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, without any text."""
        settings = {**self.settings, "measure": self.measure, "interval": self.interval_method}
        return figures(self, self.n, settings)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.name}: {self.rate:.3f} ({low:.3f} to {high:.3f}, 95% {self.interval_method}), "
            f"{self.baseline:.3f} without the release; {self.measure}, n = {self.n:,}"
        )


def plot_attacks(results: Sequence[AttackResult | LeakReport], path: str | PathLike[str]) -> None:
    """Write a picture of ``results``, with intervals and baselines, to ``path``, whose ending is the format.

    Raises:
        MissingExtra: matplotlib is not installed.

    Examples:
        >>> plot_attacks([find_leaks(prompt, texts), leak_prompt(chain.invoke, texts)], "attacks.png")
    """
    if not results:
        raise InvalidParameter("Expected results to hold at least one attack, got none. Run one first.")
    for result in results:
        if not all(hasattr(result, name) for name in ("name", "rate", "interval", "baseline")):
            raise InvalidParameter(
                f"Expected results to hold results of attacks, but one is of type {type(result).__name__}."
            )
    figure, axes = new_figure(7, 1.2 + 0.5 * len(results))
    for place, result in enumerate(results):
        low, high = result.interval
        axes.plot([low, high], [place, place], color="C0", lw=2, zorder=1)
        axes.plot(result.rate, place, "o", color="C0", label="attack, 95%" if place == 0 else None)
        axes.plot(result.baseline, place, "|", color="C1", ms=16, mew=2, label="baseline" if place == 0 else None)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(results) - 0.5, -0.5), xlabel="share of attempts")
    axes.set_yticks(range(len(results)), [result.name for result in results], parse_math=False)
    axes.legend(loc="best", frameon=False)
    save_picture(figure, path)


def ratio_interval(hits: Floats, runs: Floats) -> Interval:
    """Return an exact interval of sum(hits) / sum(runs) over independent texts.

    The number of runs is the effective one (Korn and Graubard 1998), for few or unanimous texts Kish's (1965).
    """
    share = float(hits.sum() / runs.sum())
    used = runs > 0
    count = int(used.sum())
    effective = float(runs.sum() ** 2 / (runs**2).sum())
    if effective >= _FEW and np.ptp(hits[used] / runs[used]) > 0:
        variance = count / (count - 1) * float(((hits - share * runs) ** 2).sum()) / float(runs.sum()) ** 2
        lost = float(norm.ppf(1 - _ERROR / 2) / student.ppf(1 - _ERROR / 2, count - 1)) ** 2  # the spread is measured
        effective = min(share * (1 - share) / variance * lost, float(runs.sum()))
    return clopper_pearson(share * effective, effective)


def auc(positives: Floats, negatives: Floats) -> float:
    """Return the area under the curve, with ties counting half (Mann and Whitney 1947)."""
    ranks = rankdata(np.concatenate([positives, negatives]))[: len(positives)]
    pairs = len(positives) * len(negatives)
    return float((ranks.sum() - len(positives) * (len(positives) + 1) / 2) / pairs)


def auc_interval(value: float, positives: int, negatives: int, *, error: float = _ERROR) -> Interval:
    """Return an interval of the area under the curve that misses with chance ``error`` (Newcombe 2006, part 2, method
    5).
    """
    z = float(student.ppf(1 - error / 2, max(min(positives, negatives) - 1, 1)))
    typical = (positives + negatives) / 2 - 1

    def away(area: float) -> float:
        spread = 1 + typical * ((1 - area) / (2 - area) + area / (1 + area))
        return (value - area) ** 2 - z * z * area * (1 - area) * spread / (positives * negatives)

    tiny = 1e-12
    inside = min(max(value, tiny), 1 - tiny)  # not the roots at 0 and 1, where the variance vanishes
    low = 0.0 if value <= tiny else float(brentq(away, tiny, inside))
    high = 1.0 if value >= 1 - tiny else float(brentq(away, inside, 1 - tiny))
    return low, high


def accuracy_bound(epsilon: float, delta: float) -> float:
    """Return the largest accuracy of telling two neighboring data sets apart.

    True minus false positive rate is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh, Viswanath 2015,
    Theorem 2.1 and Remark 2.2).
    """
    advantage = math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2))
    return min(1.0, 0.5 + advantage / 2)
