"""What is charged is what is drawn: every mechanism carries its event, and every chain charges that one first."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent
from fakes import encoders, optimizers, rapt, synthesizers, voters

from langchain_dp import mechanisms
from langchain_dp.accounting import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LedgerPlan,
    LimitedDomainEvent,
    MetricEvent,
    MetricLedger,
    NoisyMaxEvent,
    PartEvent,
    VectorSumEvent,
)
from langchain_dp.ensemble.subsets import KeyedCoins, SubsetSampler
from langchain_dp.mechanisms import (
    ClippedSum,
    Exponential,
    LimitedDomain,
    MetricExponential,
    MetricLaplace,
    ReportNoisyMax,
    VectorSum,
)
from langchain_dp.mechanisms._nearest import NearestVector

TABLE = NearestVector(np.eye(2), np.ones(2, dtype=bool))
MADE: list[Any] = [
    ReportNoisyMax(NoisyMaxEvent(2.0)),
    LimitedDomain(LimitedDomainEvent(1.0, 1e-6), domain=99),
    Exponential(ExponentialEvent(1.0)),
    ClippedSum(ClippedSumRoundEvent(0.4, 5), members=30),
    VectorSum(VectorSumEvent(2.0)),
    MetricLaplace(MetricEvent(1.0), TABLE),
    MetricExponential(MetricEvent(1.0), TABLE),
]
CHAINS: dict[str, tuple[Callable[[], Any], set[type]]] = {
    "answers": (lambda: voters.classifier(sampling_probability=0.5).invoke("x"), {ReportNoisyMax}),
    "resampled answers": (
        lambda: voters.classifier(sampling="resample", partitions=None, sampling_probability=0.5).invoke("x"),
        {ReportNoisyMax},
    ),
    "prompt": (
        lambda: optimizers.optimizer(sampling_probability=0.5).invoke(optimizers.examples()),
        {LimitedDomain, Exponential},
    ),
    "prototypes": (lambda: encoders.fitted(), {VectorSum}),
    "names": (lambda: encoders.named(), {Exponential}),
    "examples": (lambda: synthesizers.synthesizer().invoke(synthesizers.rows()), {ClippedSum}),
    "free text": (lambda: synthesizers.generator().invoke("one?"), {ClippedSum}),
    "text": (lambda: rapt.sanitizer().invoke("the patient has pain"), {MetricExponential}),
    "noisy text": (lambda: rapt.sanitizer(mechanism="laplace").invoke("the patient has pain"), {MetricLaplace}),
    "stream": (lambda: list(rapt.sanitizer().transform(iter(["the patient ", "has pain"]))), {MetricExponential}),
}
"""Everything that releases, with the mechanisms that it draws by."""


def exported() -> set[type]:
    """Every mechanism: what is exported and releases something."""
    every = (getattr(mechanisms, name) for name in mechanisms.__all__)
    return {each for each in every if inspect.isclass(each) and hasattr(each, "release")}


@pytest.mark.parametrize("mechanism", MADE, ids=lambda made: type(made).__name__)
def test_a_mechanism_carries_its_event_and_no_copy_of_it(mechanism: Any) -> None:
    """If it breaks, a mechanism can draw with other numbers than its event says, or be changed after the charge."""
    assert isinstance(mechanism.event, DpEvent)
    says = {field.name for field in dataclasses.fields(mechanism.event)}
    assert not says & {name.lstrip("_") for name in vars(mechanism)}
    for field in dataclasses.fields(mechanism):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(mechanism, field.name, None)


def test_every_mechanism_is_tried_here_alone_and_in_a_chain() -> None:
    """If it breaks, a new mechanism escapes the tests of this file."""
    assert exported() == {type(made) for made in MADE} == {kind for _, kinds in CHAINS.values() for kind in kinds}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What was charged, at which rate subsets were drawn, and which mechanism drew, in order."""
    found: list[tuple[str, Any]] = []

    def seen(owner: type, name: str, said: Callable[..., tuple[str, Any]]) -> None:
        real = getattr(owner, name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            found.append(said(*args))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, spy)

    def charged(_: Any, event: DpEvent, *__: Any) -> tuple[str, DpEvent]:
        return "charged", event.event if isinstance(event, PartEvent) else event

    seen(LedgerPlan, "spend", charged)
    seen(LedgerPlan, "spend_up_to", charged)
    seen(MetricLedger, "spend", lambda _, eta, *__: ("charged", MetricEvent(eta)))
    seen(KeyedCoins, "drawn", lambda _, number, rate: ("members", rate))
    seen(SubsetSampler, "draw", lambda self: ("sampled", (self._scheme.sampling, self._scheme.sampling_probability)))
    for mechanism in exported():
        seen(mechanism, "release", lambda self, *_: ("drawn", self))
    return found


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_charges_the_event_of_the_mechanism_that_draws(chain: str, steps: list[tuple[str, Any]]) -> None:
    """If it breaks, noise of one scale is drawn and another one is charged, or the noise comes before the charge."""
    run, kinds = CHAINS[chain]
    run()
    assert {type(told) for step, told in steps if step == "drawn"} == kinds
    paid: Any = None
    for step, told in steps:
        if step == "charged":
            paid = told
        elif step == "members":
            assert told == paid.sampling_probability
        elif step == "sampled":
            assert told == (getattr(paid, "sampling", "fixed"), paid.sampling_probability)
        else:
            assert told.event == paid
            # One text is drawn in blocks, a round token by token, and the names of all labels together: one charge.
            paid = paid if chain == "names" or isinstance(paid, MetricEvent | ClippedSumRoundEvent) else None
