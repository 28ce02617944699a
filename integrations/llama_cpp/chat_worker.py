"""Loads a model for chat, and answers one call at a time."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import dataclasses
import json
import os
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import numpy as np
from langchain_core.messages.ai import UsageMetadata

from langchain_dp.errors import InvalidParameter, ModelUnavailable, PrivateDataError
from langchain_dp.ports import call_abandoned

from .context import LONGEST_RUN, import_llama, too_long_a_run
from .model_files import EMBEDDED, prepared_model_path
from .tool_calls import check_renders_tools


@dataclasses.dataclass(frozen=True, repr=False)
class ChatRequest:
    """One call: model, conversation and sampling."""

    model_path: str | None
    n_ctx: int
    n_gpu_layers: int
    n_threads: int | None
    verbose: bool
    messages: list[dict[str, Any]]
    stop: tuple[str, ...]
    temperature: float
    top_p: float
    max_tokens: int
    logprobs: bool
    seed: int | None
    tools: list[dict[str, Any]] | None = None
    grammar: str | None = None

    @property
    def model(self) -> tuple[Any, ...]:
        return (self.model_path, self.n_ctx, self.n_gpu_layers, self.n_threads, self.verbose)


@dataclasses.dataclass(frozen=True, repr=False)
class Piece:
    """A part of an answer. The last one has the usage."""

    text: str
    logprobs: list[dict[str, Any]]
    finish_reason: str | None = None
    usage: UsageMetadata | None = None

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Piece:
        logprobs = [entry for piece in pieces for entry in piece.logprobs]
        return Piece("".join(piece.text for piece in pieces), logprobs, pieces[-1].finish_reason, pieces[-1].usage)


class CallAbandoned:
    """Abandonment by a call's reader or a timeout."""

    def __init__(self) -> None:
        self._own = threading.Event()
        self._around = call_abandoned.get()

    def set(self) -> None:
        self._own.set()

    def is_set(self) -> bool:
        return self._own.is_set() or (self._around is not None and self._around.is_set())


class LoadedChat:
    """A model behind a lock, shared by copies.

    At exit the answer stops first: a thread inside llama.cpp would crash the process.
    """

    def __init__(self) -> None:
        self._exiting = threading.Event()
        self._lock = threading.Lock()
        self._model: tuple[Any, ...] | None = None
        self._llama: Any = None
        self._formatter: Any = None

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise PrivateDataError(
            "A ChatLlamaCpp holds a model that is loaded in this process and cannot be pickled. Build another one from "
            "its model_path in the other process."
        )

    def close(self) -> None:
        with self._lock:
            self._unload()

    def _unload(self) -> None:
        if self._llama is not None:
            self._llama.close()
        self._llama = self._formatter = self._model = None

    def leave(self) -> None:
        self._exiting.set()
        self.close()

    def answer(self, request: ChatRequest, put: Callable[[Piece], None], call_abandoned: CallAbandoned) -> None:
        """Pass every piece to ``put`` until ``call_abandoned``."""

        def go_on() -> None:
            if call_abandoned.is_set() or self._exiting.is_set():
                raise ModelUnavailable("The call was given up before its answer was complete. Ask again.")

        with self._ready(request, go_on):
            _Answer(self._llama, self._checked_prompt(request), request).run(put, go_on)

    def token_ids(self, text: str, request: ChatRequest) -> list[int]:
        with self._ready(request):
            return self._tokens(text, special=True)

    def count(self, request: ChatRequest) -> int:
        with self._ready(request):
            return len(self._prompt(request))

    def check_prompt(self, request: ChatRequest) -> None:
        with self._ready(request):
            self._checked_prompt(request)

    def check_tools(self, request: ChatRequest) -> None:
        with self._ready(request):
            self._check_tools(request)

    def _check_tools(self, request: ChatRequest) -> None:
        name = EMBEDDED if request.model_path is None else os.path.basename(request.model_path)
        check_renders_tools(lambda messages, tools: self._formatter(messages=messages, tools=tools).prompt, name)

    @contextlib.contextmanager
    def _ready(self, request: ChatRequest, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        with self._lock:
            check()
            if self._model != request.model:
                self._unload()
                self._load(request)
            yield

    def _load(self, request: ChatRequest) -> None:
        module = import_llama(verbose=request.verbose)
        if not _LOADED:
            atexit.register(_leave_all)
        _LOADED.add(self)
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        try:
            llama = module.Llama(
                model_path=prepared_model_path() if request.model_path is None else request.model_path,
                n_ctx=request.n_ctx,
                n_gpu_layers=request.n_gpu_layers,
                n_threads=request.n_threads,
                n_threads_batch=request.n_threads,
                verbose=request.verbose,
            )
        except ValueError:
            raise InvalidParameter(
                f"Expected model_path={request.model_path!r} to be a GGUF file that llama.cpp can load, and "
                f"n_ctx={request.n_ctx} to fit into memory."
            ) from None
        import_llama(verbose=request.verbose)  # the constructor above moved the threshold of the log
        template = llama.metadata.get("tokenizer.chat_template")
        if template is None:
            llama.close()
            raise InvalidParameter("Expected the GGUF file to hold a chat template. Use an instruction-tuned model.")
        bos, eos = (
            llama._model.token_get_text(token) if token >= 0 else "" for token in (llama.token_bos(), llama.token_eos())
        )
        self._formatter = Jinja2ChatFormatter(template=template, eos_token=eos, bos_token=bos)
        self._llama, self._model = llama, request.model

    def _checked_prompt(self, request: ChatRequest) -> list[int]:
        tokens = self._prompt(request)
        if len(tokens) >= request.n_ctx:
            raise InvalidParameter(
                f"Expected a prompt of {len(tokens)} tokens to leave room for an answer in n_ctx={request.n_ctx}. "
                "Shorten it, or raise n_ctx."
            )
        return tokens

    def _prompt(self, request: ChatRequest) -> list[int]:
        """A template marker inside a message ends no turn."""
        messages: list[dict[str, Any]] = request.messages
        contents: dict[str, str] = {}
        if request.tools:
            self._check_tools(request)
        described = [json.dumps(part) for part in (request.tools or [], *(one.get("tool_calls") for one in messages))]
        if any(self._tokens(text) != self._tokens(text, special=True) for text in described):
            raise InvalidParameter(
                "Expected tools and calls of tools to spell no marker of the model's chat template. Take it out of "
                "their names, descriptions and arguments."
            )
        if any(self._tokens(one["content"]) != self._tokens(one["content"], special=True) for one in messages):
            contents = {secrets.token_hex(16): one["content"] for one in messages}
            messages = [{**one, "content": name} for one, name in zip(messages, contents, strict=True)]
        formatted = self._formatter(messages=messages, tools=request.tools)
        parts = re.split(f"({'|'.join(contents)})", formatted.prompt) if contents else [formatted.prompt]
        if contents and not contents.keys() <= set(parts):
            raise InvalidParameter(
                "Expected the model's chat template to repeat every message word by word, where one spells a marker of "
                "it. Take such markers out of the messages."
            )
        tokens: list[int] = []
        for place, part in enumerate(parts):
            begins = place == 0 and not formatted.added_special
            tokens += self._tokens(contents.get(part, part), begins=begins, special=part not in contents)
        return tokens

    def _tokens(self, text: str, *, begins: bool = False, special: bool = False) -> list[int]:
        if too_long_a_run(text):
            raise InvalidParameter(
                f"Expected messages to have no run of more than {LONGEST_RUN:,} letters, digits, blanks or other "
                "marks. Break it up."
            )
        raw = text.encode(errors="replace")  # a lone surrogate's exception would quote the text
        return list(self._llama.tokenize(raw, add_bos=begins, special=special))


_LOADED: weakref.WeakSet[LoadedChat] = weakref.WeakSet()


def _leave_all() -> None:
    for loaded in list(_LOADED):
        loaded.leave()


class _Answer:
    """One answer. llama-cpp-python's own stream may quote the prompt."""

    def __init__(self, llama: Any, prompt: list[int], request: ChatRequest) -> None:
        self._llama = llama
        self._module = import_llama(verbose=request.verbose)
        self._prompt = prompt
        self._request = request
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # text that may begin a stop string

    def run(self, put: Callable[[Piece], None], go_on: Callable[[], None]) -> None:
        request, llama = self._request, self._llama
        llama.reset()  # an earlier prompt's prefix would show in the last bits
        # Nor its keys and values, which are masked by 0: 0 times infinity is no number.
        self._module.llama_memory_clear(self._module.llama_get_memory(llama._ctx.ctx), True)
        llama.set_seed(secrets.randbits(32) if request.seed is None else request.seed)
        room = min(request.max_tokens, request.n_ctx - len(self._prompt))
        produced, reason = 0, "length"
        sampled = llama.generate(
            self._prompt, top_k=0, top_p=request.top_p, min_p=0.0, temp=request.temperature, grammar=self._grammar()
        )
        for token in sampled:
            go_on()
            produced += 1
            if self._module.llama_vocab_is_eog(llama._model.vocab, token):
                reason = "stop"
                break
            raw = llama.detokenize([token], special=False)
            logprobs = [self._logprob(token, raw)] if request.logprobs else []
            text, stopped = self._released(self._bytes.decode(raw))
            if text or logprobs:
                put(Piece(text, logprobs))
            if stopped:
                reason = "stop"
                break
            if produced >= room:
                break
        else:
            reason = "stop"
        rest = self._held + self._bytes.decode(b"", final=True)
        self._held = ""
        count = len(self._prompt)
        usage = UsageMetadata(input_tokens=count, output_tokens=produced, total_tokens=count + produced)
        put(Piece(rest, [], reason, usage))

    def _grammar(self) -> Any:
        text = self._request.grammar
        if text is None:
            return None
        # llama-cpp-python ignores this null pointer, and the process dies.
        sampler = self._module.llama_sampler_init_grammar(self._llama._model.vocab, text.encode(), b"root")
        if not sampler:
            raise InvalidParameter(
                "Expected the schema to become a grammar that llama.cpp can read. Use plain types, enums, lists and "
                "nested objects."
            )
        self._module.llama_sampler_free(sampler)
        return self._module.LlamaGrammar.from_string(text, verbose=False)

    def _released(self, new: str) -> tuple[str, bool]:
        text = self._held + new
        found = [at for at in (text.find(end) for end in self._request.stop) if at >= 0]
        if found:
            self._held = ""
            self._bytes.reset()
            return text[: min(found)], True
        keep = max((_overlap(text, end) for end in self._request.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def _logprob(self, token: int, raw: bytes) -> dict[str, Any]:
        # The generator yields before it evaluates the token, so the context still holds what it was drawn from.
        pointer = self._module.llama_get_logits_ith(self._llama._ctx.ctx, -1)
        logits = np.ctypeslib.as_array(pointer, (self._llama.n_vocab(),)).astype(np.float64)
        top = float(logits.max())
        value = float(logits[token] - top - np.log(np.exp(logits - top).sum()))
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": value}


def _overlap(text: str, end: str) -> int:
    return next((n for n in range(min(len(end) - 1, len(text)), 0, -1) if text.endswith(end[:n])), 0)
