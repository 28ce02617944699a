"""llama.cpp: a chat model, and an engine for hundreds of private prompts, on this machine."""

from __future__ import annotations

from .chat import ChatLlamaCpp
from .engine import LlamaCppEnsemble
from .model_files import embedded_model_path

__all__ = ["ChatLlamaCpp", "LlamaCppEnsemble", "embedded_model_path"]
