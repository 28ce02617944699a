"""One release of DP-ICL as a plan without I/O: it yields ballots, receives votes, and returns the histogram.

Sync and async drive the same generator, so they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Hashable, Sequence

Shot = tuple[str, str]
"""One example as it stands in a prompt: (rendered input up to the cue, label word)."""


@dataclasses.dataclass(frozen=True, repr=False)
class Ballot:
    """What one subset is asked. Private but for the question.

    Args:
        member: Opaque key of the subset's content; a changed subset has another key.
        shots: The subset's own examples. Empty: the subset abstains whatever a model says.
        question: The rendered question, the same for every ballot of one release.
    """

    member: Hashable
    shots: tuple[Shot, ...]
    question: str

    def __repr__(self) -> str:
        return "Ballot(<private>)"


Vote = int | None
"""Index of a label, or None: the subset abstains."""


def votes(ballots: Sequence[Ballot], labels: int) -> Generator[Sequence[Ballot], Sequence[Vote], list[int]]:
    """Collect one vote per ballot and return the histogram over ``labels`` labels.

    Yields:
        The ballots, once; send back one vote each, in the same order.

    Returns:
        Counts per label, in the public order. Never normalised by the number of voters. Private.

    Formal guarantee:
        A ballot moves at most one vote, and an empty ballot none: a change inside one subset changes the histogram by
        at most one vote leaving one label and one reaching another.
    """
    received = yield ballots
    counts = [0] * labels
    for ballot, vote in zip(ballots, received, strict=True):
        if ballot.shots and vote is not None:
            counts[vote] += 1
    return counts
