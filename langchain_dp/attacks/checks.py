"""Checks of arguments that show no value, which may be a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.rapt.posterior import UnigramPrior
    from langchain_dp.rapt.vocabulary import Vocabulary


def table(given: Vocabulary) -> Vocabulary:
    """Refuse anything but a vocabulary. The ``encode`` of a str would take a text."""
    from langchain_dp.rapt.vocabulary import Vocabulary  # a leak search does without

    remedy = 'Give langchain_dp.rapt.load("minilm"), or load() of another table.'
    validate.instance("vocabulary", given, Vocabulary, "a Vocabulary", remedy)
    return given


def frequencies(given: UnigramPrior, vocabulary: Vocabulary) -> UnigramPrior:
    from langchain_dp.rapt.posterior import UnigramPrior

    validate.instance("prior", given, UnigramPrior, "a UnigramPrior", "Give unigram_prior(vocabulary, texts).")
    if given.ids.max() >= len(vocabulary):
        raise InvalidParameter(
            f"Expected prior to hold ids below {len(vocabulary)}, the size of this table. It belongs to another one."
        )
    return given


def answer(name: str, given: str) -> str:
    if not isinstance(given, str):
        raise InvalidParameter(
            f"Expected {name} to return a str, but it returned {type(given).__name__}. Return the text alone, such as "
            "lambda question: chain.invoke(question).content for a chat model."
        )
    return given


def record(name: str, given: Mapping[str, Any], keys: Sequence[str] = ()) -> dict[str, Any]:
    try:
        row = dict(given)
    except (TypeError, ValueError):
        row = None
    if row is None or any(key not in row for key in keys):
        wanted = " and ".join(map(repr, keys))
        raise InvalidParameter(
            f"Expected every row of {name} to be a mapping{f' with {wanted}' if wanted else ''}, but one of type "
            f"{type(given).__name__} is not. Give rows such as {{'text': ..., 'label': ...}}."
        )
    return row


def texts_of(name: str, given: Sequence[Any], *, at_least: int = 1) -> list[str]:
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        given = [row.get("text") if isinstance(row, Mapping) else getattr(row, "text", row) for row in given]
    return texts(name, given, at_least=at_least)


def texts(name: str, given: Sequence[Any], *, at_least: int = 1) -> list[str]:
    if (
        isinstance(given, (str, bytes))
        or not isinstance(given, Sequence)
        or any(not isinstance(text, str) for text in given)
    ):
        raise InvalidParameter(f"Expected {name} to be a list of str. Give the texts, without labels.")
    if len(given) < at_least:
        raise InvalidParameter(f"Expected {name} to hold at least {at_least} texts, got {len(given)}. Give more.")
    return list(given)
