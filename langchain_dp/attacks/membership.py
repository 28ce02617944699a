"""Membership inference from a released prompt, by LiRA (Carlini et al. 2022)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util import validate
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.attacks import checks
from langchain_dp.attacks.result import AttackResult, Floats, Setting, auc, auc_interval
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.isolation.context import sealed
from langchain_dp.isolation.filters import Level
from langchain_dp.ports import LabelScorer, MemberPrompt

Row = Mapping[str, Any]
Scorer = Callable[[str, Sequence[Row]], npt.ArrayLike]
"""Instruction and rows to the log-likelihood of every row's label."""

_RATES = (0.01, 0.05, 0.1)
_TOGETHER = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class MembershipResult(AttackResult):
    """Success of telling members from others: the area under the curve of the best candidate, in its better direction.

    Args:
        by_candidate: (area, low, high) of every candidate. The intervals hold together at 95%.
        best: Name of the best candidate.
        tpr_at_fpr: Its false positive rate -> (share of members found, low, high).
        resolution: An area below 0.5 + this cannot be told from chance.

    Examples:
        >>> found = infer_membership({"model": (member_scores, other_scores)})
        >>> found.rate, found.tpr_at_fpr
    """

    by_candidate: dict[str, tuple[float, float, float]]
    best: str
    tpr_at_fpr: dict[float, tuple[float, float, float]]
    resolution: float


def infer_membership(
    candidates: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    name: str = "membership",
    settings: Mapping[str, Setting] | None = None,
) -> MembershipResult:
    """Tell members from others by scores.

    Args:
        candidates: Name -> (scores of members, scores of others), for every model or method that the attacker can try.
        name: Name of the result.
        settings: Public facts to store with it.

    Returns:
        The area under the curve of the best candidate in its better direction, with Newcombe's interval for all
        candidates together (Bonferroni). The baseline is 0.5.

    Examples:
        >>> found = infer_membership({"model": ([0.9, 0.8, 0.7], [0.1, 0.2, 0.3])})
        >>> found.rate  # the area under the curve
        1.0
    """
    if not isinstance(candidates, Mapping) or not all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in candidates.values()
    ):
        raise InvalidParameter("Expected candidates to map names to pairs. Give {name: (members, others)}.")
    if not candidates:
        raise InvalidParameter("Expected candidates to hold at least one, got none. Give {name: (members, others)}.")
    error = 0.05 / len(candidates)
    scored = {key: (_scores(key, pair[0]), _scores(key, pair[1])) for key, pair in candidates.items()}
    lower = {key for key, (members, others) in scored.items() if auc(members, others) < 0.5}
    scored |= {key: (-scored[key][0], -scored[key][1]) for key in lower}
    by_candidate: dict[str, tuple[float, float, float]] = {}
    for key, (members, others) in scored.items():
        area = auc(members, others)
        by_candidate[key] = (area, *auc_interval(area, len(members), len(others), error=error))
    best = max(by_candidate, key=lambda key: by_candidate[key][0])
    members, others = scored[best]
    area, low, high = by_candidate[best]
    resolution = auc_interval(0.5, len(members), len(others), error=error)[1] - 0.5
    # Of n others, rates below one in n + 1 cannot be measured. Half the error: both directions were tried.
    tpr_at_fpr = {
        rate: _tpr_at_fpr(members, others, rate, error=error / 2) for rate in _RATES if rate * (len(others) + 1) >= 1
    }
    return MembershipResult(
        name=name,
        rate=area,
        interval=(low, high),
        baseline=0.5,
        n=len(members) + len(others),
        measure="area under curve",
        interval_method=f"Newcombe, {len(candidates)} together",
        settings={
            **(settings or {}),
            "best": best,
            "members_score": "lower" if best in lower else "higher",
            "candidates": len(candidates),
            "members": len(members),
            "resolution": resolution,
            **{f"found_at_{rate:g}": found[0] for rate, found in tpr_at_fpr.items()},
        },
        by_candidate=by_candidate,
        best=best,
        tpr_at_fpr=tpr_at_fpr,
        resolution=resolution,
    )


def attack_prompt(
    prompt: str,
    *,
    members: Sequence[Row],
    others: Sequence[Row],
    candidates: Mapping[str, Scorer],
    references: Sequence[str],
    name: str = "membership in prompt",
    settings: Mapping[str, Setting] | None = None,
) -> MembershipResult:
    """Tell the rows behind a released prompt by how much better it explains their labels (Hong et al. 2024, Table 8).

    Args:
        prompt: The released instruction.
        members: Rows behind it, with ``label``. Private.
        others: Rows of the same kind that are not behind it.
        candidates: Name -> scorer, such as a :class:`PortScorer`, for models that the attacker can try.
        references: Instructions written without the members.
        name: Name of the result.
        settings: Public facts to store with it.

    Returns:
        As :func:`infer_membership`, on :func:`lira_scores`.

    Examples:
        >>> candidates = {"engine": PortScorer(engine, {"yes": "yes", "no": "no"})}
        >>> found = attack_prompt(prompt, members=rows, others=held_out, candidates=candidates, references=[initial])
        >>> found.rate, found.interval
    """
    for what, given in (("members", members), ("others", others), ("references", references)):
        if isinstance(given, str) or not len(given):
            raise InvalidParameter(f"Expected {what} to be a list that holds at least one, got none.")
    checks.texts("references", references)
    validate.instance(
        "candidates", candidates, Mapping, "a mapping from names to scorers", "Give {name: PortScorer(...)}."
    )
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidParameter("Expected prompt to be a str that is not empty. Give the released instruction.")
    for what, given in (("members", members), ("others", others)):
        for row in given:
            checks.record(what, row)
    rows = [*members, *others]
    scored = {}
    for key, scorer in candidates.items():
        validate.function(f"candidate {key!r}", scorer, of="an instruction and rows")
        under = [label_figures(key, scorer(instruction, rows), len(rows)) for instruction in (prompt, *references)]
        scores = lira_scores(under[0], np.stack(under[1:]))
        scored[key] = scores[: len(members)], scores[len(members) :]
    return infer_membership(scored, name=name, settings={"references": len(references), **(settings or {})})


def _scores(name: str, given: npt.ArrayLike) -> Floats:
    scores = validate.numbers(f"scores of candidate {name!r}", given)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise InvalidParameter(
            f"Expected scores of candidate {name!r} to be a row of at least one number on each side, got shape "
            f"{scores.shape}."
        )
    return scores


def label_figures(name: str, given: npt.ArrayLike, count: int) -> Floats:
    figures = validate.numbers(f"what candidate {name!r} returned", given)
    if figures.shape != (count,) or not np.isfinite(figures).all():
        raise InvalidParameter(
            f"Expected candidate {name!r} to give one finite number for each of {count} rows, but it gave an array of "
            f"shape {figures.shape}."
        )
    return figures


def _tpr_at_fpr(members: Floats, others: Floats, rate: float, *, error: float) -> tuple[float, float, float]:
    allowed = int(rate * len(others))
    threshold = np.sort(others)[::-1][min(allowed, len(others) - 1)]
    hits = int((members > threshold).sum())
    low, high = clopper_pearson(hits, len(members), error=error)
    return hits / len(members), low, high


def lira_scores(target: npt.ArrayLike, out: npt.ArrayLike) -> Floats:
    """Score every record by how much likelier its figure is for a member (the offline attack).

    Args:
        target: Figure of each record under the attacked release, (n,). For prompts the log-likelihood of its label.
        out: The same under k references made without the record, (k, n).

    Returns:
        (n,), higher for members: the distance to the mean of ``out``, in spreads unless there is one reference.

    Examples:
        >>> lira_scores([1.0, 3.0], [[1.0, 1.0], [2.0, 0.0]]).round(2)  # the second record stands out
        array([-0.71,  3.54])
    """
    figures, references = validate.numbers("target", target), validate.numbers("out", out)
    if figures.ndim != 1 or references.ndim != 2 or references.shape[1] != len(figures) or not len(references):
        raise InvalidParameter(
            f"Expected out of shape {references.shape} to hold at least one line of one figure for each record of "
            f"target, of shape {figures.shape}."
        )
    if not (np.isfinite(references).all() and np.isfinite(figures).all()):
        raise InvalidParameter("Expected target and out to be finite, but some figures are NaN or infinite.")
    spread = 1.0
    if len(references) > 1:
        spread = float(np.sqrt((references.std(axis=0, ddof=1) ** 2).mean())) or 1.0
    return np.asarray((figures - references.mean(axis=0)) / spread)


class PortScorer:
    """Log-likelihood of labels under an instruction, by an engine that scores labels.

    A row that the engine cannot score counts as if all labels were equally likely. If it scores none, the call raises
    ModelUnavailable.

    Args:
        engine: The engine. It sees the rows.
        words: Label -> word that the model is asked for.
        head: First part of the prompt, with ``{instruction}``.
        body: Second part, with the row's keys.
        tail: Last part. The label's word follows.

    Raises:
        InvalidParameter: The engine scores no labels, or words, ``head`` or a row do not fit.

    Examples:
        >>> scorer = PortScorer(engine, {"yes": "yes", "no": "no"})
        >>> scorer("Say yes to praise.", [{"text": "What a joy!", "label": "yes"}])  # one log-probability
    """

    def __init__(
        self,
        engine: LabelScorer,
        words: Mapping[Any, str],
        *,
        head: str = "Instruction: {instruction}\n\n",
        body: str = "Input: {text}\n\n",
        tail: str = "Output:",
    ) -> None:
        remedy = "Give an engine such as LlamaCppEnsemble, and no chat model."
        validate.instance("engine", engine, LabelScorer, "an engine that scores labels", remedy)
        validate.instance("words", words, Mapping, "a mapping from labels to words", "Give {label: word}.")
        if len(words) < 2:
            raise InvalidParameter(f"Expected words to hold at least two labels, got {len(words)}.")
        self._engine = engine
        try:
            head.format(instruction="a")
        except (LookupError, ValueError, TypeError, AttributeError):
            raise InvalidParameter(
                f"Expected head={head!r} to hold no variable but {{instruction}}. Write other braces twice."
            ) from None
        self._words = {str(label): word for label, word in words.items()}
        self._head, self._body, self._tail = head, body, tail

    def __call__(self, instruction: str, rows: Sequence[Row]) -> Floats:
        """Return the log-probability of every row's label, (rows,)."""
        labels = list(self._words)
        truth = [str(checks.record("rows", row, ["label"])["label"]) for row in rows]
        if unknown := sum(label not in labels for label in truth):
            raise InvalidParameter(
                f"Expected every row to have one of {len(labels)} labels of words, but {unknown} have another. Give "
                "words for all labels."
            )
        figures = np.full(len(rows), np.nan)
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
                    figures[start + place] = log[labels.index(truth[start + place])]
        if len(rows) and np.isnan(figures).all():
            raise ModelUnavailable(f"Expected the engine to score rows, but it scored none of {len(rows)}. Check it.")
        return np.where(np.isnan(figures), -np.log(len(labels)), figures)

    def _filled(self, row: Row) -> str:
        try:
            return self._body.format_map(row)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError):
            raise InvalidParameter(
                "Expected every row to have the keys that body names, but one lacks some. Give rows with these keys, "
                "or another body."
            ) from None
