"""Private sums over public encoders: released once, then free to use without limit.

``prototypes`` classifies, ``decisions`` routes agents, and ``names`` names labels that are codes. ``features`` turns
texts into bounded whole-number vectors, and ``release`` charges a ledger and keeps what was released in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports
from langchain_dp.aggregate.encoders import StaticEncoder, public_texts, public_topics
from langchain_dp.aggregate.names import DPLabelNamer, LabelNames
from langchain_dp.aggregate.plan import PrototypePlan
from langchain_dp.aggregate.prototypes import DPPrototypeClassifier

if TYPE_CHECKING:  # langchain-core has decision models from 1.8 on
    from langchain_dp.aggregate.decisions import DPDecisionModel, state_to_text

__all__ = [
    "DPDecisionModel",
    "DPLabelNamer",
    "DPPrototypeClassifier",
    "LabelNames",
    "PrototypePlan",
    "StaticEncoder",
    "public_texts",
    "public_topics",
    "state_to_text",
]

__getattr__, __dir__ = lazy_exports(__name__, dict.fromkeys(("DPDecisionModel", "state_to_text"), ".decisions"))
