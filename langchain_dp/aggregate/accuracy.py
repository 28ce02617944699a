"""The accuracy of any chain on private records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, overload

import numpy as np
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import run_in_executor
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.reprs import InNotebooks
from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.accounting.events import count_is_public
from langchain_dp.accounting.provenance import MadeWith
from langchain_dp.aggregate.counts import COVERAGE, VOTE, VoteCounts
from langchain_dp.aggregate.release import DRAWING, Promise, digest_of, labelled_records
from langchain_dp.ensemble.reservation import LedgerOrPath
from langchain_dp.errors import InvalidParameter
from langchain_dp.isolation.model import CALLS, IsolatedModel
from langchain_dp.isolation.worker import call_engine
from langchain_dp.mechanisms import Randomness
from langchain_dp.mechanisms.vector_sum import Whole
from langchain_dp.parsing import parse_label
from langchain_dp.records import Examples, PrivateRecords, given_labels, label_name
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

_MOST_CHAINS = 100
_TEXTS_AT_ONCE = 1_000
_TEST = "This is a test."
_Z = NormalDist().inv_cdf((1 + COVERAGE) / 2)
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Accuracy(InNotebooks):
    """Released accuracy of one chain.

    Args:
        chain: Name of the chain's model.
        accuracy: Estimated share of right answers.
        noise_error: Standard error of the noise.
        sampling_error: Standard error of the records as a sample, None if their number is private.
        certificate: The promise.

    Examples:
        >>> score = private_accuracy(chain, rows, budget=PrivacyBudget(0.5))
        >>> print(score)  # "81.9% right (79.1% to 84.7% of these records)"
    """

    chain: str
    accuracy: float
    noise_error: float
    sampling_error: float | None
    certificate: PrivacyCertificate

    @property
    def low(self) -> float:
        """Lower end of the bar that holds the accuracy on these records in 95 of 100 releases."""
        return max(0.0, self.accuracy - _Z * self.noise_error)

    @property
    def high(self) -> float:
        """Upper end of that bar."""
        return min(1.0, self.accuracy + _Z * self.noise_error)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "chain": self.chain, "accuracy": self.accuracy, "low": self.low, "high": self.high,
            "noise_error": self.noise_error, "sampling_error": self.sampling_error,
            "certificate": self.certificate.to_dict(),
        }  # fmt: skip

    def __str__(self) -> str:
        text = f"{self.accuracy:.1%} right ({self.low:.1%} to {self.high:.1%} of these records)"
        if self.sampling_error is None:
            return text
        return f"{text}; on others like them plus or minus {_Z * math.hypot(self.noise_error, self.sampling_error):.1%}"


@overload
def private_accuracy(chain: Runnable[Any, Any], examples: Examples, **options: Any) -> Accuracy: ...


@overload
def private_accuracy(chain: Sequence[Runnable[Any, Any]], examples: Examples, **options: Any) -> list[Accuracy]: ...


@validate.reject_unknown_arguments  # type: ignore[misc]  # the overloads leave the options out
@hold_arguments("examples")
def private_accuracy(
    chain: Runnable[Any, Any] | Sequence[Runnable[Any, Any]],
    examples: Examples,
    *,
    budget: PrivacyBudget | None = None,
    ledger: LedgerOrPath | None = None,
    name: str = "accuracy",
    labels: Iterable[Any] | None = None,
    input_of: Callable[[Record], Any] | None = None,
    is_right: Callable[[Any, Record], bool] | None = None,
    max_concurrency: int = CALLS,
    trust_opaque_model: bool = False,
    made_with: MadeWith = None,
    not_private_seed: int | None = None,
) -> Accuracy | list[Accuracy]:
    """Release how often a chain is right on private labelled records.

    Each record is one isolated call. A failed call counts as wrong. The noise of several chains, in one release, grows
    with the square root of their number.

    Args:
        chain: One chain or a list, without memory. Each returns a label, a message or a mapping with ``label``.
        examples: As in :meth:`DPPrototypeClassifier.fit`, without shards.
        budget: As in fit.
        ledger: As in fit.
        name: Name of the release in the ledger.
        labels: Public labels. An answer with two of them is wrong. Without, it need only name the right one.
        input_of: Function from a record to the input, by default its text.
        is_right: Function from answer and record to bool, for answers that are no labels.
        max_concurrency: Most calls at a time.
        trust_opaque_model: Accept your own code, on your word that it keeps no text.
        made_with: As in fit.
        not_private_seed: As in fit.

    Raises:
        InvalidParameter: An argument is out of bounds, or a record has no text or an unknown label.
        UnsafeEnvironment: A chain keeps its inputs or has unknown parts.
        BudgetExceeded: The ledger cannot afford the release.
        ModelUnavailable: A chain failed on a public text. After a charge, the same call resumes free.
        PlanError: The ledger keeps another release under this name.

    Formal guarantee:
        (epsilon, delta)-DP in the records, with the budget's neighbors. A record, or all records of a user, moves each
        count by at most one, so m counts move by at most sqrt(m). They get discrete Gaussian noise. A private number
        of records is one more count.

    References:
        Dwork and Roth 2014, Appendix A. Canonne, Kamath and Steinke 2020.

    Examples:
        >>> score = private_accuracy(prompt | model, rows, labels=["praise", "complaint"], budget=PrivacyBudget(0.5))
        >>> first, second = private_accuracy([chain_a, chain_b], rows, budget=PrivacyBudget(0.5))
    """
    chains = list(chain) if isinstance(chain, Sequence) else [chain]
    if not 1 <= len(chains) <= _MOST_CHAINS:
        raise InvalidParameter(f"Expected 1 to {_MOST_CHAINS} chains, got {len(chains)}.")
    names = None if labels is None else tuple(given_labels(labels))
    records = run_redacted(labelled_records, PrivateArgs(PrivateArgs.of(examples), names), READING)
    del examples
    scorer = _Scorer(chains, names, input_of, is_right, max_concurrency, trust_opaque_model)
    model = ", ".join(dict.fromkeys(model.name for model in scorer.models))
    promise = Promise.of(budget, ledger, name, not_private_seed, chains, labels, model=model, made_with=made_with)
    share = promise.share()
    public = count_is_public(share.neighbors)
    counts = VoteCounts.of(share, votes=len(chains) + (not public), yes_or_no=True)
    scorer.probe()

    def draw(rng: Randomness) -> list[float]:
        return run_redacted(scorer.drawn, PrivateArgs(records, counts, public, rng), DRAWING)

    digest, certain = digest_of([chains, input_of, is_right])
    settings = {"chains": digest, "labels": None if names is None else list(names)}
    noisy = promise.release_once(counts.event, draw, records=records, settings=settings, share=share, again=certain)
    certificate = promise.certificate(
        mechanism="noisy count of right answers",
        parameters={"noise_multiplier": counts.event.noise_multiplier, "chains": len(chains)},
        notes=[*dict.fromkeys(note for model in scorer.models for note in model.notes), *records.unit_notes()],
    )
    total = float(len(records.users())) if public else max(noisy[-1], 1.0)
    found = [
        _accuracy(model.name, right / total, counts.deviation / total, total if public else None, certificate)
        for model, right in zip(scorer.models, noisy, strict=False)
    ]
    return found if isinstance(chain, Sequence) else found[0]


@hold_arguments("examples")
async def aprivate_accuracy(chain: Any, examples: Examples, **options: Any) -> Any:
    """Run :func:`private_accuracy` of ``chain`` and ``examples`` in a worker thread."""
    held = PrivateArgs.of(examples)
    return await run_in_executor(None, lambda: private_accuracy(chain, held, **options))  # type: ignore[call-overload]


def _accuracy(
    name: str, share: float, error: float, records: float | None, certificate: PrivacyCertificate
) -> Accuracy:
    share = min(1.0, max(0.0, share))
    if records is None:  # the noisy number of records is in the share, too
        return Accuracy(name, share, error * math.hypot(1.0, share), None, certificate)
    return Accuracy(name, share, error, math.sqrt(share * (1 - share) / records), certificate)


class _TestRecord(dict[str, Any]):
    def __missing__(self, column: str) -> str:
        return _TEST


class _Scorer:
    """Counts chains' right answers."""

    def __init__(
        self,
        chains: Sequence[Any],
        labels: tuple[str, ...] | None,
        input_of: Callable[[Record], Any] | None,
        is_right: Callable[[Any, Record], bool] | None,
        max_concurrency: int,
        trusted: bool,
    ) -> None:
        self._labels, self._input_of, self._is_right = labels, input_of, is_right
        for option, given in (("input_of", input_of), ("is_right", is_right)):
            if given is not None and not callable(given):
                raise InvalidParameter(f"Expected {option}={given!r} to be a function, or None.")
        for chain in chains:
            if not isinstance(chain, Runnable):
                raise InvalidParameter(
                    f"Expected a chain of type {type(chain).__name__} to be a Runnable. Wrap a function in "
                    "RunnableLambda, and set trust_opaque_model=True."
                )
        self.models = [
            IsolatedModel(chain, max_concurrency=max_concurrency, trust_opaque_model=trusted) for chain in chains
        ]

    def probe(self) -> None:
        label = self._labels[0] if self._labels else "test"
        public = _TestRecord(text=_TEST, label=label)
        for model in self.models:
            model.probe(_TEST if self._input_of is None else self._input_of(public))

    def drawn(self, records: PrivateRecords, counts: VoteCounts, public: bool, rng: Randomness) -> list[float]:
        users = records.users()
        with tqdm(total=len(self.models) * len(records), unit="answer", desc="accuracy", disable=None, delay=2) as bar:
            totals = [self._total(model, records, users, bar.update) for model in self.models]
        self.probe()
        if not public:
            totals.append(VOTE * len(users))
        exact: Whole = np.array(totals, dtype=np.int64)
        noisy: list[float] = counts.release(exact, rng).tolist()
        return noisy

    def _total(
        self,
        model: IsolatedModel,
        records: PrivateRecords,
        users: Sequence[Sequence[str]],
        advance: Callable[[int], Any],
    ) -> int:
        """Return grid steps, rounded down per user."""
        names = [name for group in users for name in group]
        right: list[bool] = []
        for start in range(0, len(names), _TEXTS_AT_ONCE):
            part = [records.get(name) for name in names[start : start + _TEXTS_AT_ONCE]]
            right += self._judged(model, part)
            advance(len(part))
        total, start = 0, 0
        for group in users:
            total += VOTE * sum(right[start : start + len(group)]) // len(group)
            start += len(group)
        return total

    def _judged(self, model: IsolatedModel, part: Sequence[Record]) -> list[bool]:
        inputs = [_safely(self._input, record) for record in part]
        known = [place for place, one in enumerate(inputs) if one is not None]
        answers: list[Any] = [None] * len(part)
        for place, answer in zip(known, model.batch([inputs[place] for place in known]), strict=True):
            answers[place] = answer
        judge = self._right if self._is_right is None else self._is_right
        return [
            answer is not None and _safely(lambda *held: bool(judge(*held)), answer, record) is True
            for record, answer in zip(part, answers, strict=True)
        ]

    def _input(self, record: Record) -> Any:
        return record["text"] if self._input_of is None else self._input_of(record)

    def _right(self, answer: Any, record: Record) -> bool:
        words = self._labels or (record["label"],)
        named = label_name(answer)
        text = answer if named is None else named
        place = parse_label(text, words)
        return place is not None and words[place] == record["label"]


def _safely(work: Callable[..., Any], *held: Any) -> Any:
    """Return the isolated result, or None after a failure."""
    return call_engine(lambda: work(*held)).answer
