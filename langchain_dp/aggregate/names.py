"""Names for labels that are codes, from counts of nearest public topics."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from langchain_core.embeddings import Embeddings
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.documents import Form
from langchain_dp.accounting import ExponentialEvent, Neighbors, PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.provenance import MadeWith, released
from langchain_dp.aggregate.encoders import public_topics
from langchain_dp.aggregate.readers import EncoderReader, Question, Reader, check_choices, reader_for
from langchain_dp.aggregate.release import DRAWING, Population, Promise, check_encoded, labelled_population
from langchain_dp.ensemble.reservation import LedgerOrPath
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import Exponential, Randomness
from langchain_dp.mechanisms.vector_sum import Whole
from langchain_dp.records import PrivateRecords, check_labels
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

NONE_OF_THESE = "none of these"
_POINTS = 10
_SURE = 0.99


@dataclasses.dataclass(frozen=True)
class LabelNames:
    """Released names of labels.

    Args:
        names: Label to name. A label whose records fit no topic keeps its own.
        descriptions: Label to name and description.
        margin: Lead in records with which the right name wins 99 times in 100.
        certificate: The promise.

    Examples:
        >>> found = DPLabelNamer().fit(rows, labels=["A", "B"], budget=PrivacyBudget(0.5))
        >>> prompt = ICLPrompt(question="Message: {text}", answer="Kind:", words=found.names)
    """

    names: dict[str, str]
    descriptions: dict[str, str]
    margin: int
    certificate: PrivacyCertificate

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        fields = {"names": self.names, "descriptions": self.descriptions, "margin": self.margin}
        return {**fields, "certificate": self.certificate.to_dict()}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read names, with their costs, from JSON of :meth:`to_dict`."""
        try:
            form = _SavedNames.read(Path(path).read_bytes())
        except ValueError as error:
            raise InvalidParameter(f"Expected {Path(path).name} to hold names of labels: {error}.") from None
        certificate = PrivacyCertificate.from_dict(form.certificate)
        costs = certificate.as_sources()
        return cls(released(form.names, costs), released(form.descriptions, costs), form.margin, certificate)

    def __str__(self) -> str:
        lines = [f"{label}: {text}" for label, text in self.descriptions.items()]
        lines.append(
            f"A name that leads by {self.margin:,} records or more is right 99 times in 100; at a smaller lead, noise "
            "may have chosen."
        )
        return "\n".join(lines)


class _SavedNames(Form):
    names: dict[str, str]
    descriptions: dict[str, str]
    margin: int
    certificate: dict[str, Any]


class DPLabelNamer:
    """Names labels that are codes, such as "queue 7", under pure differential privacy.

    Each record gives points to the nearest public entries: ten, nine, and so on with 40 entries or more. One entry per
    label is drawn by the exponential mechanism.

    Args:
        words: 2 to 499 public names, with or without descriptions, by default
            :func:`~langchain_dp.aggregate.public_topics`. They must not come from the records. "none of these" is
            added.
        encoder: Public encoder, by default :class:`~langchain_dp.aggregate.StaticEncoder`.
        model: Chat model or engine that chooses one entry per record instead. Its operator sees the records.
        trust_opaque_model: Accept your own encoder or model, on your word that it keeps no text.

    Formal guarantee:
        (epsilon, 0)-DP in the examples. A record moves each count of its label by at most one (ten points), with the
        weight lambda in the exponent. Replacing it costs 2 lambda for all labels together, adding it lambda. A released
        name is not offered to later labels, which is post-processing. With a ``user_key``, each user's oldest record
        votes.

    References:
        McSherry and Talwar 2007 (the exponential mechanism). Dong, Durfee and Rogers 2020 (bounded range).

    Examples:
        >>> namer = DPLabelNamer(words={"praise": "thanks and kind words", "complaint": "anger about a mistake"})
        >>> print(namer.fit(rows, labels=["A", "B"], budget=PrivacyBudget(0.5)))
    """

    def __init__(
        self,
        words: Iterable[str] | Mapping[str, str] | None = None,
        *,
        encoder: Embeddings | None = None,
        model: Any = None,
        trust_opaque_model: bool = False,
    ) -> None:
        self._entries = _entries(public_topics() if words is None else words)
        self._question = Question("topic", self._entries)
        self._reader = reader_for(model, encoder, trusted=trust_opaque_model)
        ranked = isinstance(self._reader, EncoderReader)
        self._points = max(1, min(_POINTS, len(self._entries) // 4)) if ranked else 1

    @validate.reject_unknown_arguments
    @hold_arguments("examples")
    def fit(
        self,
        examples: Any,
        *,
        labels: Iterable[Any],
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "label-names",
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> LabelNames:
        """Release a name per label, with the arguments of :meth:`DPPrototypeClassifier.fit`. Shards need an encoder."""
        given = check_labels(labels)
        check_encoded(PrivateArgs.of(examples), isinstance(self._reader, EncoderReader))
        records = run_redacted(labelled_population, PrivateArgs(PrivateArgs.of(examples), given), READING)
        promise = Promise.of(
            budget, ledger, name, not_private_seed, labels, self._entries, model=self._reader.name, made_with=made_with
        )
        share = promise.share()
        mechanism = Exponential(ExponentialEvent(weight_for(share)), self._points)
        self._reader.probe([self._question])

        def draw(rng: Randomness) -> list[int]:
            # No frame keeps votes.
            return run_redacted(self._drawn, PrivateArgs(records, given, mechanism, rng), DRAWING)

        entries = list(self._entries.items())
        settings = {"labels": [*given], "words": [[*entry] for entry in entries], "voter": self._reader.name}
        places = promise.release_once(mechanism.event, draw, records=records, settings=settings, share=share)
        pure = f"pure: epsilon {share.epsilon:g} holds at delta 0, too"
        certificate = promise.certificate(
            mechanism="names by counts (exponential mechanism)",
            parameters={"lambda": mechanism.event.epsilon, "words": len(entries), "labels": len(given)},
            notes=[*self._reader.notes, *records.unit_notes(), pure],
        )
        chosen = {label: entries[place] for label, place in zip(given, places, strict=True)}
        plain = {label: label if word == NONE_OF_THESE else word for label, (word, _) in chosen.items()}
        full = {
            label: plain[label] if word == NONE_OF_THESE or not about else f"{word}: {about}"
            for label, (word, about) in chosen.items()
        }
        costs = certificate.as_sources()
        return LabelNames(released(plain, costs), released(full, costs), self.margin(share), certificate)

    def _drawn(self, records: Population, labels: Sequence[str], mechanism: Exponential, rng: Randomness) -> list[int]:
        voting: dict[str, Any] = {"reader": self._reader, "question": self._question, "points": self._points}
        counts = records.total(functools.partial(_counts, labels=labels, **voting))
        self._reader.probe([self._question])
        return _chosen(mechanism, counts.tolist(), rng)

    def margin(self, budget: PrivacyBudget) -> int:
        """Return the lead in records with which the right name wins 99 times in 100."""
        if not isinstance(budget, PrivacyBudget):
            raise InvalidParameter(f"Expected budget={budget!r} to be a PrivacyBudget. Give PrivacyBudget(1.0).")
        return math.ceil(math.log((len(self._entries) - 1) / (1 - _SURE)) / weight_for(budget))


def weight_for(budget: PrivacyBudget) -> float:
    """Return lambda, so that epsilon holds at delta 0."""
    return budget.epsilon / (2 if budget.neighbors is Neighbors.REPLACE_ONE else 1)


def _counts(records: PrivateRecords, labels: Sequence[str], reader: Reader, question: Question, points: int) -> Whole:
    """Return points per label and entry, from each user's oldest record."""
    first = [records.get(group[0]) for group in records.users()]
    texts = [record["text"] for record in first]
    with tqdm(total=len(texts), unit="text", desc="names", disable=None, delay=2) as bar:
        if isinstance(reader, EncoderReader):
            [ranks] = reader.rank([question], texts, points, bar.update)
        else:
            [choices] = reader.choose([question], texts, bar.update)
            ranks = [[] if choice is None else [choice] for choice in choices]
    place = {label: row for row, label in enumerate(labels)}
    last = len(question.described) - 1
    table = np.zeros((len(labels), last + 1), dtype=np.int64)
    for record, places in zip(first, ranks, strict=True):
        for rank, entry in enumerate(places or [last]):
            table[place[record["label"]], entry] += points - rank
    return table


def _chosen(mechanism: Exponential, counts: Sequence[Sequence[int]], rng: Randomness) -> list[int]:
    """Draw one entry per label, none twice except "none of these"."""
    left = list(range(len(counts[0])))
    places = []
    for row in counts:
        place = left[mechanism.release([row[each] for each in left], rng=rng)]
        places.append(place)
        if place != len(row) - 1:
            left.remove(place)
    return places


def _entries(words: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    given = words if isinstance(words, (str, Mapping)) else list(words)
    check_choices("words", given)
    about = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, "")
    entries = {word.strip(): text.strip() for word, text in about.items()}
    last = [entries.pop(word) for word in list(entries) if word.casefold() == NONE_OF_THESE]
    if len(entries) < 2:
        raise InvalidParameter(f"Expected words to hold at least 2 names, not {len(entries)}. Give more.")
    return {**entries, NONE_OF_THESE: last[0] if last else "something else"}
