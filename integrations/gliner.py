"""Entities found by GLiNER, for pseudonyms."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import PurePath
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp._util.validate import number
from langchain_dp.errors import InvalidParameter

KINDS = ("person", "location", "organization", "date", "address")

_DEFAULT = "urchade/gliner_multi_pii-v1"
"""A model for personal data in six languages, never downloaded."""

_MOST = 384  # words that a model reads
_SHARED = 50  # words read twice, so that no entity is cut
_UNSPACED = r"\u0e00-\u109f\u1780-\u17ff\u2e80-\U0010ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|\S")  # no longer than a word of the model


class GlinerEntities:
    """Finds entities with a GLiNER model, inside the trust boundary: ``Pseudonymizer([GlinerEntities(folder)])``.

    Args:
        model: Folder of a model, its name in Hugging Face's cache, or an object with GLiNER's ``predict_entities``.
        entities: Kinds to find, in the model's words.
        score_threshold: Least confidence of an entity, in [0, 1].

    Raises:
        InvalidParameter: A value is out of bounds, or the model has no ``predict_entities``.
        MissingExtra: gliner is not installed.

    Examples:
        >>> finder = GlinerEntities("models/gliner", entities=["person", "street address"])
        >>> Pseudonymizer([finder, PatternEntities()]).invoke("Ann Smith called.")
        '<PERSON_1> called.'
    """

    def __init__(self, model: Any = _DEFAULT, *, entities: Sequence[str] = KINDS, score_threshold: float = 0.5) -> None:
        shown = type(model).__name__
        if isinstance(model, (str, PathLike)):
            shown = str(model) if model == _DEFAULT else PurePath(model).name
            model = _loaded(model)
        if not callable(getattr(model, "predict_entities", None)):
            raise InvalidParameter(
                f"Expected model of type {type(model).__name__} to have predict_entities(). Give a GLiNER model."
            )
        if isinstance(entities, str) or not entities or not all(isinstance(kind, str) for kind in entities):
            raise InvalidParameter(f"Expected entities={entities!r} to be a list of names.")
        self._model, self._shown = model, shown
        self.kinds = tuple(entities)
        self._threshold = number("score_threshold", score_threshold, at_least=0.0, at_most=1.0)

    @property
    def name(self) -> str:
        """Name for certificates, with the kinds and the model."""
        return f"gliner ({', '.join(self.kinds)}; score >= {self._threshold:g}; {self._shown})"

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every entity. They may overlap."""
        words = [match.span() for match in _WORD.finditer(text)]
        most = getattr(getattr(self._model, "config", None), "max_len", None) or _MOST
        shared = min(_SHARED, most // 4)
        entities = []
        for first in range(0, max(len(words) - shared, 1) if words else 0, most - shared):
            start, end = words[first][0], words[min(first + most, len(words)) - 1][1]
            found = self._model.predict_entities(text[start:end], list(self.kinds), threshold=self._threshold)
            entities += [(start + int(one["start"]), start + int(one["end"]), str(one["label"])) for one in found]
        return entities


def _loaded(folder: str | PathLike[str]) -> Any:
    with needs("gliner", "gliner", why=", or a model of your own"):
        gliner: Any = importlib.import_module("gliner")
    return gliner.GLiNER.from_pretrained(str(folder), local_files_only=True)
