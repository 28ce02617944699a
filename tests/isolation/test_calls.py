"""How calls run: order, abstentions, timeouts, cancellation, threads."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
from fakes.asking import BOTH, ask, text
from fakes.canary import CANARY
from fakes.models import Chat, Completion, SyncChat
from langchain_core.globals import set_debug
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_dp.errors import InvalidParameter, UnsafeEnvironment
from langchain_dp.isolation.model import IsolatedModel

MODELS = pytest.mark.parametrize("model", [Chat, SyncChat, Completion])


@BOTH
@MODELS
@pytest.mark.parametrize("limit", [40, 1, 3])
def test_answers_come_in_order_for_messages_and_strings(how: str, model: Any, limit: int) -> None:
    """If it fails, votes are given to the wrong subsets, or one of the input forms is refused."""
    prompts = [f"p{i}" if i % 2 else [HumanMessage(f"p{i}")] for i in range(20)]
    answers = [text(answer) for answer in ask(how, IsolatedModel(model(), max_concurrency=limit), prompts)]
    assert [str(answer).removeprefix("Human: ") for answer in answers] == [f"p{i}" for i in range(20)]
    assert ask(how, IsolatedModel(model()), []) == []


@BOTH
@MODELS
def test_a_hanging_call_abstains_in_time_and_frees_its_place(how: str, model: Any) -> None:
    """If it fails, one hanging prompt blocks the run, or takes the other prompts' places and so their votes."""
    release = threading.Event()

    def act(prompt: str) -> None:
        if "hang" in prompt:
            release.wait(60)

    # A native coroutine that blocks its event loop cannot be timed out by anyone: there, hang by awaiting.
    async def aact(prompt: str) -> None:
        if "hang" in prompt:
            await asyncio.Event().wait()

    if how == "async" and model is Completion:
        pytest.skip("Completion has no hook that awaits")
    options = {"aact": aact, "act": act if how == "sync" else (lambda _: None)} if model is Chat else {"act": act}
    try:
        answers = ask(
            how, IsolatedModel(model(**options), max_concurrency=1), ["hang 1", "a", "hang 2", "b"], timeout=1.0
        )
    finally:
        release.set()
    assert [text(answer) for answer in answers] == [None, "a", None, "b"]


def test_a_model_that_swallows_cancellation_still_times_out() -> None:
    """If it fails, a client that ignores cancellation holds an async answer for ever."""
    release, delivered = asyncio.Event(), asyncio.Event()

    async def stubborn(prompt: str) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                delivered.set()

    async def main() -> list[Any]:
        answers = await IsolatedModel(Chat(aact=stubborn)).abatch(["p"], timeout=0.1)
        await delivered.wait()
        release.set()
        return answers

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [None]


def test_a_hanging_call_does_not_keep_the_process_alive() -> None:
    """If it fails, a script that timed out a call never ends."""
    program = """
import asyncio, threading
from langchain_core.language_models import SimpleChatModel
from langchain_dp.isolation.model import IsolatedModel
class Hangs(SimpleChatModel):
    _llm_type = "hangs"
    def _call(self, *args, **kwargs):
        threading.Event().wait()
quiet = IsolatedModel(Hangs(), trust_opaque_model=True)
print(quiet.batch(["p"], timeout=0.1), asyncio.run(quiet.abatch(["p"], timeout=0.1)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[None] [None]\n", "", 0)


@BOTH
@MODELS
def test_no_more_calls_run_at_once_than_allowed(how: str, model: Any) -> None:
    """If it fails, max_concurrency does not protect the provider's rate limit or this machine's memory."""
    if how == "async" and model is Completion:
        pytest.skip("a native coroutine without awaits runs alone")
    running: list[int] = []
    peak: list[int] = []
    two, three, pair = threading.Barrier(2), threading.Barrier(3), asyncio.Semaphore(0)

    def act(prompt: str) -> None:
        two.wait(30)  # ends only if two run together
        try:
            three.wait(0.3)  # a third must not come while two are here
        except threading.BrokenBarrierError:
            peak.append(2)
        else:
            peak.append(3)

    async def aact(prompt: str) -> None:
        running.append(1)
        peak.append(len(running))
        if len(peak) % 2:
            await pair.acquire()  # ends only if two run together
        else:
            pair.release()
        running.pop()

    options = {"aact": aact} if model is Chat and how == "async" else {"act": act}
    answers = ask(how, IsolatedModel(model(**options), max_concurrency=2), ["a", "b", "c", "d"])
    assert None not in answers
    assert max(peak) == 2


def test_native_async_methods_are_used_and_sync_only_models_get_threads_of_their_own() -> None:
    """If it fails, async models are driven through blocking code, or sync ones starve in the loop's few threads."""
    native, sync = Chat(), SyncChat()
    asyncio.run(IsolatedModel(native).abatch(["p"]))
    asyncio.run(IsolatedModel(native.with_retry()).abatch(["p"]))
    assert native.calls == ["async", "async"]
    assert set(native.threads) == {threading.current_thread().name}
    asyncio.run(IsolatedModel(sync).abatch(["p"]))
    assert sync.threads == ["langchain_dp-call"]


def test_the_sync_batch_works_inside_a_running_event_loop() -> None:
    """If it fails, notebooks and async servers cannot call invoke."""

    async def main() -> list[Any]:
        return IsolatedModel(Chat()).batch(["p"])

    assert text(asyncio.run(main())[0]) == "p"


def test_cancelling_the_caller_cancels_the_calls() -> None:
    """If it fails, a closed connection leaves private calls running, or the cancellation is lost."""
    ended: list[str] = []
    begun, over = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def aact(prompt: str) -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(prompt)
            over.release()

    async def main() -> None:
        started = asyncio.create_task(IsolatedModel(Chat(aact=aact)).abatch(["a", "b"]))
        await begun.acquire()
        await begun.acquire()
        started.cancel("by the server")
        with pytest.raises(asyncio.CancelledError, match="by the server"):
            await started
        await over.acquire()
        await over.acquire()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sorted(ended) == ["a", "b"]


@BOTH
def test_dropped_exceptions_are_freed(how: str) -> None:
    """If it fails, exceptions that quote private prompts stay in memory after the call."""

    class Quoting(Exception):
        pass

    refs: list[weakref.ref[Quoting]] = []

    def act(prompt: str) -> None:
        error = Quoting(prompt)
        refs.append(weakref.ref(error))
        raise error

    quiet = IsolatedModel(Chat(act=act))
    assert ask(how, quiet, ["p"]) == [None]
    gc.collect()
    assert [ref() for ref in refs] == [None]
    assert quiet.name == "parrot-1"  # still alive: what it kept would be, too


def probe(how: str, quiet: IsolatedModel, **options: Any) -> Any:
    return quiet.probe("public?", **options) if how == "sync" else asyncio.run(quiet.aprobe("public?", **options))


@BOTH
@pytest.mark.parametrize(("before", "asked"), [(True, 0), (False, 1)], ids=["before", "between calls"])
def test_debug_mode_is_refused(how: str, before: bool, asked: int) -> None:
    """If it fails, set_debug(True) prints private prompts to the terminal, or the rest of a running batch."""
    model = Chat(act=lambda _: set_debug(True))
    quiet = IsolatedModel(model, max_concurrency=1)
    set_debug(before)
    with pytest.raises(UnsafeEnvironment, match=r"set_debug\(False\)"):
        ask(how, quiet, [CANARY, "b"])
    assert len(model.calls) == asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout=0 to be above 0"),
        ({"timeout": float("nan")}, "timeout=nan"),
    ],
)
@BOTH
def test_bounds_are_named(how: str, options: dict[str, Any], message: str) -> None:
    """If it fails, a bad bound hangs or divides by zero, shows only when budget is spent, or good ones are refused."""
    quiet = IsolatedModel(Chat())
    quiet.check_timeout(60)
    for call in (lambda: ask(how, quiet, ["p"], **options), lambda: quiet.check_timeout(options["timeout"])):
        with pytest.raises(InvalidParameter, match=message):
            call()
    with pytest.raises(InvalidParameter, match="max_concurrency=0"):
        IsolatedModel(Chat(), max_concurrency=0)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Chat(), "parrot-1"),
        (Chat().with_retry() | RunnableLambda(str), "parrot-1"),
        (Chat(model_name="https://user:secret@host/v1"), "Chat"),
        (Chat(model_name="/home/someone/models/m.gguf"), "m.gguf"),
        (Completion(), "Completion"),
        (RunnableLambda(str), "RunnableLambda"),
    ],
)
def test_the_name_is_fit_for_a_certificate(model: Any, name: str) -> None:
    """If it fails, certificates name the wrong model, or hold a password or a home folder."""
    assert IsolatedModel(model).name == name
    assert repr(IsolatedModel(model)) == f"IsolatedModel({name})"


REQUEST: ContextVar[str] = ContextVar("request", default="none")


@BOTH
@pytest.mark.parametrize("model", [Chat, SyncChat])
def test_the_callers_context_reaches_the_model(how: str, model: Any) -> None:
    """If it fails, a model that reads its tenant or request id from the context serves the wrong one."""
    seen: list[str] = []
    token = REQUEST.set("mine")
    try:
        ask(how, IsolatedModel(model(act=lambda _: seen.append(REQUEST.get()))), ["p"])
    finally:
        REQUEST.reset(token)
    assert seen == ["mine"]
