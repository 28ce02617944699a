"""Vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from langchain_dp._util import validate
from langchain_dp._util.extras import needs
from langchain_dp.attacks import checks
from langchain_dp.attacks.result import Floats
from langchain_dp.rapt._tables import model_folder


class SentenceEmbeddings:
    """An embedding of texts by a transformer: the mean of its last hidden states.

    Args:
        model: "minilm" (all-MiniLM-L6-v2, from an installed package) or a folder that transformers can load.
        batch: Texts per batch.
        longest: Most tokens of a text. The rest is cut.

    Raises:
        MissingExtra: torch, transformers or the named model is not installed.

    Examples:
        >>> embed = SentenceEmbeddings("minilm")
        >>> embed(["Anna takes prednisone."]).shape
        (1, 384)
    """

    def __init__(self, model: str | PathLike[str] = "minilm", *, batch: int = 32, longest: int = 256) -> None:
        self._batch = validate.integer("batch", batch, at_least=1)
        self._longest = validate.integer("longest", longest, at_least=1)
        folder = model_folder(model, "model", extra="attacks")
        with needs("attacks", "torch", "transformers"):
            import torch  # noqa: F401  # needed by the models
            import transformers
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return one vector per text, (texts, d)."""
        import torch

        given = checks.texts("texts", texts, at_least=0)
        vectors = np.empty((len(given), int(self._model.config.hidden_size)))
        order = sorted(range(len(given)), key=lambda place: len(given[place]))
        for start in range(0, len(order), self._batch):
            places = order[start : start + self._batch]
            batch = [given[place] for place in places]
            cut = {"padding": True, "truncation": True, "max_length": self._longest}
            tokens = self._tokenizer(batch, return_tensors="pt", **cut)
            with torch.inference_mode():
                hidden = self._model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][:, :, None].to(hidden.dtype)
            vectors[places] = ((hidden * mask).sum(dim=1) / mask.sum(dim=1)).double().numpy()
        return vectors
