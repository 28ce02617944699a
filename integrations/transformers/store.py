"""What is kept of members between calls: bounded, least recently used out."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from .evaluate import Layers, Scores, size, wipe

Calibration = tuple[tuple[str, ...], tuple[str, ...]]
"""Label words and content-free tails that a calibration belongs to."""

Head = tuple[str, bool]
"""Public text before the members' own, and whether it stands in a chat template."""


@dataclasses.dataclass(repr=False)
class Member:
    """One member's sequence as far as it was evaluated, and what was computed from its content.

    Args:
        digest: Hash of the body it was made from.
        parts: The sequence, in the parts in which it was evaluated.
        layers: Keys and values of all parts.
        calibrations: Log of the mean label probabilities after content-free tails.
    """

    digest: bytes
    parts: list[tuple[int, ...]]
    layers: Layers
    calibrations: dict[Calibration, Scores] = dataclasses.field(default_factory=dict)

    def replace(self, layers: Layers, parts: Sequence[tuple[int, ...]]) -> None:
        """Overwrite the sequence that it was with the one that it became."""
        wipe(self.layers)
        self.layers, self.parts = layers, list(parts)

    def wipe(self) -> None:
        """Overwrite what the records left behind."""
        wipe(self.layers)
        self.layers = []
        self.parts.clear()
        self.calibrations.clear()


class MemberStore:
    """Members by (head, member), at most ``limit`` bytes of keys and values."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[Head, Hashable], Member] = OrderedDict()

    def take(self, head: Head, key: Hashable, digest: bytes) -> Member | None:
        """Hand out a member, which is no longer kept; None if there is none of this very body."""
        found = self._taken((head, key)) if (head, key) in self._kept else None
        if found is not None and found.digest != digest:
            # The caller broke the promise that new content has a new key: never answer from the old one.
            found.wipe()
            return None
        return found

    def put(self, head: Head, key: Hashable, member: Member) -> None:
        """Keep a member, and wipe those used longest ago; one that is larger than the limit is wiped itself."""
        if (head, key) in self._kept:
            self._taken((head, key)).wipe()
        room = size(member.layers)
        if room > self.limit:
            member.wipe()
            return
        while self.bytes + room > self.limit:
            self._taken(next(iter(self._kept))).wipe()
        self._kept[(head, key)] = member
        self.bytes += room

    def forget(self, keys: Sequence[Hashable]) -> None:
        """Wipe and drop everything of these members, under every head."""
        for kept in [kept for kept in self._kept if kept[1] in keys]:
            self._taken(kept).wipe()

    def clear(self) -> None:
        """Wipe and drop everything."""
        for kept in list(self._kept):
            self._taken(kept).wipe()

    def _taken(self, kept: tuple[Head, Hashable]) -> Member:
        member = self._kept.pop(kept)
        self.bytes -= size(member.layers)
        return member
