"""The plan of a DP-ICL chain in its ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from langchain_dp._util import validate
from langchain_dp._util.callers import warn_caller
from langchain_dp.accounting import (
    LedgerPlan,
    Neighbors,
    NoisyMaxEvent,
    PrivacyBudget,
    PrivacyCertificate,
    Quotas,
    calibrate_noisy_max,
)
from langchain_dp.accounting.budget import warn_weak_promise, weak_promise_reasons
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.reservation import (
    LedgerOrPath,
    Reservation,
    check_same,
    ledger_for,
    reserved_once,
    unreserved,
)
from langchain_dp.ensemble.subsets import SamplingOptions, Scheme, choose_scheme
from langchain_dp.errors import PlanError


@dataclasses.dataclass(frozen=True)
class AnswerReservation(Reservation):
    """A reserved plan for one kind of answer."""

    event: NoisyMaxEvent  # one release
    max_queries: int
    settings: Mapping[str, Any]  # those that determine the subsets
    weak: tuple[str, ...]  # reasons why the promise is weak

    def certificate(self, model: str, *, seeded: bool, notes: tuple[str, ...] = ()) -> PrivacyCertificate:
        return self.plan.certificate(
            self.event,
            mechanism="DP-ICL: report noisy max with discrete Gaussian noise",
            model=model,
            private=not seeded,
            reason="drawn from not_private_seed: anybody who knows the seed can remove the noise" if seeded else "",
            notes=(
                "the model's operator sees the examples",
                "only the reserved epsilon and delta are a promise. The spent ones describe the releases so far",
                *self.weak,
                *notes,
            ),
            parameters={
                "sigma": self.event.sigma,
                "sampling": self.event.sampling,
                "sampling_probability": self.event.sampling_probability,
                "groups": self.scheme.groups,
                "max_queries": self.max_queries,
            },
        )


def reserve(
    *,
    budget: PrivacyBudget | None,
    ledger: LedgerOrPath | None,
    name: str,
    max_queries: int,
    sampling: SamplingOptions,
    about: Callable[[Neighbors], Mapping[str, Any]],
    records: int,
    shots: int,
    subsets: int,
    settings: Mapping[str, Any] | None = None,
    replicas: bool = False,
    quotas: Quotas | None = None,
    before: Callable[[Scheme, NoisyMaxEvent, int], object] = lambda *_: None,
) -> AnswerReservation:
    """Reserve a calibrated plan, or continue the plan of this name."""
    validate.integer("shots", shots, at_least=1)
    validate.integer("subsets", subsets, at_least=1)
    ledger = ledger_for(budget, ledger)
    neighbors = ledger.budget.neighbors
    settings = settings or {
        "shots": shots,
        "subsets": subsets,
        "partitions": sampling.partitions,
        "sampling_probability": sampling.probability,
        **({"replicas": True} if replicas else {}),
    }
    public = count_is_public(neighbors)

    def derived() -> Scheme:
        return choose_scheme(sampling, neighbors=neighbors, records=records, shots=shots, subsets=subsets)

    def new() -> AnswerReservation:
        scheme = derived()
        share = budget or unreserved(ledger)
        sigma = calibrate_noisy_max(
            share, queries=max_queries, sampling_probability=scheme.sampling_probability, sampling=scheme.sampling
        )
        event = NoisyMaxEvent(sigma, scheme.sampling_probability, scheme.sampling)
        weak = _weak(share, scheme, records)
        before(scheme, event, max_queries)
        plan = ledger.reserve(
            [(event, max_queries)], name=name, epsilon=share.epsilon, delta=share.delta,
            settings={**settings, "groups": scheme.groups, **about(neighbors)}, quotas=quotas,
        )  # fmt: skip
        return AnswerReservation(plan, scheme, share, event, max_queries, settings, weak)

    def resumed(plan: LedgerPlan) -> AnswerReservation:
        events = plan.events
        event, queries = events[0]
        if len(events) != 1 or not isinstance(event, NoisyMaxEvent):
            raise PlanError(f"The ledger's plan {plan.name!r} is not a DP-ICL plan. Give this chain another name=.")
        q = event.sampling_probability
        fixed, probability = sampling.scheme == "fixed", sampling.probability
        if not fixed:
            groups = subsets
        elif sampling.partitions is not None:
            groups = sampling.partitions
        else:  # with a probability, their number follows from that of the records, where that is public
            groups = round(subsets / q) if probability is None else derived().groups
        stored = plan.settings or {}  # none in a plan that the ledger's owner reserved
        changes: dict[str, tuple[object, object]] = {
            "sampling": (event.sampling, sampling.scheme),
            "max_queries": (queries, max_queries),
            "sampling_probability": (q, q if probability is None else probability),
            **{key: (stored.get(key, settings[key]), settings[key]) for key in ("shots", "subsets")},
            "quotas": (plan.quotas, quotas),
            # A chain without replicas= would continue with a record that the replicas have forgotten.
            "replicas": (stored.get("replicas", False), settings.get("replicas", False)),
        }
        if fixed and probability is None:
            changes["subsets / partitions"] = (q, subsets / groups)
        follows_records = probability is not None and stored.get("partitions") is sampling.partitions is None
        if fixed and not follows_records:  # the number of records may have changed
            changes["partitions"] = (stored.get("groups", groups), groups)
        check_same(plan, changes, budget, "chain")
        share, scheme = PrivacyBudget(plan.epsilon, plan.delta, neighbors), Scheme(sampling.scheme, groups, q, public)
        weak = _weak(share, scheme, records)
        before(scheme, event, queries)
        if fixed and public and records > 2 * groups * settings["shots"]:
            warn_caller(
                f"The plan {plan.name!r} was made for {groups:,} subsets. Each now shows about {records // groups:,} "
                f"examples instead of {settings['shots']}: prompts are longer, and the noise stays the same. Use the "
                "new records under another name=, with a plan of its own.",
                UserWarning,
            )
        if fixed and public and sampling.partitions is None and records < groups * settings["shots"] / 2:
            warn_caller(
                f"The plan {plan.name!r} was made for {groups:,} subsets of {settings['shots']} examples, and there "
                f"are {records:,} examples now: other data than before? A plan belongs to one data set. Give other "
                "data another name=, with a plan of its own.",
                UserWarning,
            )
        return AnswerReservation(plan, scheme, share, event, queries, settings, weak)

    return reserved_once(ledger, name, new=new, resumed=resumed)


def _weak(share: PrivacyBudget, scheme: Scheme, records: int) -> tuple[str, ...]:
    points = weak_promise_reasons(share.epsilon, share.delta, *scheme.least_records(records))
    warn_weak_promise(points)
    return points
