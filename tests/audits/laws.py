"""What chance does to a sound chain, written out: laws by brute force, and how unlikely it is that they were followed.

Nothing here is taken from the mechanisms or the accountant: an audit that borrowed their formulas would share their
faults.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

T = TypeVar("T")
Floats = NDArray[np.float64]


def attendance(rows: Sequence[Sequence[Hashable]]) -> Floats:
    """A table of who took part: one row a release, one column for each who ever did."""
    columns = {one: place for place, one in enumerate(dict.fromkeys(itertools.chain.from_iterable(rows)))}
    table = np.zeros((len(rows), len(columns)))
    for line, row in zip(table, rows, strict=True):
        line[[columns[one] for one in row]] = 1
    return table


def coins(taken: Floats, q: float) -> float:
    """P-value of a table of coins, one row a release and one column a subset or record: each of its own, at rate q.

    The smallest of five, times five: how many in all; spread of the columns (coins that fall again in later releases),
    and of the rows (a sample of fixed size); and the two rows, and the two columns, that are most alike or unlike.
    """
    rows, columns = taken.shape
    rate = stats.binom(rows * columns, q)
    total = int(taken.sum())
    tests = [
        2 * min(rate.cdf(total), rate.sf(total - 1)),
        _spread(taken.sum(axis=0), rows, q),
        _spread(taken.sum(axis=1), columns, q),
        _alike(taken, q),
        _alike(taken.T, q),
    ]
    return float(min(1.0, len(tests) * min(tests)))


def _spread(sums: Floats, coins_each: int, q: float) -> float:
    """Whether sums of so many coins vary as binomial numbers do."""
    variance = coins_each * q * (1 - q)
    statistic = np.square(sums - coins_each * q).sum() / variance
    # A chi-square law, but for the fourth moment of a binomial number.
    of_one = 2 + (1 - 6 * q * (1 - q)) / variance
    law = stats.gamma(len(sums) / of_one, scale=of_one)
    return 2 * min(float(law.cdf(statistic)), float(law.sf(statistic)))


def _alike(taken: Floats, q: float) -> float:
    """The two rows that agree in most places, or in fewest: each place agrees with chance q^2 + (1-q)^2."""
    agreed = taken @ taken.T + (1 - taken) @ (1 - taken).T
    pairs = agreed[np.triu_indices(len(taken), 1)]
    law = stats.binom(taken.shape[1], q * q + (1 - q) ** 2)
    return 2 * len(pairs) * min(float(law.sf(pairs.max() - 1)), float(law.cdf(pairs.min())))


def tally(seen: int, chances: Sequence[float]) -> float:
    """P-value of how many of independent events came, each with a chance of its own (exact)."""
    return total(seen, [{0: 1 - chance, 1: chance} for chance in chances])


def total(seen: int, laws: Sequence[Mapping[int, float]]) -> float:
    """P-value of a sum of independent whole numbers of at least 0, each with a law of its own (exact)."""
    law = np.ones(1)
    for each in laws:
        law = np.convolve(law, [each.get(value, 0.0) for value in range(max(each) + 1)])
    return float(min(1.0, 2 * min(law[: seen + 1].sum(), law[seen:].sum())))


def frequencies(counts: Mapping[T, int], law: Mapping[T, float]) -> float:
    """P-value of how often outcomes of a known law came: the least of exact tests of each, times their number."""
    drawn = sum(counts.values())
    laws = {key: stats.binom(drawn, chance) for key, chance in law.items()}
    p_values = [2 * min(each.cdf(counts.get(key, 0)), each.sf(counts.get(key, 0) - 1)) for key, each in laws.items()]
    return float(min(1.0, len(p_values) * min(p_values)))


def noisy_max_law(counts: Sequence[int], sigma: float) -> float:
    """Chance that the first of two labels wins."""
    return math.erfc((counts[1] - counts[0]) / (2 * sigma)) / 2


def limited_domain_law(
    votes: Mapping[T, int], *, epsilon0: float, delta0: float, kbar: int, threshold: int
) -> dict[T | None, float]:
    """Chance of every token, and of None: Gumbel noise of scale 2/epsilon0 on the largest counts and on a bottom."""
    ranked = sorted(((token, count) for token, count in votes.items() if count), key=lambda v: (-v[1], v[0]))
    left_out = ranked[kbar][1] if len(ranked) > kbar else 0
    bottom = left_out + threshold + 2 / epsilon0 * math.log((1 - delta0) / delta0)
    heights: dict[T | None, float] = {**dict(ranked[:kbar]), None: bottom}
    return softmax(heights, epsilon0 / 2)


def softmax(heights: Mapping[T, float], weight: float) -> dict[T, float]:
    """Chances proportional to exp(weight * height)."""
    top = max(heights.values())
    raw = {key: math.exp(weight * (height - top)) for key, height in heights.items()}
    return {key: value / sum(raw.values()) for key, value in raw.items()}


def mixed(here: Mapping[T, float], there: Mapping[T, float], q: float) -> dict[T, float]:
    """The law of a release in which ``there`` takes the place of ``here`` with probability q."""
    return {key: (1 - q) * here.get(key, 0.0) + q * there.get(key, 0.0) for key in {**here, **there}}


def divergence(one: Mapping[T, float], other: Mapping[T, float], epsilon: float) -> float:
    """The least delta for which ``one`` is (epsilon, delta)-close to ``other``."""
    return math.fsum(max(chance - math.exp(epsilon) * other.get(key, 0.0), 0.0) for key, chance in one.items())
