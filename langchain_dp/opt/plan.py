"""Algorithm 2 of Hong et al. 2024 without I/O."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Literal

from langchain_dp.ports import Token

Ended = Literal["", "end", "length", "stop", "bottom", "retries", "calls"]
""""bottom": two bottoms in a row. "": still being written."""


@dataclasses.dataclass
class Written:
    """The public part of one candidate.

    ``message`` is the index of its request. A bottom is a call without enough votes. ``pending``: its only retry is
    due.
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

    Every ``yield`` requests one call, which the driver charges first. Send the released token, or None for a bottom,
    which is retried once.
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
    """Return the private histogram of the votes."""
    return Counter(token for token in map(_token, tokens) if token is not None)


def _token(answer: object) -> Token | None:
    if isinstance(answer, str):
        return str.__str__(answer)
    try:
        return operator.index(answer)  # type: ignore[arg-type]  # that it may be none is why this is tried
    except Exception:  # one member's answer must not end a run
        return None
