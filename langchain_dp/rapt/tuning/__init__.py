"""RAPT's prompt tuning: learns a task from privatized text and, if asked, to reconstruct privatized plain tokens.

Reference: Li, Tan, Liu 2023, section 3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports

if TYPE_CHECKING:
    from langchain_dp.rapt.tuning.backbone import Backbone
    from langchain_dp.rapt.tuning.classifier import RAPTClassifier
    from langchain_dp.rapt.tuning.client import IdentitySanitizer, RAPTClient
    from langchain_dp.rapt.tuning.examples import PrivatizedExamples
    from langchain_dp.rapt.tuning.provider import RAPTProvider
    from langchain_dp.rapt.tuning.settings import PlainTokens, TuningSettings
    from langchain_dp.rapt.tuning.training import TrainingReport
    from langchain_dp.rapt.tuning.tuner import RAPTPromptTuner
    from langchain_dp.rapt.tuning.wire import PredictionRequest

__all__ = [
    "Backbone",
    "IdentitySanitizer",
    "PlainTokens",
    "PredictionRequest",
    "PrivatizedExamples",
    "RAPTClassifier",
    "RAPTClient",
    "RAPTPromptTuner",
    "RAPTProvider",
    "TrainingReport",
    "TuningSettings",
]

_HOME = {
    ".backbone": ("Backbone",),
    ".classifier": ("RAPTClassifier",),
    ".client": ("IdentitySanitizer", "RAPTClient"),
    ".examples": ("PrivatizedExamples",),
    ".provider": ("RAPTProvider",),
    ".settings": ("PlainTokens", "TuningSettings"),
    ".training": ("TrainingReport",),
    ".tuner": ("RAPTPromptTuner",),
    ".wire": ("PredictionRequest",),
}
_NEEDED = frozenset({"peft", "safetensors", "torch", "transformers"})

__getattr__, __dir__ = lazy_exports(__name__, _HOME, extra="tuning", needs=_NEEDED)
