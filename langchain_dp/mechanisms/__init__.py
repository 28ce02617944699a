"""Mechanisms: charge ``mechanism.event``, then call ``mechanism.release(...)``."""

from __future__ import annotations

from langchain_dp.mechanisms.clipped_sum import ClippedSum
from langchain_dp.mechanisms.exponential_choice import Exponential
from langchain_dp.mechanisms.limited_domain_top import LimitedDomain
from langchain_dp.mechanisms.metric_exponential import MetricExponential
from langchain_dp.mechanisms.metric_noise import MetricLaplace
from langchain_dp.mechanisms.noisy_max import NoisyMax, ReportNoisyMax
from langchain_dp.mechanisms.randomness import NotPrivateSeededRandomness, Randomness, SystemRandomness
from langchain_dp.mechanisms.vector_sum import VectorSum, clip_to_norm

__all__ = [
    "ClippedSum",
    "Exponential",
    "LimitedDomain",
    "MetricExponential",
    "MetricLaplace",
    "NoisyMax",
    "NotPrivateSeededRandomness",
    "Randomness",
    "ReportNoisyMax",
    "SystemRandomness",
    "VectorSum",
    "clip_to_norm",
]
