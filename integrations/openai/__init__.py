"""The OpenAI protocol: an engine on a completions server of one's own, inside the trust boundary."""

from __future__ import annotations

from .engine import CompletionServerEnsemble

__all__ = ["CompletionServerEnsemble"]
