"""Hugging Face transformers: an engine for labels and tokens, and a table of subwords, on torch."""

from __future__ import annotations

from .engine import TransformersEnsemble
from .table import TransformersTable

__all__ = ["TransformersEnsemble", "TransformersTable"]
