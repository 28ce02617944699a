"""Sums over private records, released once with noise and then free to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports
from langchain_dp.aggregate.accuracy import Accuracy, aprivate_accuracy, private_accuracy
from langchain_dp.aggregate.chats import conversations
from langchain_dp.aggregate.encoders import StaticEncoder, public_texts, public_topics
from langchain_dp.aggregate.names import DPLabelNamer, LabelNames
from langchain_dp.aggregate.plan import PrototypePlan
from langchain_dp.aggregate.prototypes import DPPrototypeClassifier
from langchain_dp.aggregate.readers import Question
from langchain_dp.aggregate.survey import DPSurvey, Share, Survey, SurveyPlan, SurveyTable

if TYPE_CHECKING:  # langchain-core has decision models from 1.8 on
    from langchain_dp.aggregate.decisions import DPDecisionModel, state_to_text

__all__ = [
    "Accuracy",
    "DPDecisionModel",
    "DPLabelNamer",
    "DPPrototypeClassifier",
    "DPSurvey",
    "LabelNames",
    "PrototypePlan",
    "Question",
    "Share",
    "StaticEncoder",
    "Survey",
    "SurveyPlan",
    "SurveyTable",
    "aprivate_accuracy",
    "conversations",
    "private_accuracy",
    "public_texts",
    "public_topics",
    "state_to_text",
]

__getattr__, __dir__ = lazy_exports(__name__, {".decisions": ("DPDecisionModel", "state_to_text")})
