"""Deliberately broken stand-ins, so that anybody can see the audits fail what is wrong. NOT PRIVATE, for nothing else.

Each plants one fault that published code has had, and keeps the interface of the sound part it stands in for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from audit_tools import exponential, limited_domain, report_noisy_max
from numpy.typing import NDArray

import langchain_dp.accounting._account
import langchain_dp.accounting.calibrate
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_noisy_max,
    pld,
)
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.mechanisms import NoisyMax, SystemRandomness
from langchain_dp.mechanisms._nearest import NearestVector
from langchain_dp.mechanisms.metric_noise import noise
from langchain_dp.mechanisms.randomness import Randomness, shuffled
from langchain_dp.opt.voters import PrivateVote

StandIn = Callable[..., Any]
SYSTEM = SystemRandomness()


@contextlib.contextmanager
def instead(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Put what ``made`` makes of a part in its place, and the part back at the end."""
    real = vars(owner)[name]
    setattr(owner, name, made(real))
    try:
        yield
    finally:
        setattr(owner, name, real)


Swap = tuple[Any, str, Callable[[Any], Any]]
"""Where a part is, and what to make of it."""


def under(audit: Callable[[], Any], faults: Mapping[str, Sequence[Swap]]) -> dict[str, Callable[[], Any]]:
    """The audit under every fault, by its name."""
    return {name: _planted(audit, swaps) for name, swaps in faults.items()}


def _planted(audit: Callable[[], Any], swaps: Sequence[Swap]) -> Callable[[], Any]:

    def run() -> Any:
        with contextlib.ExitStack() as stack:
            for swap in swaps:
                stack.enter_context(instead(*swap))
            return audit()

    return run


def method(stand_in: StandIn) -> Callable[[Any], Any]:
    """A stand-in that is called with the real part before its arguments."""

    def made(real: Any) -> Any:
        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            return stand_in(real, *args, **kwargs)

        return called

    return made


Votes = Mapping[int, int]


def sensitivity_one(budget: PrivacyBudget) -> float:
    """Noise for a vote that appears or vanishes, used where votes move: sensitivity 1 instead of sqrt 2."""
    ghosts = PrivacyBudget(budget.epsilon, budget.delta, Neighbors.REPLACE_SPECIAL)
    return calibrate_noisy_max(ghosts, queries=1)


def observed_only(votes: Votes, *, domain: Any, **settings: Any) -> int | None:
    """LimitedDomain that takes the tokens with votes for the whole domain."""
    voted = [token for token, count in votes.items() if count]
    return limited_domain(votes, domain=voted or domain, **settings)


class UnchargedRetries(PrivateVote):
    """Votes again where nothing came out, and charges one call for all of it."""

    def next_token(self, message: int, written: Sequence[Any]) -> Any:
        """Up to five calls of the mechanism; the first alone is charged."""
        token = super().next_token(message, written)
        for _ in range(4):
            if token is not None:
                break
            votes = self._subset_votes.votes(self._subset_votes.draw(), message, written)
            token = self._mechanism.release(votes, rng=self._rng)
        return token


def shuffled_chunks(ids: Sequence[str], subsets: int, rng: Randomness) -> list[frozenset[str]]:
    """Shuffle all records, each by its own coin, and cut them into equal chunks: later chunks move up."""
    size = -(-len(ids) // subsets)
    coins = {name: rng.randbelow(1 << 64) for name in ids}
    order = sorted(ids, key=coins.__getitem__)
    return [frozenset(order[k * size : (k + 1) * size]) for k in range(subsets)]


def chunks_in_order(ids: Sequence[str], subsets: int, rng: Randomness) -> list[frozenset[str]]:
    """Cut the records into chunks in the order of the data: all later votes move."""
    size = -(-len(ids) // subsets)
    return [frozenset(ids[k * size : (k + 1) * size]) for k in range(subsets)]


SEEDED_NOISE = """
from langchain_dp.accounting import NoisyMaxEvent
from langchain_dp.mechanisms import NotPrivateSeededRandomness, ReportNoisyMax
def drawn():
    rng = NotPrivateSeededRandomness(42)
    return [float(count) for count in ReportNoisyMax(NoisyMaxEvent(2.0)).release([0] * 8, rng=rng).noisy_counts]
"""
"""Noise from a seed that is written in the source."""

ONE_NOISE_FOR_ALL = """
from langchain_dp.accounting import NoisyMaxEvent
from langchain_dp.mechanisms import ReportNoisyMax
def drawn():
    return [float(ReportNoisyMax(NoisyMaxEvent(2.0)).release([0, 0]).noisy_counts[0])] * 8
"""
"""One draw of noise, added at every position."""


def everybody(subsets: int, rate: Fraction, rng: Randomness) -> Callable[[], list[int]]:
    """No sampling at all, where sampling is charged for."""
    return lambda: list(range(subsets))


def fixed_size(subsets: int, rate: Fraction, rng: Randomness) -> Callable[[], list[int]]:
    """A sample of fixed size instead of a coin for each."""
    return lambda: sorted(shuffled(rng, subsets)[: round(subsets * rate)])


def tossed_once(subsets: int, rate: Fraction, rng: Randomness) -> Callable[[], list[int]]:
    """Coins that are tossed for the first release and used again for all others."""
    first = _tossed(subsets, rate, rng)
    return lambda: first


def third_coins_again(subsets: int, rate: Fraction, rng: Randomness) -> Callable[[], list[int]]:
    """Coins that are tossed anew for most releases, and used again for every third."""
    kept: list[list[int]] = []

    def release() -> list[int]:
        kept.append(kept[-1] if len(kept) % 3 == 2 else _tossed(subsets, rate, rng))
        return kept[-1]

    return release


def _tossed(subsets: int, rate: Fraction, rng: Randomness) -> list[int]:
    return [place for place in range(subsets) if rng.randbelow(rate.denominator) < rate.numerator]


def twice_the_weight(counts: Sequence[int], weight: float) -> int:
    """The exponent of a count that a record cannot move both ways, doubled as if it could."""
    return exponential(counts, 2 * weight)


def best_of_all(counts: Sequence[int], weight: float) -> int:
    """No noise at all."""
    return max(range(len(counts)), key=counts.__getitem__)


def word_itself(table: NearestVector, eta: float, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nearest word, without noise."""
    return np.asarray(table.find(keys[:, None].astype(float)))


def ball_noise(count: int, dimension: int, eta: float, rng: Randomness) -> NDArray[np.float64]:
    """Direction from the unit ball instead of from the unit sphere: a density without bound at 0."""
    drawn = noise(count, dimension, eta, rng)
    inward = np.array([rng.randbelow(1 << 52) / (1 << 52) for _ in range(count)]) ** (1 / dimension)
    return np.asarray(drawn * inward[:, None])


def rate_from_the_data(records: int, *, shots: int, subsets: int) -> Scheme:
    """Number of subsets and rate derived from the number of records, where that number is private."""
    groups = max(1, records // shots)
    return Scheme("fixed", groups, min(1.0, subsets / groups), True)


def no_noise_without_votes(counts: Sequence[int], sigma: float, winner: int = 0) -> NoisyMax:
    """Returns early, without noise, when everybody abstains."""
    return report_noisy_max(counts, sigma) if any(counts) else NoisyMax(winner, tuple(Fraction(0) for _ in counts))


def longest_of_all(bodies: Sequence[str]) -> list[str]:
    """Pads every prompt to the longest of the batch."""
    longest = max(map(len, bodies), default=0)
    return [body.rjust(longest) for body in bodies]


def charged_at_sensitivity_one(epsilon: Callable[..., float]) -> Callable[..., float]:
    """An accountant that takes every vote for one that appears: it charges for sqrt 2 times the noise."""

    def account(events: Sequence[tuple[Any, int]], delta: float, *, neighbors: Neighbors) -> float:
        wider = [
            (dataclasses.replace(event, sigma=event.sigma * math.sqrt(2)), count)
            if isinstance(event, NoisyMaxEvent)
            else (event, count)
            for event, count in events
        ]
        return epsilon(wider, delta, neighbors=neighbors)

    return account


def taken_for(kind: type[Any], *, neighbors: Neighbors | None = None, **wrong: Any) -> Callable[[Any], Any]:
    """An accountant that takes an event of this kind for another."""

    def made(real: Any) -> Any:
        def account(event: Any, relation: Neighbors, interval: float) -> Any:
            if isinstance(event, kind):
                event, relation = dataclasses.replace(event, **wrong), neighbors or relation
            return real(event, relation, interval)

        return account

    return made


CHOICES: dict[str, list[Swap]] = {
    "a replacement charged once": [
        (pld, "privacy_loss", taken_for(ExponentialEvent, neighbors=Neighbors.ADD_OR_REMOVE_ONE))
    ],
}
"""Faults of what a choice is charged as."""

COSTS: dict[str, list[Swap]] = {
    "a moved vote as a ghost": [
        (pld, "privacy_loss", taken_for(LimitedDomainEvent, neighbors=Neighbors.REPLACE_SPECIAL))
    ],
    "a threshold without a miss": [(pld, "privacy_loss", taken_for(LimitedDomainEvent, delta0=1e-12))],
}
"""Faults of what a token is charged as."""


def without_delta(real: StandIn) -> Any:
    """A cost is kept by its events alone, whatever the delta."""
    kept: dict[Any, float] = {}
    return lambda counts, delta, neighbors: kept.setdefault(counts, real(counts, delta, neighbors))


def noise_without_delta(real: StandIn) -> Any:
    """The noise of a plan is kept by its epsilon alone."""
    kept: dict[Any, float] = {}
    return lambda budget, *how: kept.setdefault((budget.epsilon, how), real(budget, *how))


def without_neighbors(real: StandIn) -> Any:
    """A cost is kept by its events and delta, whoever the neighbors are."""
    kept: dict[Any, float] = {}
    return lambda counts, delta, neighbors: kept.setdefault((counts, delta), real(counts, delta, neighbors))


CACHES: Mapping[str, Sequence[Swap]] = {
    "cost without delta": [(langchain_dp.accounting._account, "_composed", without_delta)],
    "cost without neighbors": [(langchain_dp.accounting._account, "_composed", without_neighbors)],
    "noise without delta": [(langchain_dp.accounting.calibrate, "_noisy_max_sigma", noise_without_delta)],
}
"""Found where one event has several costs."""
