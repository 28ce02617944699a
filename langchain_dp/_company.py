"""One joint call for many members of an ensemble, in which no member can spoil another's part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Member = TypeVar("Member")
Answer = TypeVar("Answer")


def ask_together(
    ask: Callable[[Sequence[Member]], list[Answer | None]], members: Sequence[Member]
) -> list[Answer | None]:
    """Answers of ``ask``, one a member; None for a member whose content breaks the call.

    If the joint call fails, every member is asked alone: what one of them holds can then silence nobody else. What was
    raised is dropped, for it may hold private text.
    """
    if not members:
        return []
    try:
        return ask(members)
    except Exception:
        if len(members) == 1:
            return [None]
    return [ask_together(ask, [member])[0] for member in members]
