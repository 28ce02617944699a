"""llama.cpp: a chat model, and an engine for many private prompts."""

from __future__ import annotations

from .chat import ChatLlamaCpp
from .engine import LlamaCppEnsemble
from .model_files import embedded_model_path

__all__ = ["ChatLlamaCpp", "LlamaCppEnsemble", "embedded_model_path"]
