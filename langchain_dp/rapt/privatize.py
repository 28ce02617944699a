"""Privatizes texts: every token passes through a mechanism of metric privacy on its own."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.accounting import MetricEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.isolation.context import sealed
from langchain_dp.isolation.filters import Level
from langchain_dp.mechanisms import MetricExponential, MetricLaplace
from langchain_dp.mechanisms.metric_exponential import CACHE_BYTES
from langchain_dp.mechanisms.metric_noise import checked_eta
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness
from langchain_dp.rapt import tokenize
from langchain_dp.rapt.tokenize import Kind
from langchain_dp.rapt.vocabulary import PAD, UNKNOWN, ForeignTokenizer, Vocabulary, table_name

Mechanism = Literal["laplace", "exponential"]
Keep = Sequence[str] | Callable[[str], bool]

_LISTED = 20  # kept words that a note names
_BLOCK = 8192  # tokens whose vectors are in memory together
_DRAWN = 8 * _BLOCK  # the same for the exponential mechanism, which reads the vectors of distinct words only

Treatment = Literal["privatize", "keep", "placeholder"]
_FIELDS: dict[Kind, tuple[str, str]] = {
    "number": ("numbers", "Numbers"),
    "date": ("dates", "Dates"),
    "url": ("urls", "Addresses (URLs and mail)"),
    "punctuation": ("punctuation", "Punctuation marks"),
    "code": ("code", "Code blocks"),
}


@dataclasses.dataclass(frozen=True)
class Policies:
    """Treatment of each kind of feature. By default only the number of tokens leaves in clear.

    "privatize" replaces a feature like a word (a number, date or address outside the vocabulary is an unknown word;
    code is privatized per token). "keep" passes it in clear. "placeholder" writes its kind in brackets, which reveals
    that such a feature is there and where.

    Args:
        numbers: Numbers, times and amounts.
        dates: Dates, in digits or with the English name of a month.
        urls: Addresses of pages and of mail.
        punctuation: Punctuation marks and symbols. Kept marks reveal the ends and lengths of sentences.
        code: Text between two fences, or in a line between two backticks without a letter beside them.
        unknown: "vector" gives every unknown word one public vector. "random" replaces it by a random public word: it
            then hides among unknown words only, and its distance to a known word is that to the farthest public word.
            Noise is added in both cases. An unknown word is never written out.

    Examples:
        >>> policies = Policies(numbers="placeholder", punctuation="keep")
        >>> RAPTSanitizer("glove", eta=4.0, policies=policies).invoke("At 9 pm!")  # such as "near [NUMBER] am!"
    """

    numbers: Treatment = "privatize"
    dates: Treatment = "privatize"
    urls: Treatment = "privatize"
    punctuation: Treatment = "privatize"
    code: Treatment = "privatize"
    unknown: Literal["vector", "random"] = "vector"

    def __post_init__(self) -> None:
        for field, _ in _FIELDS.values():
            validate.one_of(field, getattr(self, field), get_args(Treatment))
        validate.one_of("unknown", self.unknown, ("vector", "random"))

    def of(self, kind: Kind) -> Treatment:
        """Treatment of one kind of feature; words are always privatized."""
        return getattr(self, _FIELDS[kind][0]) if kind in _FIELDS else "privatize"  # type: ignore[no-any-return]

    @property
    def in_clear(self) -> bool:
        """Whether any kind of feature is kept or named."""
        return any(getattr(self, field) != "privatize" for field, _ in _FIELDS.values())

    def notes(self) -> tuple[str, ...]:
        """Facts for certificates: features in clear, and effects on the promise."""
        sentences = {
            "keep": "{} are passed through in clear.",
            "placeholder": "{} are replaced by a placeholder: that they are there, and where, is in clear.",
        }
        treated = [(name, getattr(self, field)) for field, name in _FIELDS.values()]
        notes = [sentences[treatment].format(name) for name, treatment in treated if treatment != "privatize"]
        if self.unknown == "random":
            notes.append(
                "A word outside the table is first replaced by a public word drawn at random: between it and a known "
                "word the distance is that to the farthest public word."
            )
        return tuple(notes)


@dataclasses.dataclass(frozen=True)
class PrivatizedText:
    """One privatized text.

    Args:
        text: Text that may leave.
        tokens: Number of privatized tokens, with pads. Each cost eta per unit of distance.
        kept: Number of features in clear by the user's choice, with placeholders.

    Examples:
        >>> [privatized] = privatizer.privatize(["Anna takes prednisone."])
        >>> privatized.text
    """

    text: str
    tokens: int
    kept: int


class TextPrivatizer:
    """Replaces every token of a text by a random word of a public vocabulary, near words more often.

    Args:
        vocabulary: Public table.
        eta: Privacy loss per unit of distance and token, at least 1e-9. Calibrate it: its scale depends on the table.
        mechanism: "laplace" adds noise to the token's vector and takes the nearest word. "exponential" draws a word by
            its distance, and keeps more meaning at the same eta.
        policies: Treatment of numbers, dates, addresses, marks, code and unknown words.
        keep: Words that stay in clear, compared in lower case, or a function that decides per feature.
        length: Fixed number of tokens and kept features of every output: shorter texts get privatized pads, longer ones
            are cut. By default the length of a text is in clear.
        casing: Whether to capitalize the replacement of a capitalized word. This puts the casing in clear.
        rng: Source of randomness; by default the operating system.
        threads: Threads to search with; by default one per processor.
        cache_bytes: Memory of the exponential mechanism for words seen before, at least 0; by default 32,000 words.
            Another word costs a pass over the table.

    Formal guarantee:
        For two texts that agree on what :meth:`notes` says is in clear (by default the number of tokens), the chance
        of any output changes by at most exp(eta * sum_i |x_i - x'_i|), x_i the public vector of token i. All unknown
        words have the same vector, except under ``Policies(unknown="random")``: there |x_i - x'_i| is 0 between two
        unknown words, and between an unknown and a known one the distance of that to the farthest word that may be
        written. Privatizing the same text k times costs k times as much. This is metric privacy: eta is not an epsilon,
        and close words are protected more than far ones.

    Examples:
        >>> privatizer = TextPrivatizer(load("glove"), eta=4.0, mechanism="exponential")
        >>> [privatized] = privatizer.privatize(["Anna takes prednisone."])
        >>> privatized.tokens  # three words and the full stop
        4
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        eta: float,
        *,
        mechanism: Mechanism = "laplace",
        policies: Policies = Policies(),  # frozen
        keep: Keep = (),
        length: int | None = None,
        casing: bool = False,
        rng: Randomness | None = None,
        threads: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        validate.instance("vocabulary", vocabulary, Vocabulary, "a Vocabulary", "Give load('glove').")
        self.vocabulary = vocabulary
        self.event = event = MetricEvent(checked_eta(eta))
        self.eta = event.eta
        self.mechanism: Mechanism = validate.one_of("mechanism", mechanism, get_args(Mechanism))
        self.policies = policies
        self.length = None if length is None else validate.integer("length", length, at_least=1)
        self.pads = length is not None
        self.threads = None if threads is None else validate.integer("threads", threads, at_least=1)
        self.casing = validate.one_of("casing", casing, (True, False))
        if casing:
            vocabulary.surfaces("")  # raises if the tokenizer does not know them
        self._rng = rng or SystemRandomness()
        self.private = self._rng.private
        self._words: MetricLaplace | MetricExponential = (
            MetricLaplace(event, vocabulary.table, threads=self.threads)
            if mechanism == "laplace"
            else MetricExponential(event, vocabulary.table, cache_bytes=cache_bytes, threads=self.threads)
        )
        self._keep = keep if callable(keep) else _kept_words(keep)
        # A function has no lasting name, so no release under it is reused.
        self._named_keep = secrets.token_hex(16) if callable(keep) else sorted(keep)
        code = policies.code != "privatize"  # a feature of many tokens
        self.streams = not (self.pads or code or isinstance(vocabulary.tokenizer, ForeignTokenizer))
        self._all_privatized = not (policies.in_clear or self._keep)

    @functools.cached_property
    def table(self) -> str:
        """Name of the metric: the table of word vectors."""
        return table_name(self.vocabulary)

    @functools.cached_property
    def _law(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "mechanism": self.mechanism,
            "policies": repr(self.policies),
            "keep": self._named_keep,
            "length": self.length,
            "casing": self.casing,
            "table's rest": _rest(self.vocabulary),
        }

    @functools.cached_property
    def settings(self) -> str:
        """Every public value that the distribution of a release depends on."""
        return json.dumps({**self._law, "eta": repr(self.eta)}, sort_keys=True)

    @functools.cached_property
    def treatment(self) -> str:
        """Short digest of :attr:`settings` without eta."""
        return hashlib.sha256(json.dumps(self._law, sort_keys=True).encode()).hexdigest()[:16]

    def notes(self) -> tuple[str, ...]:
        """Facts for certificates: everything that passes in clear."""
        notes = list(self.policies.notes())
        if self.length is None:
            notes.append("The number of tokens of every text is in clear.")
        else:
            notes.append(f"Every text is filled up or cut to {self.length} tokens; what is cut is lost.")
        if callable(self._keep):
            notes.append("Words for which the function keep= says so are passed through in clear.")
        elif self._keep:
            listed = ", ".join(sorted(self._keep)[:_LISTED]) + (", ..." if len(self._keep) > _LISTED else "")
            notes.append(f"{len(self._keep)} chosen words are passed through in clear: {listed}.")
        if self.casing:
            notes.append("Capital letters are in clear: where they stood, they stand.")
        if not self.private:
            notes.append("The noise is seeded: whoever knows the seed can remove it. NOT private.")
        return tuple(notes)

    def privatize(self, texts: Sequence[str]) -> list[PrivatizedText]:
        """Privatize texts, each token with its own noise. Return one result per text, in order."""
        return self.prepare(texts)()

    def prepare(self, texts: Sequence[str]) -> Callable[[], list[PrivatizedText]]:
        """Do all work of :meth:`privatize` that can fail on a text. Return a function that draws the words.

        Charge in between, so that a text that cannot be cut costs nothing.
        """
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise InvalidParameter(
                f"Expected texts of type {type(texts).__name__} to be a list of strings. Give [text]."
            )
        parsed = [self._parse(number, text) for number, text in enumerate(texts)]
        ids = np.fromiter((i for items in parsed for i in items.ids), dtype=np.int64)

        def draw() -> list[PrivatizedText]:
            released = self.release(ids)
            results, start = [], 0
            for items in parsed:
                words = released[start : start + len(items.ids)].tolist()
                text = tokenize.join(self._pieces(items, words))
                results.append(PrivatizedText(text, tokens=len(words), kept=len(items.literals)))
                start += len(words)
            return results

        return draw

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """:meth:`prepare` for the texts alone."""
        draw = self.prepare(texts)
        return lambda: [released.text for released in draw()]

    def release(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Privatize token ids: one released id per given one.

        Args:
            ids: Ids of the vocabulary; -1 for an unknown word and -2 for a pad.
        """
        ids = np.array(ids, dtype=np.int64)
        if ids.ndim != 1 or (len(ids) and (ids.min() < PAD or ids.max() >= len(self.vocabulary))):
            raise InvalidParameter(f"Expected ids to be a row of numbers from {PAD} to {len(self.vocabulary) - 1}.")
        if self.policies.unknown == "random":
            choices = np.flatnonzero(self.vocabulary.allowed)
            for place in np.flatnonzero(ids == UNKNOWN):
                ids[place] = choices[self._rng.randbelow(len(choices))]
        points, words = self.vocabulary.points, self._words
        step = _BLOCK if isinstance(words, MetricLaplace) else _DRAWN
        for start in range(0, len(ids), step):
            block = ids[start : start + step]
            if isinstance(words, MetricLaplace):
                block[:] = words.release(points(block), rng=self._rng)
            else:
                block[:] = words.release(block, points, rng=self._rng)
        return ids

    def _parse(self, number: int, text: str) -> Items:
        if not isinstance(text, str):
            raise InvalidParameter(f"Expected texts[{number}] of type {type(text).__name__} to be a string.")
        text = tokenize.clean(text)
        items = Items()
        start = 0
        for begin, end, literal in [*self._literals(text), (len(text), len(text), None)]:
            part = text[start:begin]
            if part and not part.isspace():
                items.ids += self.vocabulary.encode(part)
                if self.casing:
                    items.surfaces += self.vocabulary.surfaces(part)
            if literal is not None:
                items.literals.append((len(items.ids), literal))
            start = end
        if self.length is not None:
            items.fit(self.length, cased=self.casing)
        return items

    def _literals(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Start, end and output of each feature that is not privatized."""
        for feature in () if self._all_privatized else tokenize.features(text, code=self.policies.code != "privatize"):
            clear = self._in_clear(feature.kind, text[feature.start : feature.end])
            if clear is not None:
                yield feature.start, feature.end, clear

    def _in_clear(self, kind: Kind, surface: str) -> str | None:
        """Text of a feature that is not privatized, or None."""
        treatment = self.policies.of(kind)
        if treatment == "placeholder":
            return f"[{kind.upper()}]"
        if treatment == "keep":
            return surface
        if not callable(self._keep):
            return surface if tokenize.normal(surface) in self._keep else None
        try:
            with sealed(Level.QUIET):  # the function may call a model
                return surface if self._keep(surface) else None
        except Exception as error:
            failure = type(error).__name__
        # Raised outside: text and context of the error may hold the word.
        raise InvalidParameter(f"Expected keep= to answer for every word, but it raised {failure}.")

    def pieces(self, text: str) -> list[str]:
        """Privatize a part of a text, as pieces for ``langchain_dp.rapt.tokenize.join``.

        Parts that no feature crosses, privatized in turn and joined, have the distribution of the whole text privatized
        at once; not under ``length``, which counts the whole.
        """
        items = self._parse(0, text)
        return self._pieces(items, self.release(np.array(items.ids, dtype=np.int64)).tolist())

    def _pieces(self, items: Items, released: list[int]) -> list[str]:
        pieces: list[str] = []
        start = 0
        for end, literal in [*items.literals, (len(released), None)]:
            words = self.vocabulary.decode(released[start:end])
            if self.casing:
                words = [tokenize.cased(*pair) for pair in zip(words, items.surfaces[start:end], strict=True)]
            pieces += words
            if literal is not None:
                pieces.append(literal)
            start = end
        return pieces


@dataclasses.dataclass(repr=False)
class Items:
    """A parsed text: ids to privatize, and literals with the number of ids before them. Private."""

    ids: list[int] = dataclasses.field(default_factory=list)
    surfaces: list[str] = dataclasses.field(default_factory=list)
    literals: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def fit(self, length: int, *, cased: bool) -> None:
        """Cut or pad to this many tokens and literals together."""
        # `place` ids and k literals precede literal number k.
        self.literals = [(place, text) for k, (place, text) in enumerate(self.literals) if place + k < length]
        room = length - len(self.literals)
        del self.ids[room:], self.surfaces[room:]
        missing = room - len(self.ids)
        self.ids += [PAD] * missing
        self.surfaces += [""] * (missing if cased else 0)


def _kept_words(keep: Sequence[str]) -> frozenset[str]:
    if isinstance(keep, str) or not isinstance(keep, Collection) or not all(isinstance(word, str) for word in keep):
        raise InvalidParameter("Expected keep= to be a list of words, or a function. Give ['word'].")
    for word in keep:
        if len(list(tokenize.features(word))) != 1:
            raise InvalidParameter(
                f"Expected keep={word!r} to be one word each. Give the words of a phrase one by one."
            )
    return frozenset(map(tokenize.normal, keep))


def _rest(vocabulary: Vocabulary) -> str:
    """Digest of the other facts of a table: tokenizer, special vectors, words that are never written."""
    cuts = vocabulary.tokenizer.embeds if isinstance(vocabulary.tokenizer, ForeignTokenizer) else vocabulary.tokenizer
    digest = hashlib.sha256(f"{type(cuts).__module__}.{type(cuts).__qualname__} {sorted(vocabulary.never)}".encode())
    for special in (vocabulary.unknown, vocabulary.pad):
        digest.update(np.ascontiguousarray(special).tobytes())
    return digest.hexdigest()
