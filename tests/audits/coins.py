"""Audits of who sits with whom, who takes part, and where the randomness comes from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from audits.check import ERROR, Check, Finding, worst
from audits.laws import coins
from langchain_dp.ensemble.subsets import FixedPartition, resample
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness, Randomness, SystemRandomness

Partition = Callable[[Sequence[str], int, Randomness], list[frozenset[str]]]
Draw = Callable[[], list[int]]
Sample = Callable[[int, Fraction, Randomness], Draw]

_IDS = [f"record {place}" for place in range(24)]
_SUBSETS = 6


class _Tape:
    """Coins that hang on a place, as a neighbor sees them: the same for every record that both data sets hold."""

    private = False

    def __init__(self, seed: int, skip: int | None = None) -> None:
        self._rng = NotPrivateSeededRandomness(seed)
        self._skip = skip
        self._drawn = 0

    def randbelow(self, upper: int) -> int:
        value = self._rng.randbelow(upper)
        self._drawn += 1
        return self.randbelow(upper) if self._drawn - 1 == self._skip else value  # the absent record's coin falls


def own_coins(ids: Sequence[str], subsets: int, rng: Randomness) -> list[frozenset[str]]:
    """This package under add/remove: every record draws its own coin."""
    made = FixedPartition(ids, subsets, even=False, rng=rng)
    return [frozenset(made.members(subset)) for subset in range(len(made))]


def partition(cut: Partition, seeds: int = 1_000) -> Finding:
    """A record joins: at most one subset may differ, whatever the coins."""
    moved = 0
    for seed in range(seeds):
        absent = seed % len(_IDS)
        rest = _IDS[:absent] + _IDS[absent + 1 :]
        here, there = cut(_IDS, _SUBSETS, _Tape(seed)), cut(rest, _SUBSETS, _Tape(seed, skip=absent))
        moved = max(moved, sum(a != b for a, b in zip(here, there, strict=True)))
    return Finding(moved > 1, f"at most {moved} of {_SUBSETS} subsets differ over {seeds:,} seeds when a record joins")


def _even(seeds: int = 300) -> Finding:
    """This package under replace-one: a secret permutation of the slots."""
    moved = 0
    for seed in range(seeds):
        replaced = [*_IDS[:5], "another", *_IDS[6:]]
        cuts = [FixedPartition(ids, _SUBSETS, even=True, rng=_Tape(seed)) for ids in (_IDS, replaced)]
        moved = max(moved, sum(cuts[0].members(k) != cuts[1].members(k) for k in range(_SUBSETS)))
    return Finding(moved > 1, f"at most {moved} of {_SUBSETS} subsets differ when a record is replaced")


def subsets_drawn(subsets: int, rate: Fraction, rng: Randomness) -> Draw:
    """This package, scheme "fixed": subsets that take part in each release of one partition."""
    made = FixedPartition((), subsets, even=False, rng=rng)
    return lambda: made.draw(rate, rng)


def records_drawn(subsets: int, rate: Fraction, rng: Randomness) -> Draw:
    """This package, scheme "resample": records that take part in each release."""
    ids = [str(place) for place in range(subsets)]
    return lambda: sorted(int(name) for slot in resample(ids, 3, rate, rng) for name in slot)


def sampling(make: Sample, runs: int = 1_000) -> Finding:
    """Everybody by a coin of his own, in each of many releases of one chain."""
    size, rate, rng = 72, Fraction(1, 4), SystemRandomness()
    draw = make(size, rate, rng)
    taken = np.zeros((runs, size))
    for row in taken:
        row[draw()] = 1
    sizes, q = taken.sum(axis=1), float(rate)
    p_value, again = coins(taken, q), runs - len(np.unique(taken, axis=0))
    return Finding(
        p_value < ERROR,
        f"{sizes.mean():.2f} of {size} take part, variance {sizes.var():.2f} (Poisson {size * q:.2f}, "
        f"{size * q * (1 - q):.2f}); p = {p_value:.1g}; {again} of {runs:,} draws are equal to others",
    )


FRESH_NOISE = """
from langchain_dp.accounting import NoisyMaxEvent
from langchain_dp.mechanisms import ReportNoisyMax
def drawn():
    return [float(count) for count in ReportNoisyMax(NoisyMaxEvent(2.0)).release([0] * 8).noisy_counts]
"""
"""This package: noise on eight counts of zero."""


def randomness(source: str) -> Finding:
    """The same inputs in two new processes and twice in one: no two noises may be equal, nor any two positions."""
    # A program that defines "drawn", as text: a new process must not inherit anything.
    code = f"import json\n{source}\nprint(json.dumps([drawn(), drawn()]))"
    drawn: list[list[float]] = []
    for _ in range(2):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)  # own code
        drawn += json.loads(out.stdout)
    positions = min(len(set(each)) for each in drawn)
    different = len({tuple(each) for each in drawn})
    # Eight values of scale 2 on a grid of 1/1024: chance meetings are rare, four equal ones never happen.
    broken = different < len(drawn) or positions <= len(drawn[0]) // 2
    return Finding(broken, f"{different} of {len(drawn)} noises differ, {positions} of {len(drawn[0])} positions")


CHECKS = [
    Check("partition", "a record moves one subset", lambda: worst([partition(own_coins), _even()]), once=True),
    Check(
        "sampling",
        "a coin for each, in every release",
        lambda: worst([sampling(subsets_drawn), sampling(records_drawn)]),
    ),
    Check("randomness", "the noise of a vote is fresh", lambda: randomness(FRESH_NOISE), once=True),
]
