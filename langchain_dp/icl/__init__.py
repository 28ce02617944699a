"""DP-ICL: private few-shot classification around any model (Panda, Wang, Wu, Mittal 2023)."""

from __future__ import annotations

from langchain_dp.ensemble.subsets import SamplingOptions
from langchain_dp.icl.baseline import NonPrivateICL
from langchain_dp.icl.bulk import ClassifyBatches
from langchain_dp.icl.chat_model import ChatDPICL
from langchain_dp.icl.prompts import AGNEWS, AMAZON, SST2, TREC, ICLPrompt
from langchain_dp.icl.release import DPAnswer
from langchain_dp.icl.report import ICLPlanReport
from langchain_dp.icl.runnable import DPICLClassifier
from langchain_dp.icl.voters import ModelCallOptions

__all__ = [
    "AGNEWS",
    "AMAZON",
    "SST2",
    "TREC",
    "ChatDPICL",
    "ClassifyBatches",
    "DPAnswer",
    "DPICLClassifier",
    "ICLPlanReport",
    "ICLPrompt",
    "ModelCallOptions",
    "NonPrivateICL",
    "SamplingOptions",
]
