"""A lower bound on epsilon from one run of a pipeline (Steinke, Nasr, Jagielski, NeurIPS 2023, Theorem 5.2)."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy.stats import binom

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

R = TypeVar("R")

_SEEN = 0.9  # chance, at least, that a pipeline which shows every coin is accused
_MOST = 10_000  # canaries that are ever advised
_LARGEST = 60.0  # nats. Beyond, a right guess is certain in double precision
_STEP = 0.05


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the largest chance of so many correct guesses under (epsilon, delta).

    It is f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, with f(v) the chance that a binomial variable of r trials at
    e^epsilon / (1 + e^epsilon) is at least v.
    """
    right = 1 / (1 + math.exp(-epsilon))
    above = binom.sf(np.arange(correct - 1, -2, -1), guesses, right)  # f(v), f(v-1), ..., f(0)
    excess = 0.0
    if delta and correct:
        excess = float(((above[1:] - above[0]) / np.arange(1, correct + 1)).max())
    return min(1.0, float(above[0]) + 2 * canaries * delta * excess)


def one_run_bound(*, canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """Return the largest epsilon that these guesses disprove at ``delta``, or 0.

    Args:
        canaries: Number of coins.
        guesses: Number of guesses. The other coins are abstentions.
        correct: Number of correct guesses.
        delta: Of the claim.
        error: Largest chance that the answer is too large.

    Formal guarantee:
        The answer is above the true epsilon with probability at most ``error``, if the number of guesses was fixed in
        advance and a coin changes one step between neighbors: a record is there or not, or one of two is in a slot.

    Examples:
        >>> round(one_run_bound(canaries=1_000, guesses=100, correct=95, delta=1e-5, error=0.05), 3)
        2.165
    """
    validate.integer("canaries", canaries, at_least=1)
    validate.integer("guesses", guesses, at_least=0, at_most=canaries)
    validate.integer("correct", correct, at_least=0, at_most=guesses)
    validate.number("delta", delta, at_least=0.0, at_most=1.0)
    validate.number("error", error, above=0.0, below=1.0)

    def disproved(epsilon: float) -> bool:
        return _p_value(canaries, guesses, correct, epsilon, delta) <= error

    # The first epsilon from below that is not disproved: larger ones cannot be below the truth.
    low = 0.0
    if not disproved(low):
        return 0.0
    high = _STEP
    while disproved(high) and high < _LARGEST:
        low, high = high, high + _STEP
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if disproved(middle) else (low, middle)
    return low


@dataclasses.dataclass(frozen=True)
class OneRunAudit:
    """The bound from the guesses of one run, beside the claim.

    Args:
        epsilon: Lower bound of the true epsilon, in nats.
        claimed: The claim, in nats.
        delta: Of the claim and the bound.
        error: Largest chance that the bound is too large.
        canaries: Number of coins.
        guesses: Number of guesses.
        correct: Number of right guesses.

    Examples:
        >>> found = audit_pipeline(pipeline, score, canaries=400, epsilon=0.5, delta=0.0)
        >>> found.epsilon, found.violated
    """

    epsilon: float
    claimed: float
    delta: float
    error: float
    canaries: int
    guesses: int
    correct: int

    @property
    def violated(self) -> bool:
        """True if the claim is disproved."""
        return self.epsilon > self.claimed

    def __str__(self) -> str:
        verdict = "DISPROVED" if self.violated else "not disproved"
        return (
            f"claim epsilon <= {self.claimed:.4g} at delta {self.delta:g}: {verdict}. Measured in one run: epsilon >= "
            f"{self.epsilon:.4g} ({self.correct} of {self.guesses} guesses on {self.canaries} canaries right, error "
            f"{self.error:g})"
        )


def audit_pipeline(
    pipeline: Callable[[Sequence[bool]], R],
    score: Callable[[R, int], float],
    *,
    canaries: int,
    epsilon: float,
    delta: float,
    guesses: int | None = None,
    error: float = 1e-3,
    rng: Randomness | None = None,
) -> OneRunAudit:
    """Run a pipeline once, with canaries in or out by fair coins, and bound its epsilon by guesses of the coins.

    Args:
        pipeline: Takes one coin per canary (True: it is in) and returns all releases. Under replace-one, a False coin
            puts another record into the slot.
        score: Takes the releases and a canary's number. Larger if it was likelier in.
        canaries: Number of canaries, above :func:`canaries_needed`, because half of the guesses are "in" for any coins.
        epsilon: The claim for all releases, in nats.
        delta: Of the claim.
        guesses: Number of guesses, half "in" for the highest scores, half "out". None: half of the canaries.
        error: Largest chance that a true claim is disproved.
        rng: Source of the coins.

    Raises:
        InvalidParameter: Canaries or guesses cannot disprove the claim in 9 of 10 runs. The message gives a sufficient
            number.

    Formal guarantee:
        As :func:`one_run_bound`. The pipeline must be private against a change of any one coin.

    Examples:
        >>> def pipeline(coins):  # tells every coin with probability 3/4
        ...     return [coin == bool(secrets.randbelow(4)) for coin in coins]
        >>> audit_pipeline(pipeline, lambda told, i: told[i], canaries=1_000, epsilon=0.5, delta=0.0).violated
        True
    """
    validate.integer("canaries", canaries, at_least=2)
    validate.number("epsilon", epsilon, at_least=0.0)
    validate.number("delta", delta, at_least=0.0, at_most=1.0)
    validate.number("error", error, above=0.0, below=1.0)
    validate.function("pipeline", pipeline, of="the coins")
    validate.function("score", score, of="the release and a canary's number")
    if guesses is not None:
        validate.integer("guesses", guesses, at_least=2, at_most=canaries)
    _check_canaries(canaries, guesses, epsilon=epsilon, delta=delta, error=error)
    number = _half(canaries) if guesses is None else guesses
    source = rng or SystemRandomness()
    included = np.array([source.randbelow(2) == 1 for _ in range(canaries)])
    released = pipeline(included.tolist())
    scores = np.array([_score(score(released, place)) for place in range(canaries)])
    if np.isnan(scores).any():
        raise InvalidParameter("Expected every score to be a number, but some are NaN. Let score= return a number.")
    order = np.argsort(-scores, kind="stable")
    inside, outside = order[: (number + 1) // 2], order[canaries - number // 2 :]
    correct = int(included[inside].sum() + (~included[outside]).sum())
    bound = one_run_bound(canaries=canaries, guesses=number, correct=correct, delta=delta, error=error)
    return OneRunAudit(bound, epsilon, delta, error, canaries, number, correct)


def canaries_needed(epsilon: float, *, error: float) -> int:
    """Return the fewest guesses that disprove ``epsilon``, below 700 nats, at delta 0 and ``error``, if all are right.

    :func:`audit_pipeline` needs more canaries, and its error names the number.

    Examples:
        >>> canaries_needed(1.0, error=1e-3)
        23
    """
    validate.number("epsilon", epsilon, at_least=0.0, below=700.0)
    validate.number("error", error, above=0.0, below=1.0)
    return math.ceil(-math.log(error) / math.log1p(math.exp(-epsilon)))


def _half(canaries: int) -> int:
    return max(2, canaries // 2)


def _score(given: object) -> float:
    with contextlib.suppress(TypeError, ValueError):  # whose message may hold a release
        return float(given)  # type: ignore[arg-type]  # others are refused below
    raise InvalidParameter(
        f"Expected every score to be a number, but one is of type {type(given).__name__}. Let score= return a "
        "number, such as float(released[number] == label)."
    )


def _check_canaries(canaries: int, guesses: int | None, *, epsilon: float, delta: float, error: float) -> None:
    def seen(count: int) -> float:
        return _power(count, _half(count) if guesses is None else guesses, epsilon, delta, error)

    if seen(canaries) >= _SEEN:
        return
    if guesses is not None and guesses < (least := canaries_needed(epsilon, error=error)):
        raise InvalidParameter(
            f"Expected guesses={guesses} to be at least {least}: fewer do not disprove epsilon={epsilon:g} at "
            f"error={error:g} even if all of them are right. Give more guesses and as many canaries, or a larger error."
        )
    why = (
        f'half of the guesses are "in" for any coins. With {guesses or _half(canaries)} guesses a pipeline '
        f"that shows every coin is disproved with probability {seen(canaries):.2f} only, at epsilon={epsilon:g}, "
        f"delta={delta:g}, error={error:g}"
    )
    high = canaries
    while high <= _MOST and seen(high) < _SEEN:
        high *= 2
    if high > _MOST:
        raise InvalidParameter(
            f"Expected canaries={canaries} to be enough, which no number up to {_MOST:,} is: {why}. Give a smaller "
            "delta, a larger error, fewer guesses, or audit a smaller claim."
        )
    enough = bisect.bisect_left(range(high), True, lo=high // 2, key=lambda count: seen(count) >= _SEEN)
    raise InvalidParameter(
        f"Expected canaries={canaries} to be at least {enough}: {why}. Give more canaries, or a larger error."
    )


def _power(canaries: int, guesses: int, epsilon: float, delta: float, error: float) -> float:
    into = np.arange(canaries + 1)
    correct = np.minimum(into, (guesses + 1) // 2) + np.minimum(canaries - into, guesses // 2)
    enough = bisect.bisect_left(
        range(guesses + 1), True, lo=1, key=lambda right: _p_value(canaries, guesses, right, epsilon, delta) <= error
    )
    return float(binom.pmf(into[correct >= enough], canaries, 0.5).sum())
