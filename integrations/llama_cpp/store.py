"""Host-side store of member states: bounded, least recently used out."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from .context import State

Step = tuple[int, ...]
"""Tokens of one member that are evaluated in one go."""

Calibration = tuple[tuple[str, ...], tuple[str, ...]]
"""Label words and content-free tails that a calibration belongs to."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """Where every member's prompt begins: public.

    Args:
        head: Text before the members' bodies.
        frame: Text of a chat template before the head, in which special tokens count; None is no chat.
    """

    head: str
    frame: str | None = None


@dataclasses.dataclass(repr=False)
class MemberState:
    """Cache of head and body of one member, and what was computed from nothing else.

    Args:
        state: The sequence as llama.cpp saved it: head, body and ``steps``.
        tokens: Length of head and body.
        digest: Hash of the body it was made from.
        steps: What follows head and body, as it was evaluated. Cutting it off leaves the bits of head and body.
        calibrations: Log of the mean label probabilities after the content-free tails.
    """

    state: State
    tokens: int
    digest: bytes
    steps: tuple[Step, ...] = ()
    calibrations: dict[Calibration, npt.NDArray[np.float64]] = dataclasses.field(default_factory=dict)

    @classmethod
    def nothing(cls) -> MemberState:
        """Of an empty sequence: what every head begins from."""
        return cls(np.empty(0, np.uint8), 0, b"")

    def wipe(self) -> None:
        """Overwrite what the records left behind."""
        self.state.fill(0)
        self.calibrations.clear()


class StateStore:
    """Member states by (opening, member), at most ``limit`` bytes of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[Opening, Hashable], MemberState] = OrderedDict()
        self._put_out: list[MemberState] = []

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, opening: Opening, member: Hashable, digest: bytes) -> MemberState | None:
        """The state of a member, or None if there is none of this very body."""
        found = self._kept.get((opening, member))
        if found is None:
            return None
        if found.digest != digest:
            # The caller broke the promise that new content has a new key: never answer from the old one.
            self._put_out.append(self._taken((opening, member)))
            return None
        self._kept.move_to_end((opening, member))
        return found

    def put(self, opening: Opening, member: Hashable, entry: MemberState) -> None:
        """Keep a state, and put out those used longest ago; a state larger than the limit is not kept.

        The group being evaluated may still hold what is put out: :meth:`wipe_put_out` when it no longer does.
        """
        if (opening, member) in self._kept:
            self._put_out.append(self._taken((opening, member)))
        if entry.state.nbytes > self.limit:
            self._put_out.append(entry)
            return
        while self.bytes + entry.state.nbytes > self.limit:
            self._put_out.append(self._taken(next(iter(self._kept))))
        self._kept[(opening, member)] = entry
        self.bytes += entry.state.nbytes

    def wipe_put_out(self) -> None:
        """Overwrite every state that is no longer kept: forgetting its member later would not find it."""
        while self._put_out:
            self._put_out.pop().wipe()

    def forget(self, members: Sequence[Hashable]) -> None:
        """Wipe and drop everything of these members, under every opening."""
        for key in [key for key in self._kept if key[1] in members]:
            self._taken(key).wipe()

    def clear(self) -> None:
        """Wipe and drop everything."""
        for key in list(self._kept):
            self._taken(key).wipe()

    def _taken(self, key: tuple[Opening, Hashable]) -> MemberState:
        entry = self._kept.pop(key)
        self.bytes -= entry.state.nbytes
        return entry
