"""The provider's part: a tuned model that takes privatized tokens or privatized text, and never a raw one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from langchain_dp._util import validate
from langchain_dp._util.documents import FileForm, Form
from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.whole_files import write_whole
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.backbone import Backbone, backbone_of
from langchain_dp.rapt.tuning.batches import Assembler, Row
from langchain_dp.rapt.tuning.model import RECONSTRUCTION, TunedModel
from langchain_dp.rapt.tuning.settings import TuningSettings, check_device
from langchain_dp.rapt.tuning.training import autocast, probabilities_of
from langchain_dp.rapt.tuning.wire import PROVIDER, WEIGHTS, Answer, Kind, PredictionRequest
from langchain_dp.records import check_labels

FORMAT = "langchain-dp rapt provider 1"


class RAPTProvider:
    """Answers requests of privatized texts with probabilities of the labels.

    It holds no sanitizer, no account and no raw text: what it can be told is a :class:`PredictionRequest`. The
    reconstruction head is not part of it.

    Args:
        model: The tuned model.
        backbone: What it was built around.
        labels: The public labels.
        kind: What it was tuned on, and takes: token ids ("tokens") or text ("text"). The other kind is refused, so that
            a model of tokens cannot be sent a raw text by mistake.
        verbalizer: Word that stands for each label; None: a head of its own.
        template: Public text behind every input, for a verbalizer.

    Examples:
        >>> provider = RAPTProvider.load(folder)  # what provider.save(folder) wrote
        >>> provider.predict(client.request(["The film was a joy."]))
    """

    def __init__(
        self,
        model: TunedModel,
        backbone: Backbone,
        *,
        labels: Sequence[str],
        kind: Kind,
        verbalizer: Mapping[str, str] | None,
        template: str,
    ) -> None:
        self.labels = check_labels(labels)
        self.kind: Kind = validate.one_of("kind", kind, get_args(Kind))
        self.model = model
        self.backbone = backbone
        self.settings = model.settings
        self._verbalizer = verbalizer
        self._template = template
        self.assembler = assembler(backbone, model.settings, verbalizer, template)
        self.device = str(next(iter(model.learned().values())).device)

    def predict(self, request: PredictionRequest) -> Answer:
        """Probabilities of the labels for every text of a request.

        Raises:
            InvalidParameter: The request was not made for this model.
        """
        rows, device = self.rows(request), self.device
        if not rows:
            return Answer(self.labels, [])
        found = probabilities_of(
            self.model, rows, self.backbone.pad, device, lambda: autocast(self.settings.precision, device)
        )
        return Answer(self.labels, torch.cat(list(found)).tolist())

    def rows(self, request: PredictionRequest) -> list[Row]:
        """Inputs of the backbone; errors as of :meth:`predict`."""
        if request.kind != self.kind:
            raise InvalidParameter(f"Expected a request of the kind {self.kind!r}. Use the client of this model.")
        return self.assembler.rows(request)[0]

    def answer(self, body: bytes) -> bytes:
        """Answer a request in JSON with JSON: all that a server has to call.

        Raises:
            InvalidParameter: ``body`` is no request for this model; the message holds nothing of it.
        """
        return self.predict(PredictionRequest.from_json(body)).to_json()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write ``provider.json`` and ``model.safetensors``: what was learned, without backbone and without pickle.

        Under the method "full" all weights were learned, so that all are written.
        """
        facts = {
            "format": FORMAT,
            "labels": list(self.labels),
            "kind": self.kind,
            "settings": self.settings.to_dict(),
            "verbalizer": None if self._verbalizer is None else dict(self._verbalizer),
            "template": self._template,
            "backbone": {
                "kind": self.backbone.kind,
                "fingerprint": self.backbone.fingerprint_of(words=self._verbalizer is not None),
            },
        }
        kept = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.model.learned().items()
            if not name.startswith(RECONSTRUCTION)
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_whole(Path(folder) / WEIGHTS, save(kept))
        write_whole(Path(folder) / PROVIDER, json.dumps(facts).encode())

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        backbone: str | PathLike[str] | Backbone | Any = "minilm",
        *,
        tokenizer: Any = None,
        device: str = "auto",
    ) -> RAPTProvider:
        """Build the provider that :meth:`save` wrote, around the same backbone.

        Raises:
            InvalidParameter: The files are none, or were made with another backbone.
            MissingExtra: The package of "minilm" is not installed.
        """
        found = _ProviderForm.load(Path(folder) / PROVIDER, FORMAT)
        words = found.verbalizer is not None
        base = backbone_of(backbone, tokenizer, words=words)
        wanted, fingerprint = found.backbone, base.fingerprint_of(words=words)
        if fingerprint != wanted.fingerprint:
            raise InvalidParameter(
                f"Expected the backbone with which {str(folder)!r} was tuned ({wanted.kind}, "
                f"{wanted.fingerprint[:8]}), got {base.kind}, {fingerprint[:8]}: other weights or other tokens. Give "
                "that one."
            )
        base = copy.deepcopy(base) if base is backbone else base
        settings = TuningSettings.from_dict(found.settings)
        model = TunedModel(
            base, settings, labels=len(found.labels), words=label_words(base, found.labels, found.verbalizer)
        )
        try:
            tensors = load_file(Path(folder) / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise InvalidParameter(
                f"Expected {str(Path(folder) / WEIGHTS)!r} to hold safetensors ({type(error).__name__})."
            ) from None
        model.put(tensors, reconstruction=False)
        model.to(chosen_device(device)).eval()
        return cls(
            model, base, labels=found.labels, kind=found.kind, verbalizer=found.verbalizer, template=found.template
        )

    @safe_repr
    def __repr__(self) -> str:
        return f"RAPTProvider({self.settings.method}, {self.backbone!r}, labels={list(self.labels)})"


class _BackboneForm(Form):
    kind: str
    fingerprint: str


class _ProviderForm(FileForm):
    labels: list[str]
    kind: Kind
    settings: dict[str, Any]
    verbalizer: dict[str, str] | None
    template: str
    backbone: _BackboneForm


def assembler(
    backbone: Backbone, settings: TuningSettings, verbalizer: Mapping[str, str] | None, template: str
) -> Assembler:
    """What makes rows of requests for a model of these settings."""
    return Assembler(
        backbone,
        max_tokens=settings.max_tokens,
        plain_length=settings.plain.length,
        virtual=settings.virtual_tokens,
        template=template if verbalizer is not None and backbone.family == "encoder" else None,
    )


def label_words(backbone: Backbone, labels: Sequence[str], verbalizer: Mapping[str, str] | None) -> list[int] | None:
    """First token of every label's word; a label without a word, or a word without a token, is refused."""
    if verbalizer is None:
        return None
    if not isinstance(verbalizer, Mapping) or set(verbalizer) != set(labels):
        raise InvalidParameter(f"Expected verbalizer to name one word for each of {list(labels)}.")
    found = []
    for label in labels:
        # Tokenizers of bytes know a word inside a text by the blank before it.
        space = "" if backbone.family == "seq2seq" or backbone.kind == "bert" else " "
        tokens = backbone.cut(space + verbalizer[label])
        if not tokens or tokens[0] == backbone.unknown:
            raise InvalidParameter(f"Expected the word {verbalizer[label]!r} of label {label!r} to have a token.")
        found.append(tokens[0])
    return found


def chosen_device(device: str) -> str:
    """The device itself, or the best that is there; one that torch cannot use is refused."""
    check_device(device)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        raise InvalidParameter(f"Expected device={device!r} to be one that torch can use.") from problem
    return device
