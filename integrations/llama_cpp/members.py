"""Heads and members as states: from the store, or evaluated now."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

from langchain_dp.errors import LangChainDPError, ModelUnavailable
from langchain_dp.ports import MemberPrompt

from .._engine import body_digest, check_head
from .._store import BoundedStore
from .context import DecodeError, LlamaContext
from .evaluate import JointEvaluator, MemberState

_OPENINGS = 4
"""States of heads that are kept: public, and few at a time."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """Public beginning of every member's prompt.

    ``frame`` is the chat template's text before the head, in which special tokens count; None without a chat.
    """

    head: str
    frame: str | None = None


StateStore = BoundedStore[MemberState]


class MemberStates:
    """Finds or makes the state of a member: its head and body, evaluated alone."""

    def __init__(self, context: LlamaContext, evaluator: JointEvaluator, store: StateStore, max_tokens: int) -> None:
        self._context = context
        self._evaluator = evaluator
        self._store = store
        self._max_tokens = max_tokens
        self._openings: OrderedDict[Opening, MemberState] = OrderedDict()

    def state(self, opening: Opening, prompt: MemberPrompt, room: int) -> MemberState | None:
        """State of a member, evaluated in an emptied context if need be; None if longer than ``room`` or failed."""
        try:
            digest = body_digest(prompt)
            entry = self._store.get(opening, prompt.member, digest)
            if entry is None:
                start = self.opening(opening, room)
                body = self._context.tokenize(prompt.body)
                if start.tokens + len(body) > room:
                    return None
                entry = self._evaluator.extended(start, body, digest)
                self._store.put(opening, prompt.member, entry)
            return entry if entry.tokens <= room else None
        except LangChainDPError:  # of the head, which is public
            raise
        except Exception:  # whatever it is, it came from this member's content: it abstains, without a word
            return None

    def opening(self, opening: Opening, room: int, *, sequence: int | None = None) -> MemberState:
        """State of a head, evaluated if need be in ``sequence``, which is left empty, or in an emptied context."""
        tokens = self.opening_tokens(opening)
        check_head(len(tokens), room, self._max_tokens)
        if opening not in self._openings:
            nothing = MemberState.nothing()
            try:
                self._openings[opening] = self._evaluator.extended(nothing, tokens, b"", sequence=sequence)
                if sequence is not None:
                    self._context.truncate(sequence, 0)
            except DecodeError as problem:
                raise ModelUnavailable(f"llama.cpp could not evaluate the head (code {problem}).") from None
            while len(self._openings) > _OPENINGS:
                self._openings.popitem(last=False)
        self._openings.move_to_end(opening)
        return self._openings[opening]

    def opening_tokens(self, opening: Opening) -> list[int]:
        """Tokens of a head, with what the model wants at the beginning."""
        if opening.frame is None:
            return self._context.public(opening.head, start=True)
        # A template spells the token of beginning itself, where the model wants one.
        return self._context.public(opening.frame, special=True) + self._context.public(opening.head)

    def clear(self) -> None:
        """Drop the states of heads."""
        self._openings.clear()
