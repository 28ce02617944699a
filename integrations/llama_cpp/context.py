"""One llama.cpp model with one context."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util.extras import needs
from langchain_dp._util.machine import processors, unbroken
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import call_abandoned

from .._engine import Logits
from .threads import Threads

logger = logging.getLogger(__name__)

CELLS = 256
"""llama.cpp allocates cells in such steps."""

_HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_TURNS = "100"

State = npt.NDArray[np.uint8]
Row = tuple[int, int, int, bool]
"""Token, position, sequence, and whether logits are wanted."""


def import_llama(*, verbose: bool = False) -> Any:
    with needs("local", "llama-cpp-python"), _patience():
        import llama_cpp  # here, not above: the extra is optional and takes a second to load
    _without_tiles(llama_cpp.llama_cpp)
    # The library's C callback serves the whole process. Only its threshold is safe to move.
    if not verbose:
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)
    return llama_cpp


def _without_tiles(module: Any) -> None:
    """Intel's AMX crashes in GCC builds (llama.cpp, pull request 26954)."""
    given = module.llama_model_default_params
    if b"AMX_INT8 = 1" not in module.llama_print_system_info() or hasattr(given, "given"):
        return

    def plain() -> Any:
        params = given()
        params.use_extra_bufts = False
        return params

    plain.given = given  # type: ignore[attr-defined]
    module.llama_model_default_params = plain


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Make waiting OpenMP threads sleep: beside a busy process spinning is ten times slower."""
    if any(name in os.environ for name in _HOW_TO_WAIT):
        yield
        return
    os.environ[_HOW_TO_WAIT[0]] = _TURNS
    try:
        yield
    finally:
        os.environ.pop(_HOW_TO_WAIT[0], None)  # not for child processes


_ANCHOR = "\n"
_SENTINEL = "langchain-dp-user-turn"
LONGEST_RUN = 8_000
"""Longest run of one class of characters."""
_MARKS = r"!-/:-@\[-`{-~\u2000-\u206f\u3000-\u303f\uff01-\uff0f\uff1a-\uff20"
_RUNS = [re.compile(one) for one in (rf"[^\s\d{_MARKS}]+", r"\d+", r"\s+", r"[^\w\s]+", rf"[{_MARKS}]+")]


def too_long_a_run(text: str) -> bool:
    """Tokenizers recurse per character of a run, and may overflow the stack."""
    if len(text) <= LONGEST_RUN:
        return False
    return any(run.end() - run.start() > LONGEST_RUN for kind in _RUNS for run in kind.finditer(text))


class DecodeError(Exception):
    """llama.cpp refused a call. Carries no text."""


class LlamaContext:
    """A loaded model and ``sequences`` separate caches of ``cells`` tokens each.

    ``micro_batch`` bounds the rows of one computation. Exit frees the context under ``busy``.
    """

    def __init__(
        self,
        path: str,
        *,
        sequences: int = 1,
        cells: int = 512,
        micro_batch: int = 512,
        n_gpu_layers: int = 0,
        unified: bool = False,
        verbose: bool = False,
        busy: AbstractContextManager[Any] | None = None,
    ) -> None:
        if not os.path.isfile(path):
            raise InvalidParameter(f"Expected model_path={path!r} to be a GGUF file that exists. Check the path.")
        self.llama = llama = import_llama(verbose=verbose)
        llama.llama_backend_init()
        model_params = llama.llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = n_gpu_layers
        with unbroken():  # loading logs through Python, where exceptions get lost
            model = llama.llama_model_load_from_file(os.fsencode(path), model_params)
            if not model:
                raise InvalidParameter(
                    f"Expected model_path={path!r} to be a GGUF file that llama.cpp can load. If it was cut short, "
                    "fetch it again."
                )
            self.trained_on = int(llama.llama_model_n_ctx_train(model))
            self.micro_batch = micro_batch
            self.sequences = sequences
            params = llama.llama_context_default_params()
            params.n_ctx = sequences * (-(-cells // CELLS) * CELLS)
            params.n_seq_max = sequences
            params.n_batch = params.n_ubatch = micro_batch
            params.kv_unified = unified
            params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED  # fused kernels may split a row among threads
            params.n_threads = params.n_threads_batch = 1
            context = llama.llama_init_from_model(model, params)
            if not context:
                llama.llama_model_free(model)
                raise InvalidParameter(
                    f"Expected max_tokens={cells} and slots={sequences} to fit into memory. Make one of them smaller."
                )
            self._model, self._context = model, context
            self._vocab = llama.llama_model_get_vocab(model)
            self._memory = llama.llama_get_memory(context)
            self._batch = llama.llama_batch_init(micro_batch, 0, 1)
            self.vocabulary = int(llama.llama_vocab_n_tokens(self._vocab))
            self.generation = 0
            # finalize() runs before the interpreter's teardown, in which __del__ would crash.
            self._closing = threading.Event()
            self.threads = Threads(lambda count: llama.llama_set_n_threads(context, count, count))
            parts = (self._batch, context, model)
            self._free = weakref.finalize(self, _free, llama, parts, self._closing, busy or nullcontext())

    @property
    def closed(self) -> bool:
        return not self._free.alive

    def close(self) -> None:
        self._free()

    def tokenize(self, text: str, *, start: bool = False, special: bool = False) -> list[int]:
        """Special tokens count only with ``start`` or ``special``: a record must not end a turn."""
        if too_long_a_run(text):
            raise DecodeError(0)
        if start or special or self._markers is None:
            return self._read(text, start=start, special=start or special)
        return [token for part in self._markers.split(text) if part for token in self._read(part)]

    def public(self, text: str, **how: bool) -> list[int]:
        if too_long_a_run(text):
            raise InvalidParameter(
                f"Expected a text of {len(text):,} characters to have no run of more than {LONGEST_RUN:,} letters, "
                "digits, blanks or other marks. Break it up."
            )
        return self.tokenize(text, **how)

    def _read(self, text: str, *, start: bool = False, special: bool = False) -> list[int]:
        """Omit the blank that some models add."""
        if start or special or not self._anchor:
            return self._raw(text, start=start, special=special)
        return self._raw(f"{_ANCHOR}{text}")[len(self._anchor) :]

    @functools.cached_property
    def _anchor(self) -> list[int]:
        alone, both = self._raw(_ANCHOR), self._raw(f"{_ANCHOR}a")
        goes_on = both[: len(alone)] == alone and both[len(alone) :] != self._raw("a")
        return alone if goes_on else []

    def _raw(self, text: str, *, start: bool = False, special: bool = False) -> list[int]:
        raw = text.encode(errors="replace")  # a lone surrogate's exception would quote the text
        room = (ctypes.c_int32 * (len(raw) + 8))()
        count = self.llama.llama_tokenize(self._vocab, raw, len(raw), room, len(room), start, special)
        if count < 0:
            raise DecodeError(int(count))
        return list(room[:count])

    @functools.cached_property
    def _markers(self) -> re.Pattern[str] | None:
        """Cuts keep a text from spelling a marker of the template."""
        template = self.chat_template()
        if template is None:
            return None
        added = int(self.llama.LLAMA_TOKEN_ATTR_USER_DEFINED)
        texts = [
            (self.llama.llama_vocab_get_text(self._vocab, token) or b"").decode(errors="replace")
            for token in range(self.vocabulary)
            if int(self.llama.llama_vocab_get_attr(self._vocab, token)) & added
        ]
        cuts = [
            f"(?<={re.escape(text[0])})(?={re.escape(text[1:])})"
            for text in texts
            if len(text) > 1 and not text.isspace() and text in template
        ]
        return re.compile("|".join(cuts)) if cuts else None

    def decode(self, rows: Sequence[Row]) -> None:
        batch = self._batch
        mark = call_abandoned.get()
        if self._closing.is_set() or (mark is not None and mark.is_set()):  # at exit, or abandoned
            raise DecodeError(len(rows))
        if not 0 < len(rows) <= self.micro_batch:
            raise DecodeError(len(rows))
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        with self.threads.watched():
            code = self.llama.llama_decode(self._context, batch)
        if code != 0:
            raise DecodeError(int(code))

    def prefill(self, tokens: Sequence[int], *, first: int = 0, sequence: int = 0) -> None:
        for at in range(0, len(tokens), self.micro_batch):
            part = tokens[at : at + self.micro_batch]
            self.decode([(token, first + at + i, sequence, False) for i, token in enumerate(part)])

    def logits(self, row: int) -> Logits:
        pointer = self.llama.llama_get_logits_ith(self._context, row)
        if not pointer:
            raise DecodeError(row)
        return np.ctypeslib.as_array(pointer, (self.vocabulary,)).copy()

    def outputs(self, count: int) -> Logits:
        """Return a view, valid until the next batch."""
        pointer = self.llama.llama_get_logits(self._context)
        if not pointer:
            raise DecodeError(count)
        return np.ctypeslib.as_array(pointer, (count, self.vocabulary))

    def clear(self) -> None:
        self.llama.llama_memory_clear(self._memory, True)
        self.generation += 1

    def scrub(self, sequences: Sequence[int], *, source: int) -> None:
        """Overwrite sequences with the empty public ``source``."""
        for sequence in sequences:
            self.llama.llama_memory_seq_cp(self._memory, source, sequence, -1, -1)
        # Copies between separate caches wait for the next batch, which must come before a restore.
        self.decode([(0, 0, source, False), (0, 1, source, False)])
        for sequence in (source, *sequences):
            self.truncate(sequence, 0)

    def pieces(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._piece(token) for token in tokens)

    def _piece(self, token: int) -> bytes:
        room = ctypes.create_string_buffer(64)
        count = self.llama.llama_token_to_piece(self._vocab, token, room, len(room), 0, False)
        if count < 0:
            room = ctypes.create_string_buffer(-count)
            count = self.llama.llama_token_to_piece(self._vocab, token, room, len(room), 0, False)
        return room.raw[:count]

    @functools.cached_property
    def ends(self) -> frozenset[int]:
        return frozenset(token for token in range(self.vocabulary) if self.llama.llama_vocab_is_eog(self._vocab, token))

    @functools.cached_property
    def never(self) -> npt.NDArray[np.bool_]:
        """Mark control tokens that end no text."""
        llama = self.llama
        no_text = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN | llama.LLAMA_TOKEN_ATTR_UNUSED
        marks = (
            bool(llama.llama_vocab_get_attr(self._vocab, token) & no_text) and token not in self.ends
            for token in range(self.vocabulary)
        )
        return np.fromiter(marks, dtype=bool, count=self.vocabulary)

    @functools.cached_property
    def chat(self) -> tuple[str, str]:
        llama = self.llama
        begin, end = (
            llama.llama_vocab_get_text(self._vocab, token).decode(errors="replace") if token >= 0 else ""
            for token in (llama.llama_vocab_bos(self._vocab), llama.llama_vocab_eos(self._vocab))
        )
        return chat_parts(self.chat_template(), begin=begin, end=end)

    @functools.cached_property
    def chat_tokens(self) -> int:
        with contextlib.suppress(InvalidParameter):
            return sum(len(self.tokenize(part, special=True)) for part in self.chat)
        return 0

    def chat_template(self) -> str | None:
        source = self.llama.llama_model_chat_template(self._model, None)
        return None if source is None else str(source.decode(errors="replace"))

    def truncate(self, sequence: int, position: int) -> None:
        if not self.llama.llama_memory_seq_rm(self._memory, sequence, position, -1):
            raise DecodeError(position)

    def save(self, sequence: int = 0) -> State:
        size = self.llama.llama_state_seq_get_size(self._context, sequence)
        state = np.empty(size, np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if self.llama.llama_state_seq_get_data(self._context, pointer, size, sequence) != size:
            raise DecodeError(sequence)
        return state

    def restore(self, state: State, sequence: int = 0) -> None:
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if self.llama.llama_state_seq_set_data(self._context, pointer, state.size, sequence) != state.size:
            raise DecodeError(sequence)

    def prefill_speed(self, tokens: Sequence[int]) -> float:
        best = float("inf")
        for _ in range(2):
            self.clear()
            began = time.perf_counter()
            self.prefill(tokens)
            self.llama.llama_synchronize(self._context)  # until everything asked for is computed
            best = min(best, time.perf_counter() - began)
        self.clear()
        return len(tokens) / best

    def fastest_threads(self) -> int:
        most = processors()
        best, best_speed, count = 1, self._speed_with(1), 2
        while best >= count // 2 and count < 2 * most:
            measured = self._speed_with(min(count, most))
            # Fewer threads unless more are clearly faster: they slow down the rest of the machine.
            if measured > 1.1 * best_speed:
                best, best_speed = min(count, most), measured
            count *= 2
        logger.info("llama.cpp uses %d of %d threads (%.0f tokens/s of prefill)", best, most, best_speed)
        return best

    def _speed_with(self, threads: int) -> float:
        self.threads.use(threads)
        return self.prefill_speed(range(1, 1 + min(64, self.micro_batch)))


def chat_parts(template: str | None, *, begin: str, end: str) -> tuple[str, str]:
    """Return the public text before and after a user's turn. No turn can change it."""
    if template is None:
        raise InvalidParameter(
            "Expected the GGUF file to hold a chat template. Use chat=False, or an instruction-tuned model."
        )
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    try:
        formatter = Jinja2ChatFormatter(template=template, eos_token=end, bos_token=begin)
        rendered = formatter(messages=[{"role": "user", "content": _SENTINEL}]).prompt
        before, after = rendered.split(_SENTINEL)
    except Exception as problem:  # a template is a program, and may fail in any way
        raise InvalidParameter(
            f"Expected the chat template of the GGUF file to take one user turn ({type(problem).__name__}). "
            "Use chat=False."
        ) from None
    return before, after


def _free(llama: Any, parts: tuple[Any, Any, Any], closing: threading.Event, busy: AbstractContextManager[Any]) -> None:
    batch, context, model = parts
    closing.set()
    with busy:
        llama.llama_batch_free(batch)
        llama.llama_free(context)
        llama.llama_model_free(model)
