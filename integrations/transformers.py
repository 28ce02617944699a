"""Hugging Face transformers: an engine that scores labels and writes tokens, and a table of subwords, on torch."""

from __future__ import annotations

from ._transformers_engine import TransformersEnsemble
from ._transformers_table import TransformersTable

__all__ = ["TransformersEnsemble", "TransformersTable"]
