"""How many tokens a run makes a model evaluate: an estimate from the constants of its sampling."""

from __future__ import annotations

import dataclasses

from langchain_dp.ensemble.scheme import Scheme


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Tokens of the parts of a prompt.

    Args:
        head: Before the records.
        shot: One record.
        tail: After them: the request.
    """

    head: float
    shot: float
    tail: float


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Tokens of a whole run.

    Args:
        cold: If every call found no cache.
        warm: With the caches of all subsets kept.
        written: Those of them that are written one by one, a few subsets at a time: each takes as long as several of a
            prompt.
    """

    cold: float
    warm: float
    written: float

    def work(self, *, kept: bool = True) -> float:
        """As many tokens of a prompt as would take the same time.

        Args:
            kept: Whether the caches of all subsets are kept.
        """
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
    """Estimate it. Records that no subset shows are not answered either.

    Args:
        scheme: Sampling constants.
        calls: Calls of the mechanism: of each the subsets are drawn anew.
        texts: Candidates.
        length: Tokens of one of them.
        training: Training records.
        judged: Answers to validation records, over all candidates.
        lengths: Of the parts of a prompt.
        drawn: Tokens of one call, where one writes a whole text; 0 where each releases a token.
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
    """Records of one subset, expected."""
    return training * (1.0 if scheme.sampling == "fixed" else scheme.sampling_probability) / scheme.groups
