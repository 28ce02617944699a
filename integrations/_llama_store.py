"""Host-side store of member states: bounded, least recently used out."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from ._llama_context import State

Calibration = tuple[tuple[str, ...], tuple[str, ...]]
"""Label words and content-free tails that a calibration belongs to."""


@dataclasses.dataclass(repr=False)
class MemberState:
    """Cache of head and body of one member, and what was computed from nothing else.

    Args:
        state: The sequence as llama.cpp saved it.
        tokens: Its length.
        digest: Hash of the body it was made from.
        calibrations: Log of the mean label probabilities after the content-free tails.
    """

    state: State
    tokens: int
    digest: bytes
    calibrations: dict[Calibration, npt.NDArray[np.float64]] = dataclasses.field(default_factory=dict)

    def wipe(self) -> None:
        """Overwrite what the records left behind."""
        self.state.fill(0)
        self.calibrations.clear()


class StateStore:
    """Member states by (head, member), at most ``limit`` bytes of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[str, Hashable], MemberState] = OrderedDict()
        self._put_out: list[MemberState] = []

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, head: str, member: Hashable, digest: bytes) -> MemberState | None:
        """The state of a member, or None if there is none of this very body."""
        found = self._kept.get((head, member))
        if found is None:
            return None
        if found.digest != digest:
            # The caller broke the promise that new content has a new key: never answer from the old one.
            self._put_out.append(self._taken((head, member)))
            return None
        self._kept.move_to_end((head, member))
        return found

    def put(self, head: str, member: Hashable, entry: MemberState) -> None:
        """Keep a state, and put out those used longest ago; a state larger than the limit is not kept.

        The group being evaluated may still hold what is put out: :meth:`wipe_put_out` when it no longer does.
        """
        if (head, member) in self._kept:
            self._put_out.append(self._taken((head, member)))
        if entry.state.nbytes > self.limit:
            self._put_out.append(entry)
            return
        while self.bytes + entry.state.nbytes > self.limit:
            self._put_out.append(self._taken(next(iter(self._kept))))
        self._kept[(head, member)] = entry
        self.bytes += entry.state.nbytes

    def wipe_put_out(self) -> None:
        """Overwrite every state that is no longer kept: forgetting its member later would not find it."""
        while self._put_out:
            self._put_out.pop().wipe()

    def forget(self, members: Sequence[Hashable]) -> None:
        """Wipe and drop everything of these members, under every head."""
        for key in [key for key in self._kept if key[1] in members]:
            self._taken(key).wipe()

    def clear(self) -> None:
        """Wipe and drop everything."""
        for key in list(self._kept):
            self._taken(key).wipe()

    def _taken(self, key: tuple[str, Hashable]) -> MemberState:
        entry = self._kept.pop(key)
        self.bytes -= entry.state.nbytes
        return entry
