"""Pseudonyms: placeholders for a conversation, replaced by the originals in answers. NOT formal privacy: no epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_dp._util.extras import lazy_exports
from langchain_dp.rapt.pseudonyms.bulk import PseudonymizeBatches
from langchain_dp.rapt.pseudonyms.recognize import PatternEntities, TermEntities
from langchain_dp.rapt.pseudonyms.runnable import Pseudonymizer, PseudonymReport

if TYPE_CHECKING:
    from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware
    from langchain_dp.rapt.pseudonyms.store import PseudonymStore
    from langchain_dp.rapt.pseudonyms.tracing import PseudonymSpanProcessor, PseudonymTracerProvider

__all__ = [
    "PatternEntities",
    "PseudonymMiddleware",
    "PseudonymReport",
    "PseudonymSpanProcessor",
    "PseudonymStore",
    "PseudonymTracerProvider",
    "PseudonymizeBatches",
    "Pseudonymizer",
    "TermEntities",
]

_HOME = {
    ".middleware": ("PseudonymMiddleware",),
    ".store": ("PseudonymStore",),
    ".tracing": ("PseudonymSpanProcessor", "PseudonymTracerProvider"),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
