"""Private class prototypes, released once."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import math
import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import Field
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.documents import FileForm, Form
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate, VectorSumEvent, calibrate_vector_sum
from langchain_dp.accounting.events import count_is_public
from langchain_dp.accounting.provenance import MadeWith, ReleaseCost, costs_of_inputs
from langchain_dp.aggregate.encoders import (
    AT_ONCE,
    StaticEncoder,
    check_dimensions,
    encode_privately,
    encode_publicly,
    encoder_name,
    probe,
    projection_for,
)
from langchain_dp.aggregate.features import Floats, Projection
from langchain_dp.aggregate.plan import PrototypePlan, components_for, sharpness_for
from langchain_dp.aggregate.prior import LabelPrior
from langchain_dp.aggregate.release import DRAWING, Population, Promise, labelled_population
from langchain_dp.ensemble.questions import Question, question_texts
from langchain_dp.ensemble.reservation import LedgerOrPath
from langchain_dp.errors import InvalidParameter, PlanError
from langchain_dp.isolation.accept import check_encoder
from langchain_dp.mechanisms import Randomness, VectorSum, clip_to_norm
from langchain_dp.mechanisms.vector_sum import NORM, Whole
from langchain_dp.records import Examples, Label, PrivateRecords, RecordShards, given_labels
from langchain_dp.records.files import READING
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

FORM = "langchain_dp prototypes 1"
PRIOR_WEIGHT = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class NoisySums:
    """One noisy sum per label, in grid steps."""

    sums: Whole
    noise_multiplier: float
    users: int | None

    def weight(self) -> float:
        """Users over the noise's variance."""
        return (self.users or 1) / self.noise_multiplier**2


class DPPrototypeClassifier(Runnable[Question, Label], Generic[Label]):
    """A text classifier that is released once, with noise, and answers any number of queries.

    A public encoder turns texts into vectors. The sum of each label's vectors is released with Gaussian noise: the
    label's prototype. A query gets the nearest prototype's label, free. Anyone may see the classifier. It needs no
    language model and no label names. Make one with :meth:`fit` or :meth:`load`.

    Args:
        labels: Name of each label, and the label itself.
        encoder: The public encoder.
        projection: Public map from its vectors to coordinates.
        releases: Noisy sums.
        certificate: The promise.
        threshold: Smallest probability of an answer.
        otherwise: The answer below it.
        prior: A language model's scores.

    Formal guarantee:
        (epsilon, delta)-DP in the examples, with the budget's neighbors: in all examples of a user if
        :class:`~langchain_dp.PrivateRecords` has a ``user_key``. Replacing a user moves the stacked sums by at most
        twice the largest norm, adding one by that norm. Queries are post-processing. Encoder, labels and number of
        components are public.

    References:
        Backurs, Lin, Mahabadi, Silwal, Tarnawski 2024 (classification by average similarity). Wahdany, Jagielski,
        Dziedzic, Boenisch 2025 (private prototypes). Balle and Wang 2018 (the Gaussian mechanism's exact profile).

    Examples:
        >>> rows, test_rows = langchain_dp.sample.load()
        >>> classifier = DPPrototypeClassifier.fit(rows, labels=["praise", "complaint"], budget=PrivacyBudget(1.0))
        >>> classifier.invoke("The nurse was kind and patient with my mother. Thank you!")
        'praise'
        >>> classifier.certificate().remaining
        0
    """

    @validate.made_by("DPPrototypeClassifier.fit(examples, labels=..., budget=PrivacyBudget(1.0)), or load(path)")
    def __init__(
        self,
        *,
        labels: Mapping[str, Label],
        encoder: Embeddings,
        projection: Projection,
        releases: Sequence[NoisySums],
        certificate: PrivacyCertificate,
        threshold: float = 0.0,
        otherwise: Any = None,
        prior: LabelPrior | None = None,
    ) -> None:
        self._given = dict(labels)
        self._encoder = encoder
        self._projection = projection
        self._releases = tuple(releases)
        self._certificate = certificate
        self._threshold, self._otherwise = threshold, otherwise
        self._prior = prior
        combined = sum(release.weight() * release.sums for release in self._releases)
        self._sharpness = sharpness_for(self._signal_to_noise())
        lengths = np.linalg.norm(combined, axis=1, keepdims=True)
        self._prototypes: Floats = np.divide(combined, lengths, out=np.zeros_like(combined), where=lengths > 0)

    def _signal_to_noise(self) -> float | None:
        """Users per label over noise."""
        if any(release.users is None for release in self._releases):
            return None
        users = sum(release.weight() * (release.users or 0) for release in self._releases)
        noise = math.hypot(*(release.weight() * release.noise_multiplier for release in self._releases))
        return users / noise / len(self._given)

    @property
    def labels(self) -> list[Label]:
        """The public labels."""
        return list(self._given.values())

    @classmethod
    @validate.reject_unknown_arguments
    @hold_arguments("examples")
    def fit(
        cls,
        examples: Examples | RecordShards,
        *,
        labels: Iterable[Label],
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "prototypes",
        encoder: Embeddings | None = None,
        components: int | None = None,
        texts: Sequence[str] | None = None,
        trust_opaque_model: bool = False,
        made_with: MadeWith = None,
        not_private_seed: int | None = None,
    ) -> Self:
        """Release the prototypes of private examples. A ledger in a file returns the same release again, free.

        Args:
            examples: Private mappings with ``text`` and ``label``, or another input of
                :class:`~langchain_dp.PrivateRecords`, or :class:`~langchain_dp.RecordShards`.
            labels: The public labels. A label without examples gets a prototype of noise.
            budget: The promise, or with ``ledger`` the share to reserve.
            ledger: Ledger to charge, or a path. Without ``budget``, its rest is reserved.
            name: Name of the release in the ledger.
            encoder: Any public ``Embeddings``, by default :class:`~langchain_dp.aggregate.StaticEncoder`. Its operator
                sees the examples.
            components: Number of principal components, required if the number of users is private (add/remove).
            texts: Public texts like the private ones, for mean and components. By default those of the package.
            trust_opaque_model: Accept your own encoder class, on your word that it keeps no text.
            made_with: Certificates of released text in public arguments that lost its cost.
            not_private_seed: Reproducible noise. The result is then not private.

        Raises:
            InvalidParameter: A value is out of bounds, a label is unknown, or the encoder returns no vectors.
            BudgetExceeded: The ledger cannot afford the release.
            ModelUnavailable: The encoder failed on public texts. After a charge, the same call resumes free.
            PlanError: The ledger keeps another release under this name.
        """
        given = given_labels(labels)
        records = run_redacted(labelled_population, PrivateArgs(PrivateArgs.of(examples), tuple(given)), READING)
        encoder = StaticEncoder() if encoder is None else encoder
        model = encoder_name(encoder)
        promise = Promise.of(budget, ledger, name, not_private_seed, labels, texts, model=model, made_with=made_with)
        notes = check_encoder(encoder, trusted=trust_opaque_model)
        fitting = _Fitting(promise, records, tuple(given), encoder)
        basis = projection_for(encoder, None if texts is None else _checked_texts(texts))
        k = fitting.components() if components is None else validate.integer("components", components, at_least=1)
        projection, sums, certificate = fitting.release(basis.first(k), notes)
        return cls(labels=given, encoder=encoder, projection=projection, releases=[sums], certificate=certificate)

    @classmethod
    @hold_arguments("examples")
    async def afit(cls, examples: Examples | RecordShards, **arguments: Any) -> Self:
        """Run :meth:`fit` in a thread."""
        held = PrivateArgs.of(examples)
        return await run_in_executor(None, lambda: cls.fit(held, **arguments))  # type: ignore[arg-type]

    @hold_arguments("examples")
    def update(
        self,
        examples: Examples | RecordShards,
        *,
        budget: PrivacyBudget | None = None,
        ledger: LedgerOrPath | None = None,
        name: str = "prototypes-2",
        trust_opaque_model: bool = False,
        not_private_seed: int | None = None,
    ) -> Self:
        """Return a classifier that adds further examples, by a release with its own budget.

        Arguments and errors are as in :meth:`fit`. Each release is weighted by its users over its noise variance. The
        certificate adds up both costs. A user in one release has only that cost.
        """
        labels = tuple(self._given)
        records = run_redacted(labelled_population, PrivateArgs(PrivateArgs.of(examples), labels), READING)
        model = encoder_name(self._encoder)
        promise = Promise.of(budget, ledger, name, not_private_seed, model=model, made_with=self._certificate)
        notes = check_encoder(self._encoder, trusted=trust_opaque_model)
        probe(self._encoder, len(self._projection.mean))
        fitting = _Fitting(promise, records, labels, self._encoder)
        projection, sums, certificate = fitting.release(self._projection, notes)
        if projection.to_dict() != self._projection.to_dict():
            raise PlanError(f"The ledger holds the release {name!r} of another classifier. Give another name=.")
        return self._with(releases=[*self._releases, sums], certificate=certificate)

    @staticmethod
    def plan(
        examples_count: int, *, labels: Iterable[Any], budget: PrivacyBudget, components: int | None = None
    ) -> PrototypePlan:
        """Forecast the accuracy for a number of examples or users. Spends nothing."""
        validate.integer("examples_count", examples_count, at_least=1)
        noise, count = calibrate_vector_sum(budget), len(given_labels(labels))
        k = components_for(examples_count, count, noise) if components is None else components
        return PrototypePlan(examples=examples_count, labels=count, budget=budget, components=k, noise_multiplier=noise)

    def invoke(self, input: Question, config: RunnableConfig | None = None, **kwargs: Any) -> Label:  # noqa: A002  # Runnable's name
        """Return the label of a str, messages, a prompt value, a document, or a mapping with ``text``, free.

        Raises:
            InvalidParameter: The text is blank, or the encoder returned no vector.
        """
        reject_extra_kwargs(kwargs)
        result: Label = self._call_with_config(lambda one: self._classify([one])[0], input, config)
        return result

    def batch(
        self,
        inputs: list[Question],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Label]:
        """Return several texts' labels."""
        reject_extra_kwargs(kwargs)
        if return_exceptions:  # each text has its own
            return super().batch(inputs, config, return_exceptions=True)
        results: list[Label] = self._batch_with_config(
            self._classify,  # type: ignore[arg-type]  # one of LangChain's forms
            inputs,
            config,
        )
        return results

    async def abatch(
        self,
        inputs: list[Question],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Label]:
        """Run :meth:`batch` asynchronously."""
        run = lambda: self.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)  # noqa: E731
        return await run_in_executor(None, run)

    def _classify(self, inputs: list[Question]) -> list[Label]:
        shares = self._shares(inputs)
        names = list(self._given)
        best = shares.argmax(axis=1)
        return [
            self._otherwise if row[place] < self._threshold else self._given[names[place]]
            for row, place in zip(shares, best, strict=True)
        ]

    def probabilities(self, text: Question) -> dict[Label, float]:
        """Return a softmax of cosines, with the prior if any."""
        return dict(zip(self._given.values(), self._shares([text])[0].tolist(), strict=True))

    def _shares(self, inputs: Sequence[Question]) -> Floats:
        texts = [question_texts(one, ("text",))["text"] for one in inputs]
        rows = encode_publicly(self._encoder, texts)
        check_dimensions(rows, len(self._projection.mean))
        logits = self._sharpness * (self._projection.vectors(rows) / NORM) @ self._prototypes.T
        if self._prior is not None:
            logits = logits + self._prior.log_scores(texts)
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(logits / logits.sum(axis=1, keepdims=True))

    def _with(self, **changes: Any) -> Self:
        own = {
            "labels": self._given, "encoder": self._encoder, "projection": self._projection,
            "releases": self._releases, "certificate": self._certificate, "threshold": self._threshold,
            "otherwise": self._otherwise, "prior": self._prior,
        }  # fmt: skip
        return type(self)(**{**own, **changes})

    def abstaining(self, below: float, otherwise: Any = None) -> Self:
        """Return a copy that answers ``otherwise`` if no label's probability is at least ``below``, in [0, 1]."""
        below = validate.number("below", below, at_least=0.0, at_most=1.0)
        return self._with(threshold=below, otherwise=otherwise)

    def with_prior(
        self,
        model: Any,
        names: Mapping[str, str] | None = None,
        *,
        prompt: str | None = None,
        weight: float = PRIOR_WEIGHT,
    ) -> Self:
        """Return a copy that adds a language model's log-probabilities, one call per query.

        The model sees the query and the names, never an example. The certificate adds the cost of released names.

        Args:
            model: An engine that scores labels, or a chat model, which names one.
            names: Meanings of labels. A missing label keeps its name.
            prompt: Prompt with ``{text}`` and optionally ``{names}``, which an engine continues with a name.
            weight: Factor of the log-probabilities.
        """
        prior = LabelPrior(model, list(self._given), names or {}, prompt, weight)
        costs = costs_of_inputs(names, prompt, made_with=None, budget=None, ledger=None)
        return self._with(prior=prior, certificate=self._certificate.including(costs))

    def as_tool(self, *, name: str = "classify", description: str | None = None, **kwargs: Any) -> BaseTool:  # type: ignore[override]
        """Return a tool for agents. Its ``description`` names the labels by default."""
        reject_extra_kwargs(kwargs)

        def classify(text: str) -> str:
            return str(self.invoke(text))

        told = description or f"Say which of these labels fits a text: {', '.join(self._given)}."
        return StructuredTool.from_function(classify, name=name, description=told)

    def parts_that_read(self) -> list[Any]:
        """Return the parts that see a query: encoder and prior's model."""
        return [self._encoder, *([] if self._prior is None else [self._prior.model])]

    def certificate(self) -> PrivacyCertificate:
        """Return the promise. Queries do not change it."""
        return self._certificate

    def as_sources(self) -> tuple[ReleaseCost, ...]:
        """Return the cost, for certificates of everything made with the classifier."""
        return self._certificate.as_sources()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON with certificate, whole or not at all, without threshold and prior."""
        form = _SavedPrototypes(
            format=FORM,
            labels=list(self._given),
            encoder=encoder_name(self._encoder),
            projection=self._projection.to_dict(),
            releases=[
                _SavedRelease(sums=_written(one.sums), noise_multiplier=one.noise_multiplier, users=one.users)
                for one in self._releases
            ],
            certificate=self._certificate.to_dict(),
        )
        write_whole(Path(path), form.model_dump_json(indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: Embeddings | None = None) -> Self:
        """Read a classifier that :meth:`save` wrote, with string labels, and its ``encoder`` unless it was the default.

        Raises:
            InvalidParameter: The file holds no classifier, or one of another encoder.
        """
        form = _SavedPrototypes.load(Path(path), FORM)
        encoder = StaticEncoder() if encoder is None else encoder
        if encoder_name(encoder) != form.encoder:
            raise InvalidParameter(
                f"Expected encoder={encoder_name(encoder)!r} to be {form.encoder!r}, which the classifier was fitted "
                "with. Give that one."
            )
        try:
            projection = Projection.from_dict(form.projection)
            releases = [
                NoisySums(_read(one.sums, len(form.labels), projection.k), one.noise_multiplier, one.users)
                for one in form.releases
            ]
            certificate = PrivacyCertificate.from_dict(form.certificate)
            labels: dict[str, Any] = given_labels(form.labels)
            return cls(
                labels=labels, encoder=encoder, projection=projection, releases=releases, certificate=certificate
            )
        except (KeyError, TypeError, ValueError) as error:
            problem = type(error).__name__
        raise InvalidParameter(f"Expected {os.fspath(path)!r} to hold a saved classifier ({problem}). It is damaged.")

    def __repr__(self) -> str:
        digest = hashlib.sha256(self._prototypes.tobytes()).hexdigest()[:12]
        return (
            f"{type(self).__name__}(labels={list(self._given)}, encoder={encoder_name(self._encoder)!r}, sums={digest})"
        )


class _SavedRelease(Form):
    sums: str
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)
    users: int | None = Field(ge=1)


class _SavedPrototypes(FileForm):
    labels: list[str]
    encoder: str
    projection: dict[str, Any]
    releases: list[_SavedRelease] = Field(min_length=1)
    certificate: dict[str, Any]


class _Fitting:
    """One noisy release."""

    def __init__(self, promise: Promise, records: Population, labels: tuple[str, ...], encoder: Embeddings) -> None:
        self._promise, self._records, self._labels, self._encoder = promise, records, labels, encoder
        self._share = promise.share()
        self._event = VectorSumEvent(calibrate_vector_sum(self._share))
        self._users = records.count_users() if count_is_public(self._share.neighbors) else None

    def components(self) -> int:
        return components_for(self._users, len(self._labels), self._event.noise_multiplier)

    def release(self, projection: Projection, notes: Sequence[str]) -> tuple[Projection, NoisySums, PrivacyCertificate]:
        """Release the sums, with the projection that the ledger keeps, if any."""
        mechanism = VectorSum(self._event, NORM)

        def draw(rng: Randomness) -> dict[str, Any]:
            # No frame keeps the exact sums.
            noisy = run_redacted(lambda: mechanism.release(self._total(projection), rng=rng), PrivateArgs(), DRAWING)
            return {"projection": projection.to_dict(), "sums": _written(noisy)}

        settings = {"labels": list(self._labels), "encoder": self._promise.model, "components": projection.k}
        value = self._promise.release_once(
            self._event, draw, records=self._records, settings=settings, share=self._share
        )
        kept = Projection.from_dict(value["projection"])
        if not kept.is_like(projection):
            raise PlanError(
                f"The ledger holds the release {self._promise.name!r} of another encoder, or of other texts=. Give the "
                "old ones, or give the new release another name=."
            )
        certificate = self._promise.certificate(
            mechanism="noisy class sums over a public encoder",
            parameters={"noise_multiplier": self._event.noise_multiplier, "components": projection.k},
            notes=[*notes, *self._records.unit_notes(), "any number of queries: they cost nothing further"],
        )
        sums = _read(value["sums"], len(self._labels), kept.k)
        return kept, NoisySums(sums, self._event.noise_multiplier, self._users), certificate

    def _total(self, projection: Projection) -> Whole:
        step = functools.partial(_class_sums, labels=self._labels, encoder=self._encoder, projection=projection)
        total: Whole = self._records.total(step)
        probe(self._encoder, len(projection.mean))
        return total


def _class_sums(records: PrivateRecords, labels: Sequence[str], encoder: Embeddings, projection: Projection) -> Whole:
    """Sum users' rows per label, clipped together to the norm."""
    place = {label: index for index, label in enumerate(labels)}
    names = [name for group in records.users() for name in group]
    texts = [records.get(name)["text"] for name in names]
    at = np.array([place[records.get(name)["label"]] for name in names], dtype=np.int64)
    sizes = [len(group) for group in records.users()]
    hidden = None if multiprocessing.parent_process() is None else True
    parts = encode_privately(encoder, texts, len(projection.mean))
    count = math.ceil(len(texts) / AT_ONCE)
    blocks = tqdm(parts, total=count, desc="encoding", unit="block", disable=hidden, delay=2)
    total = np.zeros((len(place), projection.k), dtype=np.int64)
    start = 0
    if max(sizes, default=1) == 1:
        for block in blocks:
            rows = projection.vectors(block)
            np.add.at(total, at[start : start + len(rows)], rows)
            start += len(rows)
        return total
    rows = np.vstack([projection.vectors(block) for block in blocks])
    for size in sizes:
        own = np.zeros_like(total)
        np.add.at(own, at[start : start + size], rows[start : start + size])
        total += clip_to_norm(own.reshape(1, -1), NORM).reshape(own.shape)
        start += size
    return total


def _checked_texts(texts: Sequence[str]) -> list[str]:
    listed = [] if isinstance(texts, str) else list(texts)
    if len(listed) < 2 or not all(isinstance(text, str) and text.strip() for text in listed):
        raise InvalidParameter("Expected texts to be a list of at least two non-empty public texts.")
    return listed


def _written(sums: Whole) -> str:
    return base64.b64encode(sums.astype("<i8").tobytes()).decode()


def _read(text: str, labels: int, k: int) -> Whole:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<i8").reshape(labels, k).astype(np.int64)
