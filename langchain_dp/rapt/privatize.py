"""Privatizes texts, token by token, under metric privacy."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.accounting import MetricEvent
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import MetricExponential, MetricLaplace
from langchain_dp.mechanisms.metric_noise import checked_eta
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness
from langchain_dp.rapt import tokenize
from langchain_dp.rapt.tokenize import Kind
from langchain_dp.rapt.vocabulary import PAD, ForeignTokenizer, Vocabulary, table_name

Mechanism = Literal["laplace", "exponential"]

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

    "privatize" replaces it like a word. "keep" passes it in clear. "placeholder" writes its kind.

    Args:
        numbers: Numbers, times and amounts.
        dates: Dates in digits, or with an English month.
        urls: Addresses of pages and of mail.
        punctuation: Marks and symbols, which reveal the lengths of sentences.
        code: Text between code fences or backticks.

    Examples:
        >>> policies = Policies(numbers="placeholder", punctuation="keep")
        >>> RAPTSanitizer("glove", eta=4.0, policies=policies).invoke("At 9 pm!")  # such as "near [NUMBER] am!"
    """

    numbers: Treatment = "privatize"
    dates: Treatment = "privatize"
    urls: Treatment = "privatize"
    punctuation: Treatment = "privatize"
    code: Treatment = "privatize"

    def __post_init__(self) -> None:
        for field, _ in _FIELDS.values():
            validate.one_of(field, getattr(self, field), get_args(Treatment))

    def notes(self) -> tuple[str, ...]:
        """List features in clear."""
        sentences = {
            "keep": "{} are passed through in clear.",
            "placeholder": "{} are replaced by a placeholder: that they are there, and where, is in clear.",
        }
        treated = [(name, getattr(self, field)) for field, name in _FIELDS.values()]
        return tuple(sentences[treatment].format(name) for name, treatment in treated if treatment != "privatize")


class TextPrivatizer:
    """Replaces every token of a text by a random word of a public vocabulary, near words more often.

    Args:
        vocabulary: Public table.
        eta: Privacy loss per unit of distance and token, at least 1e-9.
        mechanism: "laplace" adds noise to the token's vector. "exponential" draws by distance, and keeps more meaning.
        policies: Treatment of numbers, dates, addresses, marks and code.
        keep: Words that stay in clear, compared in lower case.
        length: Fixed number of tokens and kept features of every output. None: the length is in clear.
        rng: Source of randomness. None: the operating system.
        threads: Threads to search with.

    Formal guarantee:
        For two texts that agree on what :meth:`notes` says is in clear (by default the number of tokens), the chance
        of any output changes by a factor of at most exp(eta * sum_i |x_i - x'_i|), x_i the public vector of token i.
        All unknown words have the same vector. k releases cost k times as much.

    Examples:
        >>> privatizer = TextPrivatizer(load("glove"), eta=4.0, mechanism="exponential")
        >>> [privatized] = privatizer.privatize(["Anna takes prednisone."])
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        eta: float,
        *,
        mechanism: Mechanism = "laplace",
        policies: Policies = Policies(),  # frozen
        keep: Sequence[str] = (),
        length: int | None = None,
        rng: Randomness | None = None,
        threads: int | None = None,
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
        self._rng = rng or SystemRandomness()
        self.private = self._rng.private
        self._words: MetricLaplace | MetricExponential = (
            MetricLaplace(event, vocabulary.table, threads=self.threads)
            if mechanism == "laplace"
            else MetricExponential(event, vocabulary.table, threads=self.threads)
        )
        if isinstance(keep, str) or not isinstance(keep, Collection) or not all(isinstance(word, str) for word in keep):
            raise InvalidParameter("Expected keep= to be a list of words. Give ['word'].")
        for word in keep:
            if len(list(tokenize.features(word))) != 1:
                raise InvalidParameter(
                    f"Expected keep={word!r} to be one word each. Give the words of a phrase one by one."
                )
        self._keep = frozenset(map(tokenize.normal, keep))
        self._all_privatized = not self._keep and set(dataclasses.astuple(policies)) == {"privatize"}

    @functools.cached_property
    def table(self) -> str:
        """The metric's table."""
        return table_name(self.vocabulary)

    @functools.cached_property
    def _law(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "mechanism": self.mechanism,
            "policies": repr(self.policies),
            "keep": sorted(self._keep),
            "length": self.length,
            "table's rest": _rest(self.vocabulary),
        }

    @functools.cached_property
    def settings(self) -> str:
        """Public values that determine a release's distribution."""
        return json.dumps({**self._law, "eta": repr(self.eta)}, sort_keys=True)

    @functools.cached_property
    def treatment(self) -> str:
        """Digest of settings without eta."""
        return hashlib.sha256(json.dumps(self._law, sort_keys=True).encode()).hexdigest()[:16]

    def notes(self) -> tuple[str, ...]:
        """List everything in clear."""
        notes = list(self.policies.notes())
        if self.length is None:
            notes.append("The number of tokens of every text is in clear.")
        else:
            notes.append(f"Every text is filled up or cut to {self.length} tokens. The rest is lost.")
        if self._keep:
            listed = ", ".join(sorted(self._keep)[:_LISTED]) + (", ..." if len(self._keep) > _LISTED else "")
            notes.append(f"{len(self._keep)} chosen words are passed through in clear: {listed}.")
        if not self.private:
            notes.append("The noise is seeded: anybody who knows the seed can remove it. NOT private.")
        return tuple(notes)

    def privatize(self, texts: Sequence[str]) -> list[str]:
        """Privatize texts, each token with its own noise."""
        return self.written(texts)()

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Do all work that can fail. Return a function that draws: charge in between."""
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise InvalidParameter(
                f"Expected texts of type {type(texts).__name__} to be a list of strings. Give [text]."
            )
        parsed = [self._parse(number, text) for number, text in enumerate(texts)]
        ids = np.fromiter((i for items in parsed for i in items.ids), dtype=np.int64)

        def draw() -> list[str]:
            words = iter(self.release(ids).tolist())
            return [tokenize.join(self._pieces(items, [next(words) for _ in items.ids])) for items in parsed]

        return draw

    def release(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Release one id per token id (-1: an unknown word, -2: a pad)."""
        ids = np.array(ids, dtype=np.int64)
        if ids.ndim != 1 or (len(ids) and (ids.min() < PAD or ids.max() >= len(self.vocabulary))):
            raise InvalidParameter(f"Expected ids to be a row of numbers from {PAD} to {len(self.vocabulary) - 1}.")
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
            if literal is not None:
                items.literals.append((len(items.ids), literal))
            start = end
        if self.length is not None:
            items.fit(self.length)
        return items

    def _literals(self, text: str) -> Iterator[tuple[int, int, str]]:
        for feature in () if self._all_privatized else tokenize.features(text, code=self.policies.code != "privatize"):
            surface = text[feature.start : feature.end]
            named = _FIELDS.get(feature.kind)  # a word has no name: it is privatized
            treatment = "privatize" if named is None else getattr(self.policies, named[0])
            if treatment == "placeholder":
                yield feature.start, feature.end, f"[{feature.kind.upper()}]"
            elif treatment == "keep" or tokenize.normal(surface) in self._keep:
                yield feature.start, feature.end, surface

    def _pieces(self, items: Items, released: list[int]) -> list[str]:
        pieces: list[str] = []
        start = 0
        for end, literal in [*items.literals, (len(released), "")]:
            pieces += [*self.vocabulary.decode(released[start:end]), literal]
            start = end
        return pieces[:-1]


@dataclasses.dataclass(repr=False)
class Items:
    """Ids to privatize, and literals with the number of ids before them. Private."""

    ids: list[int] = dataclasses.field(default_factory=list)
    literals: list[tuple[int, str]] = dataclasses.field(default_factory=list)

    def fit(self, length: int) -> None:
        # `place` ids and k literals precede literal number k.
        self.literals = [(place, text) for k, (place, text) in enumerate(self.literals) if place + k < length]
        room = length - len(self.literals)
        self.ids = [*self.ids[:room], *[PAD] * (room - len(self.ids))]


def _rest(vocabulary: Vocabulary) -> str:
    cuts = vocabulary.tokenizer.embeds if isinstance(vocabulary.tokenizer, ForeignTokenizer) else vocabulary.tokenizer
    digest = hashlib.sha256(f"{type(cuts).__module__}.{type(cuts).__qualname__} {sorted(vocabulary.never)}".encode())
    for special in (vocabulary.unknown, vocabulary.pad):
        digest.update(np.ascontiguousarray(special).tobytes())
    return digest.hexdigest()
