"""Texts in, privatized texts out: every token goes through a mechanism of metric privacy on its own."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
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

_LISTED = 20  # kept words that a note names before it only counts
_BLOCK = 8192  # tokens whose vectors are in memory together
_DRAWN = 8 * _BLOCK  # tokens drawn together by the other mechanism, which asks for the vectors of distinct words alone


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
    """How each kind of feature is treated. By default nothing but the number of tokens leaves in clear.

    "privatize" replaces it like a word (a number, date or address that the vocabulary does not hold is an unknown
    word; code is privatized token by token). "keep" passes it through in clear. "placeholder" writes its kind in
    brackets, which tells that such a feature stands there and where.

    Args:
        numbers: Numbers, times and amounts.
        dates: Dates, in digits or with the English name of a month.
        urls: Addresses of pages and of mail.
        punctuation: Punctuation marks and symbols. Kept marks show where sentences end and how long they are.
        code: Blocks between two fences, and pieces of a line between two backticks that no letter touches from outside.
        unknown: "vector" treats every unknown word as one public vector; "random" as a public word drawn at random,
            anew each time: it then counts as far from a known word as the farthest public word is, and hides among
            unknown words only. Noise comes on top in both cases. An unknown word is never written out.

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
        treatment: Treatment = getattr(self, _FIELDS[kind][0]) if kind in _FIELDS else "privatize"
        return treatment

    @property
    def in_clear(self) -> bool:
        """Whether any kind of feature is passed through or named."""
        return any(getattr(self, field) != "privatize" for field, _ in _FIELDS.values())

    def notes(self) -> tuple[str, ...]:
        """What these policies let through in clear, and what they do to the promise, for certificates."""
        said = {
            "keep": "{} are passed through in clear.",
            "placeholder": "{} are replaced by a placeholder: that they are there, and where, is in clear.",
        }
        treated = [(name, getattr(self, field)) for field, name in _FIELDS.values()]
        notes = [said[treatment].format(name) for name, treatment in treated if treatment != "privatize"]
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
        text: What may leave.
        tokens: PrivatizedText tokens, pads among them. Each cost eta per unit of distance.
        kept: Features that are in clear by the user's choice, placeholders among them.

    Examples:
        >>> [privatized] = privatizer.privatize(["Anna takes prednisone."])
        >>> privatized.text
    """

    text: str
    tokens: int
    kept: int


class TextPrivatizer:
    """Replaces every token of a text by a random word of a public vocabulary, near words more often than far ones.

    Args:
        vocabulary: Public table.
        eta: Privacy loss per unit of distance and token, at least 1e-9. Calibrate it: its scale depends on the table.
        mechanism: "laplace" adds noise to the token's vector and takes the nearest word; "exponential" draws a word
            by its distance, and keeps more meaning at the same eta.
        policies: What happens to numbers, dates, addresses, marks, code and unknown words.
        keep: Words that stay in clear, compared in lower case, or a function that says so of a feature's text.
        length: Every text comes out as exactly this many tokens and kept features: shorter ones are filled with
            privatized pads, longer ones are cut. By default a text keeps its length, which is then in clear.
        casing: Whether a word that replaces a capitalized one is capitalized. This puts the casing in clear.
        rng: Source of randomness; operating-system entropy by default.
        threads: Threads to search with; by default as many as there are processors.
        cache_bytes: Memory of the exponential mechanism for what it keeps of words seen before, at least 0. A word
            that is not kept costs a pass over the table; by default there is room for 32,000 words.

    Formal guarantee:
        For two texts that agree on what :meth:`notes` says is in clear (by default the number of tokens), the chance
        of any output changes by at most exp(eta * sum_i |x_i - x'_i|), x_i the public vector of token i; all unknown
        words have the same vector, but under ``Policies(unknown="random")``: there |x_i - x'_i| is 0 between two
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
        if not isinstance(vocabulary, Vocabulary):
            raise InvalidParameter(
                f"Expected vocabulary of type {type(vocabulary).__name__} to be a Vocabulary. Give load('glove')."
            )
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
            vocabulary.surfaces("")  # refused now where the tokenizer cannot tell
        self._rng = rng or SystemRandomness()
        self.private = self._rng.private
        self._words: MetricLaplace | MetricExponential = (
            MetricLaplace(event, vocabulary.table, threads=self.threads)
            if mechanism == "laplace"
            else MetricExponential(event, vocabulary.table, cache_bytes=cache_bytes, threads=self.threads)
        )
        self._keep = keep if callable(keep) else _kept_words(keep)
        # A function has no name that lasts: what was kept under one is not reused under another.
        self._named_keep = secrets.token_hex(16) if callable(keep) else sorted(keep)
        code = policies.code != "privatize"  # else tokens are written one by one, and none spans much
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
        """Everything public that the law of a release depends on: another setting is another release."""
        return json.dumps({**self._law, "eta": repr(self.eta)}, sort_keys=True)

    @functools.cached_property
    def treatment(self) -> str:
        """Short digest of :attr:`settings` without eta."""
        return hashlib.sha256(json.dumps(self._law, sort_keys=True).encode()).hexdigest()[:16]

    def notes(self) -> tuple[str, ...]:
        """What is passed through in clear, for certificates."""
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
        """Privatize texts, each token with its own noise; one result per text, in order."""
        return self.prepare(texts)()

    def prepare(self, texts: Sequence[str]) -> Callable[[], list[PrivatizedText]]:
        """Do all of :meth:`privatize` that can fail on a text, and return what draws the words.

        Charge for the release in between: then a text that cannot be cut costs nothing.
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
        """As :meth:`prepare`; what is returned draws the privatized texts alone."""
        draw = self.prepare(texts)
        return lambda: [released.text for released in draw()]

    def release(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Privatize token ids: one released id of the vocabulary per given one.

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
        if not self._all_privatized:
            for feature in tokenize.features(text, code=self.policies.code != "privatize"):
                clear = self._in_clear(feature.kind, text[feature.start : feature.end])
                if clear is not None:
                    self._add(items, text[start : feature.start])
                    items.literals.append((len(items.ids), clear))
                    start = feature.end
        self._add(items, text[start:])
        if self.length is not None:
            items.fit(self.length, cased=self.casing)
        return items

    def _in_clear(self, kind: Kind, surface: str) -> str | None:
        """What is written for a feature without privatizing it; None for nearly all."""
        treatment = self.policies.of(kind)
        if treatment == "placeholder":
            return f"[{kind.upper()}]"
        if treatment == "keep":
            return surface
        if not callable(self._keep):
            return surface if tokenize.normal(surface) in self._keep else None
        failure = ""
        try:
            with sealed(Level.QUIET):  # the function may ask a model
                return surface if self._keep(surface) else None
        except Exception as error:  # raised again below: its text and context may hold the word
            failure = type(error).__name__
        raise InvalidParameter(f"Expected keep= to answer for every word, but it raised {failure}.")

    def _add(self, items: Items, text: str) -> None:
        if text and not text.isspace():
            items.ids += self.vocabulary.encode(text)
            if self.casing:
                items.surfaces += self.vocabulary.surfaces(text)

    def pieces(self, text: str) -> list[str]:
        """Privatize a stretch of a text, as pieces for ``langchain_dp.rapt.tokenize.join``.

        Stretches that no feature crosses, privatized one after the other and joined at the end, follow the law of the
        whole text privatized at once; not under ``length``, which counts the whole.
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
    """A parsed text: ids to privatize, and what stands in clear before which id. Private."""

    ids: list[int] = dataclasses.field(default_factory=list)
    surfaces: list[str] = dataclasses.field(default_factory=list)
    literals: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def fit(self, length: int, *, cased: bool) -> None:
        """Cut to, or fill up to, this many tokens and literals together."""
        # Before the literal with number k stand `place` ids and k literals.
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
    """Digest of what else of a table a release depends on: special vectors, what is not written, how it cuts."""
    how = vocabulary.tokenizer.embeds if isinstance(vocabulary.tokenizer, ForeignTokenizer) else vocabulary.tokenizer
    digest = hashlib.sha256(f"{type(how).__module__}.{type(how).__qualname__} {sorted(vocabulary.never)}".encode())
    for special in (vocabulary.unknown, vocabulary.pad):
        digest.update(np.ascontiguousarray(special).tobytes())
    return digest.hexdigest()
