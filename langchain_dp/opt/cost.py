"""Estimate of the tokens that a model evaluates in a run."""

from __future__ import annotations

import dataclasses

from langchain_dp.ensemble.scheme import Scheme


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens of the parts of a prompt: text before the records, one record, and the request after them."""

    head: float
    shot: float
    tail: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Tokens of a whole run: without caches, with the caches of all subsets, and those written one by one."""

    cold: float
    warm: float
    written: float

    def work(self, *, kept: bool = True) -> float:
        """Return the equivalent number of prompt tokens, by time."""
        return (self.warm if kept else self.cold) + _WRITTEN * self.written


_WRITTEN = 5
"""A token that 16 members write takes as long as so many of a prompt (measured: 6 with 16 at a time, 3 with 48)."""
_ASKED = 25
"""Tokens of an answer beside its record: the end of the prompt and the labels."""


def to_evaluate(
    scheme: Scheme,
    *,
    calls: int,
    texts: int,
    length: int,
    training: float,
    judged: float,
    lengths: Lengths,
    drawn: int = 0,
) -> Evaluated:
    """Estimate the tokens of a run. Records that no subset shows are not answered either.

    ``judged`` counts answers to validation records over all candidates. ``drawn`` is the tokens of one call that writes
    a whole text, and 0 if each call releases one token.
    """
    rate, groups = scheme.sampling_probability, scheme.groups
    asked = scheme.expected_subsets
    shown = lengths.shot * shots(scheme, training)
    seen = 1 - (1 - rate) ** calls
    answers = (training * seen + judged) * (lengths.shot + _ASKED)
    written = calls * max(drawn, 1) * asked
    cold = warm = written * (lengths.head + shown + lengths.tail + length / 2)
    if scheme.sampling == "fixed":
        again = groups * (1 - (1 - rate) ** (1 if drawn else length)) * texts
        warm = groups * seen * shown + again * (lengths.tail + length)
    return Evaluated(cold + answers, warm + answers, written)


def shots(scheme: Scheme, training: float) -> float:
    """Return the expected number of records in a subset."""
    return training * (1.0 if scheme.sampling == "fixed" else scheme.sampling_probability) / scheme.groups
