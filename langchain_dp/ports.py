"""The seams between the private machinery and the models. Adapters implement these, nothing else.

A port never sees the ledger, the noise or the histogram. What it gets is private, what it returns is private:
both stay inside the trust boundary.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

given_up: ContextVar[threading.Event | None] = ContextVar("langchain_dp_given_up", default=None)
"""Set, in the context of a call in a thread, once nobody waits for it any more. A local model may stop by it."""


@dataclasses.dataclass(frozen=True, repr=False)
class MemberPrompt:
    """What one member of an ensemble is asked, in the three parts that matter for caches.

    Args:
        head: Public text, the same for every member and every question. May be empty.
        body: The member's own private examples. Never changes while ``member`` stays the same.
        tail: The question, the same for every member of one call. Ends where the label begins.
        member: Opaque key of this member's content. A change of content comes with a new key.
    """

    head: str
    body: str
    tail: str
    member: Hashable

    def __repr__(self) -> str:
        return f"MemberPrompt(member={self.member!r}, <private>)"


@runtime_checkable
class ScoresLabels(Protocol):
    """Scores every label for many members at once.

    The score of one member must depend on that member's own head and body, the tail and the labels, and on
    nothing of any other member: not on its content, not on its length, to the last bit.
    """

    @property
    def name(self) -> str:
        """Name of the model, for certificates."""
        ...

    @property
    def max_tail_tokens(self) -> int:
        """Longest question the engine accepts, in tokens: a public constant, whatever the members hold."""
        ...

    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in ``text``."""
        ...

    def score_labels(
        self,
        prompts: Sequence[MemberPrompt],
        words: Sequence[str],
        *,
        content_free: Sequence[str] = (),
    ) -> list[list[float] | None]:
        """Log-scores of ``words`` after each prompt: one row a prompt, one column a word.

        Args:
            prompts: Members to ask; heads and tails are equal within one call.
            words: Label words, distinct.
            content_free: Tails that hold no question ("N/A", ...). When given, scores are divided by the
                scores after these tails under the same member (contextual calibration).

        Returns:
            One row per prompt, or None where that member could not be evaluated (it abstains).
        """
        ...

    def forget(self, *members: Hashable) -> None:
        """Drop everything that is cached of these members, content and scores."""
        ...

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Build the caches of these members, so that answer times no longer show which were cold."""
        ...
