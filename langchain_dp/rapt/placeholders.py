"""Replaces the entities that recognizers find by placeholders, and puts them back. Promises nothing formal.

What recognizers miss, and everything else, passes in clear. Every certificate of this mode is ``private=False``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
import json
import math
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable
from urllib.parse import quote

from langchain_dp._util import forks
from langchain_dp._util.words import standing_alone, words_of
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.isolation.context import sealed
from langchain_dp.isolation.filters import Level
from langchain_dp.rapt.addresses import BEGINS, PLACEHOLDER, TOKEN, AddressScanner, addresses, checked_hosts
from langchain_dp.rapt.folding import Span, caseless, fold, merged, united
from langchain_dp.rapt.release import FormalReleases, Texts, Unit
from langchain_dp.redact import PrivateArgs, run_redacted

REASON = "entities are found by a recognizer, which misses some, and all other text passes in clear"

_FOLDED = {"PERSON", "LOCATION", "ORGANIZATION", "EMAIL", "TERM"}
_SPACED = {"PHONE", "IBAN", "CREDIT_CARD"}
_AROUND = re.compile(r"(<[A-Z][A-Z0-9_]*_[1-9][0-9]*>)")
ESCAPED = "LITERAL"
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


Entry = tuple[str, str, str]
"""Kind, original and placeholder. Private."""


def alike(label: str, original: str) -> str:
    """What is equal for spellings of one entity: spaces of names and of numbers, and the case of names.

    Names are compared without their kind, as recognizers change their mind about it.
    """
    if label == ESCAPED:
        return f"{label}\0{original}"
    form = fold(original)
    if label in _FOLDED:
        return f"\0{form.lower()}"
    if label in _SPACED:
        return f"{label}\0{re.sub(r'[^0-9A-Za-z+]', '', form).upper()}"
    return f"{label}\0{form}"


class PlaceholderMap:
    """Which placeholder stands for what. Private: it stays in this process and is shown to nobody."""

    def __init__(self, allowed_hosts: Collection[str] = ()) -> None:
        self._lock = threading.Lock()
        forks.keep_still(self)
        self._placeholders: dict[str, str] = {}
        self._entries: dict[str, Entry] = {}
        self._counts: Counter[str] = Counter()
        self._beginnings: set[str] = set()
        self._allowed_hosts = checked_hosts(allowed_hosts)
        self._left: set[str] = set()
        self._known: dict[tuple[str, str], tuple[str, frozenset[str] | None]] = {}
        self._looked = 0  # entries that were looked at for the line above

    def placeholder(self, label: str, original: str) -> str:
        """The placeholder of one entity; the same for equal entities of one kind."""
        same = alike(label, original)
        with self._lock:
            found = self._placeholders.get(same)
            if found is None:
                self._counts[label] += 1
                found = f"<{label}_{self._counts[label]}>"
                self._placeholders[same] = found
                self._add(label, original, found)
            return found

    def _add(self, label: str, original: str, placeholder: str) -> None:
        self._entries[placeholder] = (label, original, placeholder)
        self._beginnings.update(placeholder[:length] for length in range(1, len(placeholder)))

    def learn(self, entries: Iterable[Entry]) -> None:
        """Take over what was kept elsewhere. What is known of the same placeholders already gives way to it."""
        with self._lock:
            for label, original, placeholder in entries:
                match = PLACEHOLDER.fullmatch(placeholder)
                known = self._entries.get(placeholder)
                if known is not None:
                    self._placeholders.pop(alike(known[0], known[1]), None)
                self._placeholders[alike(label, original)] = placeholder
                self._add(label, original, placeholder)
                self._counts[label] = max(self._counts[label], int(match[2]) if match else 0)
            self._known, self._looked = {}, 0

    def entries(self) -> list[Entry]:
        """Everything in it, oldest first. Private."""
        with self._lock:
            return list(self._entries.values())

    def counts(self) -> dict[str, int]:
        """How many different entities of each kind it holds."""
        with self._lock:
            return dict(Counter(label for label, _, _ in self._entries.values()))

    def again(self, text: str) -> list[Span]:
        """Where in ``text`` originals stand that are known already, as whole words: of three characters, or two letters
        of writing that puts no spaces between words, at least.

        In any letters, small or capital; a single word as it was met and in capitals only: "will" is seldom Will.
        """
        with self._lock:
            for kind, original, _ in itertools.islice(self._entries.values(), self._looked, None):
                form = fold(original)
                if kind != ESCAPED and (len(form) > 2 or len(words_of(form)) > 1):
                    written = frozenset((form, form.upper())) if form.isalpha() else None
                    self._known[caseless(form).text, form if written else ""] = kind, written
            self._looked = len(self._entries)
            known = list(self._known.items())
        copy = caseless(text)
        found = []
        for (word, _), (kind, written) in known:
            for place in standing_alone(word, copy.text):
                start, end = copy.span(*place)
                if written is None or text[start:end] in written:
                    found.append((start, end, kind))
        return found

    def begins(self, start: str) -> bool:
        """Whether a placeholder in it begins with ``start`` and is longer."""
        return start in self._beginnings

    def restore(
        self,
        text: str,
        shown: Callable[[str], str] = str,
        *,
        scanner: AddressScanner | None = None,
        value: bool = False,
    ) -> str:
        """Put back what the placeholders in ``text`` stand for; unknown ones stay, and those in addresses of others.

        Args:
            text: The text, or a piece of it.
            shown: Writes an original, such as with escapes.
            scanner: Follows a text that comes in pieces.
            value: Whether the text is a value by itself, as an argument of a tool is.
        """
        if scanner is None:
            if "<" not in text:
                return text
            scanner = AddressScanner(value=value)
        out = []
        for match in TOKEN.finditer(text):
            token = seen = match[0]
            entry = self._entries.get(token) if match[1] else None
            if entry is not None and scanner.begins is None:
                out.append(shown(entry[1]))
                if BEGINS.match(entry[1]):
                    seen = entry[1]  # what is attached to it is a part of that address
            elif entry is not None and scanner.host() in self._allowed_hosts:
                out.append(shown(quote(entry[1], safe="")))
            else:
                out.append(token)
                if entry is not None:
                    self._left.add(token)
            scanner.push(seen, len(token))
        return "".join(out)

    @property
    def left_in_addresses(self) -> int:
        """How many placeholders stayed in addresses, each counted once."""
        return len(self._left)

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
        kept: The map to fill. Originals in it are replaced wherever they stand, found once more or not.
        hidden: Whether texts went through here before: placeholders of the map then stay as they are.
        remaining_text_sanitizer: Releases the words between the placeholders; None: they pass in clear.
    """

    def __init__(
        self,
        finder: FindsEntities,
        kept: PlaceholderMap,
        *,
        hidden: bool,
        remaining_text_sanitizer: FormalReleases | None,
    ) -> None:
        self._finder = finder
        self._key = secrets.token_bytes(32)
        self._hidden = hidden
        self._then = remaining_text_sanitizer
        self.map = kept

    def streams(self, document: str | None) -> bool:
        """Never: an entity may begin in any piece of a text."""
        return False

    def release(self, units: Sequence[Unit], seen: Counter[str] | None = None) -> list[Texts]:
        """Return every unit with its entities replaced, and its other words released, charged in one go."""
        hidden: list[Texts] = [
            run_redacted(lambda *texts: (*map(self._replaced, texts),), PrivateArgs(*unit.texts)) for unit in units
        ]
        if self._then is None:
            return hidden
        cut = [[_AROUND.split(text) for text in texts] for texts in hidden]  # other text and placeholders in turn
        rests = [
            dataclasses.replace(unit, texts=tuple(rest for parts in cuts for rest in parts[::2]))
            for unit, cuts in zip(units, cut, strict=True)
        ]
        whole = []
        for cuts, texts in zip(cut, self._then.release(rests, seen), strict=True):
            left = iter(texts)
            for parts in cuts:
                parts[::2] = [next(left) for _ in parts[::2]]
            whole.append(tuple(" ".join(filter(None, parts)) for parts in cuts))
        return whole

    def stamp(self) -> dict[str, Any]:
        """What a sanitized message says of itself."""
        return {"private": False, "mechanism": self._mechanism}

    def mark(self, texts: Texts) -> str:
        """Keyed mark of public texts."""
        return hmac.new(self._key, json.dumps(texts).encode(), hashlib.sha256).hexdigest()

    def notes(self) -> tuple[str, ...]:
        """What passes in clear."""
        if self._then is not None:
            return (
                "How many entities were found, of which kinds, between which words, and which of them are equal is in "
                "clear, and so is what was missed, but for what the sanitizer of the other words promises.",
            )
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

    @property
    def _mechanism(self) -> str:
        return f"placeholders for entities found by {self._finder.name}"

    def _replaced(self, text: str) -> str:
        stay = [(start, end) for start, end, _ in united(text, self._own)] if self._hidden and "_" in text else []
        found = [(start, end, label_of(kind)) for start, end, kind in united(text, self._found)]
        if outside := [span for span in found if not 0 <= span[0] < span[1] <= len(text)]:
            start, end, _ = min(outside)
            raise InvalidParameter(
                f"Expected entities inside the text, found one from {start} to {end} of {len(text)}."
            )
        out, position = [], 0
        for start, end, label in _around(stay, _whole_addresses(merged(found), text)):
            out += [text[position:start], self.map.placeholder(label, text[start:end])]
            position = end
        return "".join([*out, text[position:]])

    def _found(self, text: str) -> list[Span]:
        """Entities in one reading of a text, and what looks like a placeholder."""
        with sealed(Level.QUIET):  # a recognizer may ask a model, which no callback is told of
            found = [*self._finder.find(text)]
        return [*found, *self.map.again(text), *((*match.span(), ESCAPED) for match in PLACEHOLDER.finditer(text))]

    def _own(self, text: str) -> list[Span]:
        return [(*match.span(), ESCAPED) for match in PLACEHOLDER.finditer(text) if match[0] in self.map]


def _around(stay: Iterable[tuple[int, int]], spans: Iterable[Span]) -> Iterator[Span]:
    """Spans, in order, without the placeholders that stay."""
    places = sorted(stay)
    for start, end, label in spans:
        while places and places[0][1] <= start:
            places.pop(0)
        for first, last in places:
            if first >= end:
                break
            if first > start:
                yield start, first, label
            start = max(start, last)
        if start < end:
            yield start, end, label


def _whole_addresses(spans: list[Span], text: str) -> list[Span]:
    """Spans, of which one in an address is the whole address: a placeholder in an address would not be put back."""
    touched = []
    number = 0
    for start, end in addresses(text) if spans else ():
        while number < len(spans) and spans[number][1] <= start:
            number += 1
        if number < len(spans) and spans[number][0] < end:
            touched.append((start, end, "URL"))
    return merged([*spans, *touched]) if touched else spans


def label_of(kind: str) -> str:
    """A kind as placeholders write it."""
    label = re.sub(r"[^A-Z0-9]+", "_", str(kind).upper()).strip("_")
    return label if label[:1].isalpha() else f"ENTITY_{label}".rstrip("_")
