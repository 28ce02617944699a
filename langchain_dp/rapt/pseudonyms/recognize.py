"""What is to be hidden, found without a model: by patterns with their checks, by a list of terms, by any function."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence

from langchain_dp._util.reprs import also_unmade
from langchain_dp._util.words import alone, one_form, written
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.placeholders import ESCAPED, FindsEntities, label_of

Spans = Sequence[tuple[int, int, str]]
Recognizer = FindsEntities | Callable[[str], Spans]
"""An object with ``name`` and ``find``, or a function of a text: start, end and kind of each entity."""

KINDS = ("PERSON", "LOCATION", "ORGANIZATION", "DATE", "EMAIL", "PHONE", "IBAN", "CREDIT_CARD", "URL", "IP", "NUMBER")
"""Kinds that a report looks through: what of these nobody looked for is said."""

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
_FOLDED = {"PERSON", "LOCATION", "ORGANIZATION", "EMAIL", "TERM"}
_SPACED = {"PHONE", "IBAN", "CREDIT_CARD"}

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    r"Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_DAY = r"(?:[0-2]?\d|3[01])(?:st|nd|rd|th)?"
_FIGURES = (
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?|\d{1,2}([-/])\d{1,2}\1(?:\d{4}|\d{2})|"
    r"\d{1,2}\.\d{1,2}\.\d{4}|\d{2}\.\d{2}\.\d{2}"
)
_PATTERNS = {
    "URL": r"\b(?:https?://|www\.)[^\s<>\"']*[^\s<>\"'.,;:!?)\]]",
    "EMAIL": r"(?<![\w.+-])[\w.+'-]+@[\w-]+(?:\.[\w-]+)+",
    "IBAN": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{2,4}){3,8}(?: ?[A-Z0-9]{1,3})?\b",
    "CREDIT_CARD": r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])",
    "IP": r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:])",
    "DATE": rf"(?<![\w.,/-])(?:{_FIGURES}|(?:{_DAY} (?:of )?{_MONTH}|{_MONTH} {_DAY})(?:,? \d{{4}})?)(?![\w/-])",
    "PHONE": r"(?<![\w.+/-])(?:\+\d{1,3}[ .-]?|\(\d{2,5}\)[ .-]?|0\d[ ./-]?|\d{3}[ .-])(?:\(?\d+\)?[ ./-]?){1,6}\d"
    r"(?: ?(?:x|ext\.?) ?\d{1,5})?(?![\w-])",
    "NUMBER": r"(?<![\w.,])\d{6,}(?![\w,])",
}


class PatternEntities:
    """Finds what has a form of its own, by regular expressions: no names of people, places or companies.

    An IBAN must have the right checksum, a card number must pass Luhn's check, an address of a machine must be one. A
    phone number has 7 to 15 digits; a number is one of at least six. A date names a day, in figures or with an English
    month: no year or weekday alone.

    Args:
        kinds: Which of DATE, EMAIL, PHONE, IBAN, CREDIT_CARD, URL, IP and NUMBER to look for; None for all.
        patterns: Further kinds, and the regular expression of each.

    Raises:
        InvalidParameter: A kind that has no pattern, or a pattern that is no regular expression.

    Examples:
        >>> PatternEntities(kinds=["EMAIL"], patterns={"TICKET": r"T-[0-9]+"}).find("T-17 of ann@example.org")
        [(8, 23, 'EMAIL'), (0, 4, 'TICKET')]
    """

    def __init__(self, kinds: Sequence[str] | None = None, patterns: Mapping[str, str] | None = None) -> None:
        if isinstance(kinds, str) or any(kind not in _PATTERNS for kind in kinds or ()):
            raise InvalidParameter(f"Expected kinds={kinds!r} to be a list of some of {', '.join(_PATTERNS)}.")
        wanted = {kind: _PATTERNS[kind] for kind in (_PATTERNS if kinds is None else kinds)}
        try:
            own = {label_of(kind): re.compile(pattern) for kind, pattern in (patterns or {}).items()}
        except (re.error, TypeError, AttributeError):
            raise InvalidParameter(
                "Expected patterns to be a mapping of kinds to regular expressions: one of them is none."
            ) from None
        self._patterns = {kind: re.compile(pattern) for kind, pattern in wanted.items()} | own
        self.kinds = tuple(self._patterns)
        self._own = frozenset(own)

    @property
    def name(self) -> str:
        """Name for reports: the kinds that are looked for."""
        return f"patterns ({', '.join(self.kinds)})"

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every entity; they may overlap."""
        found = []
        for kind, pattern in self._patterns.items():
            check = None if kind in self._own else _CHECKS.get(kind)
            for match in pattern.finditer(text):
                end = match.end()
                if kind == "IBAN":
                    end = match.start() + _iban_length(match[0])
                if end > match.start() and (check is None or check(text[match.start() : end])):
                    found.append((match.start(), end, kind))
        return found


_KIND = re.compile(r"[^\W\d]\w{0,31}")
"""What a kind is called: it is shown, so a term that stands in its place by mistake must not pass."""


class TermEntities:
    """Finds terms that the caller knows: names of customers, of projects, of places. Upper and lower case are alike.

    Args:
        terms: The terms, or a mapping of each to its kind. Private: they are in no repr.
        kind: Kind of those without one.

    Raises:
        InvalidParameter: No terms, one that is no text, or a kind that is not one word.

    Examples:
        >>> TermEntities({"Project Heron": "PROJECT"}).find("What of project heron?")
        [(8, 21, 'PROJECT')]
    """

    def __init__(self, terms: Sequence[str] | Mapping[str, str], *, kind: str = "TERM") -> None:
        if isinstance(terms, str) or not terms or not all(isinstance(one, str) and one.strip() for one in terms):
            raise InvalidParameter("Expected terms to be a list of texts that are not empty, or a mapping of such.")
        kinds = terms if isinstance(terms, Mapping) else dict.fromkeys(terms, kind)
        if not all(isinstance(given, str) and _KIND.fullmatch(given) for given in kinds.values()):
            raise InvalidParameter(
                "Expected terms to map each text to its kind, one word such as PERSON: {'Ann Smith': 'PERSON'}. A kind "
                "stands in every placeholder and report."
            )
        self._terms = {
            one: (label_of(given), re.compile(written(one.strip()), re.IGNORECASE)) for one, given in kinds.items()
        }
        self.kinds = tuple(sorted({label for label, _ in self._terms.values()}))

    @property
    def name(self) -> str:
        """Name for reports, without the terms."""
        return f"{len(self._terms)} terms ({', '.join(self.kinds)})"

    @also_unmade
    def __repr__(self) -> str:
        return f"TermEntities(<{len(self._terms)} private terms>)"

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every term; they may overlap."""
        return [(*place, label) for label, pattern in self._terms.values() for place in alone(pattern, text)]


class AllEntities:
    """What any of several recognizers finds, under one name for each kind.

    Args:
        recognizers: Objects with ``name`` and ``find``, or functions of a text.

    Raises:
        InvalidParameter: There is none, or one is neither.
    """

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
        """Names of all."""
        return "; ".join(
            one.name if isinstance(one, FindsEntities) else f"the function {getattr(one, '__name__', '')}".rstrip()
            for one in self._recognizers
        )

    @property
    def kinds(self) -> frozenset[str] | None:
        """Kinds that are looked for; None if one of the recognizers does not say."""
        said = [getattr(one, "kinds", None) for one in self._recognizers]
        if any(kinds is None for kinds in said):
            return None
        return frozenset(_kind(kind) for kinds in said for kind in kinds or ())

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Start, end and kind of every entity; they may overlap."""
        found = []
        for one in self._recognizers:
            spans = one.find(text) if isinstance(one, FindsEntities) else one(text)
            found += [(start, end, _kind(kind)) for start, end, kind in spans]
        return found


def _kind(given: str) -> str:
    label = label_of(given)
    return "TERM" if label == ESCAPED else _OTHER_NAMES.get(label, label)


def alike(label: str, original: str) -> str:
    """What is equal for spellings of one entity: spaces of names and of numbers, and the case of names.

    Names are compared without their kind, as recognizers change their mind about it.
    """
    if label in _FOLDED:
        return f"\0{_folded(original)}"
    if label in _SPACED:
        return f"{label}\0{re.sub(r'[^0-9A-Za-z+]', '', original).upper()}"
    return f"{label}\0{original}"


def _folded(text: str) -> str:
    return one_form(text.lower())


def _iban_length(text: str) -> int:
    """How much of a match is an IBAN: words behind it look like the rest of one. 0 if nothing is."""
    for end in range(len(text), 14, -1):
        if (end == len(text) or not text[end].isalnum()) and _is_iban(text[:end]):
            return end
    return 0


def _is_iban(text: str) -> bool:
    code = text.replace(" ", "")
    if not 15 <= len(code) <= 34:
        return False
    return int("".join(str(int(mark, 36)) for mark in code[4:] + code[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    digits = [int(mark) for mark in text if mark.isdigit()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + doubled) % 10 == 0


def _is_phone(text: str) -> bool:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}|\d{2}[./-]\d{2}[./-]\d{4}|\d{1,3}(?:\.\d{1,3}){3}", text):
        return False  # dates, and addresses of machines
    return 7 <= sum(mark.isdigit() for mark in text) <= 15


def _is_date(text: str) -> bool:
    figures = [int(mark) for mark in re.findall(r"\d+", text)[:3]]
    if len(figures) < 3 or re.search(r"[A-Za-z]{3}", text):
        return True  # with a month's name, and the pattern bounds the day
    first, second = figures[1:] if figures[0] > 31 else figures[:2]
    return min(first, second) <= 12 and max(first, second) <= 31 and min(first, second) > 0


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return len(text) > 3  # two colons are an address, too, and stand in code


_CHECKS: dict[str, Callable[[str], bool]] = {
    "CREDIT_CARD": _is_card,
    "DATE": _is_date,
    "PHONE": _is_phone,
    "IP": _is_ip,
}
