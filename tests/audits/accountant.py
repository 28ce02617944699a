"""Audits of the accountant: every published reference number, and the order in which the schemes must stand."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from audits.check import Check, Finding
from audits.laws import divergence, limited_domain_law, mixed, softmax
from langchain_dp.accounting import (
    ExponentialEvent,
    LimitedDomainEvent,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    PrivacyLedger,
    calibrate_noisy_max,
    epsilon,
    profiles,
)
from langchain_dp.accounting.events import SamplingName

_ADD, _ZERO, _ONE = Neighbors.ADD_OR_REMOVE_ONE, Neighbors.REPLACE_SPECIAL, Neighbors.REPLACE_ONE
_SCHEMES: tuple[tuple[SamplingName, Neighbors], ...] = (("resample", _ADD), ("fixed", _ADD), ("fixed", _ZERO))
_RECORDS, _QUERIES = 6_920, 10_000

NOISE = [
    (1 / _RECORDS, 1, (2.7296, 2.6216, 1.9301)),
    (1 / _RECORDS, 3, (1.3519, 1.1767, 0.9559)),
    (1 / _RECORDS, 8, (0.9219, 0.7276, 0.6519)),
    (1e-5, 1, (3.2285, 3.1283, 2.2829)),
    (1e-5, 3, (1.4893, 1.3175, 1.0531)),
]
"""delta, epsilon, and sigma per class count of 10,000 answers at rate 40/6920: resampled, fixed, fixed zero-out."""

TOKENS = [
    (66_674, 1_025, 1.8, ((0.503, 3.487), (0.365, 2.842), (0.195, 1.414))),
    (5_452, 306, 0.8, ((0.552, 4.556), (0.505, 4.343), (0.239, 1.954))),
    (8_603, 306, 1.6, ((0.877, 6.949), (0.681, 5.865), (0.347, 2.745))),
    (4_430, 306, 0.8, ((0.683, 5.781), (0.625, 5.512), (0.295, 2.447))),
]
"""Records, records sampled, epsilon0, and epsilon at delta = 1/records after 50 and 2,000 tokens, in the same order."""

TOLERANCE = 0.01


def references(account: Callable[..., float]) -> Finding:
    """Noise within 1% in both directions, and epsilon within 1%."""
    wrong, checked = [], 0
    for delta, target, sigmas in NOISE:
        for (sampling, neighbors), sigma in zip(_SCHEMES, sigmas, strict=True):
            event = functools.partial(NoisyMaxEvent, sampling_probability=40 / _RECORDS, sampling=sampling)
            more, less = (
                account([(event(sigma * factor), _QUERIES)], delta, neighbors=neighbors)
                for factor in (1 - TOLERANCE, 1 + TOLERANCE)
            )
            checked += 1
            if not less <= target <= more:
                wrong.append(f"sigma {sigma} {sampling} {neighbors.name}")
    for records, batch, epsilon0, table in TOKENS:
        rate, delta = batch / records, 1 / records
        for (sampling, neighbors), values in zip(_SCHEMES, table, strict=True):
            token = LimitedDomainEvent(epsilon0, 0.1 * delta / (2_000 * rate), rate, sampling)
            for calls, value in zip((50, 2_000), values, strict=True):
                checked += 1
                # A charge below the reference breaks the promise; one above it wastes budget and is no better.
                if abs(account([(token, calls)], delta, neighbors=neighbors) / value - 1) > TOLERANCE:
                    wrong.append(f"{calls} tokens of {records:,} records {sampling} {neighbors.name}")
    first = f", the first {wrong[0]}" if wrong else ""
    return Finding(bool(wrong), f"{checked - len(wrong)} of {checked} reference numbers within {TOLERANCE:.0%}{first}")


def order() -> Finding:
    """Pointwise: zero-out <= fixed <= the larger direction of resampling."""
    epsilons = np.linspace(0.0, 4.0, 200)
    worst = -np.inf
    for sigma, q in ((1.1767, 40 / _RECORDS), (0.9, 0.2), (1.4, 0.0625), (2.6, 1.0)):
        moved = functools.partial(profiles.gaussian, distance=np.sqrt(2), sigma=sigma)
        ghost = functools.partial(profiles.gaussian, distance=1.0, sigma=sigma)
        fixed = profiles.noisy_max_fixed(epsilons, sigma=sigma, q=q)
        above = np.maximum(profiles.poisson_remove(moved, q, epsilons), profiles.poisson_add(moved, q, epsilons))
        below = np.maximum(profiles.poisson_remove(ghost, q, epsilons), profiles.poisson_add(ghost, q, epsilons))
        worst = max(worst, float((below - fixed).max()), float((fixed - above).max()))
    return Finding(worst > 1e-9, f"largest step out of order {max(worst, 0.0):.1g} of delta, over 4 settings")


_DELTAS = (1e-6, 1e-3, 0.05)


def choices() -> Finding:
    """One choice among three candidates: the largest delta of any two neighbors at the epsilon that is charged."""
    worst = 0.0
    for neighbors, weight, delta in itertools.product((_ADD, _ZERO, _ONE), (0.3, 1.5), _DELTAS):
        claim = epsilon([(ExponentialEvent(weight), 1)], delta, neighbors=neighbors)
        # A record that is replaced may have been wrong where the new one is right, and the other way round.
        moves = [dict(enumerate(row)) for row in itertools.product((0, 1), repeat=3)]
        for gone in moves:
            for come in moves if neighbors is _ONE else [dict.fromkeys(gone, 0)]:
                one, other = (softmax(heights, weight) for heights in (gone, come))
                worst = max(worst, divergence(one, other, claim) / delta, divergence(other, one, claim) / delta)
    return Finding(worst > 1 + 1e-6, f"at most {worst:.4f} of delta is used, over 18 settings and every pair of counts")


def tokens() -> Finding:
    """One token at q <= 1: the largest delta of any two neighboring votes at the epsilon that is charged."""
    worst, settings = 0.0, 0
    for (sampling, neighbors), q, (epsilon0, delta0) in itertools.product(
        (("fixed", _ONE), ("fixed", _ADD), ("fixed", _ZERO), ("resample", _ADD)), (0.3, 1.0), ((0.8, 1e-4), (4.0, 0.01))
    ):
        event = LimitedDomainEvent(epsilon0, delta0, q, sampling)
        threshold = 1 if neighbors is _ZERO else 2

        def law(
            votes: Sequence[int], epsilon0: float = epsilon0, delta0: float = delta0, threshold: int = threshold
        ) -> dict[int | None, float]:
            return limited_domain_law(
                dict(enumerate(votes)), epsilon0=epsilon0, delta0=delta0, kbar=2, threshold=threshold
            )

        for delta in (0.5 * q * delta0, 1.5 * q * delta0, 0.1):  # of the first the threshold alone takes more
            claim = epsilon([(event, 1)], delta, neighbors=neighbors)
            settings += 1
            if math.isinf(claim):
                continue
            for rest in ((0, 0, 0), (0, 1, 5), (2, 2, 2), (3, 3, 0), (7, 7, 7), (0, 9, 9), (2, 3, 4), (30, 28, 2)):
                base, one, *others = [law([n + (k == place) for k, n in enumerate(rest)]) for place in (None, 0, 1, 2)]
                for other in [base] if neighbors is _ZERO else others:
                    # "resample" takes a record out of one release; "fixed" leaves its subset's other content there.
                    pairs = (
                        [(mixed(one, other, q), one)]
                        if sampling == "resample"
                        else [(mixed(base, one, q), mixed(base, other, q))]
                    )
                    for here, there in pairs:
                        worst = max(
                            worst, divergence(here, there, claim) / delta, divergence(there, here, claim) / delta
                        )
    return Finding(
        worst > 1 + 1e-6, f"at most {worst:.4f} of delta is used, over {settings} settings and 8 sets of votes"
    )


def caches(deltas: Sequence[float] = (1e-2, 1e-6, 1e-4)) -> Finding:
    """One event, kept by ledgers of several deltas and neighbors in one process: each ledger says its own cost."""
    wrong, event = [], NoisyMaxEvent(5.0)
    settings = list(itertools.product(deltas, (_ZERO, _ADD, _ONE)))
    for delta, neighbors in settings:
        budget = PrivacyBudget(50.0, delta, neighbors)
        with PrivacyLedger(budget) as ledger:
            ledger.spend(event, 20)
            said, _ = ledger.spent()
        due = epsilon([(event, 20)], delta, neighbors=neighbors)
        sigma = calibrate_noisy_max(PrivacyBudget(2.0, delta, neighbors), queries=20)
        made = epsilon([(NoisyMaxEvent(sigma), 20)], delta, neighbors=neighbors)
        if said < due or not 1.9 < made <= 2.0:
            wrong.append(f"delta {delta:g}, {neighbors.name}: {said:.3f} of {due:.3f}, noise for 2.0 costs {made:.3f}")
    return Finding(bool(wrong), wrong[0] if wrong else f"{len(settings)} deltas and neighbors, each at its own cost")


CHECKS = [
    Check("cost caches", "each delta is charged its own cost", caches, once=True),
    Check("accountant", "the reference numbers, within 1%", lambda: references(epsilon), once=True),
    Check("choice law", "a choice costs what its law says", choices, once=True),
    Check("token law", "a token costs what its law says", tokens, once=True),
    Check("schemes", "zero-out <= fixed <= resample", order, once=True),
]
