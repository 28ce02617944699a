"""Algorithm 2 of Hong et al. 2024 as a plan without I/O: it asks for one call of the mechanism at a time."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Literal

from langchain_dp.ports import Token

Ended = Literal["", "end", "length", "stop", "bottom", "retries", "calls"]
"""Why a prompt is complete: the model ended it, it has its full length, a stop string, two bottoms in a row, too many
retries, or no call is left. Empty while it is being written."""


@dataclasses.dataclass
class Written:
    """One candidate prompt as far as it is released. All of it is public.

    Args:
        message: Which request ended its backward prompt.
        tokens: Released tokens.
        calls: Calls of the mechanism: tokens, bottoms and ends.
        bottoms: Calls that released nothing but that no token had votes enough.
        retries: Bottoms that were followed by another call for the same token.
        pending: The last call was a bottom, and its one retry is due.
        ended: Why it is complete.
    """

    message: int
    tokens: list[Token] = dataclasses.field(default_factory=list)
    calls: int = 0
    bottoms: int = 0
    retries: int = 0
    pending: bool = False
    ended: Ended = ""


def steps(
    written: Written,
    *,
    max_new_tokens: int,
    max_retries: int,
    end_tokens: frozenset[Token],
    stops: Callable[[Sequence[Token]], bool],
) -> Generator[None, Token | None, None]:
    """Go on with ``written`` until it is complete.

    Every ``yield`` asks for one call of the mechanism, which the driver has charged before it makes it; send back the
    token that was released, or None for a bottom. A bottom is retried once with a fresh draw; a second one in a row,
    or more than ``max_retries`` in all, completes the prompt. What comes next depends on released values only.

    Args:
        written: The candidate; updated after every call, so that a run can stop anywhere and lose nothing.
        max_new_tokens: Longest prompt, in tokens.
        max_retries: Most retries of one prompt.
        end_tokens: Tokens with which the model ends a text; they are not part of it.
        stops: Whether the released tokens hold a stop string.
    """
    while not written.ended:
        if len(written.tokens) >= max_new_tokens:
            written.ended = "length"
            return
        if written.pending and written.retries >= max_retries:
            written.ended = "retries"
            return
        released = yield
        written.calls += 1
        retried, written.pending = written.pending, False
        written.retries += retried
        if released is None:
            written.bottoms += 1
            if retried:
                written.ended = "bottom"
            written.pending = not retried
        elif released in end_tokens:
            written.ended = "end"
        else:
            written.tokens.append(released)
            if stops(written.tokens):
                written.ended = "stop"


def count_votes(tokens: Sequence[Token | None]) -> Counter[Token]:
    """Histogram of the votes; a member that could not be asked, or whose answer is no token, abstains. Private."""
    return Counter(token for token in map(_token, tokens) if token is not None)


def _token(answer: object) -> Token | None:
    if isinstance(answer, str):
        return str.__str__(answer)
    try:
        return operator.index(answer)  # type: ignore[arg-type]  # that it may be none is why this is tried
    except Exception:  # what one member answered must not end a run
        return None
