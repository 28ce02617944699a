"""Joint batches, padded with public rows: kernels depend on the number of rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from .._engine import Logits
from .context import LlamaContext

ROWS = 32
EIGHT = 8
_PUBLIC_TOKEN = 0


@dataclasses.dataclass(frozen=True)
class BatchRule:
    """Rows of a batch: a ``multiple``, at ``least`` so many, up to ``longest`` per member."""

    name: str
    multiple: int = 1
    least: int = 1
    longest: int = ROWS
    together: bool = True

    def pieces(self, count: int) -> list[int]:
        """The rest of ``count`` goes in single rows."""
        rest = count % self.longest
        even = rest - rest % self.multiple
        return [self.longest] * (count // self.longest) + [even] * (even > 0) + [1] * (rest - even)

    def sequences(self, members: int, rows: int) -> int:
        """Count public sequences, too."""
        unit = self.multiple // math.gcd(self.multiple, rows)
        return -(-max(members, -(-self.least // rows)) // unit) * unit

    def outputs(self, wanted: int) -> int:
        if wanted == 0 and self.longest > 1:
            return 0
        return -(-max(wanted, self.least) // self.multiple) * self.multiple


PAIRS = BatchRule("at least 2 rows", least=2)
EIGHTS = BatchRule("multiples of 8 rows", multiple=EIGHT, least=EIGHT)
ALONE = BatchRule("one member at a time", together=False)


def fixed_shape(sequences: int) -> BatchRule:
    return BatchRule(f"always {sequences} rows", multiple=sequences, least=sequences, longest=1)


def sequences_for(slots: int) -> int:
    """Add a public sequence, and pad to a multiple of 8."""
    return slots + 1 if slots == 1 else max(slots + 1, -(-slots // EIGHT) * EIGHT)


class Batches:
    """Evaluates neighboring sequences in one batch, padded by ``rule``.

    A padding row is a public token, removed at once.
    """

    def __init__(self, context: LlamaContext, rule: BatchRule) -> None:
        self._context = context
        self.rule = rule

    def evaluate(
        self,
        steps: Mapping[int, Sequence[int]],
        ends: Mapping[int, int],
        wanted: Collection[tuple[int, int]],
        *,
        undo: Callable[[int], object] | None = None,
    ) -> dict[tuple[int, int], Logits]:
        """Append ``steps`` to sequences of lengths ``ends``. Logits stay valid until the next batch."""
        count = len(next(iter(steps.values())))
        window = self._window(min(steps), max(steps), count, ends)
        padding = (_PUBLIC_TOKEN,) * count
        rows = [(at, i, token) for at in window for i, token in enumerate(steps.get(at, padding))]
        missing = self.rule.outputs(len(wanted)) - len(wanted)
        outputs = {*wanted, *[(at, i) for at, i, _ in rows if (at, i) not in wanted][:missing]}
        try:
            self._context.decode([(token, ends.get(at, 0) + i, at, (at, i) in outputs) for at, i, token in rows])
        finally:
            for at in window:
                if at not in steps:
                    self._context.truncate(at, ends.get(at, 0)) if undo is None else undo(at)
        if not wanted:
            return {}
        found = zip(sorted(outputs), self._context.outputs(len(outputs)), strict=True)
        return {place: row for place, row in found if place in wanted}

    def _window(self, first: int, last: int, count: int, ends: Mapping[int, int]) -> range:
        """llama.cpp splits a batch at a gap."""
        width = self.rule.sequences(last - first + 1, count)
        starts = range(max(0, last - width + 1), min(first, self._context.sequences - width) + 1)
        start = min(reversed(starts), key=lambda start: sum(at in ends for at in range(start, start + width)))
        return range(start, start + width)
