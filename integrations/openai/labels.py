"""Scores of label words from the first tokens that a server lists. Knows no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

FLOOR = -100.0
"""Log-score of a label whose beginning is not listed: as good as never, and still a number."""

Scores = npt.NDArray[np.float64]


def log_shares(words: Sequence[str], listed: Mapping[str, float]) -> list[float | None]:
    """Log-probability of the listed tokens that begin a word and no other one; None where there is none."""
    shares: list[float | None] = []
    for word in words:
        own = [value for text, value in listed.items() if text.strip() and _begun(text, words) == word]
        shares.append(float(np.logaddexp.reduce(own)) if own else None)
    return shares


def scores(words: Sequence[str], listed: Mapping[str, float]) -> Scores | None:
    """Log-softmax over the words that are listed, FLOOR for the others; None if no word is."""
    shares = log_shares(words, listed)
    total = [share for share in shares if share is not None]
    if not total:
        return None
    norm = float(np.logaddexp.reduce(total))
    return np.array([FLOOR if share is None else share - norm for share in shares])


def expected(words: Sequence[str], listed: Mapping[str, float]) -> Scores | None:
    """Log-softmax over all words, for calibration: one that is not listed is taken to be as probable as the least
    probable token that is, which is the most it can be. None if nothing is listed.
    """
    if not listed:
        return None
    least = min(listed.values())
    row = np.array([least if share is None else share for share in log_shares(words, listed)])
    return np.asarray(row - np.logaddexp.reduce(row))


def _begun(text: str, words: Sequence[str]) -> str | None:
    if text in words:
        return text
    begun = [word for word in words if word.startswith(text)]
    return begun[0] if len(begun) == 1 else None
