"""Privacy accounting, without LangChain or a model."""

from __future__ import annotations

from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.calibrate import (
    calibrate_limited_domain,
    calibrate_noisy_max,
    calibrate_text_round,
    calibrate_vector_sum,
    max_releases,
)
from langchain_dp.accounting.certificate import PrivacyCertificate
from langchain_dp.accounting.events import (
    ClippedSumRoundEvent,
    ExponentialEvent,
    LimitedDomainEvent,
    MetricEvent,
    Neighbors,
    NoisyMaxEvent,
    PartEvent,
    VectorSumEvent,
)
from langchain_dp.accounting.ledger import LedgerPlan, PrivacyLedger
from langchain_dp.accounting.metric import MetricCertificate, MetricLedger
from langchain_dp.accounting.pld import epsilon
from langchain_dp.accounting.provenance import ReleaseCost
from langchain_dp.accounting.quotas import Quotas
from langchain_dp.accounting.signed import SignedCertificate

__all__ = [
    "ClippedSumRoundEvent",
    "ExponentialEvent",
    "LedgerPlan",
    "LimitedDomainEvent",
    "MetricCertificate",
    "MetricEvent",
    "MetricLedger",
    "Neighbors",
    "NoisyMaxEvent",
    "PartEvent",
    "PrivacyBudget",
    "PrivacyCertificate",
    "PrivacyLedger",
    "Quotas",
    "ReleaseCost",
    "SignedCertificate",
    "VectorSumEvent",
    "calibrate_limited_domain",
    "calibrate_noisy_max",
    "calibrate_text_round",
    "calibrate_vector_sum",
    "epsilon",
    "max_releases",
]
