"""A model whose calls leave no trace.

Limits that cannot be closed here:

- code inside the model that prints, writes files, logs outside ``logging``, forces a trace or starts threads without
  the context, and OpenTelemetry spans of the provider's client
- errors in objects that are freed later
- a memory of the model's server, or of an installed library's client
- ``set_debug(True)`` in another thread during a call
- time: a long prompt may expire other calls, use up a rate limit or crash the server. Then one record moves more than
  one vote, or ends a release.
- Ctrl-C in an event loop without a SIGINT handler, which may become an abstention

A model with ``serializes_calls: ClassVar[bool] = True`` takes no timeout: waiting for other prompts would count.
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

    A failed or slow call gives None: the prompt abstains, so one record moves at most one vote. Its exception is
    dropped, of any type. Each prompt is a separate call: in a batch, one prompt's length can change another's answer.

    Args:
        llm: A chat model, an LLM, or a Runnable around one.
        max_concurrency: Calls at a time, without timed-out and nested ones.
        trust_opaque_model: Accept parts that are not on the allow-list.
        read: Applied to each answer inside its call.

    Raises:
        UnsafeEnvironment: The model keeps prompts, or has an unknown part that is not trusted.
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
        # The package's own model has a lock and a fresh start.
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
        return self._places.count if self._serializes is None else 1

    def check_timeout(self, timeout: float | None) -> None:
        """Serialized calls take none: a long prompt would expire others."""
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
        """Return the answers in order, None for an abstention.

        The first ``public`` prompts are PUBLIC, with a :class:`Failure` for a missing answer. ``timeout`` is in seconds
        per call. Only the caller's own Ctrl-C or cancellation is raised.
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
        """Ask a PUBLIC prompt ``times`` times at once, and retry failures once."""
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
        answers = await self.abatch([prompt] * times, timeout=timeout, public=times)
        retries = _some_failed(answers)
        repeated = await self.abatch([prompt] * retries, timeout=timeout, public=retries) if retries else answers
        return self._probe_answer(answers, repeated)

    def _probe_answer(self, answers: Sequence[Any], repeated: Sequence[Any]) -> Any:
        failed = [answer for answer in repeated if isinstance(answer, Failure)]
        if not failed:
            return next(answer for answer in answers if not isinstance(answer, Failure))
        answered = sum(not isinstance(answer, Failure) for answer in answers)
        if answered:
            raise ModelUnavailable(
                f"Expected model={self.name} to answer {len(answers)} public test questions at once, for so many "
                f"calls may be under way. It answered {answered}; one of the others, asked once more, got "
                f"{failed[0].reason}. A private call that fails would be missing silently. If the server takes no "
                f"more at once, give max_concurrency={answered} or less. Otherwise give the model more retries."
            )
        raise ModelUnavailable(
            f"Expected model={self.name} to answer a public test question, got {failed[0].reason}. Check address, key "
            "and model name. If these are right, send a public text to the model yourself to see the whole error."
        )

    def _ask(self, batch: _Batch, place: int, prompt: Any) -> Outcome:
        try:
            # Debug mode may have been switched on meanwhile.
            if problem := find_problem(try_gate=False):
                return Outcome(stop=UnsafeEnvironment(problem))
            with hooked():
                return Outcome(self._read(self._runnable.invoke(prompt)))
        except BaseException as error:  # Python raises Ctrl-C in the main thread, which waits
            batch.note(place, error)
        return Outcome()

    async def _aask(self, batch: _Batch, place: int, prompt: Any) -> Outcome:
        if self._blocks:
            return await in_thread(functools.partial(self._ask, batch, place, prompt))
        try:
            if problem := find_problem(try_gate=False):
                return Outcome(stop=UnsafeEnvironment(problem))
            with hooked():
                return Outcome(self._read(await self._runnable.ainvoke(prompt)))
        except BaseException as error:  # the caller's cancellation does not reach this task
            batch.note(place, error)
        return Outcome()


class _Batch:
    """The state of one batch."""

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
        """Seal a copy of the context, and store its exception without text."""
        try:
            context = contextvars.copy_context()
            seal = context.run(sealed, Level.QUIET)
            try:
                yield context
            finally:
                context.run(seal.close)
        except BaseException as error:
            # The arguments of a cancellation identify its caller.
            if isinstance(error, asyncio.CancelledError):
                self.stop = asyncio.CancelledError(*error.args)
            else:  # Ctrl-C while waiting, or a bug of this package
                text = f"{type(error).__name__} outside a model call, text withheld"
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
    failed = sum(isinstance(answer, Failure) for answer in answers)
    return failed if failed < len(answers) else 0


def _described(error: BaseException, *, whole: bool) -> str:
    """Describe the exception of a public call.

    After a private prompt, a provider's text may reveal the use of a shared limit, and is dropped.
    """
    status, code = getattr(error, "status_code", None), getattr(error, "errno", None)
    kind = f"{type(error).__name__}" if not isinstance(status, int) else f"{type(error).__name__} (status {status})"
    # This package's own refusal depends on that prompt alone.
    if not whole and status not in _OF_THE_REQUEST and not isinstance(error, InvalidParameter):
        system = f": {os.strerror(code)}" if isinstance(error, OSError) and isinstance(code, int) else ""
        return f"{kind}{system}, text withheld"
    try:
        text = str(error)[:200]
    except BaseException:  # a foreign __str__
        text = "<no text>"
    return f"{kind}: {text}"


_sent_private = threading.Event()
_OF_THE_REQUEST = (401, 404, 422)
