"""Audits of whole chains with stub models: what is charged, what hangs on the data, what a record can reach."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from audits.check import Check, Finding, count, excess, worst
from audits.stubs import LABELS, RECORD
from langchain_dp.accounting import Neighbors, NoisyMaxEvent, PrivacyBudget, PrivacyLedger, calibrate_noisy_max, epsilon
from langchain_dp.accounting.profiles import gaussian
from langchain_dp.audit import NamingEngine, lower_limit, upper_limit
from langchain_dp.audit.empirical import AuditResult, audit_mechanism
from langchain_dp.audit.pairs import canary_pair, worst_margin
from langchain_dp.errors import InvalidParameter
from langchain_dp.icl import DPICLClassifier, SamplingOptions


def chain(examples: Sequence[Any], engine: NamingEngine | None = None, **changes: Any) -> DPICLClassifier:
    """DP-ICL over a stub model that names the label of its examples, one example a subset, everybody votes."""
    settings: dict[str, Any] = {
        "labels": LABELS,
        "max_queries": 10_000,
        "shots": 1,
        "subsets": 1,
        "sampling": SamplingOptions("fixed", max(len(examples), 1), 1.0),
        "calibrate": False,
    } | changes
    return DPICLClassifier(model=engine or NamingEngine(), examples=examples, **settings)


def constants(scheme: Callable[[int], Any]) -> Finding:
    """One more record under add/remove: no constant of the mechanism or of the accountant may change."""
    try:
        here, there = scheme(12), scheme(13)
    except InvalidParameter as error:
        if "nothing may be derived" not in str(error):
            raise  # refused for another reason: nothing is shown
        return Finding(False, "refused under add/remove: nothing is derived from the number of records")
    return Finding(here != there, f"constants of 12 and 13 records: {'differ' if here != there else 'equal'}")


def _of_a_chain(records: int, **given: Any) -> Any:
    examples = [{"text": f"record {place}", "label": LABELS[place % 2]} for place in range(records)]
    budget = PrivacyBudget(50.0, 1e-5, Neighbors.ADD_OR_REMOVE_ONE)
    made = chain(examples, budget=budget, max_queries=5, **given)
    return made.scheme, {name: value for name, value in made.certificate().to_dict().items() if name != "sources"}


def _no_constants() -> Finding:
    derived = constants(functools.partial(_of_a_chain, sampling="fixed"))
    given = constants(functools.partial(_of_a_chain, sampling=SamplingOptions("fixed", 6, 0.5)))
    return Finding(derived.broken or given.broken, f"not given: {derived.seen}; given: {given.seen}")


def members(sent: Callable[[Sequence[str]], list[str]]) -> Finding:
    """One record becomes long: every other subset's prompt stays as it is, to the last byte."""
    sides = []
    for text in ("short", "a very long record, " * 40):
        rest = [{"text": f"record {place}", "label": LABELS[place % 2]} for place in range(7)]
        sides.append(sent(_shown(chain, NamingEngine(), [*rest, {"text": text, "label": LABELS[0]}])))
    return _apart(sides, "when one record becomes longer")


def cuts() -> Finding:
    """No subset fits the context; one record becomes longer still, or makes its subset's prompt that of another one."""
    pairs = functools.partial(chain, shots=2, sampling=SamplingOptions("fixed", 8, 1.0))
    texts = [f"record {place} " + "word " * (30 + place) + "end" for place in range(16)]

    def shown(engine: NamingEngine) -> list[str]:
        return _shown(pairs, engine, [{"text": text, "label": LABELS[0]} for text in texts])

    first, second, *_ = shown(NamingEngine())
    (one, changing), (three, four) = (map(int, RECORD.findall(body)) for body in (first, second))
    between = f"\nLabel: {LABELS[0]}\n\nText: "
    both = texts[three] + between + texts[four]
    texts[one] = "few words"
    texts[three] = texts[one] + between + texts[three]  # now the two are few words and a long text, two long texts
    sides = []
    for text in ("short", "a very long record, " * 40, both):
        texts[changing] = text
        sides.append(shown(_SmallEngine()))
    return worst(
        _apart([sides[0], side], f"when one record {what}")
        for what, side in zip(("becomes longer", "holds what stands between two"), sides[1:], strict=True)
    )


class _SmallEngine(NamingEngine):
    """The same over a small context."""

    max_tail_tokens = 40


def _shown(build: Callable[..., DPICLClassifier], engine: NamingEngine, rows: Sequence[Any]) -> list[str]:
    """What an engine is shown of every subset. Seeded, so that the coins of two data sets are the same."""
    build(rows, engine, budget=PrivacyBudget(50.0), max_queries=1, not_private_seed=11).invoke("question")
    by_subset = {key[-1]: body for key, body in engine.asked.items()}  # type: ignore[index]  # a tuple
    return [by_subset[subset] for subset in sorted(by_subset)]


def _apart(sides: Sequence[Sequence[str]], when: str) -> Finding:
    changed = sum(a != b for a, b in zip(*sides, strict=True))
    return Finding(changed > 1, f"{changed} of {len(sides[0])} prompts change {when}")


def deletion(forget: Callable[[DPICLClassifier, str], object]) -> Finding:
    """A record is forgotten: its subset's prompt and cache go, the others stay as they are, nothing is refunded."""
    engine = NamingEngine()
    examples = [{"id": f"r{place}", "text": f"record {place}", "label": LABELS[place % 2]} for place in range(8)]
    made = chain(examples, engine, budget=PrivacyBudget(50.0), max_queries=3)
    made.invoke("question")
    before, spent = dict(engine.asked), made.certificate().spent
    forget(made, "r3")
    kept = [key for key, body in engine.asked.items() if "record 3" in body]
    made.invoke("question")
    after = dict(engine.asked)
    shown = sum("record 3" in body for body in after.values())
    others: list[Hashable] = [key for key, body in before.items() if "record 3" not in body]
    changed = sum(before[key] != after.get(key) for key in others)
    refunded = made.certificate().spent < spent
    return Finding(
        bool(kept or shown or changed or refunded),
        f"of it left: {len(kept)} caches, {shown} prompts; {changed} of {len(others)} others changed; "
        f"{'refunded' if refunded else 'nothing refunded'}",
    )


def empty(answer: Callable[[Sequence[Any], int], Sequence[str]], runs: int = 300) -> Finding:
    """Nobody there, against one record of either label: through a whole chain, that label must be possible in both."""
    nobody = answer([], runs)
    hits = []
    for label in LABELS[:2]:
        there = answer([{"text": "record", "label": label}], runs)
        pair = [count(each == label for each in side) for side in (there, nobody)]
        hits += [(label, pair), (label, pair[::-1])]
    claim = _claim(1.5, 0.05)
    return worst(excess(pair, runs, epsilon=claim, delta=0.05, measured=f"answer {label!r}") for label, pair in hits)


@functools.cache
def _claim(sigma: float, delta: float) -> float:
    return epsilon([(NoisyMaxEvent(sigma), 1)], delta)


@functools.cache
def _questions(runs: int) -> list[str]:
    return [f"question {number}" for number in range(runs)]


def answers(examples: Sequence[Any], runs: int) -> list[str]:
    """Answers of a chain whose noise has scale 1.5, from a plan that is reserved already."""
    with PrivacyLedger(PrivacyBudget(500.0, 0.99, Neighbors.ADD_OR_REMOVE_ONE)) as ledger:
        ledger.reserve([(NoisyMaxEvent(1.5), runs)], name="dp-icl")
        made = chain(examples, ledger=ledger, max_queries=runs, sampling=SamplingOptions("fixed", 1, 1.0))
        return [made.invoke(question) for question in _questions(runs)]


def tightness(
    budget: PrivacyBudget | None = None, *, runs: int = 12_000, margin: int | None = None, progress: bool = False
) -> AuditResult:
    """The largest epsilon that can be shown for one answer of DP-ICL, whose noise is made for one answer.

    Every subset holds one record and names its label; the canary's label trails by ``margin`` votes, or the worst.
    """
    budget = budget or PrivacyBudget(3.0, 0.05)
    sigma = calibrate_noisy_max(budget, queries=1)
    if margin is None:
        margin = worst_margin(sigma, delta=budget.delta, runs=4 * runs // 5, error=2e-4)
    pair = canary_pair(LABELS, (0, margin), neighbors=budget.neighbors)
    answer = {id(data): _endless(data, NoisyMaxEvent(sigma)) for data in (pair.one, pair.other)}
    return audit_mechanism(
        lambda data: next(answer[id(data)]), pair.one, pair.other, epsilon=budget.epsilon, delta=budget.delta,
        neighbors=budget.neighbors, runs=runs, progress=progress,
    )  # fmt: skip


def _endless(examples: Sequence[Any], event: NoisyMaxEvent, at_once: int = 300) -> Iterator[str]:
    """Independent answers of chains, each charged, and its noise made, as if it were the only one."""
    while True:
        with PrivacyLedger(PrivacyBudget(500.0, 0.99)) as ledger:
            ledger.reserve([(event, at_once)], name="dp-icl")
            made = chain(examples, ledger=ledger, max_queries=at_once)
            yield from (made.invoke(question) for question in _questions(at_once))


def _tight() -> Finding:
    found = tightness()
    return Finding(found.violated or found.share < 0.6, f"{found.share:.0%} of the claim shown; {found}")


def gaussian_bound(hits: int, other_hits: int, runs: int, *, delta: float, error: float) -> float:
    """The epsilon that two frequencies prove of a pair known to be Gaussian (Nasr et al. 2023), at any delta.

    Frequencies near one half determine the distance of the pair with few runs.
    """
    here, there = lower_limit(hits, runs, error / 2), upper_limit(other_hits, runs, error / 2)
    distance = float(ndtri(here) - ndtri(there))

    def excess(epsilon: float) -> float:
        return float(gaussian(np.array([epsilon]), distance=distance, sigma=1.0)[0]) - delta

    return float(brentq(excess, 0.0, 100.0)) if distance > 0 and excess(0.0) > 0 else 0.0


def _tight_gaussian() -> Finding:
    claim = PrivacyBudget(3.0, 1e-5)
    found = tightness(claim, runs=8_000, margin=0)
    bound = gaussian_bound(found.hits, found.other_hits, found.tested, delta=claim.delta, error=found.error / 5)
    return Finding(
        not 0.6 < bound / claim.epsilon <= 1,
        f"{bound / claim.epsilon:.0%} of the claim shown: as a Gaussian pair epsilon >= {bound:.2f} of "
        f"{claim.epsilon:g} at delta {claim.delta:g} ({found.hits} against {found.other_hits} of {found.tested})",
    )


CHECKS = [
    Check("constants", "no constant from private numbers", _no_constants, once=True),
    Check("members", "a vote hangs on its own subset", lambda: members(list), once=True),
    Check("cuts", "and where a long text is cut", cuts, once=True),
    Check("deletion", "what is forgotten is gone", lambda: deletion(DPICLClassifier.forget), once=True),
    Check("empty chain", "a chain draws noise without voters", lambda: empty(answers)),
    Check("tightness", "60% of the claim can be shown", _tight, once=True),
    Check("tightness 2", "the same at a small delta", _tight_gaussian, once=True),
]
