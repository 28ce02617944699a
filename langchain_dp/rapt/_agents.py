"""What an agent's middleware can know of the others, which no hook is handed."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def agents_middleware() -> Sequence[object]:
    """The list that ``create_agent`` builds an agent from, if it is what asks for the name of the one that calls this.

    Empty where another asks.
    """
    frame = sys._getframe(2)
    for _ in range(3):  # a comprehension has a frame of its own before Python 3.12
        if frame.f_code.co_name == "create_agent":
            found = frame.f_locals.get("middleware", ())
            return found if isinstance(found, Sequence) else ()
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()


def has_hooks(middleware: object, base: type, *hooks: str) -> bool:
    """Whether a middleware brings one of these hooks, sync or async, and does not inherit it from ``base``."""
    return isinstance(middleware, base) and any(
        getattr(type(middleware), f"{prefix}{hook}") is not getattr(base, f"{prefix}{hook}")
        for hook in hooks
        for prefix in ("", "a")
    )
