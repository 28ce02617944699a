"""Which event tells two data sets apart best: chosen from a pilot, before the runs that count."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from langchain_dp._util import validate
from langchain_dp.audit.bounds import epsilon_bound
from langchain_dp.errors import InvalidParameter

_SHOWN = 3  # outcomes that are named in words


@dataclasses.dataclass(frozen=True)
class Event:
    """A set of outcomes, or a half-line.

    Args:
        swapped: Whether it is more likely on the second data set.
        outcomes: The set; None for a half-line.
        threshold: End of the half-line.
        above: Whether it lies above.
    """

    swapped: bool
    outcomes: frozenset[Any] | None = None
    threshold: float = 0.0
    above: bool = True

    def holds(self, outcome: Any) -> bool:
        """Whether the event came."""
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
    """The event whose bound would be largest if ``runs`` further runs came out as the pilot did.

    Sets of outcomes are the level sets of the likelihood ratio, among which the best one is (Neyman and Pearson).
    """

    def promise(hits: float, other_hits: float) -> float:
        # Half a hit more or less: an outcome that was not seen is not impossible.
        share, other_share = (hits + 0.5) / (len(one) + 1), (other_hits + 0.5) / (len(one) + 1)
        return epsilon_bound(round(share * runs), round(other_share * runs), runs, delta=delta, error=error)

    candidates = _half_lines(one, other) if numeric else _level_sets(one, other)
    best, found = (-1.0, -1), Event(False, frozenset())
    for event, hits, other_hits in candidates:
        value = promise(hits, other_hits), hits - other_hits
        if value > best:
            best, found = value, event
    return found


def _level_sets(one: Sequence[Any], other: Sequence[Any]) -> Iterable[tuple[Event, int, int]]:
    try:
        counts = Counter(one), Counter(other)
    except TypeError:
        raise InvalidParameter(
            "Expected releases to be hashable, so that equal ones can be counted. Give statistic= to make numbers of "
            "them, or return a string or a tuple."
        ) from None
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
