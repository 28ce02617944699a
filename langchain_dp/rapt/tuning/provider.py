"""The provider: a tuned model that never reads a raw text."""

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
from langchain_dp.rapt.tuning.training import probabilities_of
from langchain_dp.rapt.tuning.wire import PROVIDER, WEIGHTS, Answer, Kind, PredictionRequest
from langchain_dp.records import check_labels

FORMAT = "langchain-dp rapt provider 1"


class RAPTProvider:
    """Answers requests of privatized texts with probabilities of the labels.

    Args:
        model: Tuned model.
        backbone: Backbone inside it.
        labels: Public labels.
        kind: "tokens" or "text", as in training. The other is refused.
        verbalizer: Word for each label. None: a head of its own.
        template: Public text behind every input, for a verbalizer.

    Examples:
        >>> provider = RAPTProvider.load(folder)  # as saved by provider.save(folder)
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
        """Return the labels' probabilities. InvalidParameter: Made for another model."""
        rows = self.rows(request)
        return Answer(self.labels, probabilities_of(self.model, rows, self.backbone.pad, self.device).tolist())

    def rows(self, request: PredictionRequest) -> list[Row]:
        """Make the inputs."""
        if request.kind != self.kind:
            raise InvalidParameter(f"Expected a request of the kind {self.kind!r}. Use the client of this model.")
        return self.assembler.rows(request)[0]

    def answer(self, body: bytes) -> bytes:
        """Answer JSON with JSON, for a server. Errors hold no part of it."""
        return self.predict(PredictionRequest.from_json(body)).to_json()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write facts and learned weights."""
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
        """Load a saved provider. InvalidParameter: Files or backbone do not fit."""
        form = _ProviderForm.load(Path(folder) / PROVIDER, FORMAT)
        words = form.verbalizer is not None
        base = backbone_of(backbone, tokenizer, words=words)
        wanted, fingerprint = form.backbone, base.fingerprint_of(words=words)
        if fingerprint != wanted.fingerprint:
            raise InvalidParameter(
                f"Expected the backbone with which {str(folder)!r} was tuned ({wanted.kind}, "
                f"{wanted.fingerprint[:8]}), got {base.kind}, {fingerprint[:8]}: other weights or other tokens. Give "
                "that one."
            )
        base = copy.deepcopy(base) if base is backbone else base
        settings = TuningSettings.from_dict(form.settings)
        token_ids = label_words(base, form.labels, form.verbalizer)
        model = TunedModel(base, settings, labels=len(form.labels), words=token_ids)
        try:
            tensors = load_file(Path(folder) / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise InvalidParameter(
                f"Expected {str(Path(folder) / WEIGHTS)!r} to hold safetensors ({type(error).__name__})."
            ) from None
        model.put(tensors, reconstruction=False)
        model.to(chosen_device(device)).eval()
        return cls(model, base, labels=form.labels, kind=form.kind, verbalizer=form.verbalizer, template=form.template)

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
    return Assembler(
        backbone,
        max_tokens=settings.max_tokens,
        plain_length=settings.plain.length,
        virtual=settings.virtual_tokens,
        template=template if verbalizer is not None else None,
    )


def label_words(backbone: Backbone, labels: Sequence[str], verbalizer: Mapping[str, str] | None) -> list[int] | None:
    """Return each word's first token."""
    if verbalizer is None:
        return None
    if not isinstance(verbalizer, Mapping) or set(verbalizer) != set(labels):
        raise InvalidParameter(f"Expected verbalizer to name one word for each of {list(labels)}.")
    token_ids = []
    for label in labels:
        # Byte tokenizers recognize a word inside a text by the blank before it.
        space = "" if backbone.kind == "bert" else " "
        tokens = backbone.encode(space + verbalizer[label])
        if not tokens or tokens[0] == backbone.unknown:
            raise InvalidParameter(f"Expected the word {verbalizer[label]!r} of label {label!r} to have a token.")
        token_ids.append(tokens[0])
    return token_ids


def chosen_device(device: str) -> str:
    check_device(device)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        raise InvalidParameter(f"Expected device={device!r} to be one that torch can use.") from problem
    return device
