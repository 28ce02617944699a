"""An engine and a table of subwords on transformers and torch."""

from __future__ import annotations

from .engine import TransformersEnsemble
from .table import TransformersTable

__all__ = ["TransformersEnsemble", "TransformersTable"]
