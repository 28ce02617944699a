"""Members that stay between calls: bounded by bytes, least recently used out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

Calibration = tuple[tuple[str, ...], tuple[str, ...]]
"""Label words and content-free tails that a calibration belongs to."""


class _Entry(Protocol):
    """One kept member of a fixed size: hash of its body, bytes, and a method that overwrites it."""

    @property
    def digest(self) -> bytes: ...

    @property
    def nbytes(self) -> int: ...

    def wipe(self) -> None: ...


E = TypeVar("E", bound=_Entry)


class BoundedStore(Generic[E]):
    """Members by (opening, member), at most ``limit`` bytes of them. An opening is the public text before them.

    An evicted entry may still be in use: the caller wipes it by :meth:`wipe_put_out` afterwards.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[Hashable, Hashable], E] = OrderedDict()
        self._put_out: list[E] = []

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, opening: Hashable, member: Hashable, digest: bytes) -> E | None:
        """The entry of a member with this very body, or None."""
        found = self._kept.get((opening, member))
        if found is None:
            return None
        if found.digest != digest:
            # The caller broke the promise that new content has a new key: never answer from the old one.
            self._put_out.append(self._taken((opening, member)))
            return None
        self._kept.move_to_end((opening, member))
        return found

    def take(self, opening: Hashable, member: Hashable, digest: bytes) -> E | None:
        """As :meth:`get`, and remove it: its size may change."""
        found = self.get(opening, member, digest)
        return None if found is None else self._taken((opening, member))

    def put(self, opening: Hashable, member: Hashable, entry: E) -> None:
        """Keep an entry, and evict the least recently used ones. An entry above the limit is evicted itself."""
        if (opening, member) in self._kept:
            self._put_out.append(self._taken((opening, member)))
        if entry.nbytes > self.limit:
            self._put_out.append(entry)
            return
        while self.bytes + entry.nbytes > self.limit:
            self._put_out.append(self._taken(next(iter(self._kept))))
        self._kept[(opening, member)] = entry
        self.bytes += entry.nbytes

    def wipe_put_out(self) -> None:
        """Overwrite every evicted entry: a later :meth:`forget` would not find it."""
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

    def _taken(self, key: tuple[Hashable, Hashable]) -> E:
        entry = self._kept.pop(key)
        self.bytes -= entry.nbytes
        return entry
