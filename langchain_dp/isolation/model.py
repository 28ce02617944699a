"""A model whose calls leave no trace.

An isolated call closes callbacks and config of the outer run, tracers (environment variable, parent run,
``@traceable``), handlers and caches of every model inside, the global cache, log records and warnings of the provider's
client, and exception texts. Nothing reaches ``astream_events`` of the outer chain.

:mod:`langchain_dp.isolation.accept` lists the accepted models. Certificates name the user's classes that declare
``keeps_no_prompts: ClassVar[bool] = True``, and the parts that ``trust_opaque_model=True`` accepts.

Limits that cannot be closed here:

- code inside the model that prints, writes files, logs outside ``logging``, or forces a trace
  (``@traceable(enabled=True)``), and spans of an OpenTelemetry instrumentation of the provider's client
- threads that such code starts without copying the context, and errors in objects that are freed later
- a memory of the model's server, or of an installed library's client (an HTTP client with a cache)
- ``set_debug(True)`` in another thread during a call
- the time that calls take. In a shared model a long prompt may slow down other calls until they time out, use up a rate
  limit, or bring the server down. Then one record moves more than one vote, or ends a release. Give no timeout, or one
  that no healthy call reaches beside the longest record, and a rate limit that fits all calls at once (or retries that
  outlast it).
- Ctrl-C in an event loop without a SIGINT handler (``asyncio.run`` has one) may hit the model's own code, and is then
  that call's abstention

A model that answers one call after the other declares ``serializes_calls: ClassVar[bool] = True``. It takes no timeout,
because the time spent waiting for other members' prompts would count.
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
from langchain_dp.isolation.accept import DECLARATION, parts_of
from langchain_dp.isolation.calls import Outcome, aask_all, ask_all, in_thread
from langchain_dp.isolation.context import find_problem, hooked, sealed
from langchain_dp.isolation.filters import Level
from langchain_dp.redact import interruption

CALLS = 16
"""Calls under way at once, unless another number is given."""
_SHARES = (
    "{} is one llama.cpp context that reuses the common start of successive prompts. One prompt's length may so change "
    "the last bits of the next answer. ChatLlamaCpp of langchain_dp.integrations.llama_cpp starts every call afresh."
)
_TRUSTED = "trust_opaque_model=True: the model is opaque. That it keeps nothing of its prompts is not checked in:"
_DECLARED = f"{DECLARATION}=True: these model classes declare that they keep nothing of their prompts. Not checked:"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The failure of a PUBLIC call."""

    reason: str  # type of the exception, its status, and its text where that reveals nothing of other calls


class IsolatedModel:
    """A model whose calls only the model sees.

    Answers are the model's, or the results of ``read``. A call that fails or takes too long gives None: the prompt
    abstains, so that one record moves at most one vote. Its exception is dropped with its text, for every type (also
    SystemExit, KeyboardInterrupt, CancelledError and GeneratorExit raised by the model). Each prompt is a call of its
    own, because in a joint batch the length of one prompt can change the answer to another. Certificates give its
    ``name``, which is never an address or a key.

    Args:
        llm: A chat model, an LLM, or a Runnable around one. It is not changed.
        max_concurrency: Calls under way at once, over all batches, threads and event loops. Calls that timed out do not
            count, though their threads may still run. Nor do calls inside a call, which would wait for themselves.
        trust_opaque_model: Whether to accept parts that are not on the allow-list.
        read: Applied to each answer inside its call. If it raises, the prompt abstains.

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
        parts = parts_of(llm)
        self._runnable, self._read = llm, read
        self.name, self._blocks = parts.name(llm), parts.blocks()
        opaque, declared = ", ".join(parts.opaque[:5]), ", ".join(parts.declared[:5])
        if parts.memory is not None:
            raise UnsafeEnvironment(parts.memory)
        if opaque and not trust_opaque_model:
            raise UnsafeEnvironment(
                f"The model has parts that are not on the list of known models: {opaque}. One call may see the prompt "
                f"of another there. Pass the chat model alone. Or declare `{DECLARATION}: ClassVar[bool] = True` in a "
                "class of your own, or set trust_opaque_model=True, if these parts keep nothing of their prompts: "
                "certificates say so."
            )
        # The package's own model has a lock and starts every call afresh.
        shares = parts.shares and parts.serializes is None
        self._serializes = self.name if shares else parts.serializes
        notes = (
            (shares, _SHARES.format(self.name)),
            (opaque, f"{_TRUSTED} {opaque}"),
            (declared, f"{_DECLARED} {declared}"),
        )
        self.notes: tuple[str, ...] = tuple(note for applies, note in notes if applies)
        self._places = FairSemaphore(1 if shares else max_concurrency)

    @property
    def at_once(self) -> int:
        """Calls that may be under way at once. 1 for a model that answers one after the other."""
        return self._places.count if self._serializes is None else 1

    def check_timeout(self, timeout: float | None) -> None:
        """Refuse a timeout below zero, or one for a model that ``serializes_calls``: a long prompt would expire other
        calls.
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
            timeout: Seconds for one call, from its start. With None no call depends on another. See the module's
                limits.
            public: How many of the first prompts are PUBLIC. They start first, and a :class:`Failure` replaces a
                missing answer.
            checked: Whether the caller has just called :func:`check_environment`. Each call tests debug mode again.

        Raises:
            InvalidParameter: A bound is not met, or the model takes no timeout.
            UnsafeEnvironment: See :func:`check_environment`.
            KeyboardInterrupt, SystemExit, CancelledError: The caller's own only (Ctrl-C, a signal, cancellation of its
                task), without text and frames of the calls.
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
        """Run :meth:`batch` async, with the model's own async methods where it has them."""
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
        """Ask a PUBLIC prompt before any charge, ``times`` times at once, and return an answer.

        This shows whether the model's server takes so many calls. If some calls fail, they are retried once together.

        Raises:
            ModelUnavailable: The model failed. With type and first 200 characters of its exception, and the number of
                answered calls.
            UnsafeEnvironment: As for :meth:`batch`.
        """
        answers = self.batch([prompt] * times, timeout=timeout, public=times)
        retries = _some_failed(answers)  # by chance, perhaps
        repeated = self.batch([prompt] * retries, timeout=timeout, public=retries) if retries else answers
        return self._probe_answer(answers, repeated)

    async def aprobe(
        self,
        prompt: Any,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # as in probe
        times: int = 1,
    ) -> Any:
        """Async twin of :meth:`probe`."""
        answers = await self.abatch([prompt] * times, timeout=timeout, public=times)
        retries = _some_failed(answers)
        repeated = await self.abatch([prompt] * retries, timeout=timeout, public=retries) if retries else answers
        return self._probe_answer(answers, repeated)

    def _probe_answer(self, answers: Sequence[Any], repeated: Sequence[Any]) -> Any:
        """Return one answer, or raise ModelUnavailable. ``repeated`` are the answers to the retries."""
        failed = [answer for answer in repeated if isinstance(answer, Failure)]
        if not failed:
            return next(answer for answer in answers if not isinstance(answer, Failure))
        answered = sum(not isinstance(answer, Failure) for answer in answers)
        if answered:
            raise ModelUnavailable(
                f"Expected model={self.name} to answer {len(answers)} public test questions at once, for so many "
                f"calls may be under way. It answered {answered}; one of the others, asked once more, got "
                f"{failed[0].reason}. A private call that fails would be missing silently. If the server takes no "
                f"more at once, give max_concurrency={answered} or less; otherwise give the model more retries."
            )
        raise ModelUnavailable(
            f"Expected model={self.name} to answer a public test question, got {failed[0].reason}. Check address, key "
            "and model name. If these are right, send a public text to the model yourself to see the whole error."
        )

    def _ask(self, batch: _Batch, place: int, prompt: Any) -> Outcome:
        try:
            # In each call: debug mode may have been switched on meanwhile.
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
        except BaseException as error:  # the caller's cancellation reaches the caller. This task is the call's alone
            batch.note(place, error)
        return Outcome()


class _Batch:
    """The state of one batch: its stop, its answers, and the failures of its PUBLIC calls, which come first."""

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
        """Give the block a sealed copy of the context, and store its exception without text and frames."""
        try:
            context = contextvars.copy_context()
            seal = context.run(sealed, Level.QUIET)
            try:
                yield context
            finally:
                context.run(seal.close)
        except BaseException as error:
            # The arguments of a cancellation identify its caller. A model's own cancellation never arrives here.
            if isinstance(error, asyncio.CancelledError):
                self.stop = asyncio.CancelledError(*error.args)
            else:  # Ctrl-C while waiting, or a bug of this package
                text = f"{type(error).__name__} outside a model call; text withheld"
                self.stop = interruption(error) or RuntimeError(text)

    def note(self, place: int, error: BaseException) -> None:
        if place < self._public:
            self._failures[place] = _described(error, whole=not _sent_private.is_set())

    def finish(self, timeout: float | None) -> list[Any | None]:
        for place in range(self._public):
            if self.answers[place] is None:
                self.answers[place] = Failure(self._failures.get(place, f"no answer (timeout={timeout})"))
        return self.answers


def _some_failed(answers: Sequence[Any]) -> int:
    """Return the number of failed calls. 0 if all failed."""
    failed = sum(isinstance(answer, Failure) for answer in answers)
    return failed if failed < len(answers) else 0


def _described(error: BaseException, *, whole: bool) -> str:
    """Describe the exception of a public call.

    Once any model of this process has sent a private prompt (two may share an account), a provider's text may reveal
    how much of a shared limit the prompts used up ("29,500 of 30,000 tokens"). Then only the operating system's text
    remains, and that of a refusal that names no limit.
    """
    status, code = getattr(error, "status_code", None), getattr(error, "errno", None)
    kind = f"{type(error).__name__}" if not isinstance(status, int) else f"{type(error).__name__} (status {status})"
    # This package's own refusal depends on that prompt alone.
    if not whole and status not in _OF_THE_REQUEST and not isinstance(error, InvalidParameter):
        system = f": {os.strerror(code)}" if isinstance(error, OSError) and isinstance(code, int) else ""
        return f"{kind}{system}; its text is withheld"
    try:
        text = str(error)[:200]
    except BaseException:  # a foreign __str__
        text = "<no text>"
    return f"{kind}: {text}"


_sent_private = threading.Event()
"""Set once a private prompt has left this process."""
_OF_THE_REQUEST = (401, 404, 422)
