"""An engine on a completions server inside the trust boundary."""

from __future__ import annotations

from .engine import CompletionServerEnsemble

__all__ = ["CompletionServerEnsemble"]
