"""How a release is drawn. One mechanism a file, pure, randomness passed in; none ever sees the ledger."""

from __future__ import annotations

from langchain_dp.mechanisms.clipped_sum import ClippedSum
from langchain_dp.mechanisms.exponential import exponential
from langchain_dp.mechanisms.limited_domain import limited_domain
from langchain_dp.mechanisms.metric_laplace import metric_laplace
from langchain_dp.mechanisms.noisy_max import NoisyMax, report_noisy_max
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness, Randomness, SystemRandomness

__all__ = [
    "ClippedSum",
    "NoisyMax",
    "NotPrivateSeededRandomness",
    "Randomness",
    "SystemRandomness",
    "exponential",
    "limited_domain",
    "metric_laplace",
    "report_noisy_max",
]
