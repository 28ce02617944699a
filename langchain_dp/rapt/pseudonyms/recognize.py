"""Recognizers of entities: patterns, terms, functions, or several together."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import phonenumbers
from phonenumbers import PhoneMetadata
from stdnum import iban, luhn

from langchain_dp._util.reprs import safe_repr
from langchain_dp._util.words import standing_alone
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.folding import Span, caseless, fold
from langchain_dp.rapt.placeholders import ESCAPED, FindsEntities, label_of
from langchain_dp.rapt.pseudonyms.street_addresses import ADDRESS

Spans = Sequence[Span]
Decide = Callable[[re.Pattern[str], str], Iterator[tuple[int, int]]]

Recognizer = FindsEntities | Callable[[str], Spans]
"""An object with ``name`` and ``find``, or a function of a text."""

KINDS = ("PERSON", "LOCATION", "ORGANIZATION", "ADDRESS", "DATE", "EMAIL", "PHONE", "IBAN", "CREDIT_CARD", "URL", "IP",
         "NUMBER")  # fmt: skip
"""Usual kinds of entities."""

_OTHER_NAMES = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "IBAN_CODE": "IBAN",
    "DATE_TIME": "DATE",
    "IP_ADDRESS": "IP",
    "GPE": "LOCATION",
    "STREET_ADDRESS": "ADDRESS",
    "ORG": "ORGANIZATION",
    "PER": "PERSON",
}

_KIND = re.compile(r"[^\W\d]\w{0,31}")
"""A kind is shown, so a term given by mistake must not pass."""


class TermEntities:
    """Finds given terms, such as names, in any case.

    Args:
        terms: The terms, or a mapping of each to its kind. Private: they are in no repr.
        kind: Kind of terms without one.

    Raises:
        InvalidParameter: A term is no text, or a kind is not one word.

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
                "Expected terms to map each text to its kind, one public word: {'Ann Smith': 'PERSON'}."
            )
        self._terms = {caseless(fold(one)).text: label_of(given) for one, given in kinds.items()}
        self.kinds = tuple(sorted(set(self._terms.values())))

    @property
    def name(self) -> str:
        """Name without the terms."""
        return f"{len(self._terms)} terms ({', '.join(self.kinds)})"

    @safe_repr
    def __repr__(self) -> str:
        return f"TermEntities(<{len(self._terms)} private terms>)"

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Find every term."""
        copy = caseless(text)
        return [
            (*copy.span(*place), label)
            for term, label in self._terms.items()
            for place in standing_alone(term, copy.text)
        ]


class AllEntities:
    """Several recognizers as one."""

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
        return "; ".join(
            one.name if isinstance(one, FindsEntities) else f"the function {getattr(one, '__name__', '')}".rstrip()
            for one in self._recognizers
        )

    @property
    def kinds(self) -> frozenset[str] | None:
        """Kinds, or None if a recognizer declares none."""
        declared = [getattr(one, "kinds", None) for one in self._recognizers]
        return None if None in declared else frozenset(_kind(kind) for kinds in declared for kind in kinds or ())

    def find(self, text: str) -> list[tuple[int, int, str]]:
        return [
            (start, end, _kind(kind))
            for one in self._recognizers
            for start, end, kind in (one.find(text) if isinstance(one, FindsEntities) else one(text))
        ]


def _kind(given: str) -> str:
    label = label_of(given)
    return "TERM" if label == ESCAPED else _OTHER_NAMES.get(label, label)


REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "BE", "CH", "AT", "PL", "PT", "SE", "NO", "DK", "IE", "IN", "JP",
           "AU", "BR", "SG")  # fmt: skip

_FROM, _TO = r"(?<![^\W_])", r"(?![^\W_])"  # no letter or digit beside it. An underscore is punctuation
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    r"Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_DAY = r"(?:[0-2]?\d|3[01])(?:st|nd|rd|th)?"
_FIGURES = (
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?Z?)?|\d{1,2}([-/])\d{1,2}\2(?:\d{4}|\d{2})"
    r"|\d{1,2}\.\d{1,2}\.\d{4}|\d{2}\.\d{2}\.\d{2}"
)
_NAMED = (
    rf"(?:{_DAY} (?:of )?{_MONTH}|{_MONTH} {_DAY})(?:,? \d{{4}})?"
    rf"|(?i:{_DAY}([- ./]){_MONTH}[-,./]? ?\d{{4}}|{_DAY}([-./]){_MONTH}[-./]\d{{2}})"
)
_WORDS = (
    r"acc(?:oun)?t|a/c|ref(?:erence)?|customer|client|policy|claim|invoice|member(?:ship)?|patient|contract|passport|"
    r"licen[cs]e|order|case|ticket|id"
)
_CODE = r"(?:[A-Za-z]{1,6}[-/]?)?\d{5,12}(?:[-/][A-Za-z0-9]{1,12}){0,3}"
_PATTERNS = {
    "URL": r"(?<![A-Za-z0-9+.-])(?i:[a-z][a-z0-9+.-]{1,31}://|www\.)[^\s<>\"'`\\]{1,4096}",
    "EMAIL": rf"{_FROM}[^\W_](?:[\w.+'&/=-]{{0,254}}[^\W_])?+@(?:(?:[^\W_]|-){{1,63}}+\.){{1,8}}"
    rf"(?:xn--[a-z0-9-]{{1,59}}|[^\W\d_]{{2,63}}){_TO}",
    "IBAN": rf"{_FROM}(?=([A-Za-z]{{2}}\d\d(?:[ .-]?[A-Za-z0-9]){{11,32}}+))",
    "CREDIT_CARD": rf"{_FROM}(?<!\d[.,])(?=(\d{{3,19}}+(?:[ .-]\d{{3,19}}+){{0,5}}+))",
    "IP": r"[0-9A-Fa-f:.]{2,}+",
    "ADDRESS": rf"{_FROM}(?:{ADDRESS}|(?i:zip|post(?:al)?)(?i:[ ]?code)?[: ]{{1,3}}(?P<zip>\d{{4,6}})){_TO}",
    "DATE": rf"{_FROM}(?<!\d[.,/-])(?:{_FIGURES}|{_NAMED}){_TO}(?![/-]\d|\.\d)",
    "PHONE": rf"(?:{_FROM}|(?=\+))(?<!\d[.,:/-])(?=((?:\+ ?\d{{1,6}}|\(\+?\d{{1,5}}\)|\d{{1,6}})"
    r"(?:[ ./-]{0,3}\(\d{1,5}\)(?: ?\d(?!\d))?|[ ./-]{0,3}\d{2,12}){1,7}+(?: ?(?:x|ext\.?|#) ?\d{1,5}(?!\d))?))",
    "NUMBER": rf"{_FROM}(?<!\d[.,])(?:\d{{6,}}+(?!,\d)|(?<!\d-)\d\d-\d\d-\d\d(?!-\d)"
    r"|[A-Z]{1,6}[-/]\d{5,12}(?:[-/][A-Za-z0-9]{1,12}){0,3}"
    rf"|(?i:{_WORDS})(?i:[ ](?:number|num|no|nr|id|code)\b)?(?:[ ]is\b)?[.:#= -]{{0,3}}(?P<code>{_CODE})){_TO}",
}
_SEPARATORS = dict.fromkeys(map(ord, " .-"))
_TRAILING = ".,;:!?)]}*_|"


class PatternEntities:
    """Finds entities by their form, not names of people, places or companies.

    IBANs and card numbers need the right checksum. A phone number needs its country code or a form of ``regions``, or
    follows a word such as "call". A number has at least six digits, is a sort code, or follows a word such as
    "account". An address has a house number, a unit, a box or a postal code.

    Args:
        kinds: Some of ADDRESS, DATE, EMAIL, PHONE, IBAN, CREDIT_CARD, URL, IP and NUMBER. None for all.
        patterns: Further kinds, with a regular expression each.
        regions: Codes of the regions whose phone numbers are found without a country code.

    Raises:
        InvalidParameter: A kind, pattern or region is invalid.

    Examples:
        >>> PatternEntities(kinds=["EMAIL"], patterns={"TICKET": r"T-[0-9]+"}).find("T-17 of ann@example.org")
        [(8, 23, 'EMAIL'), (0, 4, 'TICKET')]
    """

    def __init__(
        self,
        kinds: Sequence[str] | None = None,
        patterns: Mapping[str, str] | None = None,
        *,
        regions: Sequence[str] = REGIONS,
    ) -> None:
        if isinstance(regions, str) or not set(regions) <= set(phonenumbers.SUPPORTED_REGIONS):
            raise InvalidParameter(f"`regions` ({regions!r}) must be a list of codes of regions, such as ['US', 'GB'].")
        if isinstance(kinds, str) or any(kind not in _PATTERNS for kind in kinds or ()):
            raise InvalidParameter(f"Expected kinds={kinds!r} to be a list of some of {', '.join(_PATTERNS)}.")
        wanted = {kind: _PATTERNS[kind] for kind in (_PATTERNS if kinds is None else kinds)}
        try:
            own = {label_of(kind): re.compile(pattern) for kind, pattern in (patterns or {}).items()}
        except (re.error, TypeError, AttributeError):
            raise InvalidParameter(
                "Expected patterns to be a mapping of kinds to regular expressions: one of them is not one."
            ) from None
        self._patterns = {kind: re.compile(pattern) for kind, pattern in wanted.items() if kind not in own}
        self._own = own
        self._regions = tuple(regions)
        self.kinds = (*self._patterns, *own)

    @property
    def name(self) -> str:
        return f"patterns ({', '.join(self.kinds)})"

    def find(self, text: str) -> list[Span]:
        """Find every entity."""
        entities: list[Span] = []
        for kind, pattern in self._patterns.items():
            spans = (_phones(self._regions) if kind == "PHONE" else _DECIDE[kind])(pattern, text)
            if kind in ("PHONE", "NUMBER"):  # neither may be part of a better form
                certain = _places(entities, len(text))
                spans = (span for span in spans if not any(certain[slice(*span)]))
            entities += ((start, end, kind) for start, end in spans)
        for kind, pattern in self._own.items():
            entities += [(*match.span(), kind) for match in pattern.finditer(text) if match[0]]
        return entities


def _places(spans: Sequence[Span], length: int) -> bytearray:
    taken = bytearray(length)
    for start, end, _ in spans:
        taken[start:end] = b"\1" * (end - start)
    return taken


def _urls(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        end = match.start() + len(match[0].rstrip(_TRAILING))
        if end > match.start() + len("www."):
            yield match.start(), end


def _grouped(is_right: Callable[[str], bool], digits: tuple[int, int], cue: re.Pattern[str] | None = None) -> Decide:
    def decide(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
        position = 0
        for match in pattern.finditer(text):
            if match.start() < position:
                continue
            cued = cue is not None and cue.search(text, max(0, match.start() - 32), match.start()) is not None
            for end in _ends(text, match.start(), match.end(1), digits[0] - cued, digits[1]):
                if cued or is_right(text[match.start() : end]):
                    yield match.start(), end
                    position = end
                    break

    return decide


_GROUP = re.compile(r"[^\W_]++")


def _ends(text: str, start: int, last: int, fewest: int, most: int) -> list[int]:
    count, ends = 0, []
    for group in _GROUP.finditer(text, start, last):
        count += group.end() - group.start()
        if fewest <= count <= most:
            ends.append(group.end())
    if ends and ends[-1] == last and text[last : last + 1].isalnum():
        ends.pop()
    return ends[::-1]


def _is_iban(text: str) -> bool:
    code = text.translate(_SEPARATORS).upper()
    if not code.isascii() or int("".join(str(int(mark, 36)) for mark in code[4:] + code[:4])) % 97 != 1:
        return False
    return bool(iban.is_valid(code, check_country=False))


def _is_card(text: str) -> bool:
    digits = text.translate(_SEPARATORS)
    return digits.isascii() and bool(luhn.is_valid(digits))


def _is_phone(text: str, regions: tuple[str, ...]) -> bool:
    if re.fullmatch(r"\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}([./-])\d{1,2}\1\d{2,4}|\d{1,3}(?:\.\d{1,3}){3}", text):
        return False  # dates and IP addresses
    number, extension, _ = re.sub(r"\s*(?:x|ext\.?|#)\s*", "x", text).replace("(0)", "").partition("x")
    digits = re.sub(r"\D", "", number)
    if "+" in number[:2]:
        try:
            return phonenumbers.is_possible_number(phonenumbers.parse(number, None))
        except phonenumbers.NumberParseException:
            return False
    if re.fullmatch(r"\d{3}[ .-]\d{4}", number):
        return True  # without its area code
    if re.fullmatch(r"[1-9]\d{0,5}\.\d+|\d{1,3}(?:[ .]000)+|(?:19|20)\d\d[ ./-]{1,3}(?:19|20)\d\d", number):
        return False  # a decimal, a round number, and two years
    separated = not number.isdigit() or (digits[0] == "0" and len(digits) > 8) or bool(extension)
    return separated and _national(regions).fullmatch(digits) is not None


@functools.cache
def _phones(regions: tuple[str, ...]) -> Decide:
    return _grouped(functools.partial(_is_phone, regions=regions), (7, 20), _PHONE_CUE)


_PHONE_CUE = re.compile(
    r"(?i:\b(?:call|(?:tele)?phone|tel|mobile|cell|fax|desk|landline|text|sms|whatsapp|dial|ring|hotline|answering|"
    r"messages?|registered)\b)[^\d\n.!?;,]{0,16}\Z"
)


@functools.cache
def _national(regions: tuple[str, ...]) -> re.Pattern[str]:
    forms = []
    for region in regions:
        table: Any = PhoneMetadata.metadata_for_region(region)
        optional = "" if table.national_prefix == "0" and region not in ("BR", "IN") else "?"
        prefix = f"(?:{table.national_prefix}){optional}" if table.national_prefix else ""
        forms.append(f"{prefix}(?:{table.general_desc.national_number_pattern})")
    return re.compile("|".join(["00[1-9][0-9]{7,12}", *forms]))


def _is_date(text: str) -> bool:
    figures = [int(mark) for mark in re.findall(r"\d+", text)[:3]]
    if len(figures) < 3 or re.search(r"[A-Za-z]{3}", text):
        return True  # it names a month, and the pattern bounds the day
    first, second = figures[1:] if figures[0] > 31 else figures[:2]
    return min(first, second) <= 12 and max(first, second) <= 31 and min(first, second) > 0


_FOUR = re.compile(rf"{_FROM}(?<!\d\.)(\d{{1,3}})\.(\d{{1,3}})\.(\d{{1,3}})\.(\d{{1,3}}){_TO}(?!\.\d)")


def _machines(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for match in _FOUR.finditer(text):
        if all(int(part) < 256 for part in match.groups()):
            yield match.span()
    for match in pattern.finditer(text):
        if match[0].count(":") < 2 or len(match[0]) > 64:
            continue
        start, end = match.span()
        # Drop a colon before it and punctuation behind it.
        start += match[0][0] in ":." and match[0][:2] != "::"
        end -= len(text[start:end]) - len(text[start:end].rstrip("."))
        end -= text[start:end].endswith(":") and not text[start:end].endswith("::")
        edges = text[start - 1 : start] if start else "", text[end : end + 1]
        whole = not any(edge.isalnum() for edge in edges)
        if whole and end - start > 3 and any(map(str.isdigit, text[start:end])) and _is_ip(text[start:end]):
            yield start, end


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_DECIDE: dict[str, Decide] = {
    "URL": _urls,
    "EMAIL": lambda pattern, text: (match.span() for match in (pattern.finditer(text) if "@" in text else ())),
    "IBAN": _grouped(_is_iban, (15, 34)),
    "CREDIT_CARD": _grouped(_is_card, (13, 19)),
    "IP": _machines,
    "ADDRESS": lambda pattern, text: (match.span("zip" if match["zip"] else 0) for match in pattern.finditer(text)),
    "DATE": lambda pattern, text: (match.span() for match in pattern.finditer(text) if _is_date(match[0])),
    "NUMBER": lambda pattern, text: (match.span("code" if match["code"] else 0) for match in pattern.finditer(text)),
}
