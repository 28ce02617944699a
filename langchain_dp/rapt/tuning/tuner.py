"""Tunes a backbone on privatized text, with privatized plain tokens to reconstruct."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp._util.reprs import safe_repr
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.tuning.backbone import Backbone, backbone_of
from langchain_dp.rapt.tuning.classifier import RAPTClassifier
from langchain_dp.rapt.tuning.client import IdentitySanitizer, RAPTClient
from langchain_dp.rapt.tuning.examples import LABELS_IN_CLEAR, Examples, PrivatizedExamples, RawExamples, checked
from langchain_dp.rapt.tuning.model import TunedModel
from langchain_dp.rapt.tuning.promise import TrainedOn, joined, of_training
from langchain_dp.rapt.tuning.provider import RAPTProvider, assembler, chosen_device, label_words
from langchain_dp.rapt.tuning.settings import TuningSettings
from langchain_dp.rapt.tuning.training import Checkpoint, Trainer, TrainingReport, TrainingTexts
from langchain_dp.records import Label, check_labels, label_name
from langchain_dp.redact import PrivateArgs, hold_arguments, redact_errors, run_redacted

NOT_COMPARED = (
    "Training went on from a checkpoint of another account: whether that was begun with the same texts is not known."
)


Stored = PrivatizedExamples | None


class RAPTPromptTuner:
    """Learns to classify privatized texts: prompt tuning, prefix tuning, adapters or all weights.

    The sanitizer privatizes every training text and charges its ledger. Public plain tokens, privatized by the same
    mechanism, precede it. The model learns the labels and, with a temporary head, to reconstruct the plain tokens. The
    result is a Runnable that sanitizes its queries.

    Args:
        sanitizer: Privatizes training texts and later queries. :class:`IdentitySanitizer` is for baselines.
        labels: Public labels: strings, or whole numbers or members of an Enum, which become strings.
        backbone: "minilm", a folder, a model of transformers (which is copied), or a :class:`Backbone`.
        tokenizer: Tokenizer of a given model.
        settings: Method and hyperparameters; the paper's values by default.
        verbalizer: A word for each label, predicted by the backbone's own head for words (in a T5, by its decoder),
            which "minilm" lacks; None: a linear head on the text's activations.
        template: Public text behind every input of an encoder, with ``{mask}`` for the predicted word.
        user_key: Key of the example's user, whose account is charged.

    Raises:
        InvalidParameter: A value is out of bounds, two contradict each other, or the backbone cannot be used.
        MissingExtra: torch, transformers or peft is not installed.

    Formal guarantee:
        That of the sanitizer: metric privacy for the words of every training text, one release each, or one release per
        epoch under ``privatize="epoch"``. The labels, the number of texts and their lengths are in clear. The tuned
        model is post-processing of the releases. It is NOT differentially private in the number or presence of texts.
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
        """Privatize labelled texts as :meth:`RAPTClient.privatize`, which needs no model."""
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
        accept_other_promise: bool = False,
    ) -> RAPTClassifier:
        """Privatize, train, and return the classifier.

        The classifier's ``training`` certificate repeats that of the training texts: mechanism, eta, table, releases
        and notes. It names both etas if this tuner's sanitizer has another one. With validation texts, eta is the
        larger of the two, and releases of two accounts add up.

        Args:
            examples: Mappings with ``text`` and ``label``, or the result of :meth:`privatize`, at no further cost.
            validation: The same for early stopping, privatized once and charged like the others.
            checkpoint: Folder for the state, with privatized texts. Repeat an interrupted call with the same texts to
                resume it, without a further charge for stored texts. Other texts are refused under the same account,
                and if their labels or number differ. Under another account, such as a new one in memory, this cannot be
                verified: a warning and the certificate say so.
            checkpoint_every: Steps between two states, beside one after each epoch.
            progress: Whether to show a bar with loss and accuracy.
            accept_other_promise: Whether to accept privatized texts under another promise than this tuner's: another
                mechanism, other things in clear, or not private at all. The certificate repeats theirs.

        Raises:
            InvalidParameter: As for :meth:`privatize`; privatized texts are under another promise; or the checkpoint is
                of other settings.
            BudgetExceeded: An account has too little left for validation and training texts, in every epoch if they
                are privatized each time. Nothing was charged, unless another caller spent of it meanwhile.
        """
        private = PrivateArgs(*PrivateArgs.of(examples).values, *PrivateArgs.of(validation).values)
        if checkpoint_every is not None:
            validate.integer("checkpoint_every", checkpoint_every, at_least=1)
        if self.settings.patience is not None and private.values[1] is None:
            raise InvalidParameter(
                f"Expected patience={self.settings.patience} only with validation=: without it nothing tells when to "
                "stop. Give some labelled texts as validation."
            )
        each_epoch = self.settings.privatize == "epoch"
        if each_epoch and isinstance(private.values[0], PrivatizedExamples):
            raise InvalidParameter("Expected raw examples under privatize='epoch': they are privatized anew each time.")

        def check(train: Any, validation: Any) -> tuple[Any, Any]:
            train = self._checked(train, "example", both=True, other=accept_other_promise)
            if validation is not None:
                validation = self._checked(validation, "validation example", both=False, other=accept_other_promise)
            return train, validation

        train, held = run_redacted(check, private)
        state = self._checkpoint(checkpoint, train, held)
        if state is None or not state.begun:
            raw = [one for one in (held, train) if isinstance(one, RawExamples)]
            self.client.check_room(raw[:-1] if each_epoch else raw, train if each_epoch else None, self.settings.epochs)
        model = TunedModel(
            copy.deepcopy(self.backbone),
            self.settings,
            labels=len(self.labels),
            words=self._words,
            reconstruct=len(self.client.plain) if self.settings.reconstruction else 0,
        )
        released: list[PrivatizedExamples] = []

        def texts(epoch: int) -> TrainingTexts:
            if each_epoch:
                before = released[0] if released else self._kept(state, f"epoch-{epoch - 1}")
                released[:] = [self._stored(state, f"epoch-{epoch}", train, fresh=True, before=before)]
            elif not released:
                released[:] = [self._stored(state, "examples", train)]
            return self._texts(released[0])

        trainer = Trainer(
            model=model,
            assembler=self._assembler,
            kind=self.client.kind,
            plain=self.client.plain_rows,
            pad=self.backbone.pad,
            device=self._device,
            checkpoint=state,
            every=checkpoint_every,
            progress=progress,
        )
        held_released = None if held is None else self._stored(state, "validation", held)
        report = trainer.fit(texts, None if held_released is None else self._texts(held_released))
        if not released:  # the resumed call was complete
            texts(max(0, len(report.epochs) - 1))
        compared = state is None or state.compared
        return self._classifier(model.eval(), report, released[0], held_released, compared=compared)

    def _checked(self, examples: Examples | PrivatizedExamples, what: str, *, both: bool, other: bool) -> Any:
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
        if not other and (differences := self.client.differences(examples.certificate)):
            raise InvalidParameter(
                f"Expected {what}s under the promise of this tuner's sanitizer, but {'; '.join(differences)}. "
                "Privatize them with this tuner or its client, give the tuner their sanitizer, or give "
                "accept_other_promise=True: the training certificate then says what theirs says."
            )
        if not set(examples.labels) <= set(self.labels) or (both and len(set(examples.labels)) < 2):
            raise InvalidParameter(f"Expected {what}s with at least two of the labels {list(self.labels)}.")
        return examples

    def _checkpoint(self, folder: str | PathLike[str] | None, train: Any, held: Any) -> Checkpoint | None:
        if folder is None:
            return None
        identity: dict[str, str | int] = {
            "backbone": self.backbone.fingerprint_of(words=self._verbalizer is not None),
            "labels": " | ".join(self.labels),
            "verbalizer": str(self._verbalizer),
            "template": "" if self._verbalizer is None else self._template,
            "table": self.client.table,
            "eta": repr(self.client.eta),
            "texts": len(train),
            "validation texts": 0 if held is None else len(held),
            "labels of examples": self._labels_of(train),
            "labels of validation examples": self._labels_of(held),
            "privatized examples": _digest(train),
            "privatized validation examples": _digest(held),
        }
        # Marks have the key of the account, so those of an account in memory cannot be compared later.
        marks = {
            f"{name} of account {self.client.account}" if self.client.account else name: self.client.mark(
                json.dumps([texts.texts, texts.labels, texts.users])
            )
            for name, texts in (("examples", train), ("validation examples", held))
            if isinstance(texts, RawExamples)
        }
        state = Checkpoint(Path(folder), settings=self.settings, identity=identity, marks=marks)
        if not state.compared:
            warn_caller(
                f"Nobody can tell whether checkpoint={os.fsdecode(folder)!r} was begun with these texts: the account "
                "of then is another one. Give the ledger of then, by its path, or another folder, unless you know that "
                "they are the same.",
                UserWarning,
            )
        return state

    def _labels_of(self, examples: Any) -> str:
        """Digest of labels, which are in clear."""
        labels = [] if examples is None else list(examples.labels)
        if isinstance(examples, RawExamples):
            labels = [self.labels[number] for number in labels]
        return hashlib.sha256(json.dumps(labels).encode()).hexdigest()

    def _stored(
        self, state: Checkpoint | None, name: str, examples: Any, *, fresh: bool = False, before: Stored = None
    ) -> PrivatizedExamples:
        if isinstance(examples, PrivatizedExamples):
            return examples
        if (stored := self._kept(state, name)) is not None:
            return stored
        released = self.client.privatize_checked(examples, self.labels, fresh=fresh)
        if before is not None:  # of an earlier epoch, perhaps under another account
            released = dataclasses.replace(released, certificate=joined(released.certificate, before.certificate))
        if state is not None:
            state.keep(name, released)
        return released

    def _kept(self, state: Checkpoint | None, name: str) -> Stored:
        stored = None if state is None else state.examples(name)
        if stored is not None and (differences := self.client.differences(stored.certificate)):
            raise InvalidParameter(
                f"Expected the checkpoint to hold texts under the promise of this tuner's sanitizer, but "
                f"{'; '.join(differences)}. Give the sanitizer of then, or another folder."
            )
        return stored

    def _texts(self, examples: PrivatizedExamples) -> TrainingTexts:
        return TrainingTexts(examples.inputs, [self.labels.index(label) for label in examples.labels])

    def _classifier(
        self, model: TunedModel, report: TrainingReport, train: PrivatizedExamples, held: Stored, *, compared: bool
    ) -> RAPTClassifier:
        truncated, texts = max(train.truncated, report.truncated), len(train)
        epochs = len(report.epochs)
        once = self.settings.privatize == "once"
        how = (
            "once and stored: all epochs saw the one release."
            if once
            else f"anew for each of {epochs} epochs, each time at the full price: the releases of a text add up."
        )
        notes = [*self.client.plain_notes, LABELS_IN_CLEAR, f"Every training text was privatized {how}"]
        if truncated:
            most = self.settings.max_tokens
            notes.append(f"{truncated} of {texts} training texts were longer than {most} tokens and were cut.")
        if not compared:
            notes.append(NOT_COMPARED)
        certificate = of_training(
            train.certificate,
            None if held is None else held.certificate,
            inference_eta=self.client.eta,
            inference_table=self.client.table,
            notes=notes,
            parameters={
                "training_privatized": self.settings.privatize,
                "training_texts": texts,
                "training_epochs": epochs,
                "training_releases_of_a_text": 1 if once else epochs,
            },
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


def _digest(examples: Any) -> str:
    """Digest of the training release: a resumed training must not mix texts of two certificates."""
    if not isinstance(examples, PrivatizedExamples):
        return ""
    content = [examples.certificate.to_dict(), list(examples.inputs), list(examples.labels)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
