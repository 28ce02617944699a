"""Entities found by GLiNER, a small model that finds the kinds it is told, for pseudonyms. No formal promise.

The model is the caller's own: it is fetched by hand, and runs inside the trust boundary.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from os import PathLike
from typing import Any

from langchain_dp._util.validate import number
from langchain_dp.errors import InvalidParameter, MissingExtra

KINDS = ("person", "location", "organization", "date", "address")


class GlinerEntities:
    """Finds entities with a GLiNER model: ``Pseudonymizer([GlinerEntities(folder), PatternEntities()])``.

    Args:
        model: The folder of a model, or anything with GLiNER's ``predict_entities(text, labels, threshold=)``.
        entities: Kinds to find, in the model's words.
        score_threshold: Least confidence at which something is taken for an entity, in [0, 1].

    Raises:
        InvalidParameter: A value is out of bounds, or the model has no ``predict_entities``.
        MissingExtra: A folder is given and gliner is not installed.

    Examples:
        >>> finder = GlinerEntities("models/gliner", entities=["person", "street address"])
        >>> Pseudonymizer([finder, PatternEntities()]).invoke("Ann Smith called.")
        '<PERSON_1> called.'
    """

    def __init__(self, model: Any, *, entities: Sequence[str] = KINDS, score_threshold: float = 0.5) -> None:
        if isinstance(model, (str, PathLike)):
            model = _loaded(model)
        if not callable(getattr(model, "predict_entities", None)):
            raise InvalidParameter(
                f"Expected model of type {type(model).__name__} to have predict_entities(). Give a GLiNER model."
            )
        if isinstance(entities, str) or not entities or not all(isinstance(kind, str) for kind in entities):
            raise InvalidParameter(f"Expected entities={entities!r} to be a list of names.")
        self._model = model
        self.kinds = tuple(entities)
        self._threshold = number("score_threshold", score_threshold, at_least=0.0, at_most=1.0)

    @property
    def name(self) -> str:
        """Name for reports: the kinds that are looked for."""
        return f"gliner ({', '.join(self.kinds)}; score >= {self._threshold:g})"

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every entity; they may overlap."""
        found = self._model.predict_entities(text, list(self.kinds), threshold=self._threshold)
        return [(int(one["start"]), int(one["end"]), str(one["label"])) for one in found]


def _loaded(folder: str | PathLike[str]) -> Any:
    try:
        gliner: Any = importlib.import_module("gliner")
    except ImportError:
        raise MissingExtra(
            "Expected the package gliner, or a model of your own. Install it with: pip install 'langchain-dp[gliner]'."
        ) from None
    return gliner.GLiNER.from_pretrained(str(folder), local_files_only=True)
