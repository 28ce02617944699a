"""LimitedDomain where nearly all mass may be missed by the thresholds."""

from __future__ import annotations

import math

import pytest

from langchain_dp.accounting import LimitedDomainEvent, Neighbors, epsilon


@pytest.mark.parametrize("neighbors", Neighbors)
@pytest.mark.parametrize(("delta0", "count"), [(0.3, 50), (0.5, 200), (0.9, 100), (0.01, 5000)])
def test_no_epsilon_holds_once_the_thresholds_miss_more_than_delta(
    delta0: float, count: int, neighbors: Neighbors
) -> None:
    """If it breaks, a plan that cannot be private ends in the library's IndexError, or gets a number."""
    assert epsilon([(LimitedDomainEvent(1.0, delta0, 1.0, "fixed"), count)], 1e-5, neighbors=neighbors) == math.inf


def test_what_leaves_room_in_delta_still_has_an_epsilon() -> None:
    """If it breaks, everything with a threshold is refused."""
    missed = -math.expm1(10 * math.log1p(-0.001))
    event = LimitedDomainEvent(1.0, 0.001, 1.0, "fixed")
    assert epsilon([(event, 10)], 0.999 * missed) == math.inf
    assert 0 < epsilon([(event, 10)], 1.1 * missed) < 20
