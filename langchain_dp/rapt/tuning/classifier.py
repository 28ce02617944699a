"""The tuned classifier as a Runnable: text in, sanitized inside, a label out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from numpy.typing import NDArray

from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.validate import reject_extra_kwargs
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter, LangChainDPError, LedgerError
from langchain_dp.rapt._shell import WITHHELD, in_thread, named_user, named_users, user_specs
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.tuning.client import IdentitySanitizer, Question, RAPTClient
from langchain_dp.rapt.tuning.promise import TrainedOn
from langchain_dp.rapt.tuning.wire import PROVIDER, WEIGHTS, Answer, PredictionRequest
from langchain_dp.redact import HeldInputs, PrivateArgs, hold_arguments, run_redacted, without_frames

if TYPE_CHECKING:  # the client's machine needs neither torch nor a model
    from langchain_dp.rapt.tuning.provider import RAPTProvider
    from langchain_dp.rapt.tuning.training import TrainingReport

CERTIFICATE = "certificate.json"


class RAPTClassifier(HeldInputs, Runnable[str, str]):
    """Answers with a label. The text is sanitized first; only the release reaches the model.

    Callbacks and tracers see that something was asked, and the label, never the text. The root run of a chain shows
    the chain's own input all the same: run it in ``with private_run():``.

    The same question can get other probabilities, and near one half another label, from call to call: a text that was
    asked before is given the release of then, but the plain tokens before it are drawn anew, with new noise. They are
    public, so this protects nothing. ``classifier.client.plain_seed = 0`` derives them from that public seed and the
    privatized text: equal privatized texts then get equal probabilities, but for rounding. Questions are the same
    privatized text only where the sanitizer's ``cache`` gives releases out again, to the same user.

    Args:
        client: Sanitizes.
        provider: The tuned model; or a function that posts a JSON body to one and returns the body of its answer. An
            address alone is none.
        training: Certificate of the training texts.
        report: What training did.
        name: Name of the run.

    Raises:
        InvalidParameter: ``client`` or ``provider`` is something else, or they do not belong together.

    Formal guarantee:
        That of the sanitizer for every question, one release each. Labels and probabilities are post-processing.

    Examples:
        >>> classifier = tuner.fit(examples)
        >>> classifier.invoke("The film was a joy.")  # one of the labels
        >>> classifier.predict_proba(["The film was a joy."]).shape
        (1, 2)
    """

    def __init__(
        self,
        client: RAPTClient,
        provider: RAPTProvider | Callable[[bytes], bytes],
        *,
        training: MetricCertificate | None = None,
        report: TrainingReport | None = None,
        name: str = "RAPTClassifier",
    ) -> None:
        _check_parts(client, provider)
        self.name = name
        self.client = client
        self.provider = provider
        self.training = training
        self.report = report

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What a config may say: whose account is charged."""
        return user_specs()

    @hold_arguments("input")
    def invoke(
        self,
        input: Question,  # noqa: A002  # Runnable's name
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Classify one text.

        Args:
            input: Private text; of a message, a prompt value or a document its text, of several messages that of the
                last human one. Callbacks do not see it.
            config: LangChain config.
            user: Whose account is charged; by default ``config={"configurable": {"user_id": "u-17"}}``, in every call.
            **kwargs: None are taken.

        Raises:
            InvalidParameter: It is no text. Nothing was charged.
            BudgetExceeded: An account has too little left. Nothing was charged and nothing released.
            LedgerError: The ledger cannot be trusted or written. Nothing was released.
        """
        reject_extra_kwargs(kwargs)
        held = PrivateArgs(list(PrivateArgs.of(input).values), [named_user(user, config)])
        return self._call_with_config(lambda _: _chosen(self._answer(held))[0], WITHHELD, config)

    @hold_arguments("input")
    async def ainvoke(
        self,
        input: Question,  # noqa: A002
        config: RunnableConfig | None = None,
        *,
        user: str | None = None,
        **kwargs: Any,
    ) -> str:
        """Async twin of :meth:`invoke`; the work is done in a thread."""
        reject_extra_kwargs(kwargs)
        held = PrivateArgs(list(PrivateArgs.of(input).values), [named_user(user, config)])
        work = in_thread(lambda: _chosen(self._answer(held))[0])
        return await self._acall_with_config(work, WITHHELD, config)

    @hold_arguments("inputs")
    def batch(
        self,
        inputs: Sequence[Question],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        user: str | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Classify many texts: one charge for all of them, all or none, and few passes of the model.

        With ``return_exceptions`` a text that is refused does not keep the others back, and what goes wrong with the
        provider is the result of the texts it was asked about: nothing is privatized, or charged, a second time.

        Raises: As :meth:`invoke`; and InvalidParameter where one string stands in place of a list.
        """
        reject_extra_kwargs(kwargs)
        held, count = _listed(PrivateArgs.of(inputs))
        held = PrivateArgs(*held.values, named_users(user, config, count))
        return self._batch_with_config(
            lambda _: self._all(held, return_exceptions),
            [WITHHELD] * count,
            config,
            return_exceptions=return_exceptions,
        )

    @hold_arguments("inputs")
    async def abatch(
        self,
        inputs: Sequence[Question],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        user: str | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Async twin of :meth:`batch`."""
        reject_extra_kwargs(kwargs)
        held, count = _listed(PrivateArgs.of(inputs))
        held = PrivateArgs(*held.values, named_users(user, config, count))
        work = in_thread(self._all, held, return_exceptions)
        return await self._abatch_with_config(work, [WITHHELD] * count, config, return_exceptions=return_exceptions)

    @hold_arguments("texts")
    def predict_proba(self, texts: Sequence[Question], *, user: str | None = None) -> NDArray[np.float64]:
        """Probabilities of the labels, (texts, labels), in the order of :attr:`labels`. Charged like :meth:`batch`.

        Raises: As :meth:`invoke`.
        """
        held, count = _listed(PrivateArgs.of(texts))
        answer = self._answer(PrivateArgs(*held.values, [user] * count))
        return np.array(answer.probabilities, dtype=np.float64).reshape(count, -1 if count else 0)

    @property
    def labels(self) -> tuple[str, ...]:
        """The public labels, in the order of the probabilities.

        Raises:
            InvalidParameter: The model is behind a function, which tells the labels with its answers only.
        """
        if callable(self.provider):
            raise InvalidParameter("Expected a provider in this process. A remote one tells its labels with answers.")
        return self.provider.labels

    def _answer(self, held: PrivateArgs) -> Answer:
        """What the provider says of the texts, each with its user, that are held. Its own errors pass as they are."""
        answers = [self._asked(request) for request in run_redacted(self.client._requests_of, held)]
        labels = answers[-1].labels if answers else ()
        if any(answer.labels != labels for answer in answers):
            raise InvalidParameter("Expected the provider to answer with the same labels each time. Ask it again.")
        return Answer(labels, [row for answer in answers for row in answer.probabilities])

    def _asked(self, request: PredictionRequest) -> Answer:
        if callable(self.provider):
            return Answer.from_json(self.provider(request.to_json()), texts=len(request))
        return self.provider.predict(request)

    def _all(self, held: PrivateArgs, tolerant: bool) -> list[str | Exception]:
        """One label a text; ``tolerant`` puts errors in place of labels."""
        if not tolerant:
            return list(_chosen(self._answer(held)))
        results: list[str | Exception] = []
        for request in run_redacted(self._released, held):
            if isinstance(request, Exception):
                results.append(request)
                continue
            try:
                results += _chosen(self._asked(request))
            except Exception as error:  # the provider's: its texts are paid for, and not drawn again
                results += [error] * len(request)
        return results

    def _released(self, texts: list[Question], users: list[str | None]) -> list[PredictionRequest | Exception]:
        """Requests for all texts; where not all can be released, one for each, or what is in its way."""
        try:
            return list(self.client._requests_of(texts, users))
        except LangChainDPError as error:
            if isinstance(error, LedgerError):  # what it charged before would be charged twice
                raise
        met: Counter[str] = Counter()
        found: list[PredictionRequest | Exception] = []
        for text, user in zip(texts, users, strict=True):
            try:
                found += self.client._requests_of([text], [user], met)
            except LangChainDPError as error:
                found.append(without_frames(error))  # type: ignore[arg-type]  # of the same class
        return found

    def certificate(self) -> MetricCertificate:
        """The promise for questions, with what is spent so far; that of the training texts is ``training``.

        Its notes say so where questions are privatized at another eta, or by another mechanism, than training texts
        were. Without ``training`` the client's file says what those were.
        """
        trained = self.client.trained if self.training is None else TrainedOn.of(self.training)
        other = None if trained is None else trained.note(self.client.eta, self.client.mechanism, self.client.table)
        return self.client.certificate([*self.client.question_notes, *([] if other is None else [other])])

    def save(self, folder: str | PathLike[str]) -> None:
        """Write both parts: ``client.json``; ``provider.json`` with ``model.safetensors``; and ``certificate.json``.

        No pickle, no text, no account. A provider needs the second part only, a client the first.

        Raises:
            InvalidParameter: The folder holds a part of another classifier that this one does not have, and that would
                be taken for one of this one's. Nothing was written.
        """
        parts = {
            CERTIFICATE: self.training is not None,
            **dict.fromkeys((PROVIDER, WEIGHTS), not callable(self.provider)),
        }
        left = [name for name, written in parts.items() if not written and (Path(folder) / name).exists()]
        if left:
            raise InvalidParameter(
                f"Expected the folder {folder} to be without {', '.join(left)} of another classifier. Give another."
            )
        Path(folder).mkdir(parents=True, exist_ok=True)
        if not callable(self.provider):
            self.provider.save(folder)
        self.client.save(folder)
        if self.training is not None:
            write_whole(Path(folder) / CERTIFICATE, json.dumps(self.training.to_dict()).encode())

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        sanitizer: RAPTSanitizer | IdentitySanitizer,
        *,
        backbone: str | PathLike[str] | Any = "minilm",
        tokenizer: Any = None,
        device: str = "auto",
    ) -> RAPTClassifier:
        """Build the classifier that :meth:`save` wrote.

        Args:
            folder: What was written.
            sanitizer: Of this machine, over the table of the training; its account is charged for questions.
            backbone: The backbone of the training.
            tokenizer: Tokenizer of a given model.
            device: Where to compute.

        Raises:
            InvalidParameter: A file is damaged, or table or backbone are others.
        """
        from langchain_dp.rapt.tuning.provider import RAPTProvider  # torch

        client = RAPTClient.load(folder, sanitizer)
        provider = RAPTProvider.load(folder, backbone, tokenizer=tokenizer, device=device)
        path = Path(folder) / CERTIFICATE
        said = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
        training = None if said is None else MetricCertificate.from_json(said)
        return cls(client, provider, training=training)

    @safe_repr
    def __repr__(self) -> str:
        where = "remote" if callable(self.provider) else repr(self.provider)
        return f"RAPTClassifier({self.client!r}, {where})"


def _chosen(answer: Answer) -> list[str]:
    return [answer.labels[max(range(len(row)), key=row.__getitem__)] for row in answer.probabilities]


def _check_parts(client: RAPTClient, provider: Any) -> None:
    """Refuse what could not answer, before a question is charged."""
    if not isinstance(client, RAPTClient):
        raise InvalidParameter(
            f"Expected client of type {type(client).__name__} to be a RAPTClient. Give RAPTClient.load(folder, "
            "sanitizer)."
        )
    if callable(provider):
        return
    if isinstance(provider, (str, bytes)):
        raise InvalidParameter(
            "Expected provider to be a RAPTProvider or a function, not an address. Give a function that posts the "
            "body there: lambda body: httpx.post(address, content=body).raise_for_status().content."
        )
    if not callable(getattr(provider, "predict", None)):
        raise InvalidParameter(
            f"Expected provider of type {type(provider).__name__} to be a RAPTProvider, or a function that posts a "
            "request's body and returns the body of the answer."
        )
    wanted, length = provider.settings.plain.length, client.plain.settings.length
    if (provider.kind, wanted) != (client.kind, length):
        raise InvalidParameter(
            f"Expected a client of {provider.kind} with {wanted} plain tokens, as the model was trained on, got "
            f"{client.kind} with {length}. Use the client of this model."
        )
    if client.kind == "tokens" and not provider.backbone.matches(client.vocabulary):
        raise InvalidParameter(
            f"Expected a client whose tokens are those of {provider.backbone}, got the table {client.table!r}: its ids "
            "are other words. Use the client of this model."
        )


def _listed(held: PrivateArgs) -> tuple[PrivateArgs, int]:
    """A list of texts, and how many; the letters of one text would be asked, and charged, one by one."""
    if isinstance(held.values[0], (str, bytes)):
        raise InvalidParameter("Expected texts to be a list of strings, not one. Give [text], or call invoke.")
    texts = list(held.values[0])
    return PrivateArgs(texts), len(texts)
