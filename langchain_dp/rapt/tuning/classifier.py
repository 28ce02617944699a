"""The tuned classifier as a Runnable."""

# LangChain names the parameter ``input``:
# ruff: noqa: A002

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.runnables.config import get_config_list
from numpy.typing import NDArray

from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.validate import instance, reject_extra_kwargs
from langchain_dp._util.whole_files import write_whole
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt._shell import WITHHELD, ChargesUsers, Config, Configs, all_or_each, named_user
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.tuning.client import IdentitySanitizer, Question, RAPTClient, TrainedOn
from langchain_dp.rapt.tuning.wire import PROVIDER, WEIGHTS, Answer, PredictionRequest
from langchain_dp.redact import PrivateArgs, hold_arguments, run_redacted

if TYPE_CHECKING:  # the client's machine needs neither torch nor a model
    from langchain_dp.rapt.tuning.provider import RAPTProvider
    from langchain_dp.rapt.tuning.training import TrainingReport

CERTIFICATE = "certificate.json"


class RAPTClassifier(ChargesUsers):
    """Classifies texts. Each is sanitized first. Only the release reaches the model.

    Tracers see the label, never the text. A chain's root run shows it: use ``with private_run():``.

    Args:
        client: Client that sanitizes.
        provider: Tuned model, or a function that posts a JSON body to one and returns the answer's.
        training: Certificate of the training texts.
        report: Report of the training.
        name: Name of the run.

    Raises:
        InvalidParameter: ``client`` and ``provider`` do not belong together.

    Formal guarantee:
        That of the sanitizer for every query, one release each. Labels and probabilities are post-processing.

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

    @hold_arguments("input")
    def invoke(self, input: Question, config: Config = None, *, user: str | None = None, **kwargs: Any) -> str:
        """Classify one text, message, prompt value or document. Of several messages the last human one counts.

        Raises:
            InvalidParameter: It is no text. Nothing was charged. BudgetExceeded: An account has too little left.
        """
        reject_extra_kwargs(kwargs)
        private = PrivateArgs(list(PrivateArgs.of(input).values), [named_user(user, config)])
        return self._call_with_config(lambda _: _best_labels(self._answer(private))[0], WITHHELD, config)

    @hold_arguments("inputs")
    def batch(
        self, inputs: Sequence[Question], config: Configs = None, *, return_exceptions: bool = False,
        user: str | None = None, **kwargs: Any,
    ) -> list[str]:  # fmt: skip
        """Classify many texts under one charge, all or none.

        With ``return_exceptions`` a provider's error is the result of its texts: none is charged twice.
        """
        reject_extra_kwargs(kwargs)
        texts, count = _text_list(PrivateArgs.of(inputs))
        users = [named_user(user, own) for own in get_config_list(config, count)]
        private = PrivateArgs(*texts.values, users)
        return self._batch_with_config(
            lambda _: self._all(private, return_exceptions),
            [WITHHELD] * count,
            config,
            return_exceptions=return_exceptions,
        )

    @hold_arguments("texts")
    def predict_proba(self, texts: Sequence[Question], *, user: str | None = None) -> NDArray[np.float64]:
        """Return probabilities, (texts, labels). Charged like :meth:`batch`."""
        private, count = _text_list(PrivateArgs.of(texts))
        answer = self._answer(PrivateArgs(*private.values, [user] * count))
        return np.array(answer.probabilities, dtype=np.float64).reshape(count, -1 if count else 0)

    @property
    def labels(self) -> tuple[str, ...]:
        """The public labels. InvalidParameter if the model is behind a function."""
        if callable(self.provider):
            raise InvalidParameter("Expected a provider in this process. A remote one tells its labels with answers.")
        return self.provider.labels

    def _answer(self, private: PrivateArgs) -> Answer:
        answers = [self._send(request) for request in run_redacted(self.client._requests_of, private)]
        labels = answers[-1].labels if answers else ()
        if any(answer.labels != labels for answer in answers):
            raise InvalidParameter("Expected the provider to answer with the same labels each time. Ask it again.")
        return Answer(labels, [row for answer in answers for row in answer.probabilities])

    def _send(self, request: PredictionRequest) -> Answer:
        if callable(self.provider):
            return Answer.from_json(self.provider(request.to_json()), texts=len(request))
        return self.provider.predict(request)

    def _all(self, private: PrivateArgs, tolerant: bool) -> list[str | Exception]:
        """Return labels, or errors if ``tolerant``."""
        if not tolerant:
            return list(_best_labels(self._answer(private)))
        results: list[str | Exception] = []
        for request in run_redacted(functools.partial(all_or_each, self.client._requests_of), private):
            if isinstance(request, Exception):
                results.append(request)
                continue
            try:
                results += _best_labels(self._send(request))
            except Exception as error:  # of the provider: the texts are paid for, and not drawn again
                results += [error] * len(request)
        return results

    def certificate(self) -> MetricCertificate:
        """Return the promise for queries. Notes report other eta or mechanism than in training."""
        trained = self.client.trained if self.training is None else TrainedOn.of(self.training)
        other = None if trained is None else trained.note(self.client)
        return self.client.certificate([*self.client.question_notes, *([] if other is None else [other])])

    def save(self, folder: str | PathLike[str]) -> None:
        """Write client, provider with weights, and certificate. No pickle, no text, no account.

        Raises:
            InvalidParameter: The folder holds a part of another classifier. Nothing was written.
        """
        parts = {
            CERTIFICATE: self.training is not None,
            **dict.fromkeys((PROVIDER, WEIGHTS), not callable(self.provider)),
        }
        foreign = [name for name, written in parts.items() if not written and (Path(folder) / name).exists()]
        if foreign:
            raise InvalidParameter(
                f"Expected the folder {folder} to be without {', '.join(foreign)} of another classifier. Give another."
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
        """Load a saved classifier. The sanitizer's account is charged for queries.

        Raises:
            InvalidParameter: A file is damaged, or table or backbone differ from training.
        """
        from langchain_dp.rapt.tuning.provider import RAPTProvider  # torch

        client = RAPTClient.load(folder, sanitizer)
        provider = RAPTProvider.load(folder, backbone, tokenizer=tokenizer, device=device)
        path = Path(folder) / CERTIFICATE
        if not path.exists():
            return cls(client, provider)
        certificate = MetricCertificate.from_json(path.read_text(encoding="utf-8", errors="replace"))
        return cls(client, provider, training=certificate)

    @safe_repr
    def __repr__(self) -> str:
        where = "remote" if callable(self.provider) else repr(self.provider)
        return f"RAPTClassifier({self.client!r}, {where})"


def _best_labels(answer: Answer) -> list[str]:
    return [answer.labels[max(range(len(row)), key=row.__getitem__)] for row in answer.probabilities]


def _check_parts(client: RAPTClient, provider: Any) -> None:
    """Refuse parts that could not answer, before a charge."""
    instance("client", client, RAPTClient, "a RAPTClient", "Give RAPTClient.load(folder, sanitizer).")
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


def _text_list(private: PrivateArgs) -> tuple[PrivateArgs, int]:
    if isinstance(private.values[0], (str, bytes)):  # each letter would be charged
        raise InvalidParameter("Expected texts to be a list of strings, not one. Give [text], or call invoke.")
    private = PrivateArgs(list(*private.values))
    return private, len(*private.values)
