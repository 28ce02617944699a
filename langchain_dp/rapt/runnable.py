"""RAPT as a Runnable: sanitizes text, messages, prompts and documents."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.messages import AIMessage

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.rounding import bound
from langchain_dp._util.validate import group, one_of, reject_unknown_arguments, short_text
from langchain_dp.accounting.metric import MOST, MetricCertificate, MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.mechanisms.metric_noise import checked_eta
from langchain_dp.ports import Embeds
from langchain_dp.rapt._shell import Core, S, SanitizerShell
from langchain_dp.rapt._tables import NAMED, load
from langchain_dp.rapt.calibrate import Calibration, calibrate
from langchain_dp.rapt.messages import MessageRules, checked_keys
from langchain_dp.rapt.parts import DocumentRules, check_documents, marked, split_mappings
from langchain_dp.rapt.privatize import Mechanism, Policies, TextPrivatizer
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.vocabulary import Vocabulary
from langchain_dp.redact import PrivateArgs, hold_arguments, redact_errors, run_redacted


@dataclasses.dataclass(frozen=True)
class CalibrationTarget:
    """A calibration target other than a replacement rate. Public.

    Args:
        inversion: Share of words that an attacker may guess.
        texts: Public texts to calibrate on. None: a page of English.

    Examples:
        >>> RAPTSanitizer("glove", target=CalibrationTarget(inversion=0.2))  # an attacker guesses one word of five
    """

    inversion: float | None = None
    texts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.texts is not None:
            if isinstance(self.texts, str) or not all(isinstance(text, str) for text in self.texts):
                raise InvalidParameter("Expected texts to be a list of strings, such as [row['text'] for row in rows].")
            object.__setattr__(self, "texts", tuple(self.texts))


_TARGETS = ("eta", "target_replacement", "inversion")
_CALIBRATED: dict[tuple[str, tuple[tuple[str, float], ...], str], Calibration] = {}
"""Calibrations of named tables, public."""


def targets_of(eta: float | None, target_replacement: float | None, target: CalibrationTarget) -> dict[str, float]:
    """Return the given targets by name."""
    if eta is not None:
        checked_eta(eta, at_most=MOST)  # the account's bound, checked before the first release
    values = (eta, target_replacement, target.inversion)
    return {name: value for name, value in zip(_TARGETS, values, strict=True) if value is not None}


@dataclasses.dataclass(frozen=True)
class WordOptions:
    """Options for drawn words."""

    mechanism: Mechanism = "exponential"
    policies: Policies | None = None
    keep: Sequence[str] = ()
    length: int | None = None
    not_private_seed: int | None = None
    threads: int | None = None
    calibration_texts: Sequence[str] | None = None


def word_releases(
    embeddings: str | PathLike[str] | Embeds | Vocabulary,
    targets: Mapping[str, float],
    options: WordOptions,
    *,
    ledger: MetricLedger | None,
    limit: float | None,
    cache: bool,
    name: str,
) -> FormalReleases:
    if len(targets) != 1:
        raise InvalidParameter(
            f"Expected one of {', '.join(_TARGETS)} to say how private, got {sorted(targets) or 'none'}. Give "
            "target_replacement=0.5, or target=CalibrationTarget(inversion=0.2)."
        )
    policies = validate.group("policies", options.policies, Policies)
    account = account_of(ledger, limit, options.not_private_seed)
    vocabulary = load(embeddings)

    def calibrated() -> Calibration:
        measure = functools.partial(
            calibrate,
            vocabulary,
            **targets,
            mechanism=options.mechanism,
            texts=options.calibration_texts,
            threads=options.threads,
        )
        if not isinstance(embeddings, str) or embeddings not in NAMED or options.calibration_texts is not None:
            return measure()
        key = embeddings, tuple(targets.items()), options.mechanism
        return _CALIBRATED.get(key) or _CALIBRATED.setdefault(key, measure())

    calibration = None if "eta" in targets else calibrated()
    engine = TextPrivatizer(
        vocabulary,
        targets["eta"] if calibration is None else calibration.eta,
        mechanism=options.mechanism,
        policies=policies,
        keep=options.keep,
        length=options.length,
        rng=None if options.not_private_seed is None else NotPrivateSeededRandomness(options.not_private_seed),
        threads=options.threads,
    )
    account.check_table(engine.table)
    return FormalReleases(engine, account, calibration or calibrated, reuse=cache, chain=name)


def account_of(ledger: MetricLedger | None, limit: float | None, not_private_seed: int | None) -> MetricLedger:
    if ledger is None:
        return MetricLedger(limit)
    remedy = "Give MetricLedger(limit, path): its unit is eta, not epsilon."
    validate.instance("ledger", ledger, MetricLedger, "a MetricLedger", remedy)
    if limit is not None:
        raise InvalidParameter(
            f"Expected no `limit` ({limit}), a largest total eta of a user or document, beside a ledger, which has "
            "its own. Leave one of them out."
        )
    if not_private_seed is not None:
        raise InvalidParameter(
            f"Expected not_private_seed={not_private_seed} without a shared ledger, which would keep releases that are "
            "not private beside others. Leave the ledger out."
        )
    return ledger


class RAPTSanitizer(SanitizerShell, BaseDocumentTransformer):
    """Replaces every word by a random word of a public vocabulary, near words more often.

    Accepts a str, messages, a prompt value or documents, and returns the same type: ``sanitizer | prompt | llm``. A
    :class:`MetricLedger` is charged before each release. A text that was released before is returned again.

    Tracers never see the input of the sanitizer's own run. The ROOT run of a chain shows its raw input: use ``with
    private_run():``. For the account, each text, message, ``Document`` or example is a document, named by ``document``
    (or ``document_key``), otherwise identified by its words and its user.

    Args:
        embeddings: "glove", "minilm", a path, an ``Embeds`` object, or a ``Vocabulary``.
        eta: Loss per unit of distance, in nats. Alternatively give one target:
        target_replacement: Probability that a word is replaced by another.
        target: Share of words that an attacker may guess, and public texts to calibrate on.
        mechanism: "exponential" draws by distance. "laplace" adds noise to the word's vector, as in the paper.
        policies: Treatment of numbers, dates, addresses, punctuation and code.
        keep: Words that stay in clear.
        length: Fixed number of tokens of every output.
        messages: Parts of messages that pass in clear.
        documents: Metadata that pass in clear, and account keys.
        ledger: Account to charge. None: one in memory, with ``limit``.
        limit: Largest total eta of one user, and of one document.
        cache: Return the earlier release, free, for the same text, user and settings.
        threads: Number of threads.
        name: Name of the run and caller.

    Raises:
        PlanError: The ledger is for another table.
        MissingExtra: A named table is not installed.

    Formal guarantee:
        One release is eta-metric-private: for two texts that agree on what :meth:`certificate` lists as in clear,
        probabilities differ by a factor of at most exp(eta * sum of the distances of their words' vectors). Releases of
        the same text add up, in the ledger. Without a limit per document, equal unnamed texts of one call are separate
        documents. This is no epsilon.
        Source: Li, Tan, Liu 2023. Chatzikokolakis, Andres, Bordenabe, Palamidessi 2013.

    Examples:
        >>> sanitizer = RAPTSanitizer("glove", target_replacement=0.5)  # every second word changes
        >>> sanitizer.invoke("Anna takes 20 mg of prednisone since Friday.")
        >>> (prompt | sanitizer | llm).invoke({"text": text})
    """

    @reject_unknown_arguments
    def __init__(
        self,
        embeddings: Literal["glove", "minilm"] | str | PathLike[str] | Embeds | Vocabulary = "glove",
        *,
        eta: float | None = None,
        target_replacement: float | None = None,
        target: CalibrationTarget | None = None,
        mechanism: Mechanism = "exponential",
        policies: Policies | None = None,
        keep: Sequence[str] = (),
        length: int | None = None,
        messages: MessageRules | None = None,
        documents: DocumentRules | None = None,
        ledger: MetricLedger | None = None,
        limit: float | None = None,
        cache: bool = True,
        not_private_seed: int | None = None,
        threads: int | None = None,
        name: str = "RAPTSanitizer",
    ) -> None:
        self.name = short_text("name", name, at_least=1)
        messages = group("messages", messages, MessageRules)
        documents = group("documents", documents, DocumentRules)
        target = group("target", target, CalibrationTarget)
        one_of("cache", cache, (True, False))
        targets = targets_of(eta, target_replacement, target)
        options = WordOptions(mechanism, policies, keep, length, not_private_seed, threads, target.texts)
        releases = word_releases(embeddings, targets, options, ledger=ledger, limit=limit, cache=cache, name=name)
        self._core = Core(releases, messages, documents)

    @property
    def _releases(self) -> FormalReleases:
        releases: Any = self._core.releases  # only pseudonyms have others
        return releases  # type: ignore[no-any-return]

    @redact_errors()
    def sanitize(
        self, value: S, *, user: str | None = None, document: str | None = None, keys_keep: Sequence[str] = ()
    ) -> S:
        """:meth:`invoke` without a run. ``keys_keep`` are further JSON keys that pass in clear."""
        return self._core.sanitize(value, user, document, sorted(checked_keys(keys_keep)))

    def mark_reply(self, reply: AIMessage) -> AIMessage:
        """Mark a reply made from sanitized text only: unchanged, it passes free later."""
        validate.instance("reply", reply, AIMessage, "an AIMessage")
        return marked(reply, self._core.rules)

    @redact_errors()
    def sanitize_mappings(
        self, mappings: Sequence[Mapping[str, Any]], *, keep: Sequence[str] = (), user_key: str | None = None
    ) -> list[dict[str, Any]]:
        """Sanitize the values of few-shot examples or prompt variables, except under ``keep``: one release per mapping.

        Their own keys are in clear. ``user_key`` names the user to charge.
        """
        return self._core.release([split_mappings(mappings, self._core.rules, keep, user_key)])[0]  # type: ignore[no-any-return]

    @hold_arguments("documents")
    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        """Sanitize documents, one release each, under one charge. ``user`` and ``document`` override the metadata.

        Raises:
            InvalidParameter: A value is no document, or lacks its user or document key.
        """
        listed: Any = run_redacted(_checked, PrivateArgs.of(documents))
        return self.invoke(listed, **kwargs)  # type: ignore[no-any-return]

    @hold_arguments("documents")
    async def atransform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        """Async twin of :meth:`transform_documents`."""
        return await asyncio.to_thread(self.transform_documents, documents, **kwargs)

    def certificate(self) -> MetricCertificate:
        """Return the promise and the loss so far."""
        return self._core.certificate()

    def calibration(self) -> Calibration:
        """Measure how often words are replaced, and guessed by an attacker."""
        return self._releases.calibration()

    @property
    def ledger(self) -> MetricLedger:
        """The charged account."""
        return self._releases.ledger

    def check_limit(self, what: str, remedy: str, *, user: bool) -> None:
        """Refuse a limit that nothing could reach."""
        limit = self._releases.unreachable_limit(user=user)
        if limit is not None:
            raise InvalidParameter(
                f"`limit` ({limit:g}) is the largest total eta of a user or document, and here no total can reach it: "
                f"every {what} is a document of its own, which is charged once, and no user has an account. {remedy}"
            )

    @safe_repr
    def __repr__(self) -> str:
        engine = self._releases.engine
        return f"RAPTSanitizer({engine.mechanism}, eta={bound(engine.eta)}, {engine.table})"


def _checked(documents: Sequence[Document]) -> PrivateArgs:
    check_documents(documents)
    return PrivateArgs(list(documents))
