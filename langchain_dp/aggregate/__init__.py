"""Private sums over public encoders: released once, then free to use without limit.

``prototypes`` classifies, ``names`` names labels that are codes. ``features`` turns texts into bounded whole-number
vectors, and ``release`` charges a ledger and keeps what was released in it.
"""

from __future__ import annotations

from langchain_dp.aggregate.encoders import StaticEncoder, public_texts, public_topics
from langchain_dp.aggregate.names import DPLabelNamer, LabelNames
from langchain_dp.aggregate.plan import PrototypePlan
from langchain_dp.aggregate.prototypes import DPPrototypeClassifier

__all__ = [
    "DPLabelNamer",
    "DPPrototypeClassifier",
    "LabelNames",
    "PrototypePlan",
    "StaticEncoder",
    "public_texts",
    "public_topics",
]
