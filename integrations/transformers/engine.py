"""Scores labels and writes tokens for many members on torch, one member at a time.

Why a member's logits hold nothing of another member: no tensor ever holds two of them. There is no batch, hence no
padding, no mask over others and no kernel that is picked by the company. Every sequence is evaluated in the same parts
(head, body, tail, each written token), each by a call of its own, so that a cache that was dropped and built again
holds the same bits. The price is speed: members wait for each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import numpy as np

from langchain_dp._util.validate import integer, one_of
from langchain_dp.errors import InvalidParameter, ModelUnavailable, PrivateDataError
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token

from .._choice import Choice, is_token
from .._emptied import emptied
from .evaluate import Evaluator
from .load import DTYPES, ends, from_folder, from_gguf, prepared, trained_on, width
from .members import Members
from .prompts import Prompts, common
from .store import MemberStore
from .text import Texts

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class TransformersEnsemble:
    """Next tokens and label scores through one causal language model on torch.

    Implements ``ports.VotesNextToken`` and ``ports.ScoresLabels``. Members are evaluated one at a time, each with a
    key/value cache of its own, never in padded batches. A prompt is head + body + tail, tokenised part by part;
    special tokens that are spelt out in them are plain text.

    Args:
        model: Folder of a saved model, or a loaded causal language model, which is moved, cast and put into evaluation
            mode in place.
        tokenizer: The tokenizer of a loaded model; None loads it from the folder.
        device: Where torch evaluates, as in "cpu" or "cuda:0".
        dtype: Type of the weights: "float32", "bfloat16" or "float16". Tokens are drawn in float64 whatever it is.
        max_tokens: Longest sequence of one member (head + body + tail + what is written, or a label), in tokens.
        cache_bytes: Bound of the kept keys and values in bytes; members used longest ago go first.
        name: Name for certificates; None takes that of the folder, or of what the model was loaded from.

    Formal guarantees:
        What a member gets is a function of the model, the settings, its own prompt, its written tokens, its coin and
        the public parameters of the call, to the last bit on a CPU with a fixed number of torch threads: alone or in
        any company, warm or cold. On a GPU the same holds as far as its kernels repeat themselves. A member whose
        evaluation fails, in whatever way, abstains, and nothing is logged of it. Exceptions hold no text and no frame
        of what was asked. Forgetting overwrites keys and values; what torch used for a moment while it computed, and
        token numbers held by Python, are freed without that.

    Raises:
        InvalidParameter: A parameter is out of bounds, or the model or its tokenizer does not serve.
        MissingExtra: torch or transformers is not installed.
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
        one_of("dtype", dtype, DTYPES)
        integer("max_tokens", max_tokens, at_least=16, at_most=2**20)
        integer("cache_bytes", cache_bytes, at_least=0)
        if isinstance(model, str | os.PathLike):
            model, tokenizer = from_folder(os.fspath(model), tokenizer, dtype)
        self._model = prepared(model, tokenizer, device, dtype)
        self._name = name or os.path.basename(str(model.config.name_or_path).rstrip("/")) or type(model).__name__
        # A rotary embedding that stretches with the longest sequence seen so far would carry one member's length to
        # the next; it does so beyond this length only.
        longest = trained_on(self._model)
        if longest is not None and max_tokens > longest:
            raise InvalidParameter(
                f"Expected max_tokens={max_tokens} to be at most {longest}, the length this model was trained on."
            )
        self._lock = threading.RLock()
        self._store = MemberStore(cache_bytes)
        self._members = Members(Evaluator(self._model), self._store)
        self._texts = Texts(tokenizer, width(self._model), ends(self._model))
        self._prompts = Prompts(self._texts, max_tokens)
        self._closed = False

    @classmethod
    def from_gguf(cls, path: str, *, tokenizer: Any = None, **options: Any) -> Self:
        """Load the weights of a GGUF file, unpacked to the dtype, and rebuild its tokenizer.

        For comparing engines on the same weights, and for models that come as such a file only. Files of the Llama
        architecture (also SmolLM2 and Mistral) with the pre-tokenisers "smollm" and "gpt-2".

        Args:
            path: GGUF file.
            tokenizer: The model's own tokenizer, for files whose pre-tokeniser is another.
            options: ``device``, ``dtype``, ``max_tokens``, ``cache_bytes`` and ``name``, as of the class.

        Raises:
            InvalidParameter: The file is none of those, or a parameter is out of bounds.
            MissingExtra: torch, transformers or gguf is not installed.
        """
        model, own = from_gguf(path, tokenizer)
        return cls(model, own, **{"name": os.path.basename(path).removesuffix(".gguf"), **options})

    @property
    def name(self) -> str:
        """Name of the model, for certificates."""
        return self._name

    @property
    def vocabulary_size(self) -> int:
        """Number of logits of the model."""
        return self._texts.width

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Tokens that end a text: those of the model's configuration, and control tokens that end a turn."""
        return frozenset(self._texts.ends)

    @property
    def max_prompt_tokens(self) -> int:
        """Longest head + body + tail + written of one member: ``max_tokens`` less the chat template."""
        return self._prompts.max_prompt_tokens

    @property
    def max_tail_tokens(self) -> int:
        """Longest question in tokens: half of ``max_tokens``, whatever the members hold."""
        return self._prompts.max_tail_tokens

    @property
    def cached_bytes(self) -> int:
        """Bytes of keys and values kept now, at most ``cache_bytes``. PRIVATE: it shows how many members were drawn.

        For measurements by whoever may see the records; never log, print or serve it beside released answers.
        """
        return self._store.bytes

    def tokens_per_second(self) -> float:
        """Tokens of a prompt evaluated per second, measured now on public ones.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            return self._members.evaluator.tokens_per_second()

    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token of one member takes.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            return self._members.evaluator.bytes_per_token

    @emptied
    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in ``text``, without the special tokens of a beginning."""
        with self._lock:
            self._check_open()
            return len(self._texts.plain(text))

    @emptied
    def detokenise(self, tokens: Sequence[Token]) -> str:
        """Text of ``tokens``; control tokens have none. Broken UTF-8 at the ends becomes U+FFFD."""
        with self._lock:
            self._check_open()
            if not all(is_token(token, self.vocabulary_size) for token in tokens):
                raise InvalidParameter(
                    f"Expected tokens to be whole numbers in [0, {self.vocabulary_size - 1}]. "
                    "Take them from the engine that wrote them."
                )
            return self._texts.text([int(token) for token in tokens])

    @emptied
    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """Next token of every member, in order.

        A token is drawn by the inverse of the cumulative distribution in the order of token numbers, in float64.

        Args:
            asked: Members to ask, each with its own written tokens; heads and tails are equal within one call.
            decoding: How a token is taken from the distribution.

        Returns:
            A token per member, or None for one that is too long for ``max_tokens`` or whose evaluation failed.

        Raises:
            InvalidParameter: A rule of ``decoding`` is out of bounds; ``decoding.chat`` and the tokenizer carries no
                chat template; heads or tails differ; a tail is empty.
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            choice = Choice(decoding, ~self._texts.allowed)
            if not asked:
                return []
            frame = self._prompts.frame(asked, decoding.chat)
            head = (asked[0].prompt.head, decoding.chat)

            def token(one: Continuation) -> int | None:
                parts = self._prompts.whole(one, frame, chat=decoding.chat)
                if parts is None or not all(is_token(token, self.vocabulary_size) for token in one.written):
                    return None
                row = self._members.logits(head, one.prompt, parts)
                return choice.token(row, [int(token) for token in one.written], one.draw)

            return [_or_none(token, one) for one in asked]

    @emptied
    def score_labels(
        self,
        prompts: Sequence[MemberPrompt],
        words: Sequence[str],
        *,
        content_free: Sequence[str] = (),
    ) -> list[list[float] | None]:
        """Log-scores of ``words`` after each prompt: one row a prompt, one column a word.

        Words are read exactly as they follow the tail: after a tail that ends in "Sentiment:" pass " positive", with
        its space. If their first tokens differ, a word's score is the log-softmax over those first tokens; if two
        collide, every word is scored by all its tokens, and the log-softmax is over the words.

        Args:
            prompts: Members to ask; heads and tails are equal within one call.
            words: Label words, distinct.
            content_free: Tails without a question. When given, the log of the mean label probability after them, under
                the same member, is subtracted (contextual calibration, Zhao et al. 2021); computed once a member.

        Returns:
            A row per prompt, or None for a member that is too long for ``max_tokens`` or whose evaluation failed.

        Raises:
            InvalidParameter: Words are not distinct or empty; heads or tails differ; a tail is empty or longer than
                :attr:`max_tail_tokens`.
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            if not prompts:
                return []
            labels = self._prompts.labels(words)
            head, tail = common(prompts)
            tails = [self._prompts.tail(question) for question in (tail, *content_free)]
            key = (tuple(words), tuple(content_free))

            def row(prompt: MemberPrompt) -> list[float] | None:
                start = self._prompts.start(prompt, max(map(len, labels)))
                if start is None:
                    return None
                scores = self._members.scores((head, False), prompt, start, tails, labels, key)
                return [float(score) for score in scores] if np.isfinite(scores).all() else None

            return [_or_none(row, prompt) for prompt in prompts]

    @emptied
    def forget(self, *members: Hashable) -> None:
        """Overwrite and drop everything that is kept of these members."""
        with self._lock:
            self._store.forget(members)

    @emptied
    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Evaluate head and body of these members, as far as ``cache_bytes`` holds them.

        A member that cannot be evaluated stays cold, and abstains when it is asked.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()

            def evaluate(prompt: MemberPrompt) -> None:
                start = self._prompts.start(prompt, 1)
                if start:
                    self._members.warm((prompt.head, False), prompt, start)

            for prompt in prompts:
                _or_none(evaluate, prompt)

    def close(self) -> None:
        """Overwrite every kept state and let go of the model. Further calls raise ModelUnavailable."""
        with self._lock:
            self._store.clear()
            self._closed = True
            self.__dict__.pop("_members", None)
            self.__dict__.pop("_model", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TransformersEnsemble({self._name!r}, <private>)"  # how many are cached tells how many were drawn

    def __reduce__(self) -> NoReturn:
        raise PrivateDataError(
            "A TransformersEnsemble holds private caches and cannot be pickled or copied. Build it anew."
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ModelUnavailable("This TransformersEnsemble is closed. Build a new one.")


def _or_none(evaluate: Callable[[Asked], Answer | None], member: Asked) -> Answer | None:
    try:
        return evaluate(member)
    except Exception:  # whatever it is, it came from this member's content: it abstains, without a word
        return None
