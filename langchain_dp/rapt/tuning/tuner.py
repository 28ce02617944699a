"""Tunes a backbone on privatized text."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp.accounting.metric import MetricCertificate
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.tuning.backbone import Backbone, backbone_of
from langchain_dp.rapt.tuning.classifier import RAPTClassifier
from langchain_dp.rapt.tuning.client import ACCOUNT, IdentitySanitizer, RAPTClient, TrainedOn, json_etas
from langchain_dp.rapt.tuning.examples import LABELS_IN_CLEAR, Examples, PrivatizedExamples, RawExamples, checked
from langchain_dp.rapt.tuning.model import TunedModel
from langchain_dp.rapt.tuning.provider import RAPTProvider, assembler, chosen_device, label_words
from langchain_dp.rapt.tuning.settings import TuningSettings
from langchain_dp.rapt.tuning.training import Checkpoint, Trainer, TrainingReport, TrainingTexts
from langchain_dp.records import Label, check_labels, label_name
from langchain_dp.redact import PrivateArgs, hold_arguments, redact_errors, run_redacted

ONCE = "Every training text was privatized once and stored: all epochs saw the one release."


class RAPTPromptTuner:
    """Learns to classify privatized texts: prompt tuning, prefix tuning, adapters or all weights.

    The sanitizer privatizes and charges every training text. The model learns the labels and, if the settings say
    so, to reconstruct plain tokens.

    Args:
        sanitizer: Privatizes training texts and later queries.
        labels: Public labels.
        backbone: A :class:`Backbone`, or its ``model``.
        tokenizer: Tokenizer of a given model.
        settings: Method and hyperparameters.
        verbalizer: A word for each label, predicted by the backbone's head. None: a linear head.
        template: Public text behind every input, with ``{mask}`` for the predicted word.
        user_key: Key of the example's user, whose account is charged.

    Raises:
        InvalidParameter: The backbone cannot be used.
        MissingExtra: torch, transformers or peft is not installed.

    Formal guarantee:
        That of the sanitizer: metric privacy for the words of every training text, one release each, for all epochs.
        The labels, the number of texts and their lengths are in clear. The tuned model is post-processing. It is NOT
        differentially private in the number or presence of texts.
        Source: Li, Tan, Liu 2023, section 3.2.

    Examples:
        >>> tuner = RAPTPromptTuner(RAPTSanitizer("minilm", target_replacement=0.5), labels=["negative", "positive"])
        >>> classifier = tuner.fit(examples)  # mappings with text and label
        >>> classifier.invoke("The film was a joy.")
    """

    def __init__(
        self,
        sanitizer: RAPTSanitizer | IdentitySanitizer,
        *,
        labels: Iterable[Label],
        backbone: str | PathLike[str] | Backbone | Any = "minilm",
        tokenizer: Any = None,
        settings: TuningSettings | None = None,
        verbalizer: Mapping[Label, str] | None = None,
        template: str = "It was {mask}.",
        user_key: str | None = None,
    ) -> None:
        self.settings = validate.group("settings", settings, TuningSettings)
        self.labels = check_labels(labels)
        words: Any = verbalizer
        if isinstance(verbalizer, Mapping):
            words = {label_name(label) or "": word for label, word in verbalizer.items()}
        self.backbone = backbone = backbone_of(backbone, tokenizer, words=verbalizer is not None)
        self._verbalizer, self._template, self._user_key = words, template, user_key
        self._words = label_words(backbone, self.labels, words)
        self._device = chosen_device(self.settings.device)
        plain, most = self.settings.plain, self.settings.max_tokens
        self.client = RAPTClient(sanitizer, plain, max_tokens=most)
        if not backbone.matches(self.client.vocabulary):
            self.client = RAPTClient(sanitizer, plain, kind="text", max_tokens=most)
        self._assembler = assembler(backbone, self.settings, words, template)

    @redact_errors()
    def privatize(self, examples: Examples) -> PrivatizedExamples:
        """Privatize as :meth:`RAPTClient.privatize`."""
        return self.client.privatize(examples, labels=self.labels, user_key=self._user_key)

    @hold_arguments("examples", "validation")
    def fit(
        self,
        examples: Examples | PrivatizedExamples,
        *,
        validation: Examples | PrivatizedExamples | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        progress: bool = True,
    ) -> RAPTClassifier:
        """Privatize, train, and return the classifier. Its ``training`` certificate repeats that of the training texts.

        Args:
            examples: Mappings with ``text`` and ``label``, or the result of :meth:`privatize`, at no further cost.
            validation: The same for early stopping, at the same eta and account.
            checkpoint: Folder for the state, only with results of :meth:`privatize`.
            checkpoint_every: Steps between two states.
            progress: Whether to show a bar.

        Raises:
            InvalidParameter: Privatized texts are under another promise, except for eta, or the checkpoint is of
                another training.
            BudgetExceeded: An account has too little left. Nothing was charged.
        """
        private = PrivateArgs(*PrivateArgs.of(examples).values, *PrivateArgs.of(validation).values)
        if checkpoint_every is not None:
            validate.integer("checkpoint_every", checkpoint_every, at_least=1)
        if self.settings.patience is not None and private.values[1] is None:
            raise InvalidParameter(
                f"Expected patience={self.settings.patience} only with validation=: without it nothing tells when to "
                "stop. Give some labelled texts as validation."
            )

        def check(train: Any, validation: Any) -> list[Any]:
            given = [self._checked(train, "example", both=True)]
            if validation is not None:
                given.append(self._checked(validation, "validation example", both=False))
            if len(set(map(self._account, given))) > 1:
                raise InvalidParameter(
                    "Expected validation examples at the eta, and of the account, of the training examples: one "
                    "certificate counts both. Privatize both with one client."
                )
            return given

        given = run_redacted(check, private)
        raw = [one for one in given if isinstance(one, RawExamples)]
        if checkpoint is not None and raw:
            raise InvalidParameter(
                "Expected privatized examples with checkpoint=, so that to resume charges nothing. Give "
                "tuner.privatize(examples), and save it to resume in another process."
            )
        state = self._checkpoint(checkpoint, given)
        model = TunedModel(
            copy.deepcopy(self.backbone),
            self.settings,
            labels=len(self.labels),
            words=self._words,
            reconstruct=len(self.client.plain) if self.settings.reconstruction else 0,
        )
        released = iter(self.client.privatize_checked(raw, self.labels) if raw else ())
        train, *held = [next(released) if isinstance(one, RawExamples) else one for one in given]
        trainer = Trainer(
            model=model,
            assembler=self._assembler,
            kind=self.client.kind,
            plain=self.client.plain.draw,
            pad=self.backbone.pad,
            device=self._device,
            checkpoint=state,
            every=checkpoint_every,
            progress=progress,
        )
        report = trainer.fit(self._texts(train), self._texts(held[0]) if held else None)
        # Certificates of one account count the same releases, so the later one holds.
        whole = max((one.certificate for one in (train, *held)), key=lambda each: each.releases)
        return self._classifier(model.eval(), report, train, whole)

    def _checked(self, examples: Examples | PrivatizedExamples, what: str, *, both: bool) -> Any:
        if not isinstance(examples, PrivatizedExamples):
            return checked(examples, self.labels, user_key=self._user_key, what=what, both=both)
        # Ids of another table are other words.
        same_words = examples.kind == "text" or examples.certificate.table == self.client.table
        if examples.kind != self.client.kind or not same_words:
            raise InvalidParameter(
                f"Expected {what}s privatized over {self.client.table!r} as {self.client.kind}, got "
                f"{examples.certificate.table!r} as {examples.kind}. Privatize them with this tuner."
            )
        if not len(examples):
            raise InvalidParameter(f"Expected at least one {what}, got none.")
        if differences := self.client.differences(examples.certificate):
            raise InvalidParameter(
                f"Expected {what}s under the promise of this tuner's sanitizer, but {'; '.join(differences)}. "
                "Privatize them with this tuner or its client, or give the tuner their sanitizer."
            )
        if not set(examples.labels) <= set(self.labels) or (both and len(set(examples.labels)) < 2):
            raise InvalidParameter(f"Expected {what}s with at least two of the labels {list(self.labels)}.")
        return examples

    def _account(self, examples: PrivatizedExamples | RawExamples) -> tuple[float, object]:
        """Return eta and account."""
        if isinstance(examples, RawExamples):
            return self.client.eta, self.client.account
        return examples.certificate.eta, examples.certificate.parameters.get(ACCOUNT, "")

    def _checkpoint(self, folder: str | PathLike[str] | None, given: Sequence[PrivatizedExamples]) -> Checkpoint | None:
        if folder is None:
            return None
        identity = {
            "backbone": self.backbone.fingerprint_of(words=self._verbalizer is not None),
            "labels": " | ".join(self.labels),
            "verbalizer": str(self._verbalizer),
            "template": "" if self._verbalizer is None else self._template,
            "table": self.client.table,
            "eta": repr(self.client.eta),
            # A resumed training must not mix texts of two releases.
            **dict(zip(("examples", "validation examples"), [*map(_digest, given), ""], strict=False)),
        }
        return Checkpoint(Path(folder), settings=self.settings, identity=identity)

    def _texts(self, examples: PrivatizedExamples) -> TrainingTexts:
        return TrainingTexts(examples.inputs, [self.labels.index(label) for label in examples.labels])

    def _classifier(
        self, model: TunedModel, report: TrainingReport, train: PrivatizedExamples, whole: MetricCertificate
    ) -> RAPTClassifier:
        truncated, texts = max(train.truncated, report.truncated), len(train)
        notes = [*whole.notes, *self.client.plain_notes, LABELS_IN_CLEAR, ONCE]
        if truncated:
            most = self.settings.max_tokens
            notes.append(f"{truncated} of {texts} training texts were longer than {most} tokens and were cut.")
        if not math.isclose(whole.eta, self.client.eta, rel_tol=1e-6):
            notes.append(
                f"The training texts were privatized at eta={whole.eta:g}; plain tokens were, and "
                f"questions will be, at eta={self.client.eta:g}."
            )
        facts = {"training_texts": texts, "training_epochs": len(report.epochs), "inference_eta": self.client.eta}
        certificate = dataclasses.replace(
            whole, notes=tuple(dict.fromkeys(notes)), parameters={**whole.parameters, **json_etas(facts)}
        )
        client = copy.copy(self.client)  # with the same account
        client.trained = TrainedOn.of(certificate)
        provider = RAPTProvider(
            model, model.backbone, labels=self.labels, kind=client.kind, verbalizer=self._verbalizer,
            template=self._template,
        )  # fmt: skip
        model.reconstruction = None
        report = dataclasses.replace(report, truncated=truncated)
        return RAPTClassifier(client, provider, training=certificate, report=report)

    @safe_repr
    def __repr__(self) -> str:
        return f"RAPTPromptTuner({self.settings.method}, {self.backbone!r}, labels={list(self.labels)})"


def _digest(examples: PrivatizedExamples) -> str:
    content = [examples.certificate.to_dict(), list(examples.inputs), list(examples.labels)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
