"""A small public table on which a sanitizer runs in no time, and what a sanitizer must never let through."""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.groups import grouped
from langchain_dp.rapt import CalibrationTarget, DocumentRules, MessageRules
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.rapt.vocabulary import Vocabulary

_TEXT = (
    "the a of and to in is was it for on with as at by from patient doctor has had pain fever heart lung arm leg left "
    "right mild severe acute old young man woman child city street house school work sleep food water yes no never "
    "often today yesterday week month year one two three four five six ten red blue green . , ? ! ' \" ( ) - 's n't "
    "do did not will can may september s t"
)
WORDS = _TEXT.split()

CLOSE = 1e-6
"""An eta at which every word comes out at random."""
FAR = 1e6
"""An eta at which every word of the table comes out unchanged: what is left is the cutting and joining of texts."""


def vocabulary(seed: int = 0) -> Vocabulary:
    """The table: words in the plane, far enough apart for ``FAR``."""
    vectors = np.random.default_rng(seed).permutation(len(WORDS))[:, None] * [[1.0, 0.5]]
    return Vocabulary(WORDS, vectors.astype(np.float32), name="small")


TABLE = vocabulary()


def sanitizer(**options: Any) -> RAPTSanitizer:
    """A sanitizer over the small table, by default one whose words come out at random."""
    groups = {"messages": MessageRules, "documents": DocumentRules, "target": CalibrationTarget}
    return RAPTSanitizer(TABLE, **grouped({"eta": CLOSE} | options, **groups))


class _Refusing:
    """A table that cuts texts itself, and cannot cut those that hold a word."""

    name = "refusing"
    words, vectors, unknown_id, special_ids = WORDS, TABLE.vectors, None, ()

    def __init__(self, word: str) -> None:
        self._word = word

    def encode(self, text: str) -> list[int]:
        if self._word in text:
            raise KeyError(text)
        return TABLE.encode("the " * len(text.split()))

    def decode(self, ids: Any) -> str:
        return " ".join(WORDS[i] for i in ids)


def refusing(word: str, **options: Any) -> RAPTSanitizer:
    """A sanitizer that fails on each text that holds ``word``, before any charge."""
    return RAPTSanitizer(_Refusing(word), **({"eta": CLOSE} | options))
