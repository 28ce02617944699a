"""A ledger of either kind, in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    MetricLedger,
    NoisyMaxEvent,
    PartEvent,
    PrivacyBudget,
    PrivacyLedger,
)
from langchain_dp.accounting.metric import Owner

ANSWER = NoisyMaxEvent(2.0, 0.1)
TOKEN, CHOICE = PartEvent("training", LimitedDomainEvent(0.8, 1e-9, 0.05)), PartEvent("validation", ExponentialEvent(1))
SECRET = "Zebedee Quillfeather was treated for gout"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two plans, one of them used up in part."""
    path = tmp_path / "budget.db"
    with PrivacyLedger(PrivacyBudget(8.0, 1e-5), path) as made:
        answers = made.reserve([(ANSWER, 100)], name="tickets", delta=5e-6)
        made.reserve([(TOKEN, 40), (CHOICE, 1)], name="prompt", delta=4e-6)
        for count in (1, 2, 3):
            answers.spend(ANSWER, count, caller="desk")
    return path


@pytest.fixture
def metric(tmp_path: Path) -> Path:
    path = tmp_path / "texts.db"
    with MetricLedger(20.0, path, document_limit=10.0) as made:
        for number in range(4):
            made.spend(2.5, [Owner(f"{SECRET} {number}", SECRET)], table="glove-50d", caller="sanitize")
        made.spend(7.0, [Owner("nobody's")], table="glove-50d")
    return path
