"""Calibrate noise to a budget. The accountant checks every result."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from dp_accounting.dp_event import DpEvent
from scipy.optimize import brentq
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp._util.rounding import bound
from langchain_dp.accounting.budget import PrivacyBudget
from langchain_dp.accounting.events import (
    MOST_EPSILON0,
    ClippedSumRoundEvent,
    LimitedDomainEvent,
    NoisyMaxEvent,
    SamplingName,
    VectorSumEvent,
)
from langchain_dp.accounting.pld import epsilon, least_delta
from langchain_dp.errors import InvalidParameter

_MOST_SIGMA = 1e6  # the accountant takes seconds at it, and votes drown in far less noise
_DIGITS = 4  # decimals of a returned noise scale: a stable name for the same plan on every machine
LEAST_SIGMA = 0.3
"""Below this scale, the noise grid would show in the privacy profile."""
_MOST_RELEASES = 10**6
_KEPT = 256  # noise scales that a process remembers


def calibrate_noisy_max(
    budget: PrivacyBudget, *, queries: int, sampling_probability: float = 1.0, sampling: SamplingName = "fixed"
) -> float:
    """Return the smallest noise scale that keeps ``queries`` noisy-max releases within ``budget``.

    Args:
        budget: Target (epsilon, delta) and neighbors.
        queries: Number of releases.
        sampling_probability: Rate of subsets ("fixed") or records ("resample"), in (0, 1].
        sampling: Sampling scheme.

    Returns:
        Standard deviation per class count, in votes, rounded up to 4 decimals, at least 0.3.

    Raises:
        InvalidParameter: No noise reaches the budget.

    Formal guarantee:
        ``epsilon([(NoisyMaxEvent(sigma, q, sampling), queries)], delta, neighbors=...) <= budget.epsilon``.

    Examples:
        >>> sigma = calibrate_noisy_max(PrivacyBudget(3.0), queries=100)
        >>> round(sigma, 1)
        19.7
    """
    validate.instance("budget", budget, PrivacyBudget, "a PrivacyBudget", "Give PrivacyBudget(3.0).")
    validate.integer("queries", queries, at_least=1, remedy="Give the number of questions to be answered.")
    unit = NoisyMaxEvent(1.0, sampling_probability, sampling)
    _check_delta(budget.delta, [(unit, queries)])
    return _noisy_max_sigma(budget, unit, queries)


def _check_delta(delta: float, events: Sequence[tuple[DpEvent, int]]) -> None:
    least = least_delta(events)
    if delta < least:
        releases = sum(count for _, count in events)
        raise InvalidParameter(
            f"Expected delta={delta:g} to be at least {bound(least)} for {releases:,} releases: below it rounding "
            "hides what they cost. Raise delta, or have fewer releases."
        )


@functools.lru_cache(maxsize=_KEPT)  # of public parameters only: an audit makes many chains of one kind
def _noisy_max_sigma(budget: PrivacyBudget, unit: NoisyMaxEvent, queries: int) -> float:
    def cost(sigma: float) -> float:
        return _cost(dataclasses.replace(unit, sigma=sigma), queries, budget)

    # Start at half of the noise of zero-concentrated privacy: the accountant is slow at little noise.
    target, tail = budget.epsilon, math.log(1 / budget.delta)
    enough = unit.sampling_probability * math.sqrt(queries) * (math.sqrt(tail + target) + math.sqrt(tail)) / target
    start = 2.0 ** math.floor(math.log2(min(max(enough / 2, 1.0), _MOST_SIGMA)))
    if start == 1 and cost(LEAST_SIGMA) <= target:
        return LEAST_SIGMA
    sigma = _smallest(cost, target, start=start, name=f"sigma up to {_MOST_SIGMA:,.0f} votes", most=_MOST_SIGMA)
    return _rounded_up(cost, target, sigma)


def _cost(event: DpEvent, count: int, budget: PrivacyBudget) -> float:
    return epsilon([(event, count)], budget.delta, neighbors=budget.neighbors)


def calibrate_vector_sum(budget: PrivacyBudget, *, releases: int = 1, replaced: float = 2.0) -> float:
    """Return the smallest noise multiplier that keeps ``releases`` noisy vector sums within ``budget``.

    Args:
        budget: Target (epsilon, delta) and neighbors.
        releases: Number of sums.
        replaced: As in :class:`~langchain_dp.accounting.VectorSumEvent`.

    Returns:
        Standard deviation per coordinate in units of the largest norm, rounded up to 4 decimals.

    Raises:
        InvalidParameter: No noise reaches the budget.

    Examples:
        >>> calibrate_vector_sum(PrivacyBudget(3.0))  # Gaussian mechanism at distance 2
        2.7812
    """
    validate.instance("budget", budget, PrivacyBudget, "a PrivacyBudget", "Give PrivacyBudget(3.0).")
    validate.integer("releases", releases, at_least=1)
    replaced = VectorSumEvent(1.0, replaced).replaced
    # The grid resolves no smaller delta for one release than for two.
    _check_delta(budget.delta, [(VectorSumEvent(1.0), max(releases, 2))])
    return _vector_sum_noise(budget, releases, replaced)


@functools.lru_cache(maxsize=_KEPT)
def _vector_sum_noise(budget: PrivacyBudget, releases: int, replaced: float) -> float:
    def cost(noise: float) -> float:
        return _cost(VectorSumEvent(noise, replaced), releases, budget)

    noise = _smallest(cost, budget.epsilon, start=1.0, name="the noise multiplier", most=_MOST_SIGMA)
    return _rounded_up(cost, budget.epsilon, noise)


def _rounded_up(cost: Callable[[float], float], target: float, sigma: float) -> float:
    step = 10.0**-_DIGITS
    sigma = round(math.ceil(sigma / step) * step, _DIGITS)
    tried = 0
    while cost(sigma) > target:
        tried += 1
        sigma = round(sigma + step * 2 ** max(tried - 8, 0), _DIGITS)  # of 10**7 releases rounding hides single steps
    return sigma


def calibrate_limited_domain(
    budget: PrivacyBudget, *, tokens: int, sampling_probability: float = 1.0, sampling: SamplingName = "fixed"
) -> tuple[float, float]:
    """Return the largest epsilon0, and delta0, that keep ``tokens`` calls of LimitedDomain within ``budget``.

    A tenth of delta is spread over all calls. epsilon0 is rounded down to 5 digits.

    Args:
        budget: Target (epsilon, delta) and neighbors.
        tokens: Number of calls. Every token, bottom and retry counts.
        sampling_probability: As for :func:`calibrate_noisy_max`.
        sampling: Sampling scheme.

    Raises:
        InvalidParameter: No epsilon0 reaches the budget.
        UnsupportedEvent: "resample" under neighbors other than add/remove.

    Examples:
        >>> epsilon0, delta0 = calibrate_limited_domain(PrivacyBudget(3.0), tokens=50)
        >>> round(epsilon0, 3)
        0.203
    """
    validate.instance("budget", budget, PrivacyBudget, "a PrivacyBudget", "Give PrivacyBudget(3.0).")
    validate.integer("tokens", tokens, at_least=1)
    validate.number("sampling_probability", sampling_probability, above=0.0, at_most=1.0)
    delta0 = min(0.1 * budget.delta / (tokens * sampling_probability), 0.5)

    _check_delta(budget.delta, [(LimitedDomainEvent(1.0, delta0, sampling_probability, sampling), tokens)])

    def cost(inverse: float) -> float:
        return _cost(LimitedDomainEvent(1.0 / inverse, delta0, sampling_probability, sampling), tokens, budget)

    inverse = _smallest(cost, budget.epsilon, start=1.0, name="1/epsilon0")
    step = 10.0 ** (math.floor(math.log10(1 / inverse)) - 4)
    epsilon0 = math.floor(1 / inverse / step) * step
    while cost(1 / epsilon0) > budget.epsilon:
        epsilon0 -= step
    return epsilon0, delta0


def calibrate_text_round(
    budget: PrivacyBudget, *, rounds: int, tokens: int, sampling_probability: float = 1.0
) -> float:
    """Return the largest epsilon0 of a token that keeps ``rounds`` rounds of texts within ``budget``.

    It is at most 20, and rounded down to 4 digits.

    Args:
        budget: Target (epsilon, delta) and neighbors.
        rounds: Number of rounds, each with its own draw. 1 for disjoint groups of records.
        tokens: Most tokens of one text.
        sampling_probability: Rate of the members, in (0, 1].

    Raises:
        InvalidParameter: No epsilon0 reaches the budget.

    Examples:
        >>> epsilon0 = calibrate_text_round(PrivacyBudget(3.0), rounds=10, tokens=40, sampling_probability=0.1)
        >>> epsilon([(ClippedSumRoundEvent(epsilon0, 40, 0.1), 10)], delta=1e-5) <= 3.0
        True
    """
    validate.instance("budget", budget, PrivacyBudget, "a PrivacyBudget", "Give PrivacyBudget(3.0).")
    validate.integer("rounds", rounds, at_least=1)
    unit = ClippedSumRoundEvent(1.0, tokens, sampling_probability)
    _check_delta(budget.delta, [(unit, rounds)])
    return _text_round_epsilon0(budget, unit, rounds)


@functools.lru_cache(maxsize=_KEPT)
def _text_round_epsilon0(budget: PrivacyBudget, unit: ClippedSumRoundEvent, rounds: int) -> float:
    def cost(inverse: float) -> float:
        return _cost(dataclasses.replace(unit, epsilon0=min(1 / inverse, MOST_EPSILON0)), rounds, budget)

    if cost(1 / MOST_EPSILON0) <= budget.epsilon:
        return MOST_EPSILON0
    inverse = _smallest(cost, budget.epsilon, start=10.0, name="1/epsilon0")
    step = 10.0 ** (math.floor(math.log10(1 / inverse)) - 3)
    steps = math.floor(1 / inverse / step)
    while cost(1 / (steps * step)) > budget.epsilon:
        steps -= 1
    return steps * step


def max_releases(event: DpEvent, budget: PrivacyBudget) -> int:
    """Return the largest number of releases of ``event`` within ``budget``, at most 1,000,000.

    Raises:
        UnsupportedEvent: The event has no sound bound under these neighbors.

    Examples:
        >>> max_releases(NoisyMaxEvent(10.0), PrivacyBudget(3.0))
        25
    """

    def fits(count: int) -> bool:
        return _cost(event, count, budget) <= budget.epsilon

    if not fits(1):
        return 0
    low = 1
    high = 2
    while high <= _MOST_RELEASES and fits(high):
        low, high = high, 2 * high
    high = min(high, _MOST_RELEASES + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smallest(
    cost: Callable[[float], float], target: float, *, start: float, name: str, most: float = math.exp(40)
) -> float:
    with tqdm(desc="calibrating noise", unit="step", disable=None, delay=5) as bar:

        @functools.cache  # brentq asks for both ends again
        def excess(log_x: float) -> float:
            value = cost(math.exp(log_x))
            bar.update()
            return math.log(max(min(value, 1e6), 1e-12) / target)

        low = high = math.log(start)
        while excess(high) > 0:
            low, high = high, high + math.log(2)
            if high > math.log(2 * most):
                raise InvalidParameter(
                    f"Expected {name} to reach epsilon={target!r}, but none does. Raise epsilon or delta, or have "
                    "fewer releases."
                )
        if low == high:
            while excess(low) <= 0:
                if low < -5:
                    return math.exp(low)
                low, high = low - math.log(2), low
        return math.exp(float(brentq(excess, low, high, xtol=1e-5, rtol=1e-8)))
