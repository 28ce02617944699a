"""Settings that fit a number of rows and a budget."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from langchain_dp._util import validate
from langchain_dp.accounting import PrivacyBudget, calibrate_limited_domain
from langchain_dp.accounting.events import LimitedDomainEvent, count_is_public
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.reservation import votes_needed


class Lengths(NamedTuple):
    """Tokens before the records, per record, and after them."""

    head: float
    shot: float
    tail: float


class Evaluated(NamedTuple):
    """Tokens of a run: without caches, with caches, and written."""

    cold: float
    warm: float
    written: float

    def work(self, *, kept: bool = True) -> float:
        return (self.warm if kept else self.cold) + _WRITTEN * self.written


_WRITTEN = 5
"""Prompt tokens per written token, by time (measured: 6 with 16 members, 3 with 48)."""
_ANSWER = 25


def to_evaluate(
    scheme: Scheme,
    *,
    calls: int,
    texts: int,
    length: int,
    training: float,
    judged: float,
    lengths: Lengths,
) -> Evaluated:
    """``judged`` counts answers to validation records over all candidates."""
    rate, members = scheme.sampling_probability, scheme.expected_subsets
    shown = lengths.shot * shots(scheme, training)
    seen = 1 - (1 - rate) ** calls
    answers = (training * seen + judged) * (lengths.shot + _ANSWER)
    written = calls * members
    cold = warm = written * (lengths.head + shown + lengths.tail + length / 2)
    if scheme.sampling == "fixed":
        again = scheme.groups * (1 - (1 - rate) ** length) * texts
        warm = scheme.groups * seen * shown + again * (lengths.tail + length)
    return Evaluated(cold + answers, warm + answers, written)


def shots(scheme: Scheme, training: float) -> float:
    return training * (1.0 if scheme.sampling == "fixed" else scheme.sampling_probability) / scheme.groups


Effort = Literal["light", "full"]

AGREED = 0.7
"""Share of the votes that should win half of the time."""

_PROMPTS: dict[Effort, tuple[tuple[int, int], ...]] = {
    "light": ((3, 20), (2, 20), (1, 20), (1, 12)),
    "full": ((5, 50), (5, 30), (3, 30), (3, 20), (2, 20), (1, 20), (1, 12)),
}
"""(candidates, tokens of each), longest first."""
_SHOTS = (5, 3, 2, 1)
_SUBSETS = 3
_MORE = 5
"""Tokens of a candidate beyond the initial instruction's."""
_TOKENS: dict[Effort, int] = {"light": 330_000, "full": 3_300_000}
"""Most work, in prompt tokens (light: seven minutes of the embedded model on two cores)."""
_USUAL = Lengths(head=120, shot=45, tail=60)
_VALIDATION, _JUDGES = 0.1, 200


@dataclasses.dataclass(frozen=True)
class Fit:
    """Settings from public numbers alone."""

    shots: int
    subsets: int
    num_prompts: int
    max_new_tokens: int
    validation: float
    rows: int


def fit(
    examples_count: int,
    budget: PrivacyBudget,
    *,
    effort: Effort = "light",
    instruction: int = 0,
    alternatives: int = 0,
) -> Fit:
    """Choose the longest writing in which a token with 70% of the votes mostly wins.

    ``instruction`` is the initial instruction's length in tokens.
    """
    validate.integer("examples_count", examples_count, at_least=1)
    validate.one_of("effort", effort, get_args(Effort))
    if not count_is_public(budget.neighbors):
        raise InvalidParameter(
            "Expected neighbors of the budget other than add/remove, under which the number of rows is private and "
            "nothing may be chosen by it. Use replace-one, or choose shots=, subsets= and sampling= yourself."
        )
    least = math.ceil(_SUBSETS / (1 - _VALIDATION)) + 1
    validate.integer("examples_count", examples_count, at_least=least)
    judges = min(max(1, round(_VALIDATION * examples_count)), _JUDGES)
    best, nearest = None, 0.0
    for sizes in _writings(effort, instruction):
        arguments = examples_count, budget, effort, sizes, judges, (alternatives + sizes[0] + 1) * judges
        candidate, share = _by_votes(*arguments)
        if share >= 1:
            return candidate
        if share > nearest:
            best, nearest = candidate, share
    if best is None:  # one shot a subset is always there
        raise InvalidParameter(
            f"Expected alternatives= to be so few that the validation records answer all of them in bounded time, but "
            f"there are {alternatives}. Leave out some."
        )
    return best


def rows_to_select_by(
    examples_count: int, budget: PrivacyBudget, *, prompts: int, effort: Effort = "light"
) -> int | None:
    """Return the rows that select in bounded time. None under add/remove: all."""
    validate.integer("examples_count", examples_count, at_least=1)
    validate.one_of("effort", effort, get_args(Effort))
    if not count_is_public(budget.neighbors):
        return None
    scheme = Scheme("fixed", 1, 1.0, even=True)
    one = to_evaluate(scheme, calls=0, texts=0, length=0, training=0, judged=prompts, lengths=_USUAL).work()
    rows = min(examples_count, math.floor(_TOKENS[effort] / one))
    if rows < 2:
        raise InvalidParameter(
            f"Expected examples_count={examples_count} and {prompts} prompts to leave two rows at least that judge all "
            "prompts in bounded time. Give more examples, or fewer alternatives=."
        )
    return rows


def _by_votes(
    count: int, budget: PrivacyBudget, effort: Effort, sizes: tuple[int, int, int], judges: int, judged: int
) -> tuple[Fit, float]:
    prompts, tokens, shots = sizes

    def work(subsets: int) -> float:
        scheme = Scheme("fixed", subsets, 1.0, even=True)
        return to_evaluate(
            scheme, calls=prompts * tokens, texts=prompts, length=tokens, training=subsets * shots,
            judged=judged, lengths=_USUAL,
        ).work()  # fmt: skip

    fixed = work(1)
    affordable = max(1, math.floor((_TOKENS[effort] - fixed) / (work(2) - fixed)))
    subsets = min((count - judges) // shots, affordable)
    rows = subsets * shots + judges
    share = AGREED * subsets / _needed(budget, prompts * tokens) if subsets >= _SUBSETS else 0.0
    return Fit(shots, subsets, prompts, tokens, judges / rows, rows), share


def _writings(effort: Effort, instruction: int) -> Iterator[tuple[int, int, int]]:
    """Yield candidates, tokens and shots. Single shots teach little and come last."""
    least = instruction + _MORE if instruction else 1
    sizes = list(dict.fromkeys((prompts, max(tokens, least)) for prompts, tokens in _PROMPTS[effort]))
    for some in (_SHOTS[:-1], _SHOTS[-1:]):
        for prompts, tokens in sizes:
            for shots in some:
                yield prompts, tokens, shots


@functools.lru_cache(maxsize=64)
def _needed(budget: PrivacyBudget, calls: int) -> float:
    chosen = calibrate_limited_domain(budget, tokens=calls, sampling_probability=1.0, sampling="fixed")
    token = LimitedDomainEvent(*chosen, 1.0, "fixed")
    return votes_needed(token, budget.neighbors)
