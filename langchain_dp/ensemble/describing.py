"""What the texts of one label have in common: the words around them, and what an answer is worth. All of it public."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from langchain_dp.errors import InvalidParameter

TASK = "The topic of each text in one or two words."
"""What is asked of a model that continues plain text, before the texts."""
CUE = "Topic:"
"""What stands before each answer."""
Shown = tuple[tuple[str, str], ...]
SHOWN: Shown = (
    ("Bake it for forty minutes, then let it cool in the tin.", "cooking"),
    ("The room was clean, and the view over the bay was fine.", "hotels"),
    ("Prune the roses in March, before the leaves come.", "gardening"),
)
"""Public texts with their answers, which show such a model what is asked."""

_EMPTY = """
a all an and are be been belong belongs category categories common different folder folders following general has have
here in into is it kind kinds name none of or other same some sorted subject text texts that the there these they this
those to topic topics various was were what which with
"""
_META = frozenset(_EMPTY.split())
"""Words that describe no folder, however they are put together."""


def check_shown(shown: object) -> None:
    """Raise InvalidParameter unless these are pairs of a text and an answer."""
    pairs = shown if isinstance(shown, (tuple, list)) else [()]
    if not all(len(pair) == 2 and all(isinstance(text, str) and text.strip() for text in pair) for pair in pairs):
        raise InvalidParameter("Expected shown= to be pairs of a public text and its answer, none of them empty.")


def turns(shown: Shown, body: Callable[[str], str], cue: str) -> str:
    """The public examples as they stand before a record: ``body`` puts a text as a record is put."""
    return "".join(f"{body(text)}{cue} {answer}\n\n" for text, answer in shown)


def words_of(text: str) -> list[str]:
    """Its words, without digits."""
    return re.findall(r"[^\W\d_]+", text)


def says_nothing(words: Sequence[str]) -> bool:
    """Whether words tell no folder from another; true of none."""
    return {word.casefold() for word in words} <= _META
