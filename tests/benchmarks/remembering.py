"""Label scores that are evaluated once, however often a benchmark asks for them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import statistics
from collections.abc import Hashable, Sequence
from typing import Any

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp.opt import Decoding
from langchain_dp.ports import Continuation, MemberPrompt, Token

Row = list[float] | None


class Remembering:
    """An engine whose label scores are kept: the same record under the same instruction is evaluated once."""

    def __init__(self, engine: LlamaCppEnsemble) -> None:
        self.engine = engine
        self._rows: dict[bytes, list[float] | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        return self.engine.next_tokens(asked, decoding)

    def forget(self, *members: Hashable) -> None:
        self.engine.forget(*members)

    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        self.engine.warm(prompts)

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[list[float] | None]:
        keys = [hashlib.sha256(repr((p.head, p.body, p.tail, words)).encode()).digest() for p in prompts]
        new = [prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self._rows]
        rows = iter(self.engine.score_labels(new, words, content_free=content_free) if new else [])
        for key in keys:
            if key not in self._rows:
                self._rows[key] = next(rows)
        return [self._rows[key] for key in keys]


class Calibrating(Remembering):
    """The same where votes are counted with calibration and without: both come from one evaluation."""

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> list[Row]:
        plain = super().score_labels(prompts, words)
        blanks = (
            super(Calibrating, self).score_labels([dataclasses.replace(each, tail=tail) for each in prompts], words)
            for tail in content_free
        )
        return [_calibrated(row, blank) for row, *blank in zip(plain, *blanks, strict=True)]


def _calibrated(row: Row, blanks: Sequence[Row]) -> Row:
    """Scores divided by the mean label probability of tails without a question, where there are any."""
    if row is None or not blanks or None in blanks:
        return row if not blanks else None
    means = [statistics.fmean(map(math.exp, column)) for column in zip(*blanks, strict=True)]  # type: ignore[arg-type]
    return [score - math.log(mean) for score, mean in zip(row, means, strict=True)]
