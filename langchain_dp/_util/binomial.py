"""Exact confidence limits of a probability from a count (Clopper and Pearson 1934)."""

from __future__ import annotations

from scipy.special import betaincinv

from langchain_dp._util import validate


def lower_limit(hits: float, runs: float, error: float) -> float:
    """Return a limit that exceeds the true probability with probability at most ``error``.

    Args:
        hits: Number of hits, in [0, ``runs``].
        runs: Independent runs, above 0.
        error: Probability of a wrong limit, in (0, 1).

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> round(lower_limit(90, 100, 0.05), 3)
        0.836
    """
    _check(hits, runs, error)
    return 0.0 if hits <= 0 else float(betaincinv(hits, runs - hits + 1, error))


def upper_limit(hits: float, runs: float, error: float) -> float:
    """Return a limit below the true probability with probability at most ``error``. As :func:`lower_limit`.

    Args:
        hits: Number of hits.
        runs: Independent runs.
        error: Probability of a wrong limit.

    Examples:
        >>> round(upper_limit(0, 100, 0.05), 4)
        0.0295
    """
    _check(hits, runs, error)
    return 1.0 if hits >= runs else float(betaincinv(hits + 1, runs - hits, 1 - error))


def clopper_pearson(hits: float, runs: float, *, error: float = 0.05) -> tuple[float, float]:
    return lower_limit(hits, runs, error / 2), upper_limit(hits, runs, error / 2)


def _check(hits: float, runs: float, error: float) -> None:
    validate.number("runs", runs, above=0.0)
    validate.number("hits", hits, at_least=0.0, at_most=runs)
    validate.number("error", error, above=0.0, below=1.0)
