"""Check at start-up: whether members of one batch leave each other's bits alone, on this machine with this model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from langchain_dp.ports import Continuation, MemberPrompt

from .._choice import Logits
from .._engine import body_digest
from .context import CELLS, LlamaContext
from .evaluate import ROWS, JointEvaluator, MemberState
from .members import MemberStates, Opening, StateStore
from .slots import Slots
from .writer import Writer

logger = logging.getLogger(__name__)

_TEXT = "The market opens at eight. Bread is sold near the gate, fruit by the well, and cloth under the arches. "
_OPENING = Opening("")


def company_is_harmless(context: LlamaContext, evaluator: JointEvaluator, *, slots: int, max_tokens: int) -> bool:
    """Whether public members get bit-identical logits alone and together: short rows and long, near and far, late.

    Args:
        context: The model.
        evaluator: Its arithmetic.
        slots: Members in one batch.
        max_tokens: Longest member.
    """
    tokens = context.tokenize(_TEXT * 40, start=True)
    room = max_tokens // 2 - 3
    empty = MemberState.nothing()
    lengths = (min(9, room), min(CELLS + 8, room))
    members = [evaluator.extended(empty, tokens[:length], b"") for length in lengths]
    harmless = _scoring(evaluator, members, tokens, slots, max_tokens) and _writing(
        context, evaluator, members, tokens, slots, max_tokens
    )
    context.clear()
    if not harmless:
        logger.warning("Joint evaluation changes bits on this machine: members are evaluated one at a time.")
    return harmless


def _scoring(
    evaluator: JointEvaluator, members: Sequence[MemberState], tokens: list[int], slots: int, max_tokens: int
) -> bool:
    for rows in (min(ROWS, max_tokens // 2), 1):
        crowd = [members[i % 2] for i in range(min(slots, 3 if rows > 1 else 64))]
        tail = tokens[1 : 1 + rows]
        together = evaluator.vectors(crowd, tail)
        lone = [evaluator.vectors([member], tail)[0] for member in members]
        if any(not np.array_equal(row, lone[i % 2]) for i, row in enumerate(together)):
            return False
    return True


def _writing(
    context: LlamaContext,
    evaluator: JointEvaluator,
    members: Sequence[MemberState],
    tokens: list[int],
    slots: int,
    max_tokens: int,
) -> bool:
    """A full house, token by token; then both kinds alone, and some with gaps between them, late."""
    prompts = [MemberPrompt("", f"{i}", "", i) for i in range(slots)]
    longest = max(member.tokens for member in members)
    rows = min(6, max_tokens - longest - 4)
    written = tuple(tokens[rows : rows + 2])

    def logits(calls: Sequence[tuple[Sequence[int], int]]) -> dict[int, Logits]:
        store = StateStore(2**62)
        for i, prompt in enumerate(prompts):
            kind = members[i % 2]
            store.put(_OPENING, i, MemberState(kind.state, kind.tokens, body_digest(prompt)))
        found = MemberStates(context, evaluator, store, max_tokens)
        writer = Writer(context, Slots(context, evaluator, found, store, slots), store)
        seen: dict[int, Logits] = {}
        for places, count in calls:
            asked = [Continuation(prompts[i], written[:count], 0.0) for i in places]
            rows_found = writer.next_tokens(_OPENING, asked, tokens[:rows], max_tokens - 1, _copied)
            seen |= {place: row for place, row in zip(places, rows_found, strict=True) if row is not None}
        return seen

    everybody = range(slots)
    crowd = logits([(everybody[:3], 0), (everybody, 1), (everybody, 2)])
    alone: dict[int, Logits] = {}
    for i in everybody[:2]:
        alone |= logits([([i], 1), ([i], 2)])
    scattered = [i for i in everybody[:5] if i != 1]
    late = logits([(everybody[:5], 0), (scattered, 2)])
    if len(crowd) < slots or len(alone) < 2 or len(late) < len(everybody[:5]):
        return False
    return all(np.array_equal(crowd[i], alone[i % 2]) for i in everybody) and all(
        np.array_equal(crowd[i], late[i]) for i in scattered
    )


def _copied(logits: Logits, written: Sequence[int], draw: float) -> Logits:
    return logits.copy()
