"""The laws that audits hold whole chains against are exact."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from audit_tools import limited_domain

from audits import laws

ERROR = 1e-6


def coins(rows: int = 60, columns: int = 48, q: float = 0.375, seed: int = 7) -> Any:
    """A table of fair coins."""
    return (np.random.default_rng(seed).random((rows, columns)) < q).astype(float)


def test_coins_of_their_own_pass() -> None:
    """If it breaks, an audit accuses sound sampling. The least of 100 tables is above 1e-5 but for a chance of 1e-3."""
    assert min(laws.coins(coins(seed=seed), 0.375) for seed in range(100)) > 1e-5


@pytest.mark.parametrize(
    ("fault", "table"),
    {
        "half as many again": coins(q=0.5),
        "one sample for two releases": np.repeat(coins(30), 2, axis=0),
        "one coin for two subsets": np.repeat(coins(columns=24), 2, axis=1),
        "a sample of fixed size": np.array([np.roll([1.0] * 18 + [0.0] * 30, 7 * k) for k in range(60)]),
        "coins that are tossed once": np.repeat(coins(1), 60, axis=0),
        "the others' turn": np.concatenate([half := coins(30, q=0.375), 1 - half]),
    }.items(),
)
def test_other_coins_are_seen(fault: str, table: Any) -> None:
    """If it breaks, an audit is blind to a way of sampling that is charged as Poisson's."""
    assert laws.coins(table, 0.375) < ERROR, fault


@pytest.mark.statistical
@pytest.mark.parametrize("moved", [True, False])
def test_the_law_of_a_token_is_that_of_the_mechanism(moved: bool) -> None:
    """If it breaks, runs are audited against another law than the documented one. Error rate 1e-6."""
    votes = {3: 9, 7: 8, 11: 8, 12: 1}
    law = laws.limited_domain_law(votes, epsilon0=1.0, delta0=1 / 8, kbar=2, threshold=2 if moved else 1)
    drawn = Counter(
        limited_domain(votes, epsilon0=1.0, delta0=1 / 8, kbar=2, domain=64, moved_votes=moved) for _ in range(2_000)
    )
    assert laws.frequencies(drawn, law) > ERROR
    other = laws.limited_domain_law(votes, epsilon0=1.0, delta0=1 / 8, kbar=2, threshold=1 if moved else 2)
    assert laws.frequencies(drawn, other) < ERROR


def test_sums_and_divergences_are_exact() -> None:
    """If it breaks, how unlikely a run was is worked out wrongly."""
    assert laws.tally(0, [0.5] * 10) == pytest.approx(2 / 1024)
    assert laws.total(12, [{0: 0.5, 6: 0.5}] * 2) == pytest.approx(0.5)
    assert laws.divergence({0: 0.75, 1: 0.25}, {0: 0.25, 1: 0.75}, np.log(2)) == pytest.approx(0.25)
    assert laws.mixed({0: 1.0}, {1: 1.0}, 0.25) == {0: 0.75, 1: 0.25}
