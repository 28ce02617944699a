"""Members that stay between calls, least recently used out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

Calibration = tuple[tuple[str, ...], tuple[str, ...]]


class _Entry(Protocol):
    """One kept member of a fixed size."""

    @property
    def digest(self) -> bytes: ...

    @property
    def nbytes(self) -> int: ...

    def wipe(self) -> None: ...


E = TypeVar("E", bound=_Entry)


class BoundedStore(Generic[E]):
    """Members by (opening, member), at most ``limit`` bytes.

    Evicted entries may still be in use: call :meth:`wipe_put_out` afterwards.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: OrderedDict[tuple[Hashable, Hashable], E] = OrderedDict()
        self._put_out: list[E] = []

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, opening: Hashable, member: Hashable, digest: bytes) -> E | None:
        found = self._kept.get((opening, member))
        if found is None:
            return None
        if found.digest != digest:
            # New content came under an old key: never answer from the old entry.
            self._put_out.append(self._taken((opening, member)))
            return None
        self._kept.move_to_end((opening, member))
        return found

    def take(self, opening: Hashable, member: Hashable, digest: bytes) -> E | None:
        """Remove an entry whose size may change."""
        found = self.get(opening, member, digest)
        return None if found is None else self._taken((opening, member))

    def put(self, opening: Hashable, member: Hashable, entry: E) -> None:
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
        while self._put_out:
            self._put_out.pop().wipe()

    def forget(self, members: Sequence[Hashable]) -> None:
        for key in [key for key in self._kept if key[1] in members]:
            self._taken(key).wipe()

    def clear(self) -> None:
        for key in list(self._kept):
            self._taken(key).wipe()

    def _taken(self, key: tuple[Hashable, Hashable]) -> E:
        entry = self._kept.pop(key)
        self.bytes -= entry.nbytes
        return entry
