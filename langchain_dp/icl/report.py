"""The forecast of a DP-ICL chain."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from langchain_dp._util.rounding import bound
from langchain_dp.accounting import NoisyMaxEvent, PrivacyBudget, PrivacyLedger, calibrate_noisy_max, epsilon
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.reservation import share_of
from langchain_dp.ensemble.subsets import SamplingOptions, Scheme, choose_scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl.reservation import AnswerReservation

MAJORITIES = (0.6, 0.7, 0.8, 0.9)
_MOSTLY_NOISE = 0.75  # a 90% majority that wins less often than this is warned of at construction
_ENOUGH = 0.85  # ten expected votes vary by themselves, so a 70% majority of them wins 88 times in 100 at most
_SAFE = 0.9  # a 70% majority that wins less often than this is warned of in the plan


def majority_survival(majority: float, *, sigma: float, scheme: Scheme, labels: int) -> float:
    """Return a majority's chance against one rival. ``sigma`` is in votes."""
    if scheme.sampling == "fixed":
        ahead = round(majority * scheme.groups)
        winner, rival = (binom(count, scheme.sampling_probability) for count in (ahead, scheme.groups - ahead))
        pairs = [(a, b, float(winner.pmf(a) * rival.pmf(b))) for a in _likely(winner) for b in _likely(rival)]
    else:  # every slot votes, and its vote is for the label with this chance
        winner = binom(scheme.groups, majority)
        pairs = [(a, scheme.groups - a, float(winner.pmf(a))) for a in _likely(winner)]
    noise = np.arange(-8.0, 8.0, 0.1)  # of the winner, in units of sigma
    weight = np.exp(-0.5 * noise**2) / math.sqrt(2 * math.pi) * 0.1
    chance = sum(
        mass * float((weight * ndtr(noise + (a - b) / sigma) * ndtr(noise + a / sigma) ** (labels - 2)).sum())
        for a, b, mass in pairs
        if mass > 1e-12
    )
    return min(chance, 1.0)


def _likely(votes: Any) -> range:
    return range(int(votes.ppf(1e-9)), int(votes.ppf(1 - 1e-9)) + 1)


def votes_for(
    budget: PrivacyBudget | None, ledger: PrivacyLedger | None, name: str, records: int, labels: int, max_queries: int
) -> dict[str, int]:
    plan = None if ledger is None else ledger.plan(name)
    share = share_of(budget, ledger, name)
    if not count_is_public(share.neighbors):
        raise InvalidParameter(
            f"Expected neighbors={share.neighbors.name} to be REPLACE_ONE for auto(), since the number of examples is "
            "private otherwise. Give shots=, subsets= and sampling= to DPICLClassifier(...)."
        )
    kept = {} if plan is None or plan.settings is None else plan.settings
    if {"shots", "subsets"} <= kept.keys():
        return {"shots": kept["shots"], "subsets": kept["subsets"]}
    shots, subsets = choose_votes(share, records=records, labels=labels, max_queries=max_queries)
    return {"shots": shots, "subsets": subsets}


def planned_survival(
    budget: PrivacyBudget, *, records: int, labels: int, max_queries: int, shots: int, subsets: int
) -> float:
    scheme = choose_scheme(SamplingOptions(), neighbors=budget.neighbors, records=records, shots=shots, subsets=subsets)
    rate = scheme.sampling_probability
    sigma = calibrate_noisy_max(budget, queries=max_queries, sampling_probability=rate, sampling="fixed")
    return majority_survival(0.7, sigma=sigma, scheme=scheme, labels=labels)


def choose_votes(budget: PrivacyBudget, *, records: int, labels: int, max_queries: int) -> tuple[int, int]:
    """Return the fewest subsets, then the most shots, with which a 70% majority survives."""
    found: dict[tuple[int, int], float] = {}
    for subsets, shots in itertools.product((10, 20, 40), (4, 2, 1)):
        if records >= shots * subsets:
            found[shots, subsets] = planned_survival(
                budget, records=records, labels=labels, max_queries=max_queries, shots=shots, subsets=subsets
            )
            if found[shots, subsets] >= _ENOUGH:
                return shots, subsets
    return max(found, key=lambda key: found[key], default=(1, max(records, 1)))


@dataclasses.dataclass(frozen=True)
class ICLPlanReport:
    """The forecast of ``DPICLClassifier.plan()``. Do not publish its token counts, which come from the examples.

    Args:
        budget: The promise.
        event: One release.
        queries: Largest number of releases.
        scheme: Sampling scheme.
        records: Number of examples. Private under add/remove neighbors.
        epsilon_total: Composed epsilon of all queries at ``budget.delta``.
        epsilon_first_query: Epsilon of one release at ``budget.delta``.
        calls_per_query: Expected model calls, with the health probe.
        companions: Number of health probes among these calls.
        tokens_per_query: Estimated input tokens, without caches.
        price_per_query: In the currency of the given price.
        survival: Majority share -> chance that it wins.
        weak: Reasons for a weak promise.

    Examples:
        >>> plan = chain.plan(price_per_million_tokens=0.15)
        >>> print(plan)
        >>> print(f"a majority of 70% wins {plan.survival[0.7]:.0%} of the time")
    """

    budget: PrivacyBudget
    event: NoisyMaxEvent
    queries: int
    scheme: Scheme
    records: int
    epsilon_total: float
    epsilon_first_query: float
    calls_per_query: float
    tokens_per_query: float
    price_per_query: float | None
    survival: dict[float, float]
    companions: int = 0
    weak: tuple[str, ...] = ()

    @property
    def noise_share(self) -> float:
        """Noise per class count as a share of the expected votes."""
        return self.event.sigma / self.scheme.expected_subsets

    @property
    def warning(self) -> str:
        """A remedy if a 70% majority survives less than 9 times in 10, otherwise empty."""
        if self.survival[0.7] >= _SAFE:
            return ""
        return (
            f"A 70% majority survives the noise only {self.survival[0.7]:.0%} of the time (aim: {_SAFE:.0%}). "
            "Remedies: fewer queries (max_queries=), fewer shots per subset (shots=), more calls (subsets=), more "
            "records, or a larger epsilon."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        price = self.price_per_query
        return {
            **self.budget.to_dict(),
            "queries": self.queries,
            **dataclasses.asdict(self.scheme),
            "sigma": self.event.sigma,
            "noise_share": self.noise_share,
            "epsilon_total": self.epsilon_total,
            "epsilon_first_query": self.epsilon_first_query,
            "calls_per_query": self.calls_per_query,
            "tokens_per_query": self.tokens_per_query,
            "calls": self.calls_per_query * self.queries,
            "tokens": self.tokens_per_query * self.queries,
            "price": None if price is None else price * self.queries,
            "survival": self.survival,
            "warning": self.warning,
            "weak": list(self.weak),
        }

    def __str__(self) -> str:
        scheme, event = self.scheme, self.event
        groups = "subsets" if scheme.sampling == "fixed" else "slots"
        money = "" if self.price_per_query is None else f", price about {self.price_per_query * self.queries:,.2f}"
        probed = " (1 of them public, to see that the model answers)" if self.companions else ""
        lines = [
            f"DP-ICL plan: {self.budget}, {self.queries:,} queries",
            f"  sampling     {scheme.sampling}: {scheme.groups:,} {groups}, q = {scheme.sampling_probability:.4g}, "
            f"about {scheme.expected_subsets:.3g} votes a query",
            f"  noise        sigma = {event.sigma:g} votes per label, {self.noise_share:.2f} of the votes",
            f"  epsilon      {bound(self.epsilon_total)} for all queries; {bound(self.epsilon_first_query, 3)} for one "
            f"alone; {bound(self.epsilon_total / self.queries, 2)} a query on average",
            f"  cost         about {self.calls_per_query:.3g} calls{probed} and {self.tokens_per_query:,.0f} tokens "
            f"a query; {self.calls_per_query * self.queries:,.0f} calls and "
            f"{self.tokens_per_query * self.queries:,.0f} tokens in all, without caches{money}",
            "  a majority of  "
            + "  ".join(f"{share:.0%} wins {chance:.1%}" for share, chance in self.survival.items()),
        ]
        lines += [f"  WARNING      {point}" for point in (*self.weak, self.warning) if point]
        return "\n".join(lines)


def noise_warning(scheme: Scheme, event: NoisyMaxEvent, queries: int, *, labels: int) -> str:
    """Return a warning if a 90% majority wins less than three times in four."""
    share, votes, sigma = MAJORITIES[-1], scheme.expected_subsets, event.sigma
    if (2 * share - 1) * votes >= 3 * math.sqrt(votes + 2 * sigma**2):  # clear without integration
        return ""
    chance = majority_survival(share, sigma=sigma, scheme=scheme, labels=labels)
    if chance >= _MOSTLY_NOISE:
        return ""
    return (
        f"where {share:.0%} of the subsets agree, their label wins {chance:.0%} of the time, with noise made for "
        f"{queries:,} answers (max_queries=)"
    )


def report(
    reservation: AnswerReservation,
    *,
    labels: int,
    records: int,
    head: str,
    shot: str,
    count_tokens: Callable[[str], int],
    price_per_million_tokens: float | None,
    companions: Sequence[str] = (),
) -> ICLPlanReport:
    event, scheme, budget = reservation.event, reservation.scheme, reservation.budget
    rate = 1.0 if scheme.sampling == "fixed" else scheme.sampling_probability
    shots = records * rate / scheme.groups
    one_shot = count_tokens(shot)
    tokens = scheme.expected_subsets * ((count_tokens(head) if head else 0) + one_shot * (shots + 1))
    tokens += sum(count_tokens(prompt) + one_shot for prompt in companions)
    survival = {
        share: majority_survival(share, sigma=event.sigma, scheme=scheme, labels=labels) for share in MAJORITIES
    }
    return ICLPlanReport(
        budget=budget,
        event=event,
        queries=reservation.max_queries,
        scheme=scheme,
        records=records,
        epsilon_total=reservation.plan.epsilon,
        epsilon_first_query=epsilon([(event, 1)], budget.delta, neighbors=budget.neighbors),
        calls_per_query=scheme.expected_subsets + len(companions),
        tokens_per_query=tokens,
        price_per_query=None if price_per_million_tokens is None else tokens * price_per_million_tokens / 1e6,
        survival=survival,
        companions=len(companions),
        weak=reservation.weak,
    )
