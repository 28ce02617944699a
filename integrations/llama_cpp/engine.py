"""Scores labels and writes tokens on llama.cpp, each member as if alone.

- Every sequence has its own cache, overwritten before its next occupant.
- Head and body are evaluated alone, and continued from their saved state.
- A joint batch holds equally many rows of every member, in neighboring sequences, within one micro-batch.
- Public rows pad it to a size that passed a check at start-up. Otherwise members go one by one.
- Only numbers of threads with equal bits at start-up are used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from langchain_dp._util.validate import integer
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, MemberPrompt, Token

from .._engine import Calibration, LocalEngine, Part, T, Take, check_public, label_tokens, tail_tokens
from .batch_check import checked_evaluator, threads_alike
from .context import CELLS, LlamaContext
from .evaluate import ROWS, MemberState, MemberStates, Opening, StateStore, sequences_for
from .model_files import prepared_model_path
from .threads import steps_below
from .writer import Slots, Writer

_LARGEST_BATCH = 2048
_SAMPLED = 256  # tokens on which speed and appetite are measured


class LlamaCppEnsemble(LocalEngine):
    """Label scores and next tokens of many prompts through one local GGUF model.

    Implements ``ports.LabelScorer``, ``ports.NextTokenVoter`` and ``ports.NextTokenScorer``. Head and body are cached
    per member: a question costs its own tokens only.

    Args:
        model_path: GGUF file. None is the embedded SmolLM2-135M-Instruct, prepared for this CPU on first use.
        n_gpu_layers: Layers to offload. -1 is all of them.
        max_tokens: Longest head + body + tail + label of one member, in tokens.
        slots: Members in memory at once, 1 to 255, each with ``max_tokens`` tokens (embedded model: 23 KB per token).
            More members swap.
        cache_bytes: Bound of the member states beside the slots, in bytes, least recently used out.
        n_threads: Most CPU threads. None measures the fastest number at start-up. Fewer compute while the machine is
            busy.
        verbose: Let llama.cpp write its log to standard error.

    Formal guarantees:
        A member's scores depend only on the model, the settings, its own head and body, the tail and the words. Its
        next token depends only on the model, the settings, its own prompt, written tokens and coin, and the decoding.
        Both hold to the last bit, alone or in any company, warm or cold. A member that fails abstains. Exceptions hold
        no text.

    Raises:
        InvalidParameter: A parameter is out of bounds or the file cannot be loaded.
        MissingExtra: llama-cpp-python, or the embedded model if needed, is not installed.

    Examples:
        >>> engine = LlamaCppEnsemble()  # the embedded model
        >>> chain = DPICLClassifier(model=engine, examples=examples, labels=labels, budget=PrivacyBudget(3.0))
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
        verbose: bool = False,
    ) -> None:
        super().__init__(max_tokens, cache_bytes)
        integer("slots", slots, at_least=1, at_most=255)
        integer("n_gpu_layers", n_gpu_layers, at_least=-1, at_most=2**20)
        if n_threads is not None:
            integer("n_threads", n_threads, at_least=1, at_most=4096)
        self.is_embedded = model_path is None
        self._path = prepared_model_path() if model_path is None else model_path
        self.name = os.path.basename(self._path).removesuffix(".gguf")
        self._sha256: str | None = None
        self._store: StateStore
        self._context = LlamaContext(
            self._path,
            sequences=sequences_for(slots),  # those beyond the slots never hold anything private
            cells=max_tokens,
            micro_batch=max(min(slots * ROWS, _LARGEST_BATCH), CELLS),
            n_gpu_layers=n_gpu_layers,
            unified=self._UNIFIED,
            verbose=verbose,
            busy=self._lock,  # the context is freed under it, also by close(), which holds it
        )
        try:
            self._check_trained_on(self._context.trained_on)
        except InvalidParameter:
            self._context.close()
            raise
        self.vocabulary_size = self._context.vocabulary
        self.n_threads = n_threads or self._context.fastest_threads()
        self._context.threads.use(self.n_threads)
        # Threads wait where a GPU computes, also for a model on the CPU.
        on_threads = n_gpu_layers == 0 and not self._context.llama.llama_supports_gpu_offload()
        self._evaluator = evaluator = checked_evaluator(
            self._context, slots=slots, max_tokens=max_tokens, offloaded=n_gpu_layers != 0
        )
        alone = not evaluator.rule.together
        self._together = 1 if alone else min(slots, _LARGEST_BATCH // ROWS)
        evaluator.rooms = 1 if alone else slots
        self._members = MemberStates(self._context, evaluator, self._store)
        if on_threads:
            fewer = threads_alike(
                self._context, evaluator, steps_below(self.n_threads), together=self._together, max_tokens=max_tokens
            )
            self._context.threads.use(self.n_threads, fewer)
        self._slots = Slots(self._context, evaluator, self._members, self._store, evaluator.rooms)
        self._writer = Writer(self._context, self._slots, self._store)

    _UNIFIED = False
    """True only in a test."""

    def file_sha256(self) -> str:
        """SHA-256 of the model file, in hexadecimal."""
        if self._sha256 is None:
            with open(self._path, "rb") as file:
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self._sha256

    @property
    def end_tokens(self) -> frozenset[Token]:  # type: ignore[override]  # read when the engine is open
        """Tokens that end a text."""
        with self._in_use():
            return self._context.ends

    @property
    def chats(self) -> bool:
        """Return whether the model has a chat template for one user turn."""
        with self._in_use():
            return self._context.chat_tokens > 0

    @property
    def max_prompt_tokens(self) -> int:  # type: ignore[override]
        """Longest head + body + tail + written of one member, in tokens."""
        with self._in_use():
            return self._max_tokens - 1 - self._context.chat_tokens

    def _is_closed(self) -> bool:
        return self._context.closed  # also when the interpreter exits

    def tokens_per_second(self) -> float:
        """Prompt tokens per second, measured now on public tokens."""
        with self._in_use():
            self._slots.put_away()
            return self._context.prefill_speed(range(1, 1 + min(_SAMPLED, self._max_tokens)))

    def bytes_per_token(self) -> int:
        """Bytes of the cache per token of one member."""
        with self._in_use():
            self._slots.put_away()
            count = min(_SAMPLED, self._max_tokens)
            public = self._evaluator.extended(MemberState.nothing(), range(1, 1 + count), b"")
            return -(-public.state.size // count)

    def _count(self, text: str) -> int:
        return len(self._context.public(text))

    def _spelt(self, tokens: Sequence[int]) -> str:
        return self._context.pieces(tokens).decode(errors="replace")

    def _never(self) -> npt.NDArray[np.bool_]:
        return self._context.never

    def _taken(self, asked: Sequence[Continuation], chat: bool, take: Take[T]) -> list[T | None]:
        head, tail = asked[0].prompt.head, asked[0].prompt.tail
        ending, limit = self._context.public(tail), self.max_prompt_tokens
        if not ending:
            raise InvalidParameter("Expected a tail of at least one token. Put the end of the head there.")
        opening = Opening(head)
        if chat:
            before, after = self._context.chat
            opening = Opening(head, before)
            ending += self._context.tokenize(after, special=True)
            limit += self._context.chat_tokens
        ending += self._context.public(asked[0].prompt.response_prefix)
        check_public(len(self._members.opening_tokens(opening)) + len(ending), limit)
        return self._writer.next_tokens(opening, asked, ending, limit, take)

    def _scores(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], content_free: Sequence[str]
    ) -> list[list[float] | None]:
        self._slots.put_away()
        labels = label_tokens(words, self._context.public)
        question = self._tail(prompts[0].tail)
        free = [self._tail(text) for text in content_free]
        key = (tuple(words), tuple(content_free))
        rows: list[list[float] | None] = []
        for at in range(0, len(prompts), self._together):
            group = prompts[at : at + self._together]
            try:
                members = [self._member(prompt, max(map(len, labels))) for prompt in group]
                rows += self._rows(members, question, free, labels, key)
            finally:
                self._store.wipe_put_out()
        return rows

    def _member(self, prompt: MemberPrompt, most: int = 1) -> MemberState | None:
        # One more cell pads a batch of a single row.
        room = self._max_tokens - self._max_tokens // 2 - most - 1
        return self._members.state(Opening(prompt.head), prompt, room)

    def _tail(self, text: str) -> Part:
        return tail_tokens(self._context.public(text), self._max_tokens)

    def _rows(
        self,
        members: Sequence[MemberState | None],
        question: Part,
        free: Sequence[Part],
        labels: Sequence[Part],
        key: Calibration,
    ) -> list[list[float] | None]:
        calibrate = [m for m in members if m is not None and free and key not in m.calibrations]
        for member, mean in zip(calibrate, self._evaluator.mean_log(calibrate, free, labels), strict=True):
            if mean is not None:
                member.calibrations[key] = mean
        usable = [m for m in members if m is not None and (not free or key in m.calibrations)]
        answers = iter(self._evaluator.answers(usable, question, labels))
        rows: list[list[float] | None] = []
        for asked in members:
            if asked is None or (free and key not in asked.calibrations):
                rows.append(None)
                continue
            answer = next(answers)
            if answer is not None and free:
                answer = answer - asked.calibrations[key]
            rows.append(None if answer is None else [float(score) for score in answer])
        return rows

    def _drop(self, members: Sequence[Hashable]) -> None:
        super()._drop(members)
        if not self._context.closed:
            self._slots.forget(members)
            self._slots.put_away()
            self._context.clear()

    def _warm(self, prompts: Sequence[MemberPrompt]) -> None:
        self._slots.put_away()
        for prompt in prompts:
            try:
                self._member(prompt)
            finally:
                self._store.wipe_put_out()

    def _free(self) -> None:
        self._store.clear()
        self._members.clear()
        self._context.close()
