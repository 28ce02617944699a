"""Likelihood ratios of records, and the log-likelihoods they are made of.

Carlini et al. 2022, "Membership inference attacks from first principles"; with one reference, Mireshghallah et al.
2022, "Quantifying privacy risks of masked language models using membership inference attacks".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from langchain_dp.attacks import _given
from langchain_dp.attacks._intervals import Floats
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import MemberPrompt, ScoresLabels
from langchain_dp.quiet.context import sealed
from langchain_dp.quiet.filters import Level

Row = Mapping[str, Any]

_TOGETHER = 64


def lira_scores(
    target: npt.ArrayLike, out: npt.ArrayLike, into: npt.ArrayLike | None = None, *, pooled: bool = True
) -> Floats:
    """Score every record by how much likelier its figure is if it was a member.

    Args:
        target: Figure of each record under what is attacked, (n,); for prompts the log-likelihood of its label.
        out: The same under k references that were made without the record, (k, n), k at least 1.
        into: The same under references that were made with it, (j, n), j at least 1: the online attack. None: offline.
        pooled: Whether all records share one spread, which is steadier with few references; else k and j are at
            least 2 and every record has its own.

    Returns:
        Scores, (n,), higher for members. Offline: the distance to the mean of ``out`` in spreads (in plain units with
        one reference, where there is no spread). Online: the logarithm of the ratio of two normal densities (Carlini
        et al. 2022, Algorithm 1).

    Raises:
        InvalidParameter: Shapes do not fit, or a figure is not finite.
    """
    figures = _given.numbers("target", target)
    without = _references("out", out, figures, pooled)
    if into is None:
        mean, spread = _normal(without, pooled)
        return np.asarray((figures - mean) / spread)
    mean, spread = _normal(without, pooled)
    mean_in, spread_in = _normal(_references("into", into, figures, pooled), pooled)
    return np.asarray(norm.logpdf(figures, mean_in, spread_in) - norm.logpdf(figures, mean, spread))


class PortScorer:
    """Log-likelihood of labels under an instruction, by an engine that scores labels.

    Args:
        engine: The engine; it sees the rows.
        words: Label -> word that the model is asked for.
        head: What the engine reads first; ``{instruction}`` stands for the instruction.
        body: Then, with the row's keys.
        tail: Then; the label's word follows.

    A row that the engine cannot score counts as if all labels were equally likely.

    Raises:
        InvalidParameter: The engine scores no labels, there are fewer than two labels; when called, a row lacks what
            ``body`` names, or its label has no word.
    """

    def __init__(
        self,
        engine: ScoresLabels,
        words: Mapping[str, str],
        *,
        head: str = "Instruction: {instruction}\n\n",
        body: str = "Input: {text}\n\n",
        tail: str = "Output:",
    ) -> None:
        if not isinstance(engine, ScoresLabels):
            raise InvalidParameter(
                f"Expected engine of type {type(engine).__name__} to score labels. Give an engine such as "
                "LlamaCppEnsemble, and no chat model."
            )
        if not isinstance(words, Mapping):
            raise InvalidParameter(
                f"Expected words of type {type(words).__name__} to map labels to words. Give {{label: word}}."
            )
        if len(words) < 2:
            raise InvalidParameter(f"Expected words to hold at least two labels, got {len(words)}.")
        self._engine = engine
        self._words = dict(words)
        self._head, self._body, self._tail = head, body, tail

    def __call__(self, instruction: str, rows: Sequence[Row]) -> Floats:
        """Log-probability of every row's own label among all labels, (rows,)."""
        labels = list(self._words)
        truth = [str(_given.record("rows", row, ["label"])["label"]) for row in rows]
        if unknown := sum(label not in labels for label in truth):
            raise InvalidParameter(
                f"Expected every row to have one of {len(labels)} labels of words, but {unknown} have another. Give "
                "words for all labels."
            )
        found = np.full(len(rows), -np.log(len(labels)))
        for start in range(0, len(rows), _TOGETHER):
            part = rows[start : start + _TOGETHER]
            keys = [("membership", object(), start + place) for place in range(len(part))]
            prompts = [
                MemberPrompt(self._head.format(instruction=instruction), self._filled(row), self._tail, key)
                for row, key in zip(part, keys, strict=True)
            ]
            try:
                with sealed(Level.QUIET):
                    scores = self._engine.score_labels(prompts, [f" {word}" for word in self._words.values()])
            finally:
                self._engine.forget(*keys)
            for place, line in enumerate(scores):
                if line is not None and np.isfinite(line).all():
                    log = np.asarray(line) - np.logaddexp.reduce(line)
                    found[start + place] = log[labels.index(truth[start + place])]
        return found

    def _filled(self, row: Row) -> str:
        try:
            return self._body.format_map(row)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError):
            raise InvalidParameter(
                "Expected every row to have what body names, but one has not. Give rows with these keys, or another "
                "body."
            ) from None


def _references(name: str, given: npt.ArrayLike, target: Floats, pooled: bool) -> Floats:
    found = _given.numbers(name, given)
    least = 1 if pooled else 2
    if target.ndim != 1 or found.ndim != 2 or found.shape[1] != len(target) or len(found) < least:
        raise InvalidParameter(
            f"Expected {name} of shape {found.shape} to hold at least {least} lines of one figure for each record of "
            f"target, of shape {target.shape}."
        )
    if not (np.isfinite(found).all() and np.isfinite(target).all()):
        raise InvalidParameter(f"Expected target and {name} to be finite, but some figures are NaN or infinite.")
    return found


def _normal(found: Floats, pooled: bool) -> tuple[Floats, Floats | float]:
    """Mean and spread of each record, or one spread for all."""
    mean = found.mean(axis=0)
    if len(found) == 1:
        return mean, 1.0
    spread = found.std(axis=0, ddof=1)
    if pooled:
        together = float(np.sqrt((spread**2).mean()))
        return mean, together or 1.0
    return mean, np.maximum(spread, 1e-9)
