"""Replaces recognized entities by placeholders, and restores them. No formal privacy."""

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

_FOLDED = {"PERSON", "LOCATION", "ADDRESS", "ORGANIZATION", "EMAIL", "TERM"}
_SPACED = {"PHONE", "IBAN", "CREDIT_CARD"}
_AROUND = re.compile(r"(<[A-Z][A-Z0-9_]*_[1-9][0-9]*>)")
ESCAPED = "LITERAL"
"""Label of raw text like a placeholder."""


@runtime_checkable
class FindsEntities(Protocol):
    """Finds entities to hide."""

    @property
    def name(self) -> str: ...

    def find(self, text: str) -> Sequence[tuple[int, int, str]]:
        """Return start, end and kind of every entity in ``text``. They may overlap."""


Entry = tuple[str, str, str]
"""Kind, original, placeholder. Private."""


def alike(label: str, original: str) -> str:
    """Return an entity's normal form. Names have no kind: recognizers change it."""
    if label == ESCAPED:
        return f"{label}\0{original}"
    form = fold(original)
    if label in _FOLDED:
        return f"\0{form.lower()}"
    if label in _SPACED:
        return f"{label}\0{re.sub(r'[^0-9A-Za-z+]', '', form).upper()}"
    return f"{label}\0{form}"


class PlaceholderMap:
    """Maps entities to placeholders. Private."""

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
        self._looked = 0  # number of entries in ``_known``

    def placeholder(self, label: str, original: str) -> str:
        form = alike(label, original)
        with self._lock:
            placeholder = self._placeholders.get(form)
            if placeholder is None:
                self._counts[label] += 1
                placeholder = self._placeholders[form] = f"<{label}_{self._counts[label]}>"
                self._add(label, original, placeholder)
            return placeholder

    def _add(self, label: str, original: str, placeholder: str) -> None:
        self._entries[placeholder] = (label, original, placeholder)
        self._beginnings.update(placeholder[:length] for length in range(1, len(placeholder)))

    def learn(self, entries: Iterable[Entry]) -> None:
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

    def forget(self, original: str) -> list[str]:
        """Drop an entity and return its placeholders, whose numbers stay taken."""
        with self._lock:
            known = list(self._entries.values())
            found = [entry for entry in known if alike(entry[0], entry[1]) == alike(entry[0], original)]
            for label, held, placeholder in found:
                del self._entries[placeholder]
                self._placeholders.pop(alike(label, held), None)
            self._known, self._looked = {}, 0
            return [placeholder for _, _, placeholder in found]

    def skip(self, placeholder: str) -> None:
        """Take this placeholder's number."""
        if match := PLACEHOLDER.fullmatch(placeholder):
            self._counts[match[1]] = max(self._counts[match[1]], int(match[2]))

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries.values())

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(Counter(label for label, _, _ in self._entries.values()))

    def again(self, text: str) -> list[Span]:
        """Find known originals in ``text``, as whole words of at least three characters, or two of writing without
        spaces.

        A single word is found as it was met and in capitals, others in any case.
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
        spans = []
        for (word, _), (kind, written) in known:
            for place in standing_alone(word, copy.text):
                start, end = copy.span(*place)
                if written is None or text[start:end] in written:
                    spans.append((start, end, kind))
        return spans

    def begins(self, start: str) -> bool:
        return start in self._beginnings

    def restore(
        self, text: str, show: Callable[[str], str] = str, *, scanner: AddressScanner | None = None, value: bool = False
    ) -> str:
        """Replace known placeholders by originals, except in addresses of hosts that are not allowed."""
        if scanner is None:
            if "<" not in text:
                return text
            scanner = AddressScanner(value=value)
        out = []
        for match in TOKEN.finditer(text):
            token = seen = match[0]
            entry = self._entries.get(token) if match[1] else None
            if entry is not None and scanner.begins is None:
                out.append(show(entry[1]))
                if BEGINS.match(entry[1]):
                    seen = entry[1]  # attached text is a part of that address
            elif entry is not None and scanner.host() in self._allowed_hosts:
                out.append(show(quote(entry[1], safe="")))
            else:
                out.append(token)
                if entry is not None:
                    self._left.add(token)
            scanner.push(seen, len(token))
        return "".join(out)

    @property
    def left_in_addresses(self) -> int:
        return len(self._left)

    def __contains__(self, placeholder: object) -> bool:
        return placeholder in self._entries

    def __repr__(self) -> str:
        return "PlaceholderMap(<private>)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("A PlaceholderMap holds private text and cannot be pickled or copied.")


class PlaceholderReleases:
    """Replaces entities by placeholders, without a charge, because nothing formal is promised.

    Under ``hidden``, placeholders of ``kept`` stay. ``rest`` releases the words between.
    """

    def __init__(
        self, finder: FindsEntities, kept: PlaceholderMap, *, hidden: bool, rest: FormalReleases | None
    ) -> None:
        self._finder = finder
        self._key = secrets.token_bytes(32)
        self._hidden = hidden
        self._rest = rest
        self.map = kept

    def release(self, units: Sequence[Unit], seen: Counter[str] | None = None) -> list[Texts]:
        """Replace the entities of every unit, and release other words under one charge."""
        hidden: list[Texts] = [
            run_redacted(lambda *texts: (*map(self._replaced, texts),), PrivateArgs(*unit.texts)) for unit in units
        ]
        if self._rest is None:
            return hidden
        # Other text and placeholders alternate.
        cuts = [[_AROUND.split(text) for text in texts] for texts in hidden]
        rests = [
            dataclasses.replace(unit, texts=tuple(rest for parts in texts for rest in parts[::2]))
            for unit, texts in zip(units, cuts, strict=True)
        ]
        whole = []
        for texts, released in zip(cuts, map(iter, self._rest.release(rests, seen)), strict=True):
            for parts in texts:
                parts[::2] = [next(released) for _ in parts[::2]]
            whole.append(tuple(" ".join(filter(None, parts)) for parts in texts))
        return whole

    def stamp(self) -> dict[str, Any]:
        return {"private": False, "mechanism": self._mechanism}

    def mark(self, texts: Texts) -> str:
        return hmac.new(self._key, json.dumps(texts).encode(), hashlib.sha256).hexdigest()

    def notes(self) -> tuple[str, ...]:
        if self._rest is not None:
            return (
                "The number and kinds of entities, the words between them and their equality are in clear. So are "
                "missed entities, except for the promise of the sanitizer of the other words.",
            )
        return (
            "Everything but the entities found passes in clear.",
            "Equal entities get equal placeholders, which tell the kind of entity.",
        )

    def certificate(self, notes: Sequence[str], parameters: Mapping[str, float | int | str]) -> MetricCertificate:
        return MetricCertificate(
            mechanism=self._mechanism, eta=math.inf, table="none", private=False, reason=REASON, notes=tuple(notes),
            parameters=parameters,
        )  # fmt: skip

    @property
    def _mechanism(self) -> str:
        return f"placeholders for entities found by {self._finder.name}"

    def _replaced(self, text: str) -> str:
        stay = [(start, end) for start, end, _ in united(text, self._own)] if self._hidden and "_" in text else []
        spans = [(start, end, label_of(kind)) for start, end, kind in united(text, self._find)]
        if outside := [span for span in spans if not 0 <= span[0] < span[1] <= len(text)]:
            start, end, _ = min(outside)
            raise InvalidParameter(
                f"Expected entities inside the text, found one from {start} to {end} of {len(text)}."
            )
        out, position = [], 0
        for start, end, label in _around(stay, _whole_addresses(merged(spans), text)):
            out += [text[position:start], self.map.placeholder(label, text[start:end])]
            position = end
        return "".join([*out, text[position:]])

    def _find(self, text: str) -> list[Span]:
        with sealed(Level.QUIET):  # a recognizer may call a model, hidden from callbacks
            entities = [*self._finder.find(text)]
        return [*entities, *self.map.again(text), *((*match.span(), ESCAPED) for match in PLACEHOLDER.finditer(text))]

    def _own(self, text: str) -> list[Span]:
        return [(*match.span(), ESCAPED) for match in PLACEHOLDER.finditer(text) if match[0] in self.map]


def _around(stay: Iterable[tuple[int, int]], spans: Iterable[Span]) -> Iterator[Span]:
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
    """Widen spans to whole addresses, inside which nothing is restored."""
    touched = []
    number = 0
    for start, end in addresses(text) if spans else ():
        while number < len(spans) and spans[number][1] <= start:
            number += 1
        if number < len(spans) and spans[number][0] < end:
            touched.append((start, end, "URL"))
    return merged([*spans, *touched]) if touched else spans


def label_of(kind: str) -> str:
    label = re.sub(r"[^A-Z0-9]+", "_", str(kind).upper()).strip("_")
    return label if label[:1].isalpha() else f"ENTITY_{label}".rstrip("_")
