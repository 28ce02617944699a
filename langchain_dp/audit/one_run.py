"""A lower bound on epsilon from one run of a whole pipeline: guess which of m canaries were in.

Every canary is put in or left out by a fair coin of its own. The pipeline runs once, over all that are in. Somebody
who sees its output guesses the coins, or abstains. Under an (epsilon, delta)-private pipeline few guesses can be right.

Reference: Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. NeurIPS 2023, Theorem 5.2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy.stats import binom

from langchain_dp import _validate
from langchain_dp.errors import InvalidParameter
from langchain_dp.mechanisms.randomness import Randomness, SystemRandomness

R = TypeVar("R")

_LARGEST = 60.0  # nats; beyond, a right guess is certain in double precision
_STEP = 0.05


def one_run_p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Chance, at most, of so many correct guesses if the pipeline is (epsilon, delta)-private.

    Args:
        canaries: Coins m that were thrown.
        guesses: Guesses r that were made, at most m; the others are abstentions.
        correct: Correct guesses v among them.
        epsilon: Of the claim, in nats.
        delta: Of the claim.

    Raises:
        InvalidParameter: A number is out of bounds.

    Formal guarantee:
        With W right guesses, P(W >= v) <= f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, where f(v) is the chance that a
        binomial variable of r trials at e^epsilon / (1 + e^epsilon) is at least v (Theorem 5.2). What changes with a
        coin must be one step between neighbours: a record that is there or not, or which of two records sits in a slot.
    """
    _check_counts(canaries, guesses, correct)
    _validate.number("epsilon", epsilon, at_least=0.0)
    _validate.number("delta", delta, at_least=0.0, at_most=1.0)
    return _p_value(canaries, guesses, correct, epsilon, delta)


def _p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    right = 1 / (1 + math.exp(-epsilon))
    above = binom.sf(np.arange(correct - 1, -2, -1), guesses, right)  # f(v), f(v-1), ..., f(0)
    excess = 0.0
    if delta and correct:
        excess = float(((above[1:] - above[0]) / np.arange(1, correct + 1)).max())
    return min(1.0, float(above[0]) + 2 * canaries * delta * excess)


def one_run_bound(*, canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """Largest epsilon that these guesses disprove at ``delta``; 0 if they disprove none.

    Args:
        canaries: Coins m that were thrown.
        guesses: Guesses r that were made, at most m; the others are abstentions.
        correct: Correct guesses v among them.
        delta: Of the claim.
        error: Chance, at most, that the answer is above the true epsilon, in (0, 1).

    Formal guarantee:
        Above the true epsilon with probability at most ``error``, if the number of guesses was fixed in advance.
    """
    _check_counts(canaries, guesses, correct)
    _validate.number("delta", delta, at_least=0.0, at_most=1.0)
    _validate.number("error", error, above=0.0, below=1.0)

    def disproved(epsilon: float) -> bool:
        return _p_value(canaries, guesses, correct, epsilon, delta) <= error

    # The first epsilon that stands, from below: what lies above it cannot be smaller than the truth.
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
    """What the guesses of one run prove, beside the claim.

    Args:
        epsilon: Lower bound of the true epsilon at ``delta``, in nats.
        claimed: The claim, in nats.
        delta: Of the claim and of the bound.
        error: Chance, at most, that the bound is above the true epsilon.
        canaries: Coins that were thrown.
        guesses: Guesses that the bound rests on.
        correct: How many of them were right.
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
        """Whether the claim is disproved."""
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
    guesses: Sequence[int] | None = None,
    error: float = 1e-3,
    rng: Randomness | None = None,
) -> OneRunAudit:
    """Run a whole pipeline once, with canaries in or out by coins, and bound its epsilon by the guesses.

    Args:
        pipeline: Called once with one coin a canary (True: it is in); returns all that is released. Under replace-one
            a coin that shows False puts another record into the canary's slot.
        score: Called with what was released and a canary's number: the larger, the likelier it was in.
        canaries: Number of canaries, at least 1.
        epsilon: The claim for everything that the pipeline releases, in nats.
        delta: Of the claim.
        guesses: How many guesses to make, half of them "in" for the highest scores, half "out" for the lowest. Several
            numbers share the error. None: all canaries, half of them, and a tenth. At least 2 each.
        error: Chance, at most, that the answer is above the true epsilon.
        rng: Source of the coins; operating-system entropy by default.

    Returns:
        The best of the bounds, beside the claim.

    Raises:
        InvalidParameter: Too few canaries to disprove the claim at this error; the message says how many would do.

    Formal guarantee:
        As :func:`one_run_bound`; the pipeline must be private against a change of any one coin.
    """
    _validate.integer("canaries", canaries, at_least=2)
    if guesses is None:
        guesses = sorted({canaries, max(2, canaries // 2), max(2, canaries // 10)})
    if not guesses:
        raise InvalidParameter("Expected guesses=[] to hold at least one number of guesses.")
    for number in guesses:
        _validate.integer("guesses", number, at_least=2, at_most=canaries)
    _check_canaries(max(guesses), epsilon=epsilon, error=error / len(guesses))
    source = rng or SystemRandomness()
    included = [source.randbelow(2) == 1 for _ in range(canaries)]
    released = pipeline(list(included))
    scores = np.array([float(score(released, number)) for number in range(canaries)])
    if np.isnan(scores).any():
        raise InvalidParameter("Expected every score to be a number, but some are NaN. Let score= return a number.")
    found = [_guess(scores, np.array(included), number, delta, error / len(guesses)) for number in guesses]
    bound, number, correct = max(found)
    return OneRunAudit(bound, epsilon, delta, error, canaries, number, correct)


def _guess(
    scores: np.ndarray[tuple[int], np.dtype[np.float64]],
    included: np.ndarray[tuple[int], np.dtype[np.bool_]],
    number: int,
    delta: float,
    error: float,
) -> tuple[float, int, int]:
    order = np.argsort(-scores, kind="stable")
    inside, outside = order[: (number + 1) // 2], order[len(order) - number // 2 :]
    correct = int(included[inside].sum() + (~included[outside]).sum())
    bound = one_run_bound(canaries=len(scores), guesses=number, correct=correct, delta=delta, error=error)
    return bound, number, correct


def canaries_needed(epsilon: float, *, error: float) -> int:
    """Fewest guesses that disprove ``epsilon`` if all of them are right.

    Args:
        epsilon: Of the claim, in nats.
        error: Chance, at most, of disproving a claim that holds, in (0, 1).
    """
    _validate.number("epsilon", epsilon, at_least=0.0)
    _validate.number("error", error, above=0.0, below=1.0)
    return math.ceil(-math.log(error) / math.log1p(math.exp(-epsilon)))


def _check_canaries(guesses: int, *, epsilon: float, error: float) -> None:
    least = canaries_needed(epsilon, error=error)
    if guesses < least:
        raise InvalidParameter(
            f"Expected canaries={guesses} to be at least {least}: with fewer, guesses that are all right do not "
            f"disprove epsilon={epsilon:g} at error={error:g}. Give more canaries, or a larger error."
        )


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    _validate.integer("canaries", canaries, at_least=1)
    _validate.integer("guesses", guesses, at_least=0, at_most=canaries)
    _validate.integer("correct", correct, at_least=0, at_most=guesses)
