"""Algorithm 2 of Hong et al. 2024 without I/O: it requests one call of the mechanism at a time."""

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
    """The released part of one candidate. All of it is public.

    ``message`` is the index of its request. ``calls`` counts tokens, bottoms and ends. A bottom is a call in which no
    token had enough votes. ``retries`` counts calls after a bottom. ``pending``: the last call was a bottom, and its
    only retry is due.
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
    """Continue ``written`` until it is complete.

    Every ``yield`` requests one call, which the driver charges before it makes it. Send the released token, or None for
    a bottom. A bottom is retried once with a fresh draw. A second one in a row, or more than ``max_retries`` in all,
    completes the prompt. ``written`` is updated after every call, so a run can stop anywhere without a loss.
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
    """Return the histogram of the votes. A member that failed, or answered no token, abstains. Private."""
    return Counter(token for token in map(_token, tokens) if token is not None)


def _token(answer: object) -> Token | None:
    if isinstance(answer, str):
        return str.__str__(answer)
    try:
        return operator.index(answer)  # type: ignore[arg-type]  # that it may be none is why this is tried
    except Exception:  # what one member answered must not end a run
        return None
