"""Entities found by Presidio, for pseudonyms."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp._util.validate import number
from langchain_dp.errors import InvalidParameter


class PresidioEntities:
    """Finds entities with a Presidio analyzer: ``Pseudonymizer(PresidioEntities(analyzer))``.

    Args:
        analyzer: A ``presidio_analyzer.AnalyzerEngine``, or an object with its ``analyze``. None: an engine with
            spaCy's largest model of the language, which must be installed.
        entities: Kinds to find, as Presidio names them ("PERSON", "EMAIL_ADDRESS"). None for all.
        language: Code of the texts' language.
        score_threshold: Least confidence of an entity, in [0, 1].

    Raises:
        InvalidParameter: A value is out of bounds, or the analyzer has no ``analyze``.
        MissingExtra: Presidio is not installed.

    Examples:
        >>> pseudonymizer = Pseudonymizer(PresidioEntities(entities=["PERSON"]))  # no formal promise
        >>> hidden = pseudonymizer.invoke("Ask Bob.")
        >>> pseudonymizer.restore(hidden)
        'Ask Bob.'
    """

    def __init__(
        self,
        analyzer: Any = None,
        *,
        entities: Sequence[str] | None = None,
        language: str = "en",
        score_threshold: float = 0.0,
    ) -> None:
        if not isinstance(language, str) or not language:
            raise InvalidParameter(f"Expected language={language!r} to be a code such as 'en'.")
        if analyzer is None:
            analyzer = _default_analyzer(language)
        if not callable(getattr(analyzer, "analyze", None)):
            raise InvalidParameter(
                f"Expected analyzer of type {type(analyzer).__name__} to have analyze(). Give an AnalyzerEngine."
            )
        if entities is not None and (
            isinstance(entities, str) or not entities or not all(isinstance(kind, str) for kind in entities)
        ):
            raise InvalidParameter(f"Expected entities={entities!r} to be a list of names, or None for all.")
        self._analyzer = analyzer
        self._entities = None if entities is None else list(entities)
        self._language = language
        self._threshold = number("score_threshold", score_threshold, at_least=0.0, at_most=1.0)

    @property
    def name(self) -> str:
        """Name for certificates, with the kinds and the language models."""
        kinds = "all kinds" if self._entities is None else ", ".join(self._entities)
        models = getattr(getattr(self._analyzer, "nlp_engine", None), "models", None) or ()
        shown = "".join(f"; {one['model_name']}" for one in models if one.get("lang_code") == self._language)
        return f"presidio ({self._language}; {kinds}; score >= {self._threshold:g}{shown})"

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """Kinds to find, for reports. None if unknown."""
        if self._entities is not None:
            return tuple(self._entities)
        said = getattr(self._analyzer, "get_supported_entities", None)
        return tuple(said(self._language)) if callable(said) else None

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every entity. They may overlap."""
        found = self._analyzer.analyze(
            text=text, entities=self._entities, language=self._language, score_threshold=self._threshold
        )
        return [(int(one.start), int(one.end), str(one.entity_type)) for one in found]


def _default_analyzer(language: str) -> Any:
    with needs("presidio", "presidio-analyzer", why=", or an analyzer of your own"):
        presidio: Any = importlib.import_module("presidio_analyzer")
        engines: Any = importlib.import_module("presidio_analyzer.nlp_engine")
    model = {"lang_code": language, "model_name": f"{language}_core_{'web' if language in ('en', 'zh') else 'news'}_lg"}
    return presidio.AnalyzerEngine(nlp_engine=engines.SpacyNlpEngine(models=[model]), supported_languages=[language])
