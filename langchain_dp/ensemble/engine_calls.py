"""Calls of an engine in which no member affects another's answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.isolation.worker import call_engine

Member = TypeVar("Member")
Answer = TypeVar("Answer")
_PLAIN = "This is a test."


class MemberEngine(Protocol):
    """An engine that may cache members' prompts."""

    def count_tokens(self, text: str) -> int: ...

    def forget(self, *members: Hashable) -> None: ...


def is_remote(engine: object) -> bool:
    return getattr(engine, "remote", False) is True


def count_or_estimate(engine: MemberEngine, text: str) -> int:
    result = call_engine(lambda: engine.count_tokens(text))
    if result.failure:
        raise ModelUnavailable(f"The engine failed to count tokens ({result.failure}), text withheld.")
    return cast("int", result.answer)


def asked_publicly(ask: Callable[[], Answer]) -> Answer:
    """Call an engine with a public text. Its errors may be shown."""
    result = call_engine(ask)
    if result.error is not None:
        raise result.error
    if result.failure:
        raise ModelUnavailable(f"The engine failed on a text that shows no record ({result.failure}). Check the model.")
    return cast("Answer", result.answer)


def count_publicly(engine: MemberEngine, text: str) -> int:
    try:
        return asked_publicly(lambda: engine.count_tokens(text))
    except ModelUnavailable as error:
        why = str(error)
    asked_publicly(lambda: engine.count_tokens(_PLAIN))
    raise InvalidParameter(
        f"Expected the model to tokenize a public text of {len(text):,} characters, but it could not, while it "
        f"tokenizes others. It said: {why} Shorten the text, or break up long runs of one kind of character."
    )


def row_of(scores: object, length: int) -> npt.NDArray[np.float64] | None:
    row: npt.NDArray[np.float64] | None
    if type(scores) is np.ndarray and scores.dtype.kind == "f":  # no code of the engine's runs here
        row = np.asarray(scores, dtype=np.float64)
    else:
        row = call_engine(lambda: np.asarray(scores, dtype=np.float64)).answer
    return row if row is not None and row.shape == (length,) else None


def ask_together(
    ask: Callable[[Sequence[Member]], list[Answer | None]], members: Sequence[Member]
) -> list[Answer | None]:
    """Return one answer per member, None for a failure.

    If the joint call fails, every member is asked alone. Exceptions may hold private text and are dropped.
    """
    if not members:
        return []
    answers = call_engine(lambda: list(ask(members))).answer
    if answers is not None and len(answers) == len(members):
        return answers
    if len(members) == 1:
        return [None]
    return [ask_together(ask, [member])[0] for member in members]


def opaque(secret: bytes, *parts: object) -> str:
    """Return a cache key that does not reveal the member."""
    return hashlib.blake2b(json.dumps(parts).encode(), key=secret, digest_size=16).hexdigest()


def forget_members(engine: MemberEngine, *members: Hashable) -> str:
    """Return the type of a failure, which may be private."""
    return call_engine(lambda: engine.forget(*members)).failure


def forget_for_good(engine: MemberEngine, *members: Hashable) -> None:
    if failure := forget_members(engine, *members):
        raise ModelUnavailable(
            f"The engine failed to forget ({failure}, text withheld): it may keep what it was shown of the "
            "record. Close the engine, and build another."
        )
