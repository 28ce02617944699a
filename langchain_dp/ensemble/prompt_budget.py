"""Truncation of private texts: a member that does not fit abstains silently."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence

from langchain_dp.ensemble.engine_calls import MemberEngine, count_or_estimate, count_publicly
from langchain_dp.errors import ModelUnavailable

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
