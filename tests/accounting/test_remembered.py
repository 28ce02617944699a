"""What a process remembers of public parameters: many fresh chains of one kind cost one calibration."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_dp.accounting import (
    NoisyMaxEvent,
    PrivacyBudget,
    PrivacyLedger,
    _account,
    calibrate,
    calibrate_noisy_max,
)


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    real = getattr(module, name)

    def counting(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return real(*given, **named)

    monkeypatch.setattr(module, name, counting)
    return calls


def test_noise_is_calibrated_once_for_each_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every fresh chain of an audit calibrates anew; or one promise gets the noise of another."""
    calls = counted(monkeypatch, calibrate, "epsilon")
    first = calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=3)
    once = len(calls)
    assert once > 1
    assert calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=3) == first
    assert len(calls) == once
    others = [
        calibrate_noisy_max(PrivacyBudget(2.25, 1e-4), queries=3),
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-3), queries=3),
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-4, "replace_special"), queries=3),  # type: ignore[arg-type]
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=4),
        calibrate_noisy_max(PrivacyBudget(2.125, 1e-4), queries=3, sampling_probability=0.5),
    ]
    assert first not in others
    assert len(calls) > once + 4


def test_what_a_plan_costs_is_composed_once_for_all_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, every fresh ledger composes its plan anew."""
    calls = counted(monkeypatch, _account, "composed_epsilon")
    for _ in range(3):
        with PrivacyLedger(PrivacyBudget(9.0, 1e-4)) as ledger:
            ledger.reserve([(NoisyMaxEvent(2.3125), 5)], name="p")
    assert len(calls) == 1
    with PrivacyLedger(PrivacyBudget(9.0, 1e-4, "replace_special")) as ledger:  # type: ignore[arg-type]
        ledger.reserve([(NoisyMaxEvent(2.3125), 5)], name="p")
    assert len(calls) == 2
