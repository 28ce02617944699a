"""What one audit of this package's own code is, and what it found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from langchain_dp._util.binomial import lower_limit, upper_limit
from langchain_dp.audit.bounds import epsilon_bound

ERROR = 1e-7
"""Chance, at most, that one statistical test, or one set of tests that share it, fails sound code.

No audit makes more than four, and all of them some thirty: 300 runs of all raise one alarm with a chance below 1e-3.
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one run of an audit saw."""

    broken: bool
    seen: str


@dataclasses.dataclass(frozen=True)
class Check:
    """An audit of this package's own code."""

    name: str
    promise: str
    sound: Callable[[], Finding]
    once: bool = False  # its answer cannot change from run to run, or it takes long: not repeated


Faults = Mapping[str, Mapping[str, Callable[[], Finding]]]
"""Audits of deliberately broken stand-ins, by the audit's name and the fault's."""


def excess(
    hits: Sequence[int], runs: int, *, epsilon: float, delta: float, measured: str, error: float = ERROR
) -> Finding:
    """Whether an event chosen beforehand, and its hits on two data sets, disprove (epsilon, delta)."""
    here, there = hits
    bound = epsilon_bound(here, there, runs, delta=delta, error=error)
    share = lower_limit(here, runs, error / 2)
    # An event that never comes on the other side is shown by its own mass, whatever epsilon is.
    broken = share > math.exp(epsilon) * upper_limit(there, runs, error / 2) + delta
    return Finding(
        broken,
        f"{measured}: {here} against {there} of {runs:,}; epsilon >= {bound:.2f}, claimed {epsilon:.2f} at "
        f"delta {delta:g}",
    )


def likely(tests: Mapping[str, float]) -> Finding:
    """Whether the p-values of tests that share one error disprove that the laws were followed."""
    worst_of_all = min(tests, key=lambda name: tests[name])
    p_value = tests[worst_of_all]
    return Finding(bool(p_value * len(tests) < ERROR), f"{len(tests)} tests, least p = {p_value:.1g}: {worst_of_all}")


def count(outcomes: Iterable[object]) -> int:
    """How many are true."""
    return sum(map(bool, outcomes))


def worst(findings: Iterable[Finding]) -> Finding:
    """The first that is broken, else the last."""
    last = None
    for last in findings:
        if last.broken:
            return last
    assert last is not None
    return last
