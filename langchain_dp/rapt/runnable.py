"""RAPT as a Runnable: text, messages, prompts and documents go in, the same types come out privatized."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.validate import group, one_of, reject_unknown_arguments, short_text
from langchain_dp.accounting.metric import MetricCertificate, MetricLedger
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.metric_exponential import CACHE_BYTES
from langchain_dp.ports import Embeds
from langchain_dp.rapt._shell import WITHHELD, Core, S, SanitizeResult, SanitizerShell
from langchain_dp.rapt.build import CalibrationTarget, WordOptions, targets_of, word_releases
from langchain_dp.rapt.calibrate import Calibration
from langchain_dp.rapt.documents import DocumentRules, check_documents
from langchain_dp.rapt.messages import MessageRules, checked_keys
from langchain_dp.rapt.parts import Sanitizable, marked, take_mappings
from langchain_dp.rapt.privatize import Keep, Mechanism, Policies
from langchain_dp.rapt.release import FormalReleases
from langchain_dp.rapt.vocabulary import Vocabulary
from langchain_dp.redact import PrivateArgs, hold_arguments, redact_errors, run_redacted


class RAPTSanitizer(SanitizerShell, BaseDocumentTransformer):
    """Replaces every word of what passes through it by a random word of a public vocabulary, near ones more often.

    Takes a str, a message, a list of messages, a prompt value, a document or a list of documents, and gives the same
    type back: ``sanitizer | prompt | llm``, ``prompt | sanitizer | llm``, ``retriever | sanitizer``. What a release
    costs is recorded in a :class:`MetricLedger` before it is made; a text that was released before is given out again.

    The sanitizer's own run shows callbacks and tracers what it releases and not what it is given. The ROOT run of a
    chain shows the raw input of the chain all the same, which no component can prevent: run the chain in
    ``with private_run():``.

    Streams: words leave as soon as two whole words follow them (a date is one feature of up to four words). A stream
    of one chunk, messages, a fixed ``length``, kept or named code, subwords of a foreign tokenizer, and a ledger with a
    limit per document are gathered first; under such a limit words leave early only if ``document`` says which it is.
    Words that leave before a text is complete are charged as one release of a document of its own, or of
    ``document``, and are not kept for reuse.

    A document, for its account and its limit, is what is released as one: a text, a query, one message of a history or
    of an agent, the gathered chunks of a stream, a ``Document`` with its sanitized metadata, the values of one example.
    ``document`` (or ``document_key``) says which it is. Without that its words and its user say it, whatever the face:
    equal ones of two calls are one document, and so are those of one call where there is a limit for each document. The
    same words in other company (a text, and the text with a title) are another document, unless they are named alike.

    Args:
        embeddings: "glove", "minilm", a path, an object with words and vectors (``Embeds``), or a ``Vocabulary``.
        eta: Loss per unit of distance, in nats. Or one target from which it is calibrated:
        target_replacement: Probability that a word comes out as another one.
        target: Other targets (deniability, inversion, largest loss), and public texts to calibrate on.
        mechanism: "exponential" draws a word by its distance; "laplace" adds noise to the word's vector and takes the
            nearest word, as in the paper. At the same replacement rate the first needs a far smaller eta.
        policies: What happens to numbers, dates, addresses, punctuation, code and unknown words.
        keep: Words that stay in clear, or a function that says which.
        length: Every text comes out at exactly this many tokens.
        casing: Capitalize what replaces a capitalized word. This puts the casing in clear.
        messages: What of messages passes in clear: system messages, media, keys of JSON. By default the first two do.
        documents: What of a document's metadata passes, and which keys say whose and which it is. By default none does.
        ledger: Account to charge. None: one in memory, with ``limit``.
        limit: What the releases of one user, and of one document, may add up to. Not beside ``ledger``. A text that is
            given out again costs nothing: with ``cache``, texts without ``user`` or ``document`` hardly reach it.
        cache: Whether a text that was released before, for the same user and under the same settings, is given out
            again at no cost.
        not_private_seed: Reproducible draws. The certificate says that the result is not private.
        threads: Threads to draw with.
        cache_bytes: Memory for what the exponential mechanism keeps of words seen before; room for 32,000 by default.
        name: Name of the run, and of the caller in the ledger.

    Raises:
        InvalidParameter: A value is out of bounds, or two values contradict each other.
        PlanError: The ledger counts in distances of another table.
        MissingExtra: The package of a named table is not installed.

    Formal guarantee:
        One release of a text is eta-metric-private: for two texts that agree on what :meth:`certificate` lists as in
        clear, probabilities differ by at most exp(eta * sum of the distances of their words' vectors). Releases of the
        same text add up, in the ledger. Under a limit for each document, all of them do; without one, equal texts of
        one call, and streams that leave early, are documents of their own unless they are named. This is no epsilon.
        Source: Li, Tan, Liu 2023; Chatzikokolakis, Andres, Bordenabe, Palamidessi 2013.

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
        keep: Keep = (),
        length: int | None = None,
        casing: bool = False,
        messages: MessageRules | None = None,
        documents: DocumentRules | None = None,
        ledger: MetricLedger | None = None,
        limit: float | None = None,
        cache: bool = True,
        not_private_seed: int | None = None,
        threads: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        name: str = "RAPTSanitizer",
    ) -> None:
        self.name = short_text("name", name, at_least=1)
        messages = group("messages", messages, MessageRules)
        documents = group("documents", documents, DocumentRules)
        target = group("target", target, CalibrationTarget)
        one_of("cache", cache, (True, False))
        targets = targets_of(eta, target_replacement, target)
        options = WordOptions(
            mechanism, policies, keep, length, casing, not_private_seed, threads, target.texts, cache_bytes
        )
        releases = word_releases(embeddings, targets, options, ledger=ledger, limit=limit, cache=cache, name=name)
        self._core = Core(releases, messages, documents)

    @property
    def _releases(self) -> FormalReleases:
        releases: Any = self._core.releases
        return releases  # type: ignore[no-any-return]  # pseudonyms, which have others, are no such sanitizer

    @redact_errors()
    def sanitize(
        self, value: S, *, user: str | None = None, document: str | None = None, keys_keep: Sequence[str] = ()
    ) -> S:
        """Do what :meth:`invoke` does, without a run: for use inside other components.

        Args:
            value: What to sanitize.
            user: Whose account is charged.
            document: Which document it is, for its account.
            keys_keep: Further keys of JSON objects in messages that pass in clear.
        """
        return self._core.sanitize(value, user, document, sorted(checked_keys(keys_keep)))

    def mark_reply(self, reply: AIMessage) -> AIMessage:
        """Mark the reply of a model that was told sanitized text only: in later histories it passes as it is.

        It is post-processing of what was released, so it costs nothing. Any change to its texts voids the mark, and
        only this sanitizer's account can make it.
        """
        if not isinstance(reply, AIMessage):
            raise InvalidParameter(f"Expected reply of type {type(reply).__name__} to be an AIMessage.")
        return marked(reply, self._core.rules)

    @redact_errors()
    def sanitize_mappings(
        self, mappings: Sequence[Mapping[str, Any]], *, keep: Sequence[str] = (), user_key: str | None = None
    ) -> list[dict[str, Any]]:
        """Sanitize the values of mappings, such as few-shot examples or the variables of a prompt: one release each.

        Args:
            mappings: Their own keys stay; values may be nested, and the keys inside them are sanitized.
            keep: Keys whose values pass in clear.
            user_key: Key that says whose account is charged; it is not passed on.
        """
        return self._core.released([take_mappings(mappings, self._core.rules, keep, user_key)])[0]  # type: ignore[no-any-return]

    @hold_arguments("documents")
    def transform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        """Sanitize documents: the page content and the metadata named in ``metadata_sanitize``, as one release each.

        All that are new are charged together, or none. Other metadata are dropped, but for ``metadata_keep``.

        Args:
            documents: Documents, which are not changed.
            **kwargs: ``user`` and ``document``, which count before what the metadata say.

        Raises:
            InvalidParameter: Something else than a document, or one without its user or document key.
            BudgetExceeded: An account has too little left. Nothing was charged and nothing released.
        """
        listed: Any = run_redacted(_checked, PrivateArgs.of(documents))
        return self.invoke(listed, **kwargs)  # type: ignore[no-any-return]  # as what is held

    @hold_arguments("documents")
    async def atransform_documents(self, documents: Sequence[Document], **kwargs: Any) -> list[Document]:
        """Async twin of :meth:`transform_documents`."""
        listed: Any = run_redacted(_checked, PrivateArgs.of(documents))
        return await self.ainvoke(listed, **kwargs)  # type: ignore[no-any-return]

    @hold_arguments("value")
    def invoke_with_certificate(
        self,
        value: Sanitizable,
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        document: str | None = None,
    ) -> SanitizeResult:
        """Sanitize one input and return it with its certificate, whose notes name what passed in clear."""
        held = PrivateArgs(*PrivateArgs.of(value).values, user, document)
        made: list[SanitizeResult] = []

        def run(_: Any) -> Any:
            made.append(run_redacted(self._core.with_certificate, held))
            return made[0].value

        self._call_with_config(run, WITHHELD, config)
        return made[0]

    @hold_arguments("value")
    async def ainvoke_with_certificate(
        self,
        value: Sanitizable,
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        document: str | None = None,
    ) -> SanitizeResult:
        """Async twin of :meth:`invoke_with_certificate`."""
        held = PrivateArgs(*PrivateArgs.of(value).values, user, document)
        made: list[SanitizeResult] = []

        async def run(_: Any) -> Any:
            made.append(await asyncio.to_thread(run_redacted, self._core.with_certificate, held))
            return made[0].value

        await self._acall_with_config(run, WITHHELD, config)
        return made[0]

    def certificate(self) -> MetricCertificate:
        """The promise under which this sanitizer releases, with what is spent so far."""
        return self._core.certificate()

    def calibration(self) -> Calibration:
        """Measure what eta means on this table: how often words are replaced, and what an attacker gains."""
        return self._releases.calibration()

    @property
    def ledger(self) -> MetricLedger:
        """The account that is charged."""
        return self._releases.ledger

    @property
    def names_documents(self) -> bool:
        """Whether the metadata of a document say whose it is, or which: ``user_key`` or ``document_key`` is set."""
        rules = self._core.rules.documents
        return (rules.user_key or rules.document_key) is not None

    def check_limit(self, what: str, remedy: str, *, user: bool) -> None:
        """Refuse to stand where no limit of this sanitizer's account could ever be reached; for what wraps one.

        Args:
            what: What is released there, each as a document of its own that has no name.
            remedy: What to do about it.
            user: Whether somebody's account as a user is charged there.

        Raises:
            InvalidParameter: There is a limit, and nothing that is released there could reach it.
        """
        limit = self._releases.unreachable_limit(user=user)
        if limit is not None:
            raise InvalidParameter(
                f"Expected limit={limit:g} to be one that can be reached: here every {what} is a document of its own, "
                f"which is charged once, and no user has an account under the limit. {remedy}"
            )

    @safe_repr
    def __repr__(self) -> str:
        return f"RAPTSanitizer({self._releases.describe()})"


def _checked(documents: Sequence[Document]) -> PrivateArgs:
    check_documents(documents)
    return PrivateArgs(list(documents))
