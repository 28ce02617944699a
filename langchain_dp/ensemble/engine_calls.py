"""Calls of an engine in which no member affects another's answer. A member that does not fit abstains silently."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
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


LEAST = 16
_KEPT = 10_000
_JOINTS = 4  # additional tokens of joined parts


class PromptBudget:
    """Truncates one member's texts, by these texts and public numbers alone."""

    def __init__(self, engine: MemberEngine) -> None:
        self._engine = engine
        self._key = secrets.token_bytes(32)
        self._found: OrderedDict[bytes, int] = OrderedDict()  # by digest, without text

    def remaining(self, limit: int, *public: str, more: int = 0) -> int:
        return limit - sum(count_publicly(self._engine, text) for text in public) - more - _JOINTS

    def truncate(self, texts: Sequence[str], *, whole: Callable[[Sequence[str]], str], tokens: int) -> list[str]:
        """Cut the longest texts so that ``whole(texts)`` has ``tokens``."""
        if len(whole(texts).encode()) <= tokens:  # no token is shorter than a byte
            return list(texts)
        # The prompt alone is ambiguous: texts may contain the separators.
        content = json.dumps([tokens, list(texts), whole(texts)]).encode()
        digest = hashlib.blake2b(content, key=self._key, digest_size=16).digest()
        if digest in self._found:
            return [beginning(text, self._found[digest]) for text in texts]
        most, certain = self._longest(texts, whole, tokens)
        if certain:
            self._found[digest] = most
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return [beginning(text, most) for text in texts]

    def _longest(self, texts: Sequence[str], whole: Callable[[Sequence[str]], str], tokens: int) -> tuple[int, bool]:
        counts: dict[int, int | None] = {}

        def fits(characters: int) -> bool:
            try:
                count = count_or_estimate(self._engine, whole([beginning(text, characters) for text in texts]))
            except ModelUnavailable:  # a server may refuse a long private text
                counts[characters] = None
                return False
            counts[characters] = count
            return count <= tokens

        low, high = 0, max(map(len, texts), default=0)
        most = high
        if fits(high):
            return high, True
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        if all(count is None for count in counts.values()):  # the engine itself decides about this member
            return most, False
        return low, counts.get(high) is not None


def beginning(text: str, characters: int) -> str:
    """Cut a text, but not within a word."""
    if len(text) <= characters:
        return text
    cut = text[:characters]
    if not text[characters].isspace() and len(words := cut.rsplit(maxsplit=1)) == 2:
        cut = words[0]
    return cut.rstrip()
