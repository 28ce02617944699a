"""The engine of a sanitizer: a privatiser with the public facts that ledger, cache and certificate need of it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from langchain_dp.rapt._tokenisers import ForeignTokeniser
from langchain_dp.rapt.privatise import TextPrivatiser
from langchain_dp.rapt.vocabulary import Vocabulary

_NAMED = 60
_ROWS = 8192


class WordEngine:
    """Privatises texts, and says under which public settings.

    Args:
        privatiser: Draws the words.
        keep: The choice of kept words that it was made with.
    """

    def __init__(self, privatiser: TextPrivatiser, keep: Sequence[str] | Callable[[str], bool]) -> None:
        self.privatiser = privatiser
        self.eta = privatiser.eta
        self.mechanism = privatiser.mechanism
        self.table = table_name(privatiser.vocabulary)
        self.pads = privatiser.length is not None
        settings = {
            "table": self.table,
            "mechanism": self.mechanism,
            "policies": repr(privatiser.policies),
            # A function has no name that lasts: what was kept under one is not reused under another.
            "keep": secrets.token_hex(16) if callable(keep) else sorted(keep),
            "length": privatiser.length,
            "casing": privatiser.casing,
            "table's rest": _rest(privatiser.vocabulary),
        }
        self.settings = json.dumps({**settings, "eta": repr(self.eta)}, sort_keys=True)
        self.treatment = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def private(self) -> bool:
        """Whether nobody can reproduce the draws."""
        return self.privatiser.private

    def notes(self) -> tuple[str, ...]:
        """What passes in clear."""
        return self.privatiser.notes()

    @property
    def streams(self) -> bool:
        """Whether a text can be privatised in stretches: its tokens are written one by one, and none spans much."""
        code = self.privatiser.policies.code != "privatise"
        return not (self.pads or code or isinstance(self.privatiser.vocabulary.tokeniser, ForeignTokeniser))

    def prepare(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Cut texts; what is returned draws a fresh release of each, in order."""
        draw = self.privatiser.prepare(texts)
        return lambda: [released.text for released in draw()]

    def pieces(self, text: str) -> list[str]:
        """Draw a fresh release of a stretch of text, as pieces that are still to be joined."""
        return self.privatiser.pieces(text)


def _rest(vocabulary: Vocabulary) -> str:
    """Digest of what else of a table a release depends on: special vectors, what is not written, how it cuts."""
    how = vocabulary.tokeniser.embeds if isinstance(vocabulary.tokeniser, ForeignTokeniser) else vocabulary.tokeniser
    digest = hashlib.sha256(f"{type(how).__module__}.{type(how).__qualname__} {sorted(vocabulary.never)}".encode())
    for special in (vocabulary.unknown, vocabulary.pad):
        digest.update(np.ascontiguousarray(special).tobytes())
    return digest.hexdigest()


def table_name(vocabulary: Vocabulary) -> str:
    """Name of a metric: two tables with one name and other vectors measure other distances."""
    digest = hashlib.sha256()
    for start in range(0, len(vocabulary), _ROWS):
        digest.update(np.ascontiguousarray(vocabulary.vectors[start : start + _ROWS]).tobytes())
    digest.update("\0".join(vocabulary.words).encode("utf-8", "surrogatepass"))
    name = "".join(letter if letter.isprintable() else "?" for letter in vocabulary.name)[:_NAMED]
    return f"{name} ({len(vocabulary):,} x {vocabulary.dimension}, {digest.hexdigest()[:8]})"
