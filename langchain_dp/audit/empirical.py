"""A lower bound on epsilon from many runs on two neighboring data sets (Jagielski, Ullman, Oprea, NeurIPS 2020).

A pilot chooses the event (Ding et al., CCS 2018), and fresh runs test it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from tqdm.auto import tqdm

from langchain_dp._util import validate
from langchain_dp.accounting import Neighbors
from langchain_dp.audit.bounds import epsilon_bound, runs_needed
from langchain_dp.audit.pairs import check_neighbors, equal
from langchain_dp.errors import InvalidParameter

_REPEATED, _ENOUGH = 0.05, 20  # least share of repeated releases, and runs from which it is required
_PILOT = 0.2  # share of the runs that chooses the event
_SHOWN = 3  # outcomes that are named in words
_LOOKS = 5  # the first look is at a sixteenth of the test's runs, every further one at twice as many

D = TypeVar("D")


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """The result of an audit, beside the claim. Nothing here is private.

    Args:
        epsilon: Lower bound of the true epsilon, in nats.
        claimed: The claim, in nats.
        delta: Of the claim and the bound.
        error: Largest chance that the bound is too large.
        runs: Runs on each data set, with the pilot.
        tested: Runs on each data set behind the bound.
        hits: Count of the event on the ``likelier`` data set.
        other_hits: Count on the other.
        event: The event in words.
        likelier: "one" or "other".

    Examples:
        >>> found = audit_mechanism(count, ["canary"], ["other"], epsilon=0.5, delta=0.0)
        >>> found.epsilon, found.violated
    """

    epsilon: float
    claimed: float
    delta: float
    error: float
    runs: int
    tested: int
    hits: int
    other_hits: int
    event: str
    likelier: str

    @property
    def violated(self) -> bool:
        """True if the claim is disproved."""
        return self.epsilon > self.claimed

    @property
    def share(self) -> float:
        """Bound over claim. Near 1, the claim is tight."""
        return self.epsilon / self.claimed if self.claimed else math.inf

    def __str__(self) -> str:
        verdict = "DISPROVED" if self.violated else "not disproved"
        return (
            f"claim epsilon <= {self.claimed:.4g} at delta {self.delta:g}: {verdict}. Measured: epsilon >= "
            f"{self.epsilon:.4g} ({self.event}: {self.hits} against {self.other_hits} of {self.tested} runs, error "
            f"{self.error:g})"
        )


def audit_mechanism(
    mechanism: Callable[[D], Any],
    one: D,
    other: D,
    *,
    epsilon: float,
    delta: float,
    neighbors: Neighbors | str | None = None,
    statistic: Callable[[Any], float] | None = None,
    runs: int = 10_000,
    error: float = 1e-3,
    progress: bool = False,
) -> AuditResult:
    """Run a mechanism repeatedly on two data sets, and bound its epsilon from below.

    Args:
        mechanism: Takes a data set and returns a release, with fresh randomness.
        one: A data set.
        other: A neighbor of it, such as one of :func:`canary_pair`.
        epsilon: The claim for one call, in nats.
        delta: Of the claim, in [0, 1).
        neighbors: Relation to check, for lists of records. None: unchecked, for other data.
        statistic: A number per release, whose event is a side of a threshold. None: compares hashable releases.
        runs: Most calls on each data set. A fifth chooses the event.
        error: Largest chance that a true claim is disproved.
        progress: Show a progress bar.

    Raises:
        InvalidParameter: The data sets are equal or no neighbors, or ``runs`` cannot disprove the claim. The message
            gives a sufficient number.

    Formal guarantee:
        With probability at least 1 - ``error``, the mechanism is not (epsilon', delta)-private for any epsilon' below
        the answer. A bound below the claim proves nothing.

    Examples:
        >>> def count(records):  # keeps the truth with probability 3/4, so its epsilon is log 3
        ...     return ("canary" in records) == bool(secrets.randbelow(4))
        >>> audit_mechanism(count, ["canary"], ["other"], epsilon=0.5, delta=0.0, runs=4_000).violated
        True
    """
    validate.integer("runs", runs, at_least=1)
    validate.number("epsilon", epsilon, at_least=0.0, at_most=500.0)
    validate.number("delta", delta, at_least=0.0, below=1.0)
    validate.number("error", error, above=0.0, below=1.0)
    pilot = max(1, round(_PILOT * runs))
    least = runs_needed(epsilon, delta=delta, error=error / _LOOKS)
    if runs - pilot < least:
        raise InvalidParameter(
            f"Expected runs={runs - pilot} that test the claim to be at least {least}: with fewer not even an event "
            f"that always tells the two data sets apart disproves epsilon={epsilon:g}, delta={delta:g} at "
            f"error={error / _LOOKS:g}. Give more runs, or a larger error."
        )
    validate.function("mechanism", mechanism, of="a data set")
    if statistic is not None:
        validate.function("statistic", statistic, of="a release")
    if neighbors is not None:
        check_neighbors(one, other, neighbors)  # type: ignore[arg-type]  # checked there
    elif equal(one, other):
        raise InvalidParameter(
            "Expected one and other to differ, but they are equal: no audit of these can find anything. Give two "
            "neighbors, such as those of canary_pair()."
        )
    with tqdm(total=2 * runs, desc="audit", unit="run", disable=not progress) as bar:

        def statistics(data: D, count: int) -> list[Any]:
            values = []
            for _ in range(count):
                release = mechanism(data)
                bar.update()
                values.append(release if statistic is None else statistic(release))
            return values

        first, second = statistics(one, pilot), statistics(other, pilot)
        numeric, each = statistic is not None, error / _LOOKS
        event = choose_event(first, second, numeric=numeric, runs=runs - pilot, delta=delta, error=each)
        likely, rare, name = (other, one, "other") if event.swapped else (one, other, "one")
        done = hits = other_hits = 0
        result = AuditResult(0.0, epsilon, delta, error, pilot, 0, 0, 0, str(event), name)
        for look in range(_LOOKS):
            fresh = (runs - pilot) // 2 ** (_LOOKS - 1 - look) - done
            hits += sum(map(event.holds, statistics(likely, fresh)))
            other_hits += sum(map(event.holds, statistics(rare, fresh)))
            done += fresh
            bound = epsilon_bound(hits, other_hits, done, delta=delta, error=each) if done else 0.0
            # All looks hold together with the stated error, so the best of them does.
            if bound >= result.epsilon:
                result = dataclasses.replace(result, epsilon=bound, tested=done, hits=hits, other_hits=other_hits)
            result = dataclasses.replace(result, runs=pilot + done)
            if result.violated:
                break
        return result


@dataclasses.dataclass(frozen=True)
class Event:
    """A set of outcomes, or a half-line."""

    swapped: bool  # more likely on the second data set
    outcomes: frozenset[Any] | None = None  # None: a half-line
    threshold: float = 0.0
    above: bool = True

    def holds(self, outcome: Any) -> bool:
        if self.outcomes is not None:
            return outcome in self.outcomes
        return bool(outcome > self.threshold if self.above else outcome <= self.threshold)

    def __str__(self) -> str:
        if self.outcomes is None:
            return f"statistic {'>' if self.above else '<='} {self.threshold:.6g}"
        names = sorted(map(repr, self.outcomes))
        return f"release in {{{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}}}"


def choose_event(
    one: Sequence[Any], other: Sequence[Any], *, numeric: bool, runs: int, delta: float, error: float
) -> Event:
    def promise(hits: float, other_hits: float) -> float:
        # Add half a hit: an unseen outcome is not impossible.
        share, other_share = (hits + 0.5) / (len(one) + 1), (other_hits + 0.5) / (len(one) + 1)
        return epsilon_bound(round(share * runs), round(other_share * runs), runs, delta=delta, error=error)

    candidates = _half_lines(one, other) if numeric else _level_sets(one, other)
    best = max(
        candidates, key=lambda one: (promise(*one[1:]), one[1] - one[2]), default=(Event(False, frozenset()), 0, 0)
    )
    return best[0]


def _level_sets(one: Sequence[Any], other: Sequence[Any]) -> Iterable[tuple[Event, int, int]]:
    try:
        counts = Counter(one), Counter(other)
        alone = len(set(one) | set(other)) / (len(one) + len(other))
    except TypeError:
        raise InvalidParameter(
            "Expected releases to be hashable, so that equal ones can be counted. Give statistic= to make numbers of "
            "them, or return a string or a tuple."
        ) from None
    if alone > 1 - _REPEATED and len(one) >= _ENOUGH:
        raise InvalidParameter(
            f"Expected some releases to repeat, but {alone:.0%} of {len(one) + len(other):,} are unique: no audit of "
            "sets of these can find anything. Give statistic=, a number for each release."
        )
    for swapped in (False, True):
        here, there = counts[::-1] if swapped else counts
        ranked = sorted(here, key=lambda outcome: -(here[outcome] + 0.5) / (there[outcome] + 0.5))
        hits = other_hits = 0
        for size, outcome in enumerate(ranked, 1):
            hits, other_hits = hits + here[outcome], other_hits + there[outcome]
            yield Event(swapped, frozenset(ranked[:size])), hits, other_hits


def _half_lines(one: Sequence[float], other: Sequence[float]) -> Iterable[tuple[Event, int, int]]:
    arrays = [np.sort(validate.numbers("what statistic returned", values)) for values in (one, other)]
    if any(values.ndim != 1 or not np.isfinite(values).all() for values in arrays):
        raise InvalidParameter("Expected every statistic to be a finite number. Let statistic= return one.")
    pooled = np.unique(np.concatenate(arrays))
    places = pooled[np.unique(np.linspace(0, len(pooled) - 1, min(len(pooled), 200)).astype(int))]
    below = [np.searchsorted(values, places, side="right") for values in arrays]
    for number, place in enumerate(places):
        for above in (True, False):
            hits = [len(one) - int(b[number]) if above else int(b[number]) for b in below]
            for swapped in (False, True):
                here, there = hits[::-1] if swapped else hits
                yield Event(swapped, None, float(place), above), here, there
