"""Membership from released examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from langchain_dp._util import validate
from langchain_dp.attacks import checks
from langchain_dp.attacks.leakage import Embed, similarities
from langchain_dp.attacks.membership import MembershipResult, Row, Scorer, infer_membership, label_figures, lira_scores
from langchain_dp.attacks.result import Floats, Setting
from langchain_dp.attacks.words import FUNCTION_WORDS, Rarity, words_of
from langchain_dp.errors import InvalidParameter

_ITEM = "Text: {text}\nKind: {label}\n\n"


def attack_examples(
    examples: Iterable[Any],
    *,
    members: Sequence[Row],
    others: Sequence[Row],
    candidates: Mapping[str, Scorer] | None = None,
    embed: Embed | None = None,
    name: str = "membership in examples",
    settings: Mapping[str, Setting] | None = None,
) -> MembershipResult:
    """Tell the rows behind released examples by three signs, of which the best counts.

    "rare words": bits of the words that a row shares with one example. "nearest": similarity to the nearest example.
    Each candidate: how much likelier the row's label is under a prompt with the examples.

    Args:
        examples: The release: ``SyntheticExamples``, or mappings with ``text`` and ``label``.
        members: Rows behind them, with ``text`` and ``label``. Private.
        others: Rows of the same kind that are not behind them.
        candidates: Name -> scorer, such as a :class:`PortScorer`, for models that the attacker can try.
        embed: Texts to vectors, such as :class:`SentenceEmbeddings`. None: character n-grams.
        name: Name of the result.
        settings: Public facts to store with it.

    Returns:
        As :func:`infer_membership`.

    Examples:
        >>> made = SyntheticExamples.load("synthetic.jsonl")
        >>> found = attack_examples(made, members=rows, others=held_out)
        >>> found.rate, found.interval, found.best
    """
    shown = _rows("examples", [one.row() if hasattr(one, "row") else one for one in examples])
    sides = [_rows(what, given) for what, given in (("members", members), ("others", others))]
    rows = [row for side in sides for row in side]
    scores: dict[str, Floats] = {
        "rare words": _shared(shown, rows),
        "nearest": similarities([row["text"] for row in rows], [one["text"] for one in shown], embed).max(axis=1),
    }
    labels = sorted({row["label"] for row in (*rows, *shown)})
    head = f"Sort each text. The kinds: {', '.join(labels)}.\n\n"
    for key, scorer in (candidates or {}).items():
        validate.function(f"candidate {key!r}", scorer, of="an instruction and rows")
        prompts = (head + "".join(_ITEM.format_map(one) for one in shown), head)
        under, without = (label_figures(key, scorer(prompt, rows), len(rows)) for prompt in prompts)
        scores[key] = lira_scores(under, without[None])
    half = len(sides[0])
    return infer_membership(
        {key: (found[:half], found[half:]) for key, found in scores.items()},
        name=name,
        settings={"examples": len(shown), **(settings or {})},
    )


def _rows(what: str, given: Sequence[Row]) -> list[dict[str, Any]]:
    rows = [checks.record(what, row, ("text", "label")) for row in given]
    if not rows or not all(isinstance(row[key], str) for row in rows for key in ("text", "label")):
        raise InvalidParameter(f"Expected {what} to hold at least one row, each with a str as text and as label.")
    return rows


def _shared(shown: Sequence[Row], rows: Sequence[Row]) -> Floats:
    row_words = [{word.folded for word in words_of(row["text"])} - FUNCTION_WORDS for row in rows]
    example_words = [{word.folded for word in words_of(one["text"])} for one in shown]
    rarity = Rarity(row_words)
    return np.array([max(sum(map(rarity.bits, row & one)) for one in example_words) for row in row_words])
