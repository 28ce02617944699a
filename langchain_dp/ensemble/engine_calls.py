"""Calls of an engine on private texts, in which no member can affect another member's answer."""

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
    """An engine that reads the prompts of members and may cache them."""

    def count_tokens(self, text: str) -> int:
        """Return the tokens of a text."""
        ...

    def forget(self, *members: Hashable) -> None:
        """Drop all caches of these members."""
        ...


def is_remote(engine: object) -> bool:
    """Return whether the engine calls a server. It then gets one public prompt beside its members."""
    return getattr(engine, "remote", False) is True


def count_or_estimate(engine: MemberEngine, text: str) -> int:
    """Count the tokens of a private text. The engine's logs, warnings and traces are dropped."""
    result = call_engine(lambda: engine.count_tokens(text))
    if result.failure:
        raise ModelUnavailable(f"The engine failed to count tokens ({result.failure}); its text is withheld.")
    return cast("int", result.answer)


def asked_publicly(ask: Callable[[], Answer]) -> Answer:
    """Return an engine's answer to a public text, before anything is charged."""
    result = call_engine(ask)
    if result.error is not None:
        raise result.error
    if result.failure:
        raise ModelUnavailable(f"The engine failed on a text that shows no record ({result.failure}). Check the model.")
    return cast("Answer", result.answer)


def count_publicly(engine: MemberEngine, text: str) -> int:
    """Count the tokens of a public text."""
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
    """Return one member's scores as ``length`` numbers. None if they are invalid. Private."""
    row: npt.NDArray[np.float64] | None
    if type(scores) is np.ndarray and scores.dtype.kind == "f":  # no code of the engine's runs here
        row = np.asarray(scores, dtype=np.float64)
    else:
        row = call_engine(lambda: np.asarray(scores, dtype=np.float64)).answer
    return row if row is not None and row.shape == (length,) else None


def ask_together(
    ask: Callable[[Sequence[Member]], list[Answer | None]], members: Sequence[Member]
) -> list[Answer | None]:
    """Return the answers of ``ask``, one per member. None for a member whose content breaks the call.

    If the joint call fails, or misses an answer, every member is asked alone, so that one member's content cannot
    silence another's. Exceptions of any kind are dropped, for they may hold private text. Ctrl-C and a cancellation of
    the caller pass. One that the engine raises is an abstention like any other failure.
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
    """Return a key for an engine's cache that does not reveal the member.

    ``secret`` is 32 bytes drawn for this purpose alone, not a key of coins. ``parts`` identify member and content.
    """
    return hashlib.blake2b(json.dumps(parts).encode(), key=secret, digest_size=16).hexdigest()


def forget_members(engine: MemberEngine, *members: Hashable) -> str:
    """Drop an engine's caches of members. Return the type of its error, which may depend on their content, or ""."""
    return call_engine(lambda: engine.forget(*members)).failure


def forget_for_good(engine: MemberEngine, *members: Hashable) -> None:
    """Drop an engine's cache of a record that its owner removes."""
    if failure := forget_members(engine, *members):
        raise ModelUnavailable(
            f"The engine failed to forget ({failure}; its text is withheld): it may keep what it was shown of the "
            "record. Close the engine, and build it anew."
        )
