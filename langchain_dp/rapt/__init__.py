"""RAPT: texts privatized word by word under metric privacy, over a public vocabulary.

Reference: Li, Tan, Liu 2023, "Privacy-preserving prompt tuning for large language model services".
"""

from __future__ import annotations

from langchain_dp.rapt._tables import load
from langchain_dp.rapt.bulk import SanitizeBatches
from langchain_dp.rapt.calibrate import Calibration, calibrate
from langchain_dp.rapt.messages import MessageRules
from langchain_dp.rapt.paraphrase import ParaphraseOptions, RAPTParaphraser
from langchain_dp.rapt.parts import DocumentRules
from langchain_dp.rapt.privatize import Policies, TextPrivatizer
from langchain_dp.rapt.retriever import SanitizingExampleSelector, SanitizingRetriever
from langchain_dp.rapt.runnable import CalibrationTarget, RAPTSanitizer
from langchain_dp.rapt.vocabulary import Vocabulary

__all__ = [
    "Calibration",
    "CalibrationTarget",
    "DocumentRules",
    "MessageRules",
    "ParaphraseOptions",
    "Policies",
    "RAPTParaphraser",
    "RAPTSanitizer",
    "SanitizeBatches",
    "SanitizingExampleSelector",
    "SanitizingRetriever",
    "TextPrivatizer",
    "Vocabulary",
    "calibrate",
    "load",
]
