"""The engine whose releases are token ids: what a client hands out where it shares the backbone's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from langchain_dp.rapt.privatize import Items, TextPrivatizer

CUT = "+"
"""Stands after the tokens of a text that was cut."""


class TokenEngine:
    """An engine of releases whose outcome is token ids, written as numbers.

    Args:
        words: The sanitizer's own engine.
        max_tokens: Where a text is cut, before it is privatized.
    """

    def __init__(self, words: TextPrivatizer, max_tokens: int) -> None:
        self.event, self.table, self.pads = words.event, words.table, words.pads
        self._privatizer = words
        self._max_tokens = max_tokens
        settings = {**json.loads(words.settings), "written": "ids", "max_tokens": max_tokens}
        self.settings = json.dumps(settings, sort_keys=True)

    def written(self, texts: Sequence[str]) -> Callable[[], list[str]]:
        """Cut texts; what is returned draws a release of each: its ids, with a mark at the end if it was cut."""
        parsed = [self._privatizer._parse(number, text) for number, text in enumerate(texts)]
        cut = [len(items.ids) > self._max_tokens for items in parsed]
        for items in parsed:
            del items.ids[self._max_tokens :]
        ids = np.array([i for items in parsed for i in items.ids], dtype=np.int64)
        return lambda: self._rows(parsed, cut, self._privatizer.release(ids).tolist())

    def _rows(self, parsed: list[Items], cut: list[bool], drawn: list[int]) -> list[str]:
        written, start = [], 0
        for items, is_cut in zip(parsed, cut, strict=True):
            released = drawn[start : start + len(items.ids)]
            start += len(items.ids)
            ids: list[int] = []
            before = 0
            for place, literal in items.literals:
                if place > len(released):
                    break
                ids += released[before:place] + self._privatizer.vocabulary.encode(literal)
                before = place
            ids += released[before:]
            is_cut |= len(ids) > self._max_tokens
            written.append(" ".join([*map(str, ids[: self._max_tokens]), *([CUT] if is_cut else [])]))
        return written
