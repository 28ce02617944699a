"""Input embeddings as a public table of subwords."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter

from .load import from_folder, import_transformers

_UNUSED = ("[unused", "<extra_id_")


class TransformersTable:
    """Subwords and input embeddings of BERT, GPT-2, T5, RoBERTa and others, for a ``RAPTSanitizer``.

    Nothing is downloaded, and no code of a folder is run.

    Args:
        model: Folder of a model and its tokenizer, or a loaded model.
        tokenizer: Tokenizer of a loaded model.

    Attributes:
        name: Kind of the model and its number of subwords.
        words: Subwords as the tokenizer writes them.
        vectors: Their embeddings, (number of subwords, dimension), float32.
        unknown_id: Id of the unknown token, or None for byte pairs.
        special_ids: Control and unused tokens, never written.

    Raises:
        InvalidParameter: The folder holds no model with a tokenizer, or the two do not fit.
        MissingExtra: torch or transformers is not installed.

    Formal guarantee:
        None of its own. The table must be public: a model tuned on private texts has private embeddings.

    Examples:
        >>> table = TransformersTable(folder)
        >>> sanitizer = RAPTSanitizer(table, target_replacement=0.5)
    """

    def __init__(self, model: str | os.PathLike[str] | Any, *, tokenizer: Any = None) -> None:
        transformers = import_transformers()
        if isinstance(model, (str, os.PathLike)):
            model, tokenizer = from_folder(os.fsdecode(model), tokenizer)
        if not isinstance(model, transformers.PreTrainedModel):
            raise InvalidParameter(
                f"Expected model of type {type(model).__name__} to be a folder or a model of transformers."
            )
        if tokenizer is None:
            raise InvalidParameter(
                "Expected tokenizer=None only with a folder. Give the tokenizer of the loaded model."
            )
        matrix = model.get_input_embeddings().weight.detach().float().cpu().numpy()
        if len(tokenizer) > len(matrix):
            raise InvalidParameter(
                f"Expected a tokenizer of {len(tokenizer)} tokens to have at most {len(matrix)}, as many as the model "
                "has input embeddings. Give the model's own tokenizer."
            )
        self._tokenizer = tokenizer
        self.words: Sequence[str] = tuple(map(str, tokenizer.convert_ids_to_tokens(range(len(tokenizer)))))
        self.vectors: npt.NDArray[np.floating] = np.array(matrix[: len(self.words)])  # rows beyond are padding
        self.name = f"{model.config.model_type} ({len(self.words):,} subwords)"
        self.unknown_id: int | None = _unknown(tokenizer)
        added = tokenizer.added_tokens_decoder
        special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        unused = (i for i, word in enumerate(self.words) if word.startswith(_UNUSED))
        self._special = frozenset({*special, *unused})
        self.special_ids: Sequence[int] = sorted(self._special)

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens in it are plain text, or unknown."""
        found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        unknown = self.unknown_id
        return [unknown if unknown is not None and i in self._special else i for i in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def __repr__(self) -> str:
        return f"TransformersTable({self.name})"


def _unknown(tokenizer: Any) -> int | None:
    """GPT-2 names its end token so, although it can cut everything."""
    unknown = tokenizer.unk_token_id
    return None if unknown is None or unknown == tokenizer.eos_token_id else int(unknown)
