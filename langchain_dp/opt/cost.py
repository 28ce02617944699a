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
    """

    cold: float
    warm: float


def to_evaluate(
    scheme: Scheme,
    *,
    calls: int,
    texts: int,
    length: int,
    training: float,
    judged: float,
    lengths: Lengths,
    answered: bool = True,
) -> Evaluated:
    """Estimate it. Records that no subset shows are not answered either.

    Args:
        scheme: Sampling constants.
        calls: Calls of the mechanism.
        texts: Candidates.
        length: Tokens of one of them.
        training: Training records.
        judged: Answers to validation records, over all candidates.
        lengths: Of the parts of a prompt.
        answered: Whether the model answers each training record that is shown; for a glossary it does not.
    """
    rate, groups = scheme.sampling_probability, scheme.groups
    asked = scheme.expected_subsets
    shown = lengths.shot * shots(scheme, training)
    seen = 1 - (1 - rate) ** calls
    answers = (training * seen * answered + judged) * (lengths.shot + lengths.head / 2)
    cold = warm = calls * asked * (lengths.head + shown + lengths.tail + length / 2)
    if scheme.sampling == "fixed":
        again = groups * (1 - (1 - rate) ** length) * texts
        warm = groups * seen * shown + again * (lengths.tail + length)
    return Evaluated(cold + answers, warm + answers)


def shots(scheme: Scheme, training: float) -> float:
    """Records of one subset, expected."""
    return training * (1.0 if scheme.sampling == "fixed" else scheme.sampling_probability) / scheme.groups
