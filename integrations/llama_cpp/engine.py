"""Scores labels and writes tokens for many members at once on llama.cpp, each member as if it were alone.

Why what a member gets holds nothing of another member:

- every sequence has a cache of its own (``kv_unified=False``), overwritten with zeros or public numbers before it gets
  another occupant;
- head and body are evaluated alone, saved, and always continued from there, warm or cold;
- a joint batch holds the same number of rows of every member, in neighbouring sequences, fits into one micro-batch, and
  never computes or asks for a single row: in these cases llama.cpp's kernels, or its splitting of batches, depend on
  the company;
- that joint and lone evaluation agree to the last bit is checked on public text when the engine starts. Where they do
  not, and wherever layers are offloaded to a GPU (whose kernels go by shape), members are evaluated one by one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import NoReturn, Self

from langchain_dp.errors import InvalidParameter, ModelUnavailable, PrivateDataError
from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token

from .._choice import Choice
from .._emptied import emptied
from .company import company_is_harmless
from .context import CELLS, LlamaContext
from .evaluate import ROWS, Evaluator
from .labels import LabelScorer
from .members import Members
from .model_files import prepared_model_path
from .seats import Seats
from .store import Opening, StateStore
from .texts import Texts
from .writer import Writer

_LARGEST_BATCH = 2048
"""Rows of one batch at most: its working memory grows with them."""


class LlamaCppEnsemble:
    """Label scores and next tokens of many prompts through one local GGUF model.

    Implements ``ports.ScoresLabels`` and ``ports.VotesNextToken``. A prompt is head + body + tail, tokenised part by
    part. The cache of head and body is kept per member: a question then costs its own tokens only, and one more token
    of a text costs one row a member.

    Args:
        model_path: GGUF file; None is the embedded SmolLM2-135M-Instruct, prepared for this CPU on first use.
        n_gpu_layers: Layers to offload; -1 is all of them. Members are then evaluated one at a time.
        max_tokens: Longest head + body + tail + label of one member, in tokens; of a text that is written, one less.
        slots: Members that the model holds at once, 1 to 255. Each takes memory for the keys and values of
            ``max_tokens`` tokens (of the embedded model: 23 KB a token, 24 MB a slot of 1024), and so does one more
            slot, which is public. Writing with more members than slots works and swaps: with twice as many, a token
            took about one and a half times as long.
        cache_bytes: Bound of the member states kept beside the slots, in bytes; those used longest ago go first, and
            are evaluated anew when they are needed.
        n_threads: CPU threads; None measures which number is fastest at start-up and says so in the log.
        flash_attention: Use the fused attention kernels. On CPUs they wrote between a tenth faster and half slower
            where this was measured: try it on yours. Some models do not work with them.
        verbose: Let llama.cpp write its log to standard error.

    Formal guarantees:
        The row of scores of one member is a function of the model, the settings, its own head and body, the tail and
        the words; its next token is a function of the model, the settings, its own head, body and tail, its written
        tokens, its coin and the decoding. Both to the last bit of a logit: alone or in any company, warm or cold,
        asked at every token or only at some. A member whose evaluation fails, in whatever way, has none, and nothing
        is logged of it. Exceptions hold no text and no frame of what was asked.

    Raises:
        InvalidParameter: A parameter is out of bounds or the file cannot be loaded.
        MissingExtra: llama-cpp-python, or the embedded model if it is wanted, is not installed.
    """

    def __init__(
        self,
        *,
        model_path: str | None = None,
        n_gpu_layers: int = 0,
        max_tokens: int = 1024,
        slots: int = 16,
        cache_bytes: int = 2**30,
        n_threads: int | None = None,
        flash_attention: bool = False,
        verbose: bool = False,
    ) -> None:
        _whole("slots", slots, 1, 255)
        _whole("max_tokens", max_tokens, 16, 2**20)
        _whole("n_gpu_layers", n_gpu_layers, -1, 2**20)
        _whole("cache_bytes", cache_bytes, 0, 2**62)
        if n_threads is not None:
            _whole("n_threads", n_threads, 1, 4096)
        path = prepared_model_path() if model_path is None else model_path
        self._name = os.path.basename(path).removesuffix(".gguf")
        self._path = path
        self._sha256: str | None = None
        self._max_tokens = max_tokens
        self._lock = threading.RLock()  # the context is freed under it, also by close(), which holds it
        self._store = StateStore(cache_bytes)
        self._context = LlamaContext(
            path,
            sequences=slots + 1,  # one for the writer, which never holds anything private
            cells=max_tokens,
            micro_batch=max(min(slots * ROWS, _LARGEST_BATCH), CELLS),
            n_gpu_layers=n_gpu_layers,
            flash_attention=flash_attention,
            unified=self._UNIFIED,
            verbose=verbose,
            busy=self._lock,
        )
        if max_tokens > self._context.trained_on:
            trained_on = self._context.trained_on
            self._context.close()
            raise InvalidParameter(
                f"Expected max_tokens={max_tokens} to be at most {trained_on}, the length this model was trained on."
            )
        self._texts = Texts(self._context)
        self._evaluator = evaluator = Evaluator(self._context)
        self.n_threads = self._context.choose_threads(n_threads)
        alone = (
            slots == 1
            or n_gpu_layers != 0
            or not company_is_harmless(self._context, evaluator, slots=slots, max_tokens=max_tokens)
        )
        self._together = 1 if alone else min(slots, _LARGEST_BATCH // ROWS)
        evaluator.rooms = 1 if alone else slots
        self._members = Members(self._context, evaluator, self._store, max_tokens)
        parts = (self._context, evaluator, self._members, self._store)
        self._labels = LabelScorer(*parts, max_tokens=max_tokens, together=self._together)
        self._seats = Seats(*parts, 1 if alone else slots)
        self._writer = Writer(self._context, self._seats, self._store)

    _UNIFIED = False
    """Never True but in the test that shows why."""

    @property
    def name(self) -> str:
        """Name of the model, for certificates: its file name without the ending."""
        return self._name

    def file_sha256(self) -> str:
        """SHA-256 of the model file, in hexadecimal: read once, at the first call."""
        if self._sha256 is None:
            with open(self._path, "rb") as file:
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self._sha256

    def tokens_per_second(self) -> float:
        """Tokens of a prompt evaluated per second, measured now on public ones. Members leave the model's memory.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            self._seats.put_away()
            return self._evaluator.tokens_per_second(self._max_tokens)

    def measure_threads(self) -> int:
        """Measure anew which number of threads is fastest, take it and return it: after another process came or went.

        It changes how long an evaluation takes and no bit of it. Members leave the model's memory.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            self._seats.put_away()
            self.n_threads = self._context.choose_threads(None)
            return self.n_threads

    def bytes_per_token(self) -> int:
        """Bytes of the cache that one token of one member takes.

        Raises:
            ModelUnavailable: The engine is closed.
        """
        with self._lock:
            self._check_open()
            self._seats.put_away()
            return self._evaluator.bytes_per_token(self._max_tokens)

    @property
    def max_tail_tokens(self) -> int:
        """Longest question in tokens: half of ``max_tokens``, whatever the members hold."""
        return self._labels.max_tail_tokens

    @property
    def members_together(self) -> int:
        """Members in one batch of questions: ``slots`` up to 64, or 1 where company would change bits."""
        return self._together

    @property
    def cached_bytes(self) -> int:
        """Bytes of member states kept now, at most ``cache_bytes``. PRIVATE: it shows how many subsets were drawn.

        For measurements by whoever may see the records; never log, print or serve it beside released answers.
        """
        return self._store.bytes

    @emptied
    def count_tokens(self, text: str) -> int:
        """Number of the model's tokens in ``text``, without the special tokens of a beginning."""
        with self._lock:
            self._check_open()
            return len(self._context.tokenize(text))

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
            ModelUnavailable: The engine is closed, or the public head cannot be evaluated.
        """
        with self._lock:
            self._check_open()
            if not prompts:
                return []
            _, tail = _common(prompts)
            self._seats.put_away()
            return self._labels.scores(prompts, tail, words, content_free)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens of the model."""
        return self._context.vocabulary

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Tokens that end a text. Other control tokens are never taken."""
        with self._lock:
            self._check_open()
            return self._texts.ends

    @property
    def max_prompt_tokens(self) -> int:
        """Longest head + body + tail + written of one member: ``max_tokens``, less the chat template and one."""
        with self._lock:
            self._check_open()
            return self._max_tokens - 1 - self._texts.chat_tokens

    @emptied
    def detokenise(self, tokens: Sequence[Token]) -> str:
        """Text of ``tokens``, which this engine wrote. Control tokens are no text; broken UTF-8 becomes U+FFFD."""
        with self._lock:
            self._check_open()
            return self._texts.spelt(tokens)

    @emptied
    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> list[Token | None]:
        """Next token of every member, in order; None where a member could not be evaluated (it abstains).

        Members stay in the model's memory between calls, ``slots`` of them: a further token then costs one row a
        member. Others wait in the store, as far as ``cache_bytes`` holds them.

        Args:
            asked: Members to ask, each with its own written tokens; heads and tails are equal within one call.
            decoding: How a token is taken from the distribution.

        Raises:
            InvalidParameter: A rule of ``decoding`` is out of bounds; ``decoding.chat`` and the model carries no chat
                template; heads or tails differ; a tail is empty.
            ModelUnavailable: The engine is closed, or the public head cannot be evaluated.
        """
        with self._lock:
            self._check_open()
            choice = Choice(decoding, self._texts.never)
            if not asked:
                return []
            head, tail = _common([one.prompt for one in asked])
            ending, limit = self._context.tokenize(tail), self.max_prompt_tokens
            if not ending:
                raise InvalidParameter("Expected a tail of at least one token. Put the end of the head there.")
            opening = Opening(head)
            if decoding.chat:
                chat = self._texts.chat()
                opening = Opening(head, chat.before)
                ending += self._context.tokenize(chat.after, special=True)
                limit += self._texts.chat_tokens
            return list(self._writer.next_tokens(opening, asked, ending, limit, choice))

    @emptied
    def forget(self, *members: Hashable) -> None:
        """Overwrite and drop everything of these members, in the store and in the model's own memory."""
        with self._lock:
            self._store.forget(members)
            if not self._context.closed:
                self._seats.forget(members)
                self._seats.put_away()
                self._context.clear()

    @emptied
    def warm(self, prompts: Sequence[MemberPrompt]) -> None:
        """Evaluate head and body of these members, as far as ``cache_bytes`` holds them.

        A member that cannot be evaluated stays cold, and abstains when it is asked.

        Raises:
            InvalidParameter: The public head is too long.
            ModelUnavailable: The engine is closed, or the public head cannot be evaluated.
        """
        with self._lock:
            self._check_open()
            self._seats.put_away()
            for prompt in prompts:
                try:
                    self._labels.member(prompt)
                finally:
                    self._store.wipe_put_out()

    def close(self) -> None:
        """Drop every state and free the model. Further calls raise ModelUnavailable."""
        with self._lock:
            self._store.clear()
            self._members.clear()
            self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LlamaCppEnsemble({self._name!r}, <private>)"  # how many members are cached tells how many were drawn

    def __reduce__(self) -> NoReturn:
        raise PrivateDataError(
            "A LlamaCppEnsemble holds private caches and cannot be pickled or copied. Build it anew."
        )

    def _check_open(self) -> None:
        if self._context.closed:
            raise ModelUnavailable("This LlamaCppEnsemble is closed. Build a new one.")


def _common(prompts: Sequence[MemberPrompt]) -> tuple[str, str]:
    head, tail = prompts[0].head, prompts[0].tail
    if any(prompt.head != head or prompt.tail != tail for prompt in prompts):
        raise InvalidParameter(
            "Expected prompts of one call to have equal heads and equal tails. Ask in several calls."
        )
    return head, tail


def _whole(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidParameter(f"Expected {name}={value!r} to be a whole number in [{low}, {high}].")
