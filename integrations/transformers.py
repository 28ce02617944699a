"""Hugging Face transformers: an engine that scores labels and writes tokens for private prompts, on torch."""

from __future__ import annotations

from ._transformers_engine import TransformersEnsemble

__all__ = ["TransformersEnsemble"]
