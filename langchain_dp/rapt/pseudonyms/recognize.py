"""Recognizers of entities: a list of terms, any function, or several together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.words import standing_alone
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.folding import Span, caseless, fold
from langchain_dp.rapt.placeholders import ESCAPED, FindsEntities, label_of

Spans = Sequence[Span]
Recognizer = FindsEntities | Callable[[str], Spans]
"""An object with ``name`` and ``find``, or a function of a text: start, end and kind of each entity."""

KINDS = ("PERSON", "LOCATION", "ORGANIZATION", "DATE", "EMAIL", "PHONE", "IBAN", "CREDIT_CARD", "URL", "IP", "NUMBER")
"""Usual kinds. A report names those without a recognizer."""

_OTHER_NAMES = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "IBAN_CODE": "IBAN",
    "DATE_TIME": "DATE",
    "IP_ADDRESS": "IP",
    "GPE": "LOCATION",
    "ADDRESS": "LOCATION",
    "ORG": "ORGANIZATION",
    "PER": "PERSON",
}

_KIND = re.compile(r"[^\W\d]\w{0,31}")
"""Name of a kind. It is shown, so a term given by mistake must not pass."""


class TermEntities:
    """Finds given terms, such as names of customers, projects and places, in any case.

    Args:
        terms: The terms, or a mapping of each to its kind. Private: they are in no repr.
        kind: Kind of terms without one.

    Raises:
        InvalidParameter: There are no terms, one is no text, or a kind is not one word.

    Examples:
        >>> TermEntities({"Project Heron": "PROJECT"}).find("What of project heron?")
        [(8, 21, 'PROJECT')]
    """

    def __init__(self, terms: Sequence[str] | Mapping[str, str], *, kind: str = "TERM") -> None:
        if isinstance(terms, str) or not terms or not all(isinstance(one, str) and fold(one) for one in terms):
            raise InvalidParameter("Expected terms to be a list of texts that are not empty, or a mapping of such.")
        kinds = terms if isinstance(terms, Mapping) else dict.fromkeys(terms, kind)
        if not all(isinstance(given, str) and _KIND.fullmatch(given) for given in kinds.values()):
            raise InvalidParameter(
                "Expected terms to map each text to its kind, one word such as PERSON: {'Ann Smith': 'PERSON'}. A kind "
                "stands in every placeholder and report."
            )
        self._terms = {caseless(fold(one)).text: label_of(given) for one, given in kinds.items()}
        self.kinds = tuple(sorted(set(self._terms.values())))

    @property
    def name(self) -> str:
        """Name for reports, without the terms."""
        return f"{len(self._terms)} terms ({', '.join(self.kinds)})"

    @safe_repr
    def __repr__(self) -> str:
        return f"TermEntities(<{len(self._terms)} private terms>)"

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every term; they may overlap."""
        copy = caseless(text)
        return [
            (*copy.span(*place), label)
            for term, label in self._terms.items()
            for place in standing_alone(term, copy.text)
        ]


class AllEntities:
    """Several recognizers as one, with one name per kind."""

    def __init__(self, recognizers: Sequence[Recognizer]) -> None:
        if not recognizers:
            raise InvalidParameter("Expected at least one recognizer, such as PatternEntities().")
        for number, one in enumerate(recognizers):
            if not isinstance(one, FindsEntities) and not callable(one):
                raise InvalidParameter(
                    f"Expected recognizer {number} of type {type(one).__name__} to have name and find(text), or to be "
                    "a function of a text that returns start, end and kind of each entity."
                )
        self._recognizers = tuple(recognizers)

    @property
    def name(self) -> str:
        """Names of all recognizers."""
        return "; ".join(
            one.name if isinstance(one, FindsEntities) else f"the function {getattr(one, '__name__', '')}".rstrip()
            for one in self._recognizers
        )

    @property
    def kinds(self) -> frozenset[str] | None:
        """Kinds that are looked for; None if a recognizer does not declare them."""
        declared = [getattr(one, "kinds", None) for one in self._recognizers]
        return None if None in declared else frozenset(_kind(kind) for kinds in declared for kind in kinds or ())

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every entity; they may overlap."""
        return [
            (start, end, _kind(kind))
            for one in self._recognizers
            for start, end, kind in (one.find(text) if isinstance(one, FindsEntities) else one(text))
        ]


def _kind(given: str) -> str:
    label = label_of(given)
    return "TERM" if label == ESCAPED else _OTHER_NAMES.get(label, label)
