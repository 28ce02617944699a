"""One release of DP-ICL as a plan without I/O: it yields subset prompts, receives votes, and returns the histogram.

Sync and async drive the same generator, so they cannot drift apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Hashable, Sequence

Shot = tuple[str, str]
"""One example as it stands in a prompt: (rendered input up to the cue, label word)."""


@dataclasses.dataclass(frozen=True, repr=False)
class SubsetPrompt:
    """What one subset is asked. Private but for the question.

    Args:
        member: Opaque key of the subset's content; a changed subset has another key.
        shots: The subset's own examples. Empty: the subset abstains whatever a model says.
        question: The rendered question, the same for every subset prompt of one release.
    """

    member: Hashable
    shots: tuple[Shot, ...]
    question: str

    def __repr__(self) -> str:
        return "SubsetPrompt(<private>)"


Vote = int | None
"""Index of a label, or None: the subset abstains."""


def votes(
    subset_prompts: Sequence[SubsetPrompt], labels: int
) -> Generator[Sequence[SubsetPrompt], Sequence[Vote], list[int]]:
    """Collect one vote per subset prompt and return the histogram over ``labels`` labels.

    Yields:
        The subset prompts, once; send back one vote each, in the same order.

    Returns:
        Counts per label, in the public order. Never normalized by the number of voters. Private.

    Formal guarantee:
        A subset moves at most one vote, and an empty one none: a change inside one subset changes the histogram by
        at most one vote leaving one label and one reaching another.
    """
    received = yield subset_prompts
    counts = [0] * labels
    for subset_prompt, vote in zip(subset_prompts, received, strict=True):
        if subset_prompt.shots and vote is not None:
            counts[vote] += 1
    return counts
