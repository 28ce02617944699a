"""Report of a leak search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

_WIDTH = 100

LEAKED = "leaked rows in prompt"


@dataclasses.dataclass(frozen=True, repr=False)
class LeakedSpan:
    """A run of words in both the prompt and a row. PRIVATE: ``str`` shows both.

    Args:
        start: First character in the prompt.
        end: One past the last.
        text: The run in the prompt.
        rows: Places of the rows that hold it, wholly covered ones first.
        row_text: The first of these rows.
        row_start: First character in that row.
        row_end: One past the last.
        words: Nonpublic words of the run.
        bits: Their information, the sum of log2(rows / rows with the word), 0 for function words.
        whole: True if the run is the row's whole text.

    Examples:
        >>> [(span.start, span.end, span.rows) for span in find_leaks(prompt, texts).spans]
    """

    start: int
    end: int
    text: str
    rows: tuple[int, ...]
    row_text: str
    row_start: int
    row_end: int
    words: int
    bits: float
    whole: bool

    def __str__(self) -> str:
        others = f" and {len(self.rows) - 1} more" if len(self.rows) > 1 else ""
        row = _around(self.row_text, self.row_start, self.row_end)
        kind = "a whole row" if self.whole else f"{self.words} words"
        name = f"row {self.rows[0]}{others}"
        return f"{kind}, {self.bits:.0f} bits\n    {'prompt':<{len(name)}}  [{_line(self.text)}]\n    {name}  {row}"

    def __repr__(self) -> str:
        return "LeakedSpan(<private>)"


@dataclasses.dataclass(frozen=True, repr=False)
class NearestRow:
    """The row most similar to one sentence of the prompt. PRIVATE: ``str`` shows both.

    Args:
        text: The sentence.
        row: Place of the row.
        row_text: The row.
        similarity: Cosine, at most 1.
        by_chance: The same for the nearest held-out row, if any.

    Examples:
        >>> nearest = find_leaks(prompt, texts).nearest[0]
        >>> nearest.row, nearest.similarity
    """

    text: str
    row: int
    row_text: str
    similarity: float
    by_chance: float | None

    def __str__(self) -> str:
        chance = "" if self.by_chance is None else f" (nearest held-out row {self.by_chance:.2f})"
        name = f"row {self.row}"
        return (
            f"similarity {self.similarity:.2f}{chance}\n    {'prompt':<{len(name)}}  {_line(self.text)}\n"
            f"    {name}  {_line(self.row_text)}"
        )

    def __repr__(self) -> str:
        return "NearestRow(<private>)"


@dataclasses.dataclass(frozen=True, repr=False)
class LeakReport:
    """The findings of a search. PRIVATE: ``str`` and ``marked`` show text of the rows, ``repr`` does not.

    Args:
        prompt: The searched prompt.
        spans: Runs of training rows, heaviest first, none inside another.
        by_chance: The same for held-out rows.
        nearest: The most similar row of every nonpublic sentence.
        rows: Number of rows searched.
        held_out: Number of held-out rows.
        own_starts: Starts of the prompt's nonpublic words.
        pieces: Number of nonpublic sentences.
        name: Name of the search.
        ordinary: Name of the list of ordinary words.
        leaked_rows: Places of all leaked rows.

    Examples:
        >>> found = find_leaks(prompt, texts)
        >>> found.rate, len(found.spans)
    """

    prompt: str
    spans: tuple[LeakedSpan, ...]
    by_chance: tuple[LeakedSpan, ...]
    nearest: tuple[NearestRow, ...]
    rows: int
    held_out: int
    own_starts: frozenset[int]
    pieces: int = 0
    name: str = LEAKED
    ordinary: str = "none"
    leaked_rows: frozenset[int] = frozenset()

    @property
    def own_words(self) -> int:
        """Number of the prompt's nonpublic words."""
        return len(self.own_starts)

    @property
    def rate(self) -> float:
        """Share of these words inside a leaked span."""
        return self._share(self.spans)

    @property
    def rate_by_chance(self) -> float:
        """The same for held-out rows."""
        return self._share(self.by_chance)

    @property
    def beyond_chance(self) -> tuple[LeakedSpan, ...]:
        """Spans with more bits than every held-out span."""
        heaviest = max((span.bits for span in self.by_chance), default=-1.0)
        return tuple(span for span in self.spans if span.bits > heaviest)

    @property
    def baseline(self) -> float:
        """The same as ``rate_by_chance``."""
        return self.rate_by_chance

    @property
    def interval(self) -> tuple[float, float]:
        """95% Clopper-Pearson interval, as if sentences leaked as a whole."""
        from langchain_dp._util.binomial import clopper_pearson  # numerics, which the search does without

        pieces = self.pieces or int(self.rate > 0)  # leaked text without a sentence, such as a name, counts as one
        return clopper_pearson(self.rate * pieces, pieces) if pieces else (0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, without any text."""
        settings = {
            "rows": self.rows,
            "held_out": self.held_out,
            "spans": len(self.spans),
            "spans_by_chance": len(self.by_chance),
            "beyond_chance": len(self.beyond_chance),
            "sentences": self.pieces,
            "ordinary_words": self.ordinary,
            "nearest": max((row.similarity for row in self.nearest), default=None),
            "measure": "own words in runs",
            "interval": "Clopper-Pearson over sentences",
        }
        return figures(self, self.own_words, settings)

    def _share(self, spans: Sequence[LeakedSpan]) -> float:
        taken = {place for span in spans for place in range(span.start, span.end)}
        return len(taken & self.own_starts) / self.own_words if self.own_words else 0.0

    def marked(self, before: str = "[", after: str = "]", *, spans: Sequence[LeakedSpan] | None = None) -> str:
        """Return the prompt with marks around leaked text. PRIVATE."""
        merged: list[tuple[int, int]] = []
        for span in sorted(self.spans if spans is None else spans, key=lambda span: span.start):
            if merged and span.start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], span.end)
            else:
                merged.append((span.start, span.end))
        shown, at = [], 0
        for start, end in merged:
            shown += [self.prompt[at:start], before, self.prompt[start:end], after]
            at = end
        return "".join([*shown, self.prompt[at:]])

    def __str__(self) -> str:
        lines = [
            f"Leak search: {len(self.spans)} spans of {self.rows:,} training rows are in the prompt, "
            f"{self.rate:.0%} of its {self.own_words} own words",
            f"  by chance: {len(self.by_chance)} spans of {self.held_out:,} held-out rows, {self.rate_by_chance:.0%}; "
            f"{len(self.beyond_chance)} training spans outweigh all of these"
            if self.held_out
            else "  by chance: unknown, for no held-out rows were given",
        ]
        lines += [f"  {span}" for span in self.spans]
        if self.nearest:
            lines.append("Nearest rows of its sentences")
        lines += [f"  {row}" for row in self.nearest]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "LeakReport(<private>)"


def figures(result: Any, n: int, settings: dict[str, Any]) -> dict[str, Any]:
    low, high = result.interval
    rates = {"rate": result.rate, "low": low, "high": high, "baseline": result.baseline}
    return {"name": result.name, **rates, "n": n, "settings": settings}


def _line(text: str) -> str:
    return " ".join(text.split())


def _around(text: str, start: int, end: int) -> str:
    side = max((_WIDTH - (end - start)) // 2, 12)
    before, after = _line(text[:start]), _line(text[end:])
    before = before if len(before) <= side else f"...{before[-side:]}"
    after = after if len(after) <= side else f"{after[:side]}..."
    return f"{before} [{_line(text[start:end])}] {after}".strip()
