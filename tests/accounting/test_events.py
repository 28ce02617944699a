"""Events are frozen data with one canonical form."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, ZCDpEvent

from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    MetricEvent,
    NoisyMaxEvent,
    PartEvent,
    VectorSumEvent,
)
from langchain_dp.accounting.events import event_from_json, event_to_json
from langchain_dp.errors import InvalidParameter

EVENTS = [
    NoisyMaxEvent(1.3, 0.01, "resample"),
    LimitedDomainEvent(1.8, 5e-7, 0.015),
    ExponentialEvent(0.5),
    VectorSumEvent(7.46, replaced=1.5),
    MetricEvent(73.0),
    GaussianDpEvent(2.0),
    LaplaceDpEvent(1.5),
    PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)),
    PartEvent("train", LimitedDomainEvent(1.8, 5e-7, 0.015)),
    PartEvent('Prüfung "2"', PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_json(event: object) -> None:
    """If it breaks, a ledger file names another event than the one that was charged."""
    assert event_from_json(event_to_json(event)) == event


def test_equal_parameters_give_equal_events() -> None:
    """If it breaks, a restart finds its own plan under another key and starts a second one."""
    assert (
        event_to_json(NoisyMaxEvent(1))
        == event_to_json(NoisyMaxEvent(1.0))
        == event_to_json(NoisyMaxEvent(np.float32(1)))
    )
    assert NoisyMaxEvent(1) == NoisyMaxEvent(1.0)
    assert hash(NoisyMaxEvent(1)) == hash(NoisyMaxEvent(1.0))
    train, same = PartEvent("train", ExponentialEvent(1)), PartEvent("train", ExponentialEvent(1.0))
    assert (train, hash(train), event_to_json(train)) == (same, hash(same), event_to_json(same))
    with pytest.raises(dataclasses.FrozenInstanceError):
        NoisyMaxEvent(1.0).sigma = 2.0  # type: ignore[misc]


def test_unknown_events_are_named() -> None:
    """If it breaks, a ledger stores an event that nobody can account for."""
    with pytest.raises(InvalidParameter, match="ZCDpEvent"):
        event_to_json(ZCDpEvent(1.0, 0.0))
    with pytest.raises(InvalidParameter, match="'Other'"):
        event_from_json('{"event": "Other"}')
    with pytest.raises(InvalidParameter, match="ZCDpEvent"):
        event_to_json(PartEvent("train", ZCDpEvent(1.0, 0.0)))
    with pytest.raises(InvalidParameter, match="'Other'"):
        event_from_json('{"event": "PartEvent", "part": "train", "of": {"event": "Other"}}')
