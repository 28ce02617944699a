"""Frozen torch models, loaded without a network or foreign code."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from langchain_dp._util.reprs import safe_repr
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt._tables import model_folder
from langchain_dp.rapt.vocabulary import Vocabulary

_ENCODERS = ("bert", "roberta", "camembert", "xlm-roberta")
_TUNED = "_langchain_dp_tuned"
_NO_HEAD = (
    "Expected a backbone that predicts words, such as BertForMaskedLM, for a verbalizer. This one has no such head: "
    "leave out verbalizer=."
)


class Backbone:
    """A model with its tokenizer, such as BERT or MiniLM, and the public table of its tokens.

    Args:
        model: "minilm", a folder of ``save_pretrained``, or a model of transformers, which is copied.
        tokenizer: Tokenizer of a given model.
        words: Whether a verbalizer needs a head that predicts words.

    Raises:
        InvalidParameter: It cannot be loaded, is of another family, or was tuned before.
        MissingExtra: The package of "minilm" is not installed.

    Examples:
        >>> backbone = Backbone("minilm")
        >>> sanitizer = RAPTSanitizer(backbone, target_replacement=0.5)  # over the backbone's own tokens
        >>> tuner = RAPTPromptTuner(sanitizer, labels=labels, backbone=backbone)
    """

    def __init__(
        self, model: str | PathLike[str] | Any = "minilm", *, tokenizer: Any = None, words: bool = False
    ) -> None:
        if isinstance(model, (str, PathLike)):
            model, own = _loaded(model_folder(model, "backbone", extra="tuning"), words)
            tokenizer = own if tokenizer is None else tokenizer
        elif isinstance(model, torch.nn.Module):
            model = copy.deepcopy(model).float()  # training adds in float32
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        if not isinstance(model, transformers.PreTrainedModel) or kind not in _ENCODERS:
            raise InvalidParameter(
                f"Expected backbone of type {kind!r} to be one of {list(_ENCODERS)}, a folder or a model."
            )
        if tokenizer is None:
            raise InvalidParameter("Expected tokenizer=None only with a folder. Give the tokenizer of the model.")
        self.model: Any = model
        self.tokenizer: Any = tokenizer
        self.kind = self.name = str(kind)
        self.head: Any = getattr(getattr(model, "cls", None), "predictions", None) or getattr(model, "lm_head", None)
        self.hidden_size = int(model.config.hidden_size)
        self.words: tuple[str, ...] = tuple(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
        self.pad = int(tokenizer.pad_token_id or 0)  # fills a batch up, and is masked
        self.unknown_id: int | None = tokenizer.unk_token_id
        self.unknown = self.pad if self.unknown_id is None else self.unknown_id
        # Tokens before and after every input.
        self.frame = [int(tokenizer.cls_token_id)], [int(tokenizer.sep_token_id)]
        self.fingerprint = _fingerprint(self.encoder, self.words)
        self._words_fingerprint = self.fingerprint if self.head is None else _fingerprint(model, self.words)
        self.check(words=words)

    def check(self, *, words: bool) -> None:
        """Refuse a tuned model, or one without a head."""
        if getattr(self.model, _TUNED, False):
            raise InvalidParameter(
                "Expected a backbone before tuning, got the inside of a tuned model. Give the original model or folder."
            )
        if words and self.head is None:
            raise InvalidParameter(_NO_HEAD)

    def taken(self) -> Any:
        """Take the model for tuning."""
        setattr(self.model, _TUNED, True)
        return self.model

    def fingerprint_of(self, *, words: bool) -> str:
        """Digest tokens and encoder, with ``words`` also the head."""
        return self._words_fingerprint if words else self.fingerprint

    @property
    def encoder(self) -> Any:
        return self.model.base_model

    @property
    def embedding(self) -> Any:
        return self.model.get_input_embeddings()

    @property
    def positions(self) -> int:
        """Longest input in tokens."""
        most = int(self.model.config.max_position_embeddings)
        # RoBERTa counts positions from behind the padding's number.
        return most if self.kind == "bert" else most - int(self.model.config.pad_token_id or 0) - 1

    def encode(self, text: str) -> list[int]:
        """Cut a text, special tokens as plain."""
        whole = text.encode(errors="replace").decode()  # an error about a lone surrogate would hold the text
        encoded = self.tokenizer(whole, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return list(encoded["input_ids"])

    def matches(self, vocabulary: Vocabulary) -> bool:
        """Compare a table's ids."""
        return len(vocabulary) <= len(self.words) and tuple(vocabulary.words) == self.words[: len(vocabulary)]

    @property
    def vectors(self) -> NDArray[np.floating]:
        weights: NDArray[np.floating] = self.embedding.weight.detach().float().cpu().numpy()
        return weights[: len(self.words)].copy()

    @property
    def special_ids(self) -> Collection[int]:
        tokenizer, added = self.tokenizer, self.tokenizer.added_tokens_decoder
        special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        return sorted(
            special.union(i for i, word in enumerate(self.words) if word.startswith(("[unused", "<extra_id_")))
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    @safe_repr
    def __repr__(self) -> str:
        return f"Backbone({self.kind}, {self.fingerprint[:8]})"


def backbone_of(given: str | PathLike[str] | Backbone | Any, tokenizer: Any, *, words: bool) -> Backbone:
    if not isinstance(given, Backbone):
        return Backbone(given, tokenizer=tokenizer, words=words)
    given.check(words=words)
    return given


def _loaded(folder: Path, words: bool) -> tuple[Any, Any]:
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        loader: Any = transformers.AutoModelForMaskedLM if words else transformers.AutoModel
        model, found = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **local)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    except (OSError, ValueError, KeyError) as problem:
        raise InvalidParameter(
            f"Expected backbone={str(folder)!r} to hold a model of transformers and its tokenizer "
            f"({type(problem).__name__})."
        ) from problem
    # transformers fills missing weights with random numbers.
    missing = [name for name in sorted(found["missing_keys"]) if not _unused(name)]
    if missing and words:
        raise InvalidParameter(_NO_HEAD)
    if missing:
        raise InvalidParameter(
            f"Expected backbone={str(folder)!r} to hold all weights of a {type(model).__name__}, but {len(missing)} "
            f"are missing, {missing[0]} among them. Save it again with save_pretrained."
        )
    return model, tokenizer


def _unused(name: str) -> bool:
    return ".pooler." in f".{name}" or name.endswith("position_ids")


def _fingerprint(module: Any, tokens: Sequence[str]) -> str:
    digest = hashlib.sha256(json.dumps(tokens).encode())
    for name, tensor in sorted(module.state_dict().items()):
        if _unused(name):
            continue
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.detach().float().cpu().numpy()).tobytes())
    return digest.hexdigest()
