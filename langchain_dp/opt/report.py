"""Forecast of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

from langchain_dp._util.rounding import took
from langchain_dp.accounting import ExponentialEvent, LimitedDomainEvent, PrivacyBudget
from langchain_dp.accounting.budget import weak_promise_reasons
from langchain_dp.ensemble.engine_calls import count_or_estimate
from langchain_dp.ensemble.subsets import Scheme
from langchain_dp.errors import InvalidParameter
from langchain_dp.opt.fit import Lengths, shots, to_evaluate
from langchain_dp.opt.reservation import chance, choose_noise, votes_needed
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import CUE, Demonstration
from langchain_dp.opt.verdict import Verdict, choice_verdict, selecting_verdict, verdict
from langchain_dp.ports import HasCache, NextTokenVoter, ReportsThroughput
from langchain_dp.records import PrivateRecords


@dataclasses.dataclass(frozen=True)
class OptPlanReport:
    """Cost and prospects of one run. Do not publish its tokens and time, which come from the examples.

    Args:
        budget: The guarantee.
        scheme: Sampling constants of the training records.
        token: Event of a vote on one token. None if nothing is written.
        selection: Event of the selection.
        verdict: Usefulness of the run.
        max_calls: Most calls over all texts.
        num_prompts: Candidates.
        training: Training records, or their expected number.
        validation: Validation records, or their expected number.
        subset_tokens: Tokens of one subset's prompt.
        cold_tokens: Tokens to evaluate without caches.
        warm_tokens: Tokens to evaluate with all caches.
        seconds: Estimated time. None if unknown.
        cache_bytes: Memory of the caches. None if unknown.
        weak: Reasons for a weak guarantee.
        cache_too_small: The engine caches fewer than all subsets. Raise its ``cache_bytes=``.
        choices: Most prompts in the selection.

    Examples:
        >>> plan = optimizer.plan(20_000)
        >>> print(plan)
        >>> print(f"a token with 70% of the votes is released {plan.chance(0.7):.0%} of the time")
    """

    budget: PrivacyBudget
    scheme: Scheme
    token: LimitedDomainEvent | None
    selection: ExponentialEvent
    verdict: Verdict
    max_calls: int
    num_prompts: int
    training: float
    validation: float
    subset_tokens: float
    cold_tokens: float
    warm_tokens: float
    seconds: float | None = None
    cache_bytes: float | None = None
    weak: tuple[str, ...] = ()
    cache_too_small: bool = False
    choices: int = 0

    @property
    def votes_needed(self) -> float | None:
        """Votes with which a token is released half of the time if at most kbar tokens have votes."""
        return None if self.token is None else votes_needed(self.token, self.budget.neighbors)

    def chance(self, share: float) -> float:
        """Return the chance to release a token with ``share`` of the votes if others have too few."""
        if self.token is None:
            raise InvalidParameter("Expected a plan that writes tokens: a selection among public prompts has no votes.")
        return chance(self.token, share * self.scheme.expected_subsets, self.budget.neighbors)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        apart = ("budget", "scheme", "token", "selection")
        return {
            **self.budget.to_dict(),
            **dataclasses.asdict(self.scheme),
            "epsilon0": getattr(self.token, "epsilon0", None),
            "delta0": getattr(self.token, "delta0", None),
            "epsilon_selection": self.selection.epsilon,
            "votes_needed": self.votes_needed,
            **{name: value for name, value in dataclasses.asdict(self).items() if name not in apart},
            "weak": list(self.weak),
        }

    def __str__(self) -> str:
        scheme, time = self.scheme, "" if self.seconds is None else f", about {took(self.seconds)}"
        lines = [f"DP-OPT plan: {self.budget}"]
        if self.token is None:
            lines += [
                f"  choice       one, among {self.choices:,} prompts; {self.selection.epsilon:.4g} nats a right answer",
                f"  records      about {self.validation:,.0f} to select by",
                f"  to evaluate  about {self.cold_tokens:,.0f} tokens{time}",
            ]
        else:
            shares = "  ".join(f"{share:.0%} wins {self.chance(share):.0%}" for share in (0.5, 0.7, 0.9, 1.0))
            memory = "" if self.cache_bytes is None else f", {self.cache_bytes / 2**30:,.1f} GiB of caches"
            lines += [
                f"  calls        {self.max_calls:,} at most: tokens, bottoms and ends of {self.num_prompts} candidates",
                f"  sampling     {scheme.sampling}: {scheme.groups:,} "
                f"{'subsets' if scheme.sampling == 'fixed' else 'slots'}, q = {scheme.sampling_probability:.4g}, about "
                f"{scheme.expected_subsets:,.0f} votes a token",
                f"  noise        epsilon0 = {self.token.epsilon0:.4g}, delta0 = {self.token.delta0:.3g} a call; a "
                f"token needs about {self.votes_needed:.0f} votes",
                f"  a share of   {shares}",
                f"  records      about {self.training:,.0f} to learn from, {self.validation:,.0f} to select by",
                f"  to evaluate  about {self.warm_tokens:,.0f} tokens with caches kept ({self.cold_tokens:,.0f} "
                f"without){time}{memory}",
            ]
        lines.append(f"  verdict      {self.verdict}")
        if self.cache_too_small:
            lines.append("  WARNING      the engine keeps fewer caches than that: give it cache_bytes=")
        return "\n".join([*lines, *(f"  WARNING      {reason}" for reason in self.weak)])


def report(
    engine: NextTokenVoter,
    settings: Settings,
    *,
    budget: PrivacyBudget,
    scheme: Scheme,
    token: LimitedDomainEvent | None,
    selection: ExponentialEvent,
    records: PrivateRecords | None,
    count: int,
) -> OptPlanReport:
    """Compute the report. Without ``records`` it assumes short ones."""
    prompts = settings.prompts
    head = engine.count_tokens(prompts.backward_head(settings.instruction))
    tail = engine.count_tokens(prompts.backward_tail(0, settings.instruction) + CUE)
    lengths = Lengths(head, _shot_tokens(engine, settings, records), tail)
    rows, count = count, settings.taking_part(count)
    validation = settings.validation * count
    training = count - validation
    subset = head + tail + shots(scheme, training) * lengths.shot
    evaluated = to_evaluate(
        scheme, calls=settings.calls, texts=settings.texts, length=settings.max_new_tokens, training=training,
        judged=settings.choices * validation, lengths=lengths,
    )  # fmt: skip

    def noise(share: PrivacyBudget) -> LimitedDomainEvent:
        token, _ = choose_noise(share, scheme, settings)
        assert token is not None  # something is written
        return token

    selected = {"prompts": settings.choices, "rows": round(validation)}
    judged: Verdict
    if token is None:
        judged = choice_verdict(selection, budget, **selected)
    else:
        judged = verdict(token, scheme, budget, rows=rows, taken=count, noise=noise)
        judged = selecting_verdict(selection, budget, **selected) or judged

    measured = engine if isinstance(engine, ReportsThroughput) else None
    each = (subset + settings.max_new_tokens) * measured.bytes_per_token() if measured else None
    cache = None if each is None or not settings.writes else scheme.groups * each
    fits = cache is None or not isinstance(engine, HasCache) or cache <= engine.cache_bytes
    return OptPlanReport(
        budget=budget,
        scheme=scheme,
        token=token,
        selection=selection,
        verdict=judged,
        max_calls=settings.calls,
        num_prompts=settings.texts,
        training=training,
        validation=validation,
        subset_tokens=subset,
        cold_tokens=evaluated.cold,
        warm_tokens=evaluated.warm,
        seconds=evaluated.work(kept=fits) / measured.tokens_per_second() if measured else None,
        cache_bytes=cache,
        cache_too_small=not fits,
        weak=weak_promise_reasons(budget.epsilon, budget.delta, *scheme.least_records(rows)),  # as of the run
        choices=settings.choices,
    )


def _shot_tokens(engine: NextTokenVoter, settings: Settings, records: PrivateRecords | None) -> float:
    prompts = settings.prompts
    word = prompts.word(settings.labels[0])
    rows = [] if records is None else [records.get(name) for name in records.ids()[:: max(1, len(records) // 100)]]
    texts = [prompts.render(row) for row in rows] or ["a short text of some ten or fifteen words, as in a message"]
    bodies = [prompts.backward_body([Demonstration(text, word, None)]) for text in texts]
    return sum(count_or_estimate(engine, body) for body in bodies) / len(bodies)
