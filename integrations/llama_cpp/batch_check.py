"""Checks at start-up that company and threads change no bit."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from langchain_dp.ports import Continuation, MemberPrompt

from .._engine import Logits, body_digest
from .context import CELLS, LlamaContext
from .evaluate import (
    ALONE,
    EIGHTS,
    PAIRS,
    ROWS,
    JointEvaluator,
    MemberState,
    MemberStates,
    Opening,
    StateStore,
    fixed_shape,
)
from .writer import Slots, Writer

logger = logging.getLogger(__name__)

_TEXT = "The market opens at eight. Bread is sold near the gate, fruit by the well, and cloth under the arches. "
_OPENING = Opening("")
_TAILS = (1, 2, 3, 5, EIGHTS.multiple + 1, ROWS)
_LABEL = 5
"""Up to so many tokens the logits of all are compared."""
_CROWD = 3
_THREADED, _FAR = 65, 2 * CELLS + 8
"""Kernels may split long sequences among threads."""
_FEW = 9
_MOST = 64


def checked_evaluator(context: LlamaContext, *, slots: int, max_tokens: int, offloaded: bool) -> JointEvaluator:
    fixed = fixed_shape(context.sequences)
    for rule in () if slots == 1 else (fixed,) if offloaded else (PAIRS, EIGHTS, fixed):
        evaluator = JointEvaluator(context, rule)
        if company_is_harmless(context, evaluator, slots=slots, max_tokens=max_tokens):
            logger.info("Members of one batch leave each other's bits alone with %s.", rule.name)
            return evaluator
        logger.info("Members of one batch change each other's bits with %s.", rule.name)
    if slots > 1:
        logger.warning("Joint evaluation changes bits on this machine: members are evaluated one at a time.")
    return JointEvaluator(context, ALONE)


def company_is_harmless(context: LlamaContext, evaluator: JointEvaluator, *, slots: int, max_tokens: int) -> bool:
    tokens = context.tokenize(_TEXT * 40, start=True)
    room = max_tokens // 2 - 3
    empty = MemberState.nothing()
    lengths = (min(9, room), min(CELLS + 8, room))
    members = [evaluator.extended(empty, tokens[:length], b"") for length in lengths]
    harmless = _scoring(evaluator, members, tokens, slots, max_tokens) and _writing(
        context, evaluator, members, tokens, slots, max_tokens
    )
    context.clear()
    return harmless


def threads_alike(
    context: LlamaContext, evaluator: JointEvaluator, counts: Sequence[int], *, together: int, max_tokens: int
) -> list[int]:
    """Return numbers of threads with the same bits: the clock decides the number."""
    tokens = context.tokenize(_TEXT * 40, start=True)
    room = max_tokens // 2 - 3
    tail = tokens[1 : 1 + min(ROWS, room)]
    now, nothing = context.threads.most, MemberState.nothing()

    def bits(count: int, far: MemberState) -> list[bytes]:
        context.threads.use(count)
        context.clear()
        near = evaluator.extended(nothing, tokens[: min(_THREADED, room)], b"")
        tried = ((near, tail[:1]), (near, tail), (far, tail[:1]))
        crowds = {1, min(together, _CROWD)}
        rows = [
            row for member, asked in tried for crowd in crowds for row in evaluator.vectors([member] * crowd, asked)
        ]
        return [near.state.tobytes(), *(row.tobytes() for row in rows)]

    if not counts:
        return []
    try:
        far = evaluator.extended(nothing, tokens[: min(_FAR, max_tokens - len(tail) - 1)], b"")
        expected = bits(now, far)
        return [count for count in counts if bits(count, far) == expected]
    finally:
        context.threads.use(now)
        context.clear()


def _scoring(
    evaluator: JointEvaluator, members: Sequence[MemberState], tokens: list[int], slots: int, max_tokens: int
) -> bool:
    rule = evaluator.rule
    seen: set[int] = set()
    for rows in _TAILS:
        count = min(rows, max_tokens // 2)
        if seen.issuperset(rule.pieces(count)):
            continue
        seen.update(rule.pieces(count))
        tail = tokens[1 : 1 + count]
        every = rows <= _LABEL
        lone = [evaluator.vectors([member], tail, every=every)[0] for member in members]
        sizes = {rule.sequences(n, 1): n for n in (*range(1, _FEW + 1), min(slots, _MOST)) if n <= slots}
        for crowd in sorted(sizes.values()) if rows == 1 else range(2, min(slots, _CROWD) + 1) if every else [2]:
            together = evaluator.vectors([members[i % 2] for i in range(crowd)], tail, every=every)
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
    """Compare all slots with lone, late and scattered members."""
    prompts = [MemberPrompt("", f"{i}", "", i) for i in range(slots)]
    longest = max(member.tokens for member in members)
    rows = min(6 if evaluator.rule.multiple == 1 else 2, max_tokens - longest - 4)  # longer tails take long
    written = tuple(tokens[rows : rows + 2])

    def logits(calls: Sequence[tuple[Sequence[int], int]]) -> dict[int, Logits]:
        store = StateStore(2**62)
        for i, prompt in enumerate(prompts):
            kind = members[i % 2]
            store.put(_OPENING, i, MemberState(kind.state, kind.tokens, body_digest(prompt)))
        found = MemberStates(context, evaluator, store)
        writer = Writer(context, Slots(context, evaluator, found, store, slots), store)
        seen: dict[int, Logits] = {}
        for places, count in calls:
            asked = [Continuation(prompts[i], written[:count], 0.0) for i in places]
            rows_found = writer.next_tokens(_OPENING, asked, tokens[:rows], max_tokens - 1, lambda row, *_: row.copy())
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
