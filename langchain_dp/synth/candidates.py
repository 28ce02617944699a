"""Public candidates, chosen by private votes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp.accounting import PrivacyBudget
from langchain_dp.accounting.provenance import MadeWith
from langchain_dp.aggregate.counts import VOTE, VoteCounts
from langchain_dp.aggregate.encoders import CheckedEncoder, nearest
from langchain_dp.aggregate.features import Floats
from langchain_dp.aggregate.release import DRAWING, Promise, labelled_records
from langchain_dp.ensemble.reservation import LedgerOrPath
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.mechanisms import Randomness
from langchain_dp.mechanisms.vector_sum import Whole
from langchain_dp.records import Examples, PrivateRecords, encodable, given_labels
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted
from langchain_dp.synth.examples import SyntheticExample, SyntheticExamples

_LONGEST = 600
_TOPICS, _PER_TOPIC = 40, 8
_MOST = 20_000
_NEAREST = 8
_MARKER = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s*")


def write_candidates(model: Runnable[Any, Any], task: str) -> list[str]:
    """Let a model write public candidates.

    Args:
        model: A chat model or LLM, which sees the task alone.
        task: Kind of the texts, in public words.

    Raises:
        ModelUnavailable: The model wrote no list.

    Examples:
        >>> candidates = write_candidates(ChatOpenAI(model="gpt-5-mini"), "support tickets of an online shop")
    """
    if not isinstance(task, str) or not task.strip():
        raise InvalidParameter("Expected task to be a non-empty str. Describe the texts in public words.")
    if not isinstance(model, Runnable):
        raise InvalidParameter(f"Expected model of type {type(model).__name__} to be a chat model or an LLM.")
    ask = f"List {_TOPICS} different topics of {task}, from all areas. One short topic per line, no numbers."
    topics = _lines(model, ask)[:_TOPICS]
    texts: dict[str, None] = {}
    for topic in tqdm(topics, desc="candidates", unit="topic", disable=None, delay=2):
        ask = f"Write {_PER_TOPIC} different examples of {task} about: {topic}\nOne per line, no numbers, no headings."
        texts |= dict.fromkeys(line[:_LONGEST] for line in _lines(model, ask) if len(line.split()) > 2)
    if len(texts) < 2:
        raise ModelUnavailable(
            f"Expected the model to write candidates, one per line, but it wrote {len(texts)}. Use a larger model, or "
            "give candidates of your own."
        )
    return list(texts)


def _lines(model: Runnable[Any, Any], prompt: str) -> list[str]:
    answer = model.invoke(prompt)
    text = getattr(answer, "text", answer)
    lines = [_MARKER.sub("", line).strip().strip('"').strip() for line in str(text).splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


class DPExampleSelector:
    """Chooses examples for each label among public candidates, by private votes.

    Each private record votes for the candidates nearest to it. Those with the most noisy votes become the label's
    examples. No model sees a record.

    Args:
        candidates: Public texts, some hundreds, e.g. of :func:`write_candidates`.
        encoder: Public encoder. None: :class:`~langchain_dp.aggregate.StaticEncoder`.
        per_label: Examples per label.
        nearest: Candidates that one record votes for, by 1/sqrt(nearest) each, which costs as much as one whole vote.
        trust_opaque_model: Accept an encoder class of your own, at your word that it keeps no texts.

    Formal guarantee:
        The counts are (epsilon, delta)-differentially private in the records, with the budget's neighbors: in all
        records of one user, where there is a ``user_key``. A record adds a vector of norm one without negative
        coordinates, so replacing it moves the counts by at most sqrt(2) and adding it by one. They get discrete
        Gaussian noise. The choice is post-processing. Candidates are public.

    References:
        Lin et al. 2024 and Xie et al. 2024 (private evolution).

    Examples:
        >>> candidates = write_candidates(model, "support tickets of an online shop")
        >>> selector = DPExampleSelector(candidates)
        >>> examples = selector.select(rows, labels=["queue A", "queue B"], budget=PrivacyBudget(1.0))
        >>> chain = examples.chain(model)
    """

    def __init__(
        self,
        candidates: Iterable[str],
        *,
        encoder: Embeddings | None = None,
        per_label: int = 8,
        nearest: int = _NEAREST,
        trust_opaque_model: bool = False,
    ) -> None:
        listed = [] if isinstance(candidates, str) else list(candidates)
        if not all(isinstance(text, str) and text.strip() and encodable(text) for text in listed):
            raise InvalidParameter("Expected candidates to be a list of non-empty texts.")
        self.candidates = tuple(dict.fromkeys(listed))
        validate.integer("the number of different candidates", len(self.candidates), at_least=2, at_most=_MOST)
        self.per_label = validate.integer("per_label", per_label, at_least=1)
        self._nearest = min(validate.integer("nearest", nearest, at_least=1), len(self.candidates))
        self._encoder = CheckedEncoder(encoder, trusted=trust_opaque_model)
        self._vectors = self._encoder.public_vectors(self.candidates)

    @hold_arguments("examples")
    def select(
        self,
        examples: Examples,
        *,
        labels: Iterable[Any],
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "selected-examples",
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> SyntheticExamples:
        """Release examples for each label. In a file ledger, the same records and name get the same ones again, free.

        Args:
            examples: Private examples, as of :class:`~langchain_dp.PrivateRecords`.
            labels: The public labels.
            budget: The promise. Alone: a ledger in memory. With ``ledger``: the share of it to reserve.
            ledger: Ledger to charge, or a path.
            name: Name of the release in the ledger.
            made_with: Certificates of released candidates that do not carry their cost.
            not_private_seed: Reproducible noise, which is not private.

        Raises: As :meth:`~langchain_dp.aggregate.DPPrototypeClassifier.fit`.
        """
        given = tuple(given_labels(labels))
        records = run_redacted(labelled_records, PrivateArgs(PrivateArgs.of(examples), given), READING)
        promise = Promise.of(
            budget, ledger, name, not_private_seed, labels, self.candidates, model=self._encoder.name,
            made_with=made_with,
        )  # fmt: skip
        share = promise.share()
        counts = VoteCounts.of(share, votes=1)
        self._encoder.probe()

        def draw(rng: Randomness) -> list[list[float]]:
            return run_redacted(self._drawn, PrivateArgs(records, given, counts, rng), DRAWING)

        digest = hashlib.sha256(json.dumps(self.candidates).encode()).hexdigest()
        settings = {
            "labels": list(given), "candidates": digest, "nearest": self._nearest, "encoder": self._encoder.name,
        }  # fmt: skip
        noisy = promise.release_once(counts.event, draw, records=records, settings=settings, share=share)
        certificate = promise.certificate(
            mechanism="noisy votes for public candidates",
            parameters={"noise_multiplier": counts.event.noise_multiplier, "candidates": len(self.candidates)},
            notes=[*self._encoder.notes, *records.unit_notes(), "no model sees a record"],
        )
        chosen = [
            SyntheticExample(self.candidates[place], label)
            for label, places in zip(given, _leading(np.array(noisy), self.per_label), strict=True)
            for place in places
        ]
        return SyntheticExamples(chosen, certificate, {"labels": list(given)})

    def _drawn(
        self, records: PrivateRecords, labels: Sequence[str], counts: VoteCounts, rng: Randomness
    ) -> list[list[float]]:
        noisy: list[list[float]] = counts.release(self._total(records, labels), rng).round(2).tolist()
        return noisy

    def _total(self, records: PrivateRecords, labels: Sequence[str]) -> Whole:
        """Sum votes, (labels, candidates), in grid steps. A user's records share one weight."""
        users = records.users()
        names = [name for group in users for name in group]
        rows = {label: row for row, label in enumerate(labels)}
        row_of = np.array([rows[records.get(name)["label"]] for name in names], dtype=np.int64)
        weights = np.array([len(group) for group in users for _ in group], dtype=np.int64)
        weight = int(VOTE / self._nearest**0.5) // weights  # rounded down twice: the norm is at most one vote
        total, start = np.zeros((len(labels), len(self.candidates)), dtype=np.int64), 0
        for vectors in self._encoder.private_vectors([records.get(name)["text"] for name in names]):
            end = start + len(vectors)
            known = vectors.any(axis=1)  # a text that the encoder failed on does not vote
            cells = row_of[start:end, None][known], nearest(vectors, self._vectors, self._nearest)[known]
            np.add.at(total, cells, weight[start:end, None][known])
            start = end
        self._encoder.probe()
        return total


def _leading(noisy: Floats, count: int) -> list[list[int]]:
    own = noisy.argmax(axis=0) == np.arange(len(noisy))[:, None]
    return [
        np.lexsort((-row, ~mine))[: min(count, max(int(mine.sum()), 1))].tolist()
        for row, mine in zip(noisy, own, strict=True)
    ]
