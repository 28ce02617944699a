"""A model that is called without a trace.

A quiet call closes callbacks and config of the outer run, tracers (environment variable, parent run, ``@traceable``),
handlers and caches of every model inside, the global cache, log records and warnings of the provider's client, and
exception texts. Nothing of it reaches ``astream_events`` of the outer chain.

:mod:`langchain_dp.isolation.accept` lists the models that are accepted. Certificates name a class of the user's own
that declares ``keeps_no_prompts: ClassVar[bool] = True``, and the parts that ``trust_opaque_model=True`` lets pass.

Limits, which cannot be closed from here:

- code inside the model that prints, writes files, logs outside ``logging``, or traces by force
  (``@traceable(enabled=True)``), and spans that an OpenTelemetry instrumentation of the provider's client makes
- threads that such code starts without copying the context, and errors in objects that are freed later
- a memory of the model's server, or of the client of an installed library (an HTTP client with a cache)
- ``set_debug(True)`` in another thread in the middle of a call
- the time that calls take. A shared model may let a long prompt slow down other calls until they time out, use up a
  rate limit, or bring the server down. Then one record moves more than one vote, or ends a release. Give no timeout,
  or one that no healthy call reaches beside the longest record, and a rate limit that leaves room for every call at
  once (or retries that outlast it).
- Ctrl-C in an event loop without a SIGINT handler of its own (``asyncio.run`` has one) may hit the model's own code,
  and is then that call's abstention

A model that answers one call after the other declares ``serializes_calls: ClassVar[bool] = True``. Such a model takes
no timeout: the time spent waiting for other members' prompts would count.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManager
from langchain_core.runnables import RunnableConfig

from langchain_dp._util import validate
from langchain_dp._util.fair_semaphore import FairSemaphore
from langchain_dp._util.reprs import safe_repr
from langchain_dp.errors import InvalidParameter, ModelUnavailable, UnsafeEnvironment
from langchain_dp.isolation.accept import DECLARATION, survey
from langchain_dp.isolation.calls import Outcome, aask_all, ask_all, in_thread
from langchain_dp.isolation.context import find_problem, hooked, sealed_copy
from langchain_dp.redact import interruption

CALLS = 16
"""Calls under way at once, unless another number is given."""
_SHARES = (
    "{} is one llama.cpp context, asked one call after the other: each goes on from what its prompt shares with the "
    "one before, whose length may so change the last bits of an answer. ChatLlamaCpp of "
    "langchain_dp.integrations.llama_cpp starts every call afresh."
)
_TRUSTED = "trust_opaque_model=True: the model is opaque. That it keeps nothing of its prompts is not checked in:"
_DECLARED = f"{DECLARATION}=True: these model classes declare that they keep nothing of their prompts. Not checked:"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a PUBLIC call has no answer.

    Args:
        reason: Type of the exception, its status, and its text where that tells nothing of other calls.
    """

    reason: str


class IsolatedModel:
    """A model whose calls are seen by nobody but the model.

    Answers are as the model gives them, or as ``read`` makes them. A call that fails or takes too long gives None: the
    prompt abstains, so that one record can move one vote and no more. The exception is dropped, of whatever kind it is
    (also SystemExit, KeyboardInterrupt, CancelledError and GeneratorExit raised by the model); its text goes nowhere.
    Each prompt is a call of its own, because a joint batch lets the length of one prompt change the answer to another.
    Certificates give its ``name``, which is never an address or a key.

    Args:
        llm: A chat model, an LLM, or a Runnable around one. It is not changed.
        max_concurrency: Calls under way at once, over all batches, threads and event loops. A call that ran out of
            time does not count, though its thread lives on until the model returns; nor do calls inside a call, which
            would wait for themselves.
        trust_opaque_model: Whether parts that are not on the allow-list are taken at the caller's word.
        read: What is made of each answer, in its call and as unseen as that: where it raises, the prompt abstains.

    Raises:
        InvalidParameter: ``model`` is no Runnable, or a bound is not met.
        UnsafeEnvironment: ``model`` keeps its prompts (a message history, a graph with a checkpointer or a store), or
            has a part that is neither on the allow-list nor trusted.
    """

    def __init__(
        self,
        llm: Any,
        *,
        max_concurrency: int = CALLS,
        trust_opaque_model: bool = False,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> None:
        validate.integer("max_concurrency", max_concurrency, at_least=1)
        validate.one_of("trust_opaque_model", trust_opaque_model, (True, False))
        found = survey(llm)
        self._runnable, self._read = llm, read
        self.name, self._blocks = found.name(llm), found.blocks()
        opaque, declared = ", ".join(found.opaque[:5]), ", ".join(found.declared[:5])
        if found.memory is not None:
            raise UnsafeEnvironment(found.memory)
        if opaque and not trust_opaque_model:
            raise UnsafeEnvironment(
                f"The model has parts that are not on the list of known models: {opaque}. One call may see the prompt "
                f"of another there. Pass the chat model alone. Or declare `{DECLARATION}: ClassVar[bool] = True` in a "
                "class of your own, or set trust_opaque_model=True, if these parts keep nothing of their prompts: "
                "certificates say so."
            )
        # The package's own model has a lock and starts every call afresh.
        shares = found.shares and found.serializes is None
        self._serializes = self.name if shares else found.serializes
        self.notes: tuple[str, ...] = (
            *((_SHARES.format(self.name),) if shares else ()),
            *((f"{_TRUSTED} {opaque}",) if opaque else ()),
            *((f"{_DECLARED} {declared}",) if declared else ()),
        )
        self._places = FairSemaphore(1 if shares else max_concurrency)

    @property
    def at_once(self) -> int:
        """Calls that may be under way at once; 1 where the model answers one after the other."""
        return self._places.count if self._serializes is None else 1

    def check_timeout(self, timeout: float | None) -> None:
        """Refuse a timeout that calls of this model could not keep alone. Every call checks it, too.

        Raises:
            InvalidParameter: It is not above zero; or the model, or one inside it, has ``serializes_calls = True``, so
                that one member's long prompt would use up the time of the others.
        """
        if timeout is None:
            return
        validate.number("timeout", timeout, above=0.0, remedy="Give seconds, or None to wait for the model.")
        if self._serializes is not None:
            raise InvalidParameter(
                f"Expected timeout={timeout!r} to be None: {self._serializes} answers one call after the other, so "
                "that one record's long prompt would let other calls expire. Leave the timeout out."
            )

    @safe_repr
    def __repr__(self) -> str:
        return f"IsolatedModel({self.name})"

    def batch(
        self, prompts: Sequence[Any], *, timeout: float | None = None, public: int = 0, checked: bool = False
    ) -> list[Any | None]:
        """Ask every prompt (a list of messages, or a str) and return the answers in order, None for an abstention.

        Args:
            prompts: Private prompts.
            timeout: Seconds that one call may take, from its start. None waits as long as the model does, and is the
                choice that lets no call depend on another; see the module's limits and :meth:`check_timeout`.
            public: So many of the first prompts are PUBLIC, and started first: they show whether the model answers.
                Where one fails, a :class:`Failure` stands in place of its answer, and says what it got.
            checked: Whether the caller has just called :func:`check_environment`. Each call looks for debug mode again.

        Raises:
            InvalidParameter: A bound is not met, or the model cannot keep a timeout.
            UnsafeEnvironment: See :func:`check_environment`.
            KeyboardInterrupt, SystemExit, CancelledError: The caller's own only (Ctrl-C, a signal, cancellation of
                its task), emptied of text and of the calls' frames.
        """
        self.check_timeout(timeout)
        batch = _Batch(len(prompts), public, checked)
        if batch.stop is None:
            with batch.sealed() as context:
                ask = functools.partial(self._ask, batch)
                batch.answers, batch.stop = ask_all(ask, prompts, places=self._places, timeout=timeout, context=context)
        if (stop := batch.stop) is not None:
            # Error reporters read the locals of each frame.
            del prompts, batch
            raise stop from None
        return batch.finish(timeout)

    async def abatch(
        self,
        prompts: Sequence[Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # seconds for each call, not for all
        public: int = 0,
        checked: bool = False,
    ) -> list[Any | None]:
        """Async twin of :meth:`batch`: uses the model's own async methods where it has them."""
        self.check_timeout(timeout)
        batch = _Batch(len(prompts), public, checked)
        if batch.stop is None:
            with batch.sealed() as context:
                ask = functools.partial(self._aask, batch)
                batch.answers, batch.stop = await aask_all(
                    ask, prompts, places=self._places, patience=timeout, context=context
                )
        if (stop := batch.stop) is not None:
            del prompts, batch
            raise stop from None
        return batch.finish(timeout)

    def probe(self, prompt: Any, *, timeout: float | None = None, times: int = 1) -> Any:
        """Ask a PUBLIC prompt, before any spend, and return the answer.

        Args:
            prompt: The prompt.
            timeout: As of :meth:`batch`.
            times: How often it is asked at the same time; :attr:`at_once` shows that the model's server takes so many.
                Calls that failed where others did not are asked once more, among themselves.

        Raises:
            ModelUnavailable: The model failed; with type and first 200 characters of its exception, and how many of the
                calls it answered.
            UnsafeEnvironment: As for :meth:`batch`.
        """
        answers = self.batch([prompt] * times, timeout=timeout, public=times)
        again = _some_failed(answers)  # by chance, perhaps
        return self._probed(answers, self.batch([prompt] * again, timeout=timeout, public=again) if again else answers)

    async def aprobe(
        self,
        prompt: Any,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # as in probe
        times: int = 1,
    ) -> Any:
        """Async twin of :meth:`probe`."""
        answers = await self.abatch([prompt] * times, timeout=timeout, public=times)
        again = _some_failed(answers)
        more = await self.abatch([prompt] * again, timeout=timeout, public=again) if again else answers
        return self._probed(answers, more)

    def _probed(self, answers: Sequence[Any], repeated: Sequence[Any]) -> Any:
        """An answer; ``repeated`` are those to the calls that failed, asked once more, where not all of them did."""
        failed = [answer for answer in repeated if isinstance(answer, Failure)]
        if not failed:
            return next(answer for answer in answers if not isinstance(answer, Failure))
        answered = sum(not isinstance(answer, Failure) for answer in answers)
        if answered:
            raise ModelUnavailable(
                f"Expected model={self.name} to answer {len(answers)} public test questions at once, for so many "
                f"calls may be under way. It answered {answered}; one of the others, asked once more, got "
                f"{failed[0].reason}. A private call that fails would be missing without a word. If its server "
                f"takes no more at once, give max_concurrency={answered} or less; else give the model more retries."
            )
        raise ModelUnavailable(
            f"Expected model={self.name} to answer a public test question, got {failed[0].reason}. Check address, key "
            "and model name; where these are right, ask it a public text yourself: the error is then whole."
        )

    def _ask(self, batch: _Batch, place: int, prompt: Any) -> Outcome:
        try:
            # Again for each call: debug mode may have been switched on meanwhile.
            if problem := find_problem(try_gate=False):
                return Outcome(stop=UnsafeEnvironment(problem))
            with hooked():
                return Outcome(self._read(self._runnable.invoke(prompt, {"callbacks": CallbackManager(handlers=[])})))
        except BaseException as error:  # Ctrl-C never comes here: Python raises it in the main thread, which waits
            batch.note(place, error)
        return Outcome()

    async def _aask(self, batch: _Batch, place: int, prompt: Any) -> Outcome:
        if self._blocks:
            return await in_thread(functools.partial(self._ask, batch, place, prompt))
        try:
            if problem := find_problem(try_gate=False):
                return Outcome(stop=UnsafeEnvironment(problem))
            with hooked():
                # A manager, not []: BaseLLM.agenerate reads callbacks[0] of an empty list.
                config: RunnableConfig = {"callbacks": CallbackManager(handlers=[])}
                return Outcome(self._read(await self._runnable.ainvoke(prompt, config)))
        except BaseException as error:  # the caller's cancellation reaches the caller; this task is the call's alone
            batch.note(place, error)
        return Outcome()


class _Batch:
    """One batch: why it stops, what it answers, and why its PUBLIC calls, which are the first, have no answer."""

    def __init__(self, prompts: int, public: int, checked: bool) -> None:
        if prompts > public:
            _sent_private.set()
        problem = None if checked else find_problem()
        self.stop: BaseException | None = None if problem is None else UnsafeEnvironment(problem)
        self.answers: list[Any | None] = []
        self._public = public
        self._failures: dict[int, str] = {}

    @contextlib.contextmanager
    def sealed(self) -> Iterator[contextvars.Context]:
        """Give a sealed context to the block, and keep what it raises, without its text and its frames."""
        try:
            with sealed_copy() as context:
                yield context
        except BaseException as error:
            # The arguments of a cancellation tell its caller from others; a model's own never comes here.
            cancelled = isinstance(error, asyncio.CancelledError)
            self.stop = asyncio.CancelledError(*error.args) if cancelled else _stop_or_bug(error)

    def note(self, place: int, error: BaseException) -> None:
        if place < self._public:
            self._failures[place] = _described(error, whole=not _sent_private.is_set())

    def finish(self, timeout: float | None) -> list[Any | None]:
        for place in range(self._public):
            if self.answers[place] is None:
                self.answers[place] = Failure(self._failures.get(place, f"no answer (timeout={timeout})"))
        return self.answers


def _some_failed(answers: Sequence[Any]) -> int:
    """How many of several calls failed; 0 where all of them did, or there was one."""
    failed = sum(isinstance(answer, Failure) for answer in answers)
    return failed if failed < len(answers) else 0


def _stop_or_bug(error: BaseException) -> BaseException:
    """What to raise for an exception that no call caught: Ctrl-C while waiting, or a fault of this package."""
    return interruption(error) or RuntimeError(f"{type(error).__name__} outside a model call; text withheld")


def _described(error: BaseException, *, whole: bool) -> str:
    """What a public call got.

    Once private prompts were sent, by whatever model of this process (two may share an account), a provider's words may
    tell how much they used up of a limit that all calls share ("29,500 of 30,000 tokens"): only the operating system's
    words are kept then, and those of a refusal that names no limit.
    """
    status, code = getattr(error, "status_code", None), getattr(error, "errno", None)
    kind = f"{type(error).__name__}" if not isinstance(status, int) else f"{type(error).__name__} (status {status})"
    # This package's own refusal of a prompt tells of that prompt alone.
    if not whole and status not in _OF_THE_REQUEST and not isinstance(error, InvalidParameter):
        said = f": {os.strerror(code)}" if isinstance(error, OSError) and isinstance(code, int) else ""
        return f"{kind}{said}; its text is withheld"
    try:
        text = str(error)[:200]
    except BaseException:  # a foreign __str__
        text = "<no text>"
    return f"{kind}: {text}"


_sent_private = threading.Event()
"""Whether private prompts have left this process."""
_OF_THE_REQUEST = (401, 404, 422)
