"""The mode without a formal promise: entities that a recognizer finds become placeholders, and can be put back.

What the recognizer misses, and everything else, passes in clear. Useful where a formal promise would cost too much
meaning, and said to be what it is: every certificate of this mode is ``private=False``.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import math
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

from langchain_dp._util import forks
from langchain_dp._util.words import alone, one_form, words_of, written
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.quiet.context import sealed
from langchain_dp.quiet.filters import Level
from langchain_dp.rapt.release import Texts, Unit
from langchain_dp.redact import Held, redacted

REASON = "entities are found by a recognizer, which misses some, and all other text passes in clear"

PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9_]*)_([1-9][0-9]*)>")
ESCAPED = "LITERAL"
"""Label of what already looked like a placeholder before anything was replaced."""


def as_read(text: str) -> str:
    """A text as recognizers read it, mark for mark: ends of lines that are written as in JSON are blanks.

    To a pattern, their letter would be part of the word behind it.
    """
    return re.sub(r"\\[nrt]", "  ", text)


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


Entry = tuple[str, str, str]
"""Kind, original and placeholder. Private."""


def exactly(label: str, original: str) -> str:
    """Only equal entities of one kind are the same."""
    return f"{label}\0{original}"


class PlaceholderMap:
    """Which placeholder stands for what. Private: it stays in this process and is shown to nobody.

    Args:
        same: Makes of a kind and an entity what is equal for those that share a placeholder.
    """

    def __init__(self, same: Callable[[str, str], str] = exactly) -> None:
        self._lock = threading.Lock()
        forks.keep_still(self)
        self._same = same
        self._placeholders: dict[str, str] = {}
        self._entries: dict[str, Entry] = {}
        self._counts: Counter[str] = Counter()
        self._patterns: dict[str, tuple[str, re.Pattern[str]]] = {}
        self._compiled = 0  # entries of which there is a pattern, if they need one

    def placeholder(self, label: str, original: str) -> str:
        """The placeholder of one entity; the same for equal entities of one kind."""
        same = self._same(label, original)
        with self._lock:
            found = self._placeholders.get(same)
            if found is None:
                self._counts[label] += 1
                found = f"<{label}_{self._counts[label]}>"
                self._placeholders[same] = found
                self._entries[found] = (label, original, found)
            return found

    def learn(self, entries: Iterable[Entry]) -> None:
        """Take over what was kept elsewhere. What is known of the same placeholders already gives way to it."""
        with self._lock:
            for label, original, placeholder in entries:
                match = PLACEHOLDER.fullmatch(placeholder)
                known = self._entries.get(placeholder)
                if known is not None:
                    self._placeholders.pop(self._same(known[0], known[1]), None)
                self._placeholders[self._same(label, original)] = placeholder
                self._entries[placeholder] = (label, original, placeholder)
                self._counts[label] = max(self._counts[label], int(match[2]) if match else 0)
            self._patterns, self._compiled = {}, 0

    def entries(self) -> list[Entry]:
        """Everything in it, oldest first. Private."""
        with self._lock:
            return list(self._entries.values())

    def counts(self) -> dict[str, int]:
        """How many different entities of each kind it holds."""
        with self._lock:
            return dict(Counter(label for label, _, _ in self._entries.values()))

    def again(self, text: str) -> list[tuple[int, int, str]]:
        """Where in ``text`` originals stand that are known already, as whole words: of three characters, or two letters
        of writing that puts no spaces between words, at least.

        In any letters, small or capital; a single word as it was met and in capitals only: "will" is seldom Will.
        """
        text = as_read(text)
        with self._lock:
            for kind, one, _ in itertools.islice(self._entries.values(), self._compiled, None):
                one = as_read(one).strip()
                if kind != ESCAPED and (len(one) > 2 or len(words_of(one)) > 1):
                    self._patterns[one] = kind, re.compile(_said(one))
            self._compiled = len(self._entries)
            known = list(self._patterns.values())
        return [(*place, kind) for kind, pattern in known for place in alone(pattern, text)]

    def begins(self, start: str) -> bool:
        """Whether a placeholder in it begins with ``start`` and is longer."""
        with self._lock:
            return any(one.startswith(start) and len(one) > len(start) for one in self._entries)

    def restore(self, text: str, shown: Callable[[str], str] = str) -> str:
        """Put back what the placeholders in ``text`` stand for; unknown ones stay. ``shown`` may escape originals."""
        with self._lock:
            entries = self._entries
            return PLACEHOLDER.sub(lambda match: shown(entries[match[0]][1]) if match[0] in entries else match[0], text)

    def __contains__(self, placeholder: object) -> bool:
        return placeholder in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return "PlaceholderMap(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("A PlaceholderMap holds private text and cannot be pickled or copied.")


class PlaceholderReleases:
    """Replaces entities by placeholders. Charges nothing, because nothing formal is promised.

    Args:
        finder: Finds the entities.
        kept: The map to fill; None: one of its own.
        again: Whether what is in the map is replaced wherever it stands, found once more or not.
        hidden: Whether texts went through here before: placeholders of the map then stay as they are.
    """

    def __init__(
        self, finder: FindsEntities, kept: PlaceholderMap | None = None, *, again: bool = False, hidden: bool = False
    ) -> None:
        self._finder = finder
        self._key = secrets.token_bytes(32)
        self._again = again
        self._hidden = hidden
        self.map = PlaceholderMap() if kept is None else kept

    def streams(self, document: str | None) -> bool:
        """Never: an entity may begin in any piece of a text."""
        return False

    def idle_limit(self, *, user: bool) -> None:
        """There is no account, and so no limit."""

    def release(self, units: Sequence[Unit], met: Counter[str] | None = None) -> list[Texts]:
        """Return every unit with its entities replaced; equal ones alike, whatever was ``met``."""
        return [tuple(redacted(self._replaced_all, Held(unit.texts))) for unit in units]

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
        written = [(match.start(), match.end(), match[0]) for match in PLACEHOLDER.finditer(text)]
        stay = [(start, end) for start, end, one in written if self._hidden and one in self.map]
        with sealed(Level.QUIET):  # a recognizer may ask a model, which no callback is told of
            found = list(self._finder.find(as_read(text)))
        spans = [(start, end, label_of(kind)) for start, end, kind in found]
        spans += self.map.again(text) if self._again else []
        spans += [(start, end, ESCAPED) for start, end, _ in written]
        for first, last in stay:
            spans = [span for span in spans if span[1] <= first or last <= span[0]]
        out, position = [], 0
        for start, end, label in _apart(spans, len(text)):
            out += [text[position:start], self.map.placeholder(label, text[start:end])]
            position = end
        return "".join([*out, text[position:]])


def _said(original: str) -> str:
    """A pattern of an original in the letters in which it may stand."""
    if not one_form(original).isalpha():
        return f"(?i:{written(original)})"
    return "|".join(written(form) for form in dict.fromkeys((original, original.upper())))


def label_of(kind: str) -> str:
    """A kind as placeholders write it."""
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
