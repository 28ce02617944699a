"""Texts and prompt parts of one tokenizer: private text spells no special token."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, MemberPrompt

from .._engine import ENDS, Part, check_public

_SENTINEL = "QUESTIONANDEXAMPLES"


class TokenizerTexts:
    """One tokenizer, and its prompts of at most ``max_tokens``. ``width`` is the number of logits."""

    def __init__(self, tokenizer: Any, width: int, ends: Iterable[int], max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._template = getattr(tokenizer, "chat_template", None)
        self.width = width
        if len(tokenizer) > width:
            raise InvalidParameter(
                f"Expected a tokenizer of {len(tokenizer)} tokens to have at most {width}, as many as the model "
                "has logits. Give the model's own tokenizer."
            )
        added = tokenizer.added_tokens_decoder
        self._control = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        self.ends = frozenset({*ends, *(i for i in self._control if str(tokenizer.convert_ids_to_tokens(i)) in ENDS)})
        self.allowed: npt.NDArray[np.bool_] = np.zeros(width, np.bool_)
        self.allowed[: len(tokenizer)] = True
        self.allowed[sorted(self._control - self.ends)] = False
        for i in self._control - {tokenizer.unk_token_id}:
            if i in self.plain(tokenizer.convert_ids_to_tokens(i)):
                raise InvalidParameter(
                    "Expected the tokenizer to support split_special_tokens=True. It reads special tokens in plain "
                    "text, so that a record could end a turn. Use a fast tokenizer."
                )
        plain, whole = self.plain("a"), list(tokenizer("a", verbose=False)["input_ids"])
        self.start = whole[: next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)]
        self._anchor = plain
        longest = max(len(self.start), sum(map(len, self.turn)) if self._template else 0)
        self._max_tokens, self.max_prompt_tokens = max_tokens, max_tokens - longest

    @property
    def chats(self) -> bool:
        return bool(self._template)

    def plain(self, text: str) -> list[int]:
        """Special tokens are plain text."""
        # A lone surrogate's exception would quote the text, and verbose tokenizers print lengths.
        whole = text.encode(errors="replace").decode()
        return list(
            self._tokenizer(whole, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        )

    @functools.cached_property
    def turn(self) -> tuple[list[int], list[int]]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise InvalidParameter("Expected chat=True only with a tokenizer that carries a chat template. Drop it.")
        rendered = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": _SENTINEL}], tokenize=False, add_generation_prompt=True
        )
        before, found, after = rendered.partition(_SENTINEL)
        if not found or _SENTINEL in after:
            raise InvalidParameter("Expected the chat template to hold the text of a turn once. Set chat=False.")
        return self._special(before), self._special(after)

    def _special(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []

    def text(self, tokens: Sequence[int]) -> str:
        shown = [token for token in tokens if token not in self._control]
        # Some tokenizers drop the blank of a first word.
        anchor = self._decoded(self._anchor)
        return self._decoded([*self._anchor, *shown])[len(anchor) :]

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def frame(self, prompt: MemberPrompt, chat: bool) -> tuple[Part, Part]:
        before, after = self.turn if chat else (self.start, ())
        opening, ending = self._plain(prompt.head), self._plain(prompt.tail)
        if not ending:
            raise InvalidParameter("Expected a tail of at least one token. Put the end of the head there.")
        check_public(len(opening) + len(ending), self.max_prompt_tokens)
        return (*before, *opening), (*ending, *after, *self._plain(prompt.response_prefix))

    def check_head(self, head: str, label_tokens: int) -> None:
        room = self._max_tokens - self._max_tokens // 2 - label_tokens
        check_public(len(self.start) + len(self._plain(head)), room, "a head")

    def whole(self, one: Continuation, frame: tuple[Part, Part], *, chat: bool) -> list[Part] | None:
        body, written = self._plain(one.prompt.body), [int(token) for token in one.written]
        added = sum(map(len, self.turn)) if chat else len(self.start)
        if len(frame[0]) + len(body) + len(frame[1]) + len(written) - added > self.max_prompt_tokens:
            return None
        return [part for part in (frame[0], body, frame[1], *((token,) for token in written)) if part]

    def beginning(self, prompt: MemberPrompt, label_tokens: int) -> list[Part] | None:
        parts = [(*self.start, *self._plain(prompt.head)), self._plain(prompt.body)]
        fits = sum(map(len, parts)) <= self._max_tokens - self._max_tokens // 2 - label_tokens
        return [part for part in parts if part] if fits else None

    def _plain(self, text: str) -> Part:
        return tuple(self.plain(text))
