"""The mode without a formal promise: entities that a recognizer finds become placeholders, and can be put back.

What the recognizer misses, and everything else, passes in clear. Useful where a formal promise would cost too much
meaning, and said to be what it is: every certificate of this mode is ``private=False``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

from langchain_dp._util import forks
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt.release import Texts, Unit, withheld

REASON = "entities are found by a recognizer, which misses some, and all other text passes in clear"

_PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9_]*)_([1-9][0-9]*)>")
_ESCAPED = "LITERAL"
"""Label of what already looked like a placeholder before anything was replaced."""


@runtime_checkable
class FindsEntities(Protocol):
    """Finds what is to be hidden."""

    @property
    def name(self) -> str:
        """Name of the recognizer, for certificates."""
        ...

    def find(self, text: str) -> Sequence[tuple[int, int, str]]:
        """Start, end and kind of every entity in ``text``; they may overlap."""
        ...


class PlaceholderMap:
    """Which placeholder stands for what. Private: it stays in this process and is shown to nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        forks.keep_still(self)
        self._placeholders: dict[tuple[str, str], str] = {}
        self._originals: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def placeholder(self, label: str, original: str) -> str:
        """The placeholder of one entity; the same for equal entities of one kind."""
        with self._lock:
            found = self._placeholders.get((label, original))
            if found is None:
                self._counts[label] += 1
                found = f"<{label}_{self._counts[label]}>"
                self._placeholders[label, original] = found
                self._originals[found] = original
            return found

    def restore(self, text: str) -> str:
        """Put back what the placeholders in ``text`` stand for; unknown ones stay."""
        with self._lock:
            return _PLACEHOLDER.sub(lambda match: self._originals.get(match[0], match[0]), text)

    def __len__(self) -> int:
        return len(self._originals)

    def __repr__(self) -> str:
        return "PlaceholderMap(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("A PlaceholderMap holds private text and cannot be pickled or copied.")


class PlaceholderReleases:
    """Replaces entities by placeholders. Charges nothing, because nothing formal is promised.

    Args:
        finder: Finds the entities.
    """

    def __init__(self, finder: FindsEntities) -> None:
        self._finder = finder
        self._key = secrets.token_bytes(32)
        self.map = PlaceholderMap()

    def streams(self, document: str | None) -> bool:
        """Never: an entity may begin in any piece of a text."""
        return False

    def idle_limit(self, *, user: bool) -> None:
        """There is no account, and so no limit."""

    def release(self, units: Sequence[Unit], met: Counter[str] | None = None) -> list[Texts]:
        """Return every unit with its entities replaced; equal ones alike, whatever was ``met``."""
        return [tuple(withheld(self._replaced_all, unit.texts)) for unit in units]

    def stamp(self) -> dict[str, Any]:
        """What a sanitized message says of itself."""
        return {"private": False, "mechanism": self._mechanism}

    def mark(self, texts: Texts) -> str:
        """Keyed mark of public texts."""
        return hmac.new(self._key, json.dumps(texts).encode(), hashlib.sha256).hexdigest()

    def notes(self) -> tuple[str, ...]:
        """What passes in clear."""
        return (
            "Everything but the entities found passes in clear.",
            "Equal entities get equal placeholders, which tell the kind of entity.",
        )

    def certificate(self, notes: Sequence[str], parameters: Mapping[str, float | int | str]) -> MetricCertificate:
        """What is not promised, and why."""
        return MetricCertificate(
            mechanism=self._mechanism,
            eta=math.inf,
            table="none",
            private=False,
            reason=REASON,
            notes=tuple(notes),
            parameters=parameters,
        )

    def describe(self) -> str:
        """Public facts, for a repr."""
        return f"NOT PRIVATE: {self._mechanism}"

    @property
    def _mechanism(self) -> str:
        return f"placeholders for entities found by {self._finder.name}"

    def _replaced_all(self, texts: Sequence[str]) -> list[str]:
        return [self._replaced(text) for text in texts]

    def _replaced(self, text: str) -> str:
        spans = [(start, end, _label(kind)) for start, end, kind in self._finder.find(text)]
        spans += [(match.start(), match.end(), _ESCAPED) for match in _PLACEHOLDER.finditer(text)]
        out, position = [], 0
        for start, end, label in _apart(spans, len(text)):
            out += [text[position:start], self.map.placeholder(label, text[start:end])]
            position = end
        return "".join([*out, text[position:]])


def _label(kind: str) -> str:
    label = re.sub(r"[^A-Z0-9]+", "_", str(kind).upper()).strip("_")
    return label if label[:1].isalpha() else f"ENTITY_{label}".rstrip("_")


def _apart(spans: Iterable[tuple[int, int, str]], length: int) -> list[tuple[int, int, str]]:
    """Spans that overlap become one, under the kind of the longest; so no end of an entity stays in clear."""
    merged: list[tuple[int, int, str]] = []
    widest = 0
    for start, end, label in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not 0 <= start < end <= length:
            raise InvalidParameter(f"Expected entities inside the text, found one from {start} to {end} of {length}.")
        if merged and start < merged[-1][1]:
            first, last, kept = merged[-1]
            merged[-1] = (first, max(last, end), kept if widest >= end - start else label)
            widest = max(widest, end - start)
        else:
            merged.append((start, end, label))
            widest = end - start
    return merged
