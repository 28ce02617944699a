"""Scores labels and writes tokens on torch, one member at a time.

No tensor, padding or kernel depends on two members.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from langchain_dp._util.validate import one_of
from langchain_dp.ports import Continuation, MemberPrompt, Token

from .._engine import LocalEngine, T, Take, is_token, label_tokens, tail_tokens
from .evaluate import LoneEvaluator, MemberSequences
from .load import DTYPES, ends, from_folder, prepared
from .text import TokenizerTexts

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class TransformersEnsemble(LocalEngine):
    """Next tokens and label scores through one causal language model on torch.

    Implements ``ports.NextTokenVoter``, ``ports.LabelScorer`` and ``ports.NextTokenScorer``. Members are evaluated one
    at a time, each with its own key/value cache. Special tokens that a prompt spells are plain text.

    Args:
        model: Folder of a saved model, or a loaded causal language model, which is changed in place.
        tokenizer: The tokenizer of a loaded model.
        device: Device of torch, such as "cpu" or "cuda:0".
        dtype: Type of the weights: "float32", "bfloat16" or "float16".
        max_tokens: Longest sequence of one member, in tokens.
        cache_bytes: Bound of the kept keys and values in bytes, least recently used out.
        name: Name for certificates.

    Formal guarantees:
        A member's answer depends only on the model, the settings, its own prompt, written tokens and coin, and the
        public parameters of the call, to the last bit on a CPU with a fixed number of torch threads. On a GPU this
        holds as far as its kernels repeat themselves. A member that fails twice abstains. Exceptions hold no text of a
        call. Forgetting overwrites keys and values, except temporary tensors.

    Raises:
        InvalidParameter: A parameter is out of bounds, or the model or its tokenizer is unsuitable.
        MissingExtra: torch or transformers is not installed.

    Examples:
        >>> engine = TransformersEnsemble(folder, device="cuda:0", dtype="bfloat16")
        >>> chain = DPICLClassifier(model=engine, examples=examples, labels=labels, budget=PrivacyBudget(3.0))
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_tokens: int = 1024,
        cache_bytes: int = 2**30,
        name: str | None = None,
    ) -> None:
        super().__init__(max_tokens, cache_bytes)
        one_of("dtype", dtype, DTYPES)
        if isinstance(model, str | os.PathLike):
            kind, what = "AutoModelForCausalLM", "a causal language model"
            model, tokenizer = from_folder(os.fspath(model), tokenizer, kind, what, dtype=dtype)
        self._model = prepared(model, tokenizer, device, dtype)
        self.name = name or os.path.basename(str(model.config.name_or_path).rstrip("/")) or type(model).__name__
        # Beyond this length a rotary embedding may depend on another member's longest sequence.
        config = self._model.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None)
        self._check_trained_on(longest if isinstance(longest, int) else None)
        self._members = MemberSequences(LoneEvaluator(self._model), self._store)
        self._texts = TokenizerTexts(tokenizer, int(config.vocab_size), ends(self._model), max_tokens)
        self.vocabulary_size, self.end_tokens = self._texts.width, frozenset[Token](self._texts.ends)
        self.max_prompt_tokens = self._texts.max_prompt_tokens

    @property
    def chats(self) -> bool:
        """Return whether the tokenizer has a chat template."""
        return self._texts.chats

    def tokens_per_second(self) -> float:
        """Prompt tokens per second, measured now on public tokens."""
        with self._in_use():
            return self._members.evaluator.tokens_per_second()

    def bytes_per_token(self) -> int:
        """Bytes of the cache per token of one member."""
        with self._in_use():
            return self._members.evaluator.bytes_per_token

    def _count(self, text: str) -> int:
        return len(self._texts.plain(text))

    def _spelt(self, tokens: Sequence[int]) -> str:
        return self._texts.text(tokens)

    def _never(self) -> npt.NDArray[np.bool_]:
        return ~self._texts.allowed

    def _taken(self, asked: Sequence[Continuation], chat: bool, take: Take[T]) -> list[T | None]:
        frame = self._texts.frame(asked[0].prompt, chat)
        head = (asked[0].prompt.head, chat)

        def taken(one: Continuation) -> T | None:
            parts = self._texts.whole(one, frame, chat=chat)
            if parts is None or not all(is_token(token, self.vocabulary_size) for token in one.written):
                return None
            row = self._members.logits(head, one.prompt, parts)
            return take(row, [int(token) for token in one.written], one.draw)

        return [self._or_none(taken, one) for one in asked]

    def _scores(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], content_free: Sequence[str]
    ) -> list[list[float] | None]:
        labels = label_tokens(words, self._texts.plain)
        self._texts.check_head(prompts[0].head, max(map(len, labels)))
        head, tail = (prompts[0].head, False), prompts[0].tail
        tails = [tail_tokens(self._texts.plain(question), self._max_tokens) for question in (tail, *content_free)]
        key = (tuple(words), tuple(content_free))

        def row(prompt: MemberPrompt) -> list[float] | None:
            start = self._texts.beginning(prompt, max(map(len, labels)))
            if start is None:
                return None
            scores = self._members.scores(head, prompt, start, tails, labels, key)
            return [float(score) for score in scores] if np.isfinite(scores).all() else None

        return [self._or_none(row, prompt) for prompt in prompts]

    def _warm(self, prompts: Sequence[MemberPrompt]) -> None:
        def evaluate(prompt: MemberPrompt) -> None:
            start = self._texts.beginning(prompt, 1)
            if start:
                self._members.warm((prompt.head, False), prompt, start)

        for prompt in prompts:
            self._texts.check_head(prompt.head, 1)
            self._or_none(evaluate, prompt)

    def _or_none(self, evaluate: Callable[[Asked], Answer | None], member: Asked) -> Answer | None:
        """Retry once, after other members have left the memory."""
        with contextlib.suppress(Exception):
            return evaluate(member)
        self._store.clear()
        self._members.evaluator.give_back()
        with contextlib.suppress(Exception):  # of this member's own content: it abstains
            return evaluate(member)
        return None

    def _free(self) -> None:
        self._store.clear()
        self.__dict__.pop("_members", None)
        self.__dict__.pop("_model", None)
