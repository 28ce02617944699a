"""Membership inference: was a record among the private ones? From a released prompt, or from DP-ICL's answers.

For prompts: the likelihood ratio (LiRA) of Carlini et al. 2022, "Membership inference attacks from first principles",
and, with one reference, of Mireshghallah et al. 2022, as in Hong et al. 2024, Table 8. The attacker holds the prompt
and several candidate models, for it need not know which one wrote it.

For answers: the questions are asked again and again on two neighbouring data sets, the strongest position a promise of
differential privacy covers; so its bound can stand beside what was reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from os import PathLike

import numpy as np
import numpy.typing as npt

from langchain_dp._util.binomial import clopper_pearson
from langchain_dp._util.pictures import new_figure
from langchain_dp.attacks import _given
from langchain_dp.attacks._answer_membership import attack_answers
from langchain_dp.attacks._intervals import Floats, auc, auc_interval
from langchain_dp.attacks._lira import PortScorer, Row, lira_scores
from langchain_dp.attacks._result import AttackResult, Setting, save_picture, texts_of
from langchain_dp.errors import InvalidParameter

Scorer = Callable[[str, Sequence[Row]], npt.ArrayLike]
"""An instruction and rows to the log-likelihood of every row's label under that instruction."""

__all__ = [
    "MembershipResult",
    "PortScorer",
    "attack_answers",
    "attack_prompt",
    "infer_membership",
    "lira_scores",
]

_RATES = (0.01, 0.05, 0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MembershipResult(AttackResult):
    """How well members were told from others: the rate is the area under the curve of the best candidate.

    Scores that are lower for members tell them as well as higher ones, so that every area is that of the direction in
    which it is at least 0.5. By chance alone it is therefore a little above 0.5: see ``resolution``.

    Args:
        by_candidate: Area and interval of every candidate. The intervals hold together, with 95%, and whatever the
            direction: the best one was picked with the outcome in sight.
        best: Name of the best candidate. ``settings["members_score"]`` is its direction, "higher" or "lower".
        caught: Of the best candidate: false positive rate -> (share of members found, low, high). The interval is that
            of the threshold, which this rate of the ``others`` at hand exceeds: what share of others elsewhere does is
            as uncertain as their number says. Rates below one in n + 1 others are left out.
        resolution: An area below 0.5 + this cannot be told from chance with so many rows and candidates.
        curve: False and true positive rates of the best candidate, in order.
    """

    by_candidate: dict[str, tuple[float, float, float]]
    best: str
    caught: dict[float, tuple[float, float, float]]
    resolution: float
    curve: tuple[tuple[float, float], ...] = dataclasses.field(repr=False)

    def plot(self, path: str | PathLike[str]) -> None:
        """Write a picture of the curve: members found against others accused.

        Raises:
            InvalidParameter: The ending of ``path`` names no kind of picture.
            MissingExtra: matplotlib is not installed.
        """
        figure, axes = new_figure(7, 5.0)
        axes.plot([0, 1], [0, 1], color="C1", lw=1, label="chance")
        axes.step(*zip(*self.curve, strict=True), where="post", color="C0", label=f"{self.best}: {self.rate:.3f}")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="others accused", ylabel="members found", title=self.name)
        axes.legend(loc="lower right", frameon=False)
        save_picture(figure, path)


def infer_membership(
    candidates: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    name: str = "membership",
    settings: Mapping[str, Setting] | None = None,
) -> MembershipResult:
    """Tell members from others by scores.

    Args:
        candidates: Name -> (scores of members, scores of others), for every model or method the attacker can try.
            Members may score higher or lower.
        name: Name of the result.
        settings: Public facts to keep with the result.

    Returns:
        The area under the curve of the best candidate in its better direction, with Newcombe's interval, widened so
        that those of all candidates hold together (Bonferroni). The interval of the other direction is its mirror
        image, and holds with it. The baseline is 0.5.

    Raises:
        InvalidParameter: There is no candidate, one lacks scores on a side, or a score is not a number.
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
    # Of n others, fewer than one in n + 1 cannot be told.
    # One threshold from above and one from below were tried, of which neither says what the other does.
    caught = {rate: _caught(members, others, rate, error=error / 2) for rate in _RATES if rate * (len(others) + 1) >= 1}
    return MembershipResult(
        name=name,
        rate=area,
        interval=(low, high),
        baseline=0.5,
        n=len(members) + len(others),
        measure="area under curve",
        interval_method=f"Newcombe, {len(candidates)} together",
        settings={
            "best": best,
            "members_score": "lower" if best in lower else "higher",
            "candidates": len(candidates),
            "members": len(members),
            "resolution": resolution,
            **{f"found_at_{rate:g}": found[0] for rate, found in caught.items()},
            **(settings or {}),
        },
        by_candidate=by_candidate,
        best=best,
        caught=caught,
        resolution=resolution,
        curve=_curve(members, others),
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
    """Tell the rows a released prompt was written from by how much better it explains their labels.

    Args:
        prompt: The released instruction.
        members: Rows it was written from, with ``label``. Private.
        others: Rows of the same kind it was not written from. If they differ in kind (length, source), the attack
            measures that instead.
        candidates: Name -> scorer, for every model the attacker can try; :class:`PortScorer` makes one of an engine.
        references: Instructions that were written without the members: the initial one, or ones from other data.
        name: Name of the result.
        settings: Public facts to keep with the result.

    Returns:
        As :func:`infer_membership`, on the scores of :func:`lira_scores`.

    Raises:
        InvalidParameter: There are no rows on a side, no candidates or no references, or a scorer does not give one
            finite number a row.
    """
    for what, given in (("members", members), ("others", others), ("references", references)):
        if isinstance(given, str) or not len(given):
            raise InvalidParameter(f"Expected {what} to be a list that holds at least one, got none.")
    texts_of("references", references)
    if not isinstance(candidates, Mapping):
        raise InvalidParameter(
            f"Expected candidates of type {type(candidates).__name__} to map names to scorers. Give "
            "{name: PortScorer(...)}."
        )
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidParameter("Expected prompt to be a str that is not empty. Give the released instruction.")
    for what, given in (("members", members), ("others", others)):
        for row in given:
            _given.record(what, row)
    rows = [*members, *others]
    scored = {}
    for key, scorer in candidates.items():
        _given.function(f"candidate {key!r}", scorer, of="an instruction and rows")
        under = [_figures(key, scorer(instruction, rows), len(rows)) for instruction in (prompt, *references)]
        scores = lira_scores(under[0], np.stack(under[1:]))
        scored[key] = scores[: len(members)], scores[len(members) :]
    return infer_membership(scored, name=name, settings={"references": len(references), **(settings or {})})


def _scores(name: str, given: npt.ArrayLike) -> Floats:
    scores = _given.numbers(f"scores of candidate {name!r}", given)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise InvalidParameter(
            f"Expected scores of candidate {name!r} to be a row of at least one number on each side, got shape "
            f"{scores.shape}."
        )
    return scores


def _figures(name: str, given: npt.ArrayLike, count: int) -> Floats:
    figures = _given.numbers(f"what candidate {name!r} returned", given)
    if figures.shape != (count,) or not np.isfinite(figures).all():
        raise InvalidParameter(
            f"Expected candidate {name!r} to give one finite number for each of {count} rows, but it gave an array of "
            f"shape {figures.shape}."
        )
    return figures


def _caught(members: Floats, others: Floats, rate: float, *, error: float) -> tuple[float, float, float]:
    """Share of members above the score that at most this share of others exceeds."""
    allowed = int(rate * len(others))
    threshold = np.sort(others)[::-1][min(allowed, len(others) - 1)]
    hits = int((members > threshold).sum())
    low, high = clopper_pearson(hits, len(members), error=error)
    return hits / len(members), low, high


def _curve(members: Floats, others: Floats) -> tuple[tuple[float, float], ...]:
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    accused = 1 - np.searchsorted(np.sort(others), thresholds) / len(others)
    found = 1 - np.searchsorted(np.sort(members), thresholds) / len(members)
    return ((0.0, 0.0), *zip(accused.tolist(), found.tolist(), strict=True))
