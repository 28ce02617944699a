"""Auditors side by side on the same faults: runs needed to see a fault in 9 of 10 trials, and alarms on sound code.

Run in an environment that has this package, and what is to be compared: opake-auditing from the package index, and a
checkout of google/differential-privacy for DP-Auditorium (its histogram tester; the others need tensorflow)::

    python tests/benchmarks/peers_audit.py [--auditorium CHECKOUT/python/dp_auditorium]

Outcomes are drawn from the exact laws of the planted faults, so that no auditor waits for a mechanism. All auditors
test the same (epsilon, delta) at the same error, 5%, and are told the direction in which the fault shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm

from langchain_dp.accounting import (
    LimitedDomainEvent,
    NoisyMaxEvent,
    PrivacyBudget,
    calibrate_noisy_max,
    epsilon,
)
from langchain_dp.audit import audit_mechanism, audit_pipeline

ERROR = 0.05
TRIALS, ALARMS = 10, 40
SIZES = [2**power for power in range(6, 22)]

Draw = Callable[[np.random.Generator, int], np.ndarray]
Auditor = Callable[["Case", np.ndarray, np.ndarray], bool]


@dataclasses.dataclass(frozen=True)
class Case:
    """One fault: outcomes on two neighboring data sets, with the fault and without, and what is claimed."""

    name: str
    epsilon: float
    delta: float
    planted: tuple[Draw, Draw]
    sound: tuple[Draw, Draw]
    outcomes: int | None
    """Number of outcomes, or None for real numbers."""


def choice(*masses: float) -> Draw:
    """Outcomes 0, 1, ... with these masses."""
    return lambda rng, size: rng.choice(len(masses), size=size, p=np.array(masses) / math.fsum(masses))


def bell(mean: float, sigma: float) -> Draw:
    """Margin of two noisy counts."""
    return lambda rng, size: rng.normal(mean, math.sqrt(2) * sigma, size)


def top(votes: Sequence[int], bottom: int, base: float, odds: float) -> Draw:
    """LimitedDomain: candidates with these votes, and nothing with the weight of ``bottom`` votes."""
    return choice(*(base**count if count else 0.0 for count in votes), odds * base**bottom)


def again(draw: tuple[float, float], tries: int) -> Draw:
    """A token of that mass, and tries until it comes."""
    missed = (1 - draw[0]) ** tries
    return choice(1 - missed, missed)


def cases() -> list[Case]:
    """Faults whose law is known in closed form."""
    budget = PrivacyBudget(2.0, 0.2)
    right = calibrate_noisy_max(budget, queries=1)
    wrong = calibrate_noisy_max(PrivacyBudget(2.0, 0.2, "replace-special"), queries=1)  # type: ignore[arg-type]
    b, c = math.exp(1.2), math.exp(1.25)
    lone = 1 / (1 + 4 * math.exp(0.25))
    sigma, rate = 1.5, 0.25
    wins = float(norm.cdf(1 / (math.sqrt(2) * sigma)))
    sampled = (1 - rate) / 2 + rate * wins, (1 - rate) / 2 + rate * (1 - wins)
    kept, balled = 1 - math.exp(-1) / 2, 0.9257
    return [
        Case("sensitivity", 2.0, 0.2, (bell(1, wrong), bell(-1, wrong)), (bell(1, right), bell(-1, right)), None),
        Case("Gumbel scale", epsilon([(LimitedDomainEvent(2.4, 0.01), 1)], 0.05), 0.05,
             (top((7, 7), 2, b * b, 99), top((6, 8), 2, b * b, 99)), (top((7, 7), 2, b, 99), top((6, 8), 2, b, 99)),
             3),
        Case("threshold", epsilon([(LimitedDomainEvent(2.5, 0.2), 1)], 0.22), 0.22,
             (top((4, 0), 3, c, 4), top((0, 3), 4, c, 4)), (top((4, 0), 4, c, 4), top((0, 3), 5, c, 4)), 3),
        Case("uncharged retry", epsilon([(LimitedDomainEvent(0.5, 0.2), 1)], 0.22), 0.22,
             (again((lone, 0), 5), choice(0, 1)), (again((lone, 0), 1), choice(0, 1)), 2),
        Case("chunked partition", 2.0, 0.2, (bell(2, right), bell(-2, right)), (bell(1, right), bell(-1, right)),
             None),
        Case("missing sampling", epsilon([(NoisyMaxEvent(sigma, rate), 1)], 0.01), 0.01,
             (choice(wins, 1 - wins), choice(1 - wins, wins)),
             (choice(sampled[0], 1 - sampled[0]), choice(sampled[1], 1 - sampled[1])), 2),
        Case("ball noise", 2.0, 1e-9, (choice(balled, 1 - balled), choice(1 - balled, balled)),
             (choice(kept, 1 - kept), choice(1 - kept, kept)), 2),
        Case("noiseless branch", epsilon([(NoisyMaxEvent(sigma), 1)], 0.05), 0.05,
             (choice(wins, 1 - wins), choice(0, 1)), (choice(wins, 1 - wins), choice(0.5, 0.5)), 2),
    ]  # fmt: skip


def ours(case: Case, one: np.ndarray, other: np.ndarray) -> bool:
    """This package: event from a pilot, Clopper-Pearson, five looks. Says no if the runs cannot do."""
    values = {0: iter(one.tolist()), 1: iter(other.tolist())}
    try:
        return audit_mechanism(
            lambda place: next(values[place]), 0, 1, epsilon=case.epsilon, delta=case.delta, runs=len(one), error=ERROR,
            statistic=float if case.outcomes is None else None,
        ).violated  # fmt: skip
    except ValueError:
        return False


def histogram(path: str) -> Auditor:
    """DP-Auditorium's histogram tester, without the parts that need tensorflow and vizier."""
    sys.path.insert(0, path)
    for name in ("dp_auditorium", "dp_auditorium.configs", "dp_auditorium.testers"):
        bare = types.ModuleType(name)
        bare.__path__ = [f"{path}/{name.replace('.', '/')}"]
        sys.modules[name] = bare
    configs = importlib.import_module("dp_auditorium.configs.property_tester_config")
    properties = importlib.import_module("dp_auditorium.configs.privacy_property")
    testers = importlib.import_module("dp_auditorium.testers.histogram_tester")

    def audit(case: Case, one: np.ndarray, other: np.ndarray) -> bool:
        tester = testers.HistogramTester(
            configs.HistogramPropertyTesterConfig(
                test_discrete_mechanism=case.outcomes is not None,
                histogram_size=case.outcomes or 20,
                min_value=-6.0,
                max_value=6.0,
                approximate_dp=properties.ApproximateDp(epsilon=case.epsilon, delta=case.delta),
            )
        )
        return bool(tester.reject_property(tester.estimate_lower_bound(one, other, ERROR)))

    return audit


def needed(auditor: Auditor, case: Case, rng: np.random.Generator) -> int | None:
    """Fewest runs on each data set, of the sizes tried, that show the fault in 9 of 10 trials."""
    for size in SIZES:
        draws = [(case.planted[0](rng, size), case.planted[1](rng, size)) for _ in range(TRIALS)]
        if sum(auditor(case, *each) for each in draws) >= 0.9 * TRIALS:
            return size
    return None


def alarms(auditor: Auditor, case: Case, size: int, rng: np.random.Generator) -> int:
    """How often the sound twin is accused."""
    return sum(auditor(case, case.sound[0](rng, size), case.sound[1](rng, size)) for _ in range(ALARMS))


def opake(scores: np.ndarray, coins: np.ndarray, delta: float) -> float:
    """opake-auditing's mechanism-agnostic estimate from one run."""
    auditing: Any = importlib.import_module("opake.auditing")
    places = np.arange(len(coins))
    flips: Any = importlib.import_module("opake.api.auditing._coin_flip")
    flip = flips.CoinFlip(len(coins), places, coins, places[coins], places[~coins])
    made = auditing.one_run(auditing.canary_scores(scores, canary_indices=places), coin_flip=flip)
    return float(made.eps_delta().epsilon_at(delta=delta, significance=ERROR))


def one_run(truth: float, claim: float, canaries: int, trials: int, rng: np.random.Generator) -> dict[str, int]:
    """Accusations of randomized response at ``truth`` nats a canary, with Gaussian scores in between."""
    found = {"langchain-dp": 0, "opake-auditing": 0}
    for _ in range(trials):
        seen: list[np.ndarray] = []

        def pipeline(coins: Sequence[bool], seen: list[np.ndarray] = seen) -> np.ndarray:
            right = rng.random(len(coins)) < 1 / (1 + math.exp(-truth))
            answers = np.where(right, coins, np.logical_not(coins)).astype(float)
            seen += [answers, np.array(coins)]
            return answers

        made = audit_pipeline(
            pipeline, lambda answers, number: float(answers[number]), canaries=canaries, epsilon=claim, delta=1e-5,
            guesses=canaries, error=ERROR,
        )  # fmt: skip
        found["langchain-dp"] += made.violated
        try:
            found["opake-auditing"] += opake(seen[0], seen[1], 1e-5) > claim
        except ImportError:
            found.pop("opake-auditing", None)
            return found | {"opake-auditing": -1}
    return found


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--auditorium", help="folder that holds the package dp_auditorium")
    options = parser.parse_args()
    auditors: dict[str, Auditor] = {"langchain-dp": ours}
    if options.auditorium:
        auditors["DP-Auditorium (histogram)"] = histogram(options.auditorium)
    rng = np.random.default_rng(1)
    print(f"runs on each data set until 9 of {TRIALS} trials see the fault (alarms of {ALARMS} sound trials); error 5%")
    for case in cases():
        said = []
        for name, auditor in auditors.items():
            began = time.process_time()
            size = needed(auditor, case, rng)
            false = alarms(auditor, case, size or SIZES[-1], rng)
            shown = f"{size:,}" if size else f"more than {SIZES[-1]:,}"
            said.append(f"{name}: {shown} ({false}; {time.process_time() - began:.0f} s)")
        print(f"{case.name:<18} epsilon {case.epsilon:.2f} delta {case.delta:g}   {'   '.join(said)}", flush=True)
    print("\none run, randomized response, claim epsilon 1: accusations")
    for truth, trials in ((1.0, 200), (1.2, 50), (1.5, 50), (2.0, 50)):
        for canaries in (100, 1000):
            found = one_run(truth, 1.0, canaries, trials, rng)
            print(f"truth {truth:g}, {canaries:>5} canaries, {trials} trials: {found}", flush=True)


if __name__ == "__main__":
    main()
