"""What the texts of one label have in common: the words around them, and what an answer is worth. All of it public."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from langchain_dp._util import words as scripts
from langchain_dp.errors import InvalidParameter
from langchain_dp.records import encodable

Shown = tuple[tuple[str, str], ...]
TOPIC = "topic"
SHOWN: Shown = (
    ("Bake it for forty minutes, then let it cool in the tin.", "cooking"),
    ("The room was clean, and the view over the bay was fine.", "hotels"),
    ("Prune the roses in March, before the leaves come.", "gardening"),
)
"""Public texts with their topics, which show a model that continues plain text what is asked."""


def wording(asked: Mapping[str, Any], usual: Mapping[str, str]) -> dict[str, Any]:
    """Public texts that ask for a kind of description: what was given, and ``usual`` ones where it is empty.

    Args:
        asked: ``kind``, ``shown`` (None: topics) and texts by name.
        usual: Texts by name, in which ``{kind}`` and ``{Kind}`` stand for the kind.
    """
    kind = _text("kind", asked["kind"])
    made = {name: text.replace("{kind}", kind).replace("{Kind}", kind[:1].upper() + kind[1:])
            for name, text in usual.items()}  # fmt: skip
    shown = asked["shown"]
    if shown is None:
        if kind != TOPIC:
            raise InvalidParameter(
                f"Expected shown= beside kind={kind!r}: three public texts, with what is to be said of each, show a "
                "model that continues plain text what is asked. Give such pairs, or shown=() for a chat template."
            )
        shown = SHOWN
    pairs = shown if isinstance(shown, (tuple, list)) else [()]
    if not all(
        isinstance(pair, (tuple, list))
        and len(pair) == 2
        and all(isinstance(text, str) and text.strip() and encodable(text) for text in pair)
        for pair in pairs
    ):
        raise InvalidParameter("Expected shown= to be pairs of a public text and its answer, none of them empty.")
    texts = {name: made[name] if asked[name] == "" else _text(name, asked[name]) for name in usual}
    return {"kind": kind, "shown": tuple(map(tuple, pairs)), **texts}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not encodable(value):
        raise InvalidParameter(f"Expected {name}={value!r} to be a few words that a model understands.")
    return value


_EMPTY = """
a all an and are be been belong belongs category categories common different folder folders following general has have
here in into is it kind kinds name none of or other same some sorted subject text texts that the there these they this
those to topic topics various was were what which with
"""
_META = frozenset(_EMPTY.split())
"""Words that describe no folder, however they are put together."""


def turns(shown: Shown, body: Callable[[str], str], cue: str) -> str:
    """The public examples as they stand before a record: ``body`` puts a text as a record is put."""
    return "".join(f"{body(text)}{cue} {answer}\n\n" for text, answer in shown)


def answers(shown: Shown | None, *, chat: bool) -> tuple[str, ...]:
    """What no description may be: the answers that the model sees, which are of no record's kind; none in a chat."""
    return () if chat else tuple(answer for _, answer in shown or ())


def words_of(text: str) -> list[str]:
    """Its words, without digits."""
    return [word for run in re.findall(r"[^\W\d_]+", text) for word in scripts.words_of(run)]


def own(text: str, cue: str) -> str:
    """What was written up to where it goes on with the prompt's own next turn, which begins with ``cue``.

    Examples:
        >>> own("business Text: The book is about the", "Text:")
        'business'
    """
    return re.split(rf"(?<=\S)\s+{re.escape(cue)}", text, maxsplit=1)[0]


def telling(text: str, kind: str = TOPIC) -> set[str]:
    """Its words that may tell a folder from another, in lower case: none of ``kind``, nor what fits every folder."""
    return {word.casefold() for word in words_of(text)} - _META - {word.casefold() for word in words_of(kind)}


def says_nothing(text: str, kind: str = TOPIC) -> bool:
    """Whether a text tells no folder from another, by ``kind``; true of an empty one."""
    return not telling(text, kind)
