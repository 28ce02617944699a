"""The parts of a prompt: which tokens are evaluated by one call, and whether they are too many."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, MemberPrompt

from .members import Part
from .text import Texts


class Prompts:
    """Prompts of one tokenizer within one length.

    Args:
        texts: The tokenizer.
        max_tokens: Longest sequence in tokens, whatever is in it.
    """

    def __init__(self, texts: Texts, max_tokens: int) -> None:
        self._texts = texts
        self._max_tokens = max_tokens
        self.max_tail_tokens = max_tokens // 2
        self.max_prompt_tokens = max_tokens - texts.frame

    def frame(self, asked: Sequence[Continuation], chat: bool) -> tuple[Part, Part]:
        """Tokens before and after the members' own bodies.

        Raises:
            InvalidParameter: Heads or tails differ, or there is no tail.
        """
        head, tail = common([one.prompt for one in asked])
        before, after = self._texts.turn() if chat else (self._texts.start, ())
        opening, ending = self._plain(head), self._plain(tail)
        if not ending:
            raise InvalidParameter("Expected a tail of at least one token. Put the end of the head there.")
        return (*before, *opening), (*ending, *after)

    def whole(self, one: Continuation, frame: tuple[Part, Part], *, chat: bool) -> list[Part] | None:
        """All parts of a member; None if they are too long."""
        body, written = self._plain(one.prompt.body), [int(token) for token in one.written]
        added = sum(map(len, self._texts.turn())) if chat else len(self._texts.start)
        if len(frame[0]) + len(body) + len(frame[1]) + len(written) - added > self.max_prompt_tokens:
            return None
        return [part for part in (frame[0], body, frame[1], *((token,) for token in written)) if part]

    def start(self, prompt: MemberPrompt, label_tokens: int) -> list[Part] | None:
        """Parts up to the tail; None if they leave no room for a question of any allowed length and a label."""
        parts = [(*self._texts.start, *self._plain(prompt.head)), self._plain(prompt.body)]
        fits = sum(map(len, parts)) <= self._max_tokens - self.max_tail_tokens - label_tokens
        return [part for part in parts if part] if fits else None

    def tail(self, text: str) -> Part:
        """Tokens of a question.

        Raises:
            InvalidParameter: They are none, or too many.
        """
        tokens = self._plain(text)
        if not 0 < len(tokens) <= self.max_tail_tokens:
            raise InvalidParameter(
                f"Expected a question of {len(tokens)} tokens to have 1 to {self.max_tail_tokens}, half of "
                f"max_tokens={self._max_tokens}. Shorten it, or raise max_tokens."
            )
        return tokens

    def labels(self, words: Sequence[str]) -> list[Part]:
        """First tokens of the words, if they differ; else all tokens of all of them.

        Raises:
            InvalidParameter: Words are not distinct or empty.
        """
        labels = [self._plain(word) for word in words]
        if not labels or not all(labels) or len(set(labels)) < len(labels):
            raise InvalidParameter(f"Expected words={list(words)!r} to be distinct, with at least one token each.")
        if len({label[0] for label in labels}) == len(labels):
            return [label[:1] for label in labels]
        return labels

    def _plain(self, text: str) -> Part:
        return tuple(self._texts.plain(text))


def common(prompts: Sequence[MemberPrompt]) -> tuple[str, str]:
    """Head and tail of all prompts.

    Raises:
        InvalidParameter: They differ.
    """
    head, tail = prompts[0].head, prompts[0].tail
    if any(prompt.head != head or prompt.tail != tail for prompt in prompts):
        raise InvalidParameter(
            "Expected prompts of one call to have equal heads and equal tails. Ask in several calls."
        )
    return head, tail
