"""What happens to the parts of a text that are no ordinary words, each by a named choice.

The default of every policy is to privatize: nothing then leaves in clear but the number of tokens. A kept feature is an
infinite privacy loss for that feature, and a placeholder still tells what kind of feature stands where; the certificate
lists both.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from langchain_dp._util import validate

Treatment = Literal["privatize", "keep", "placeholder"]
Kind = Literal["word", "number", "date", "url", "punctuation", "code"]

_FIELD: dict[Kind, str] = {
    "number": "numbers",
    "date": "dates",
    "url": "urls",
    "punctuation": "punctuation",
    "code": "code",
}


@dataclasses.dataclass(frozen=True)
class Policies:
    """How each kind of feature is treated.

    "privatize" replaces it like a word (a number, date or address that the vocabulary does not hold is an unknown
    word; code is privatized token by token). "keep" passes it through in clear. "placeholder" writes its kind in
    brackets, which tells that such a feature stands there and where.

    Args:
        numbers: Numbers, times and amounts.
        dates: Dates, in digits or with the English name of a month.
        urls: Addresses of pages and of mail.
        punctuation: Punctuation marks and symbols. Kept marks show where sentences end and how long they are.
        code: Blocks between two fences, and pieces of a line between two backticks that no letter touches from outside.
        unknown: "vector" treats every unknown word as one public vector; "random" as a public word drawn at random,
            anew each time: it then counts as far from a known word as the farthest public word is, and hides among
            unknown words only. Noise comes on top in both cases. An unknown word is never written out.

    Examples:
        >>> policies = Policies(numbers="placeholder", punctuation="keep")
        >>> RAPTSanitizer("glove", eta=4.0, policies=policies).invoke("At 9 pm!")  # such as "near [NUMBER] am!"
    """

    numbers: Treatment = "privatize"
    dates: Treatment = "privatize"
    urls: Treatment = "privatize"
    punctuation: Treatment = "privatize"
    code: Treatment = "privatize"
    unknown: Literal["vector", "random"] = "vector"

    def __post_init__(self) -> None:
        for field in _FIELD.values():
            validate.one_of(field, getattr(self, field), get_args(Treatment))
        validate.one_of("unknown", self.unknown, ("vector", "random"))

    def of(self, kind: Kind) -> Treatment:
        """Treatment of one kind of feature; words are always privatized."""
        treatment: Treatment = getattr(self, _FIELD[kind]) if kind in _FIELD else "privatize"
        return treatment

    @property
    def in_clear(self) -> bool:
        """Whether any kind of feature is passed through or named."""
        return any(getattr(self, field) != "privatize" for field in _FIELD.values())

    def notes(self) -> tuple[str, ...]:
        """What these policies let through in clear, and what they do to the promise, for certificates."""
        said = {
            "keep": "{} are passed through in clear.",
            "placeholder": "{} are replaced by a placeholder: that they are there, and where, is in clear.",
        }
        names = {
            "numbers": "Numbers",
            "dates": "Dates",
            "urls": "Addresses (URLs and mail)",
            "punctuation": "Punctuation marks",
            "code": "Code blocks",
        }
        treated = [(names[field], getattr(self, field)) for field in _FIELD.values()]
        notes = [said[treatment].format(name) for name, treatment in treated if treatment != "privatize"]
        if self.unknown == "random":
            notes.append(
                "A word outside the table is first replaced by a public word drawn at random: between it and a known "
                "word the distance is that to the farthest public word."
            )
        return tuple(notes)
