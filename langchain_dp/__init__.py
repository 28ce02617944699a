"""Differential privacy for LangChain.

Outputs that depend on private records are differentially private, and a ledger enforces the budget. Each public name is
imported when first used, so ``import langchain_dp`` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports

if TYPE_CHECKING:
    from langchain_dp.accounting import Neighbors, PrivacyBudget, PrivacyCertificate, PrivacyLedger
    from langchain_dp.aggregate import DPLabelNamer, DPPrototypeClassifier, DPSurvey, Question, private_accuracy
    from langchain_dp.errors import BudgetExceeded
    from langchain_dp.icl import ChatDPICL, DPICLClassifier
    from langchain_dp.isolation.run import private_run
    from langchain_dp.opt import DPPromptOptimizer, DPPromptSelector
    from langchain_dp.rapt import RAPTSanitizer, SanitizingRetriever
    from langchain_dp.rapt.middleware import RAPTMiddleware
    from langchain_dp.rapt.pseudonyms import Pseudonymizer, PseudonymMiddleware
    from langchain_dp.records import PrivacyBlocks, PrivateRecords, RecordShards
    from langchain_dp.synth import (
        ChatDPGenerator,
        DPAnswerGenerator,
        DPExampleSelector,
        DPExampleSynthesizer,
        SyntheticExamples,
    )

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "ChatDPGenerator",
    "ChatDPICL",
    "DPAnswerGenerator",
    "DPExampleSelector",
    "DPExampleSynthesizer",
    "DPICLClassifier",
    "DPLabelNamer",
    "DPPromptOptimizer",
    "DPPromptSelector",
    "DPPrototypeClassifier",
    "DPSurvey",
    "Neighbors",
    "PrivacyBlocks",
    "PrivacyBudget",
    "PrivacyCertificate",
    "PrivacyLedger",
    "PrivateRecords",
    "PseudonymMiddleware",
    "Pseudonymizer",
    "Question",
    "RAPTMiddleware",
    "RAPTSanitizer",
    "RecordShards",
    "SanitizingRetriever",
    "SyntheticExamples",
    "private_accuracy",
    "private_run",
]

_HOME = {
    ".accounting": ("Neighbors", "PrivacyBudget", "PrivacyCertificate", "PrivacyLedger"),
    ".aggregate": ("DPLabelNamer", "DPPrototypeClassifier", "DPSurvey", "Question", "private_accuracy"),
    ".errors": ("BudgetExceeded",),
    ".icl": ("ChatDPICL", "DPICLClassifier"),
    ".isolation.run": ("private_run",),
    ".opt": ("DPPromptOptimizer", "DPPromptSelector"),
    ".rapt": ("RAPTSanitizer", "SanitizingRetriever"),
    ".rapt.middleware": ("RAPTMiddleware",),
    ".rapt.pseudonyms": ("Pseudonymizer",),
    ".rapt.pseudonyms.middleware": ("PseudonymMiddleware",),
    ".records": ("PrivacyBlocks", "PrivateRecords", "RecordShards"),
    ".synth": (
        "ChatDPGenerator",
        "DPAnswerGenerator",
        "DPExampleSelector",
        "DPExampleSynthesizer",
        "SyntheticExamples",
    ),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
