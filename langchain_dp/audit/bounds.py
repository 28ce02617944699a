"""The epsilon that two frequencies disprove, by Clopper-Pearson limits."""

from __future__ import annotations

import math

from langchain_dp._util import validate
from langchain_dp._util.binomial import lower_limit, upper_limit


def epsilon_bound(hits: int, other_hits: int, runs: int, *, delta: float, error: float) -> float:
    """Return the largest epsilon that an event's frequencies on two neighboring data sets disprove, or 0.

    Args:
        hits: Count of the event where it is more likely.
        other_hits: Count on the other data set.
        runs: Independent runs on each.
        delta: Of the claim.
        error: Largest chance that the answer is too large.

    Formal guarantee:
        With probability at least 1 - ``error`` the mechanism is not (epsilon', delta)-private for any epsilon' below
        the answer, if the event was chosen before these runs.

    Examples:
        >>> round(epsilon_bound(900, 100, 1_000, delta=1e-5, error=1e-3), 3)
        1.859
    """
    validate.integer("runs", runs, at_least=1)
    validate.integer("hits", hits, at_least=0, at_most=runs)
    validate.integer("other_hits", other_hits, at_least=0, at_most=runs)
    validate.number("error", error, above=0.0, below=1.0)
    validate.number("delta", delta, at_least=0.0, at_most=1.0)
    likely = lower_limit(hits, runs, error / 2) - delta
    return 0.0 if likely <= 0 else max(0.0, math.log(likely / upper_limit(other_hits, runs, error / 2)))


def runs_needed(epsilon: float, *, delta: float, error: float) -> int:
    """Return the fewest runs per data set that can disprove ``epsilon`` (below 700 nats) and ``delta``.

    ``error`` is the largest chance that a true claim is disproved.

    Examples:
        >>> runs_needed(3.0, delta=1e-5, error=1e-3)
        157
    """
    epsilon = validate.number("epsilon", epsilon, at_least=0.0, below=700.0)
    delta = validate.number("delta", delta, at_least=0.0, below=1.0)
    error = validate.number("error", error, above=0.0, below=1.0)
    # All hits here and none there: (x - delta) / (1 - x) > e^epsilon with x = (error / 2)^(1 / runs).
    ratio = (1 - delta) / (1 + math.exp(epsilon))  # 1 - x must be below this
    return math.floor(math.log(error / 2) / math.log1p(-ratio)) + 1
