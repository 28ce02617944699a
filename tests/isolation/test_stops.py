"""Who may stop a release: the caller, never the model. And what a model that serializes its calls may not do."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from fakes.asking import BOTH, ask, text
from fakes.canary import CANARY, shows_nothing
from fakes.models import Chat, SyncChat
from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.isolation.model import IsolatedModel
from langchain_dp.ports import call_abandoned


class Other(BaseException):
    """Neither an Exception nor one of Python's own."""


KINDS = [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, Other]


class Bare(Runnable[Any, Any]):
    """Repeats its input and calls ``act``, with no task, callback or handler of LangChain in between."""

    keeps_no_prompts: ClassVar[bool] = True

    def __init__(self, act: Callable[[str], object]) -> None:
        self.act = act

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  # LangChain's name
        self.act(input)
        return input

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  # LangChain's name
        return self.invoke(input)


def in_a_sequence(act: Callable[[str], object]) -> Runnable[Any, Any]:
    """Both steps run in tasks of their own."""
    return RunnableLambda(str) | Bare(act)


def in_gathered_tasks(act: Callable[[str], object]) -> Runnable[Any, Any]:
    async def step(prompt: str) -> str:
        act(prompt)
        return prompt

    async def both(prompt: str) -> str:
        return (await asyncio.gather(step(prompt), asyncio.create_task(step(prompt))))[0]

    return RunnableLambda(lambda prompt: (act(prompt), prompt)[1], afunc=both)


MODELS = pytest.mark.parametrize(
    "model", [Bare, lambda act: Chat(act=act), lambda act: SyncChat(act=act), in_a_sequence, in_gathered_tasks]
)


@BOTH
@MODELS
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_model_raises_is_one_abstention(how: str, model: Any, kind: type[BaseException]) -> None:
    """If it fails, one record's content stops a release that was paid for, and so everyone sees it was there."""

    def act(prompt: str) -> None:
        if "bad" in prompt:
            raise kind(prompt)

    answers = ask(how, IsolatedModel(model(act), trust_opaque_model=True), ["a", "bad", "c"])
    assert [text(answer) for answer in answers] == ["a", None, "c"]


@pytest.mark.parametrize("how", ["awaits a cancelled task", "cancels itself", "cancels itself and goes on"])
def test_a_cancellation_of_the_models_own_making_is_one_abstention(how: str) -> None:
    """If it fails, a client whose connection task died on one record cancels the whole release."""

    async def aact(prompt: str) -> None:
        if "bad" not in prompt:
            return
        if how == "awaits a cancelled task":
            inner = asyncio.create_task(asyncio.Event().wait())
            inner.cancel()
            await inner
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if how == "cancels itself":
            await asyncio.Event().wait()

    async def main() -> tuple[list[Any], int]:
        answers = await IsolatedModel(Chat(aact=aact)).abatch(["a", "bad", "c"])
        task = asyncio.current_task()
        assert task is not None
        return [text(answer) for answer in answers], task.cancelling()

    (first, bad, last), cancelling = asyncio.run(asyncio.wait_for(main(), 60))
    assert (first, last, cancelling) == ("a", "c", 0)
    assert bad is None or how == "cancels itself and goes on"


@BOTH
@MODELS
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_public_probe_reports_what_the_model_raised(how: str, model: Any, kind: type[BaseException]) -> None:
    """If it fails, a model that exits the process does so at construction, without a word of why."""

    def act(prompt: str) -> None:
        raise kind("no key")

    quiet = IsolatedModel(model(act), trust_opaque_model=True)
    with pytest.raises(ModelUnavailable):
        quiet.probe("public?") if how == "sync" else asyncio.run(quiet.aprobe("public?"))


def test_an_exception_that_cannot_be_described_is_still_an_abstention() -> None:
    """If it fails, the thread of such a call dies silently, and the caller waits for ever."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    def act(prompt: str) -> None:
        raise Mute

    with pytest.raises(ModelUnavailable, match="Mute: <no text>"):
        IsolatedModel(Bare(act)).probe("public?", timeout=60)


@pytest.fixture
def exit_on_sigterm() -> Iterator[None]:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, before)


def to_main_thread(number: signal.Signals) -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


def check_no_text(error: BaseException) -> None:
    assert (error.__cause__, error.__context__) == (None, None)
    shows_nothing(error)


@pytest.mark.usefixtures("exit_on_sigterm")
@pytest.mark.parametrize(
    ("number", "kind", "args"), [(signal.SIGINT, KeyboardInterrupt, ()), (signal.SIGTERM, SystemExit, (3,))]
)
def test_the_callers_own_signals_pass_without_text_or_frames(
    number: signal.Signals, kind: type[BaseException], args: tuple[Any, ...]
) -> None:
    """If it fails, Ctrl-C or a supervisor's stop is swallowed, or carries private prompts to an error reporter."""
    release, marks = threading.Event(), []

    def act(prompt: str) -> None:
        marks.append(call_abandoned.get())
        to_main_thread(number)
        release.wait(60)

    try:
        with pytest.raises(kind) as caught:
            IsolatedModel(SyncChat(act=act)).batch([[HumanMessage(f"{CANARY} x")]])
    finally:
        release.set()
    check_no_text(caught.value)
    assert caught.value.args == args
    assert [mark is not None and mark.is_set() for mark in marks] == [True]  # a local model may stop by it


@pytest.mark.parametrize("native", [True, False])
def test_ctrl_c_ends_an_async_release(native: bool) -> None:
    """If it fails, asyncio programs cannot be stopped during a release, or print private prompts when they are."""
    release, seen = threading.Event(), []

    def act(prompt: str) -> None:
        to_main_thread(signal.SIGINT)
        release.wait(60)

    async def aact(prompt: str) -> None:
        to_main_thread(signal.SIGINT)
        await asyncio.Event().wait()

    async def main() -> None:
        try:
            await IsolatedModel(Chat(aact=aact) if native else SyncChat(act=act)).abatch([f"{CANARY} x"])
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        release.set()
    check_no_text(seen[0])


@pytest.mark.parametrize("own", [True, False])
def test_the_loops_own_task_factory_works_beside_the_calls_and_is_back_after_them(own: bool) -> None:
    """If it fails, the guard around the model's tasks changes how the caller's own tasks run."""
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    async def of_the_caller() -> None:
        return None

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory if own else None)
        begun, release = asyncio.Semaphore(0), asyncio.Event()

        async def aact(prompt: str) -> None:
            begun.release()
            await release.wait()

        calls = asyncio.create_task(IsolatedModel(Chat(aact=aact)).abatch(["a", "b"]))
        await begun.acquire()
        await begun.acquire()
        await asyncio.create_task(of_the_caller())
        assert not own or made[-1].endswith("of_the_caller")
        release.set()
        await calls
        await asyncio.sleep(0)
        assert loop.get_task_factory() is (factory if own else None)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_expired_call_learns_that_nobody_waits() -> None:
    """If it fails, a local model goes on with an answer that nobody reads, and holds its lock for it."""
    told, marks = threading.Event(), []

    def act(prompt: str) -> None:
        mark = call_abandoned.get()
        assert mark is not None
        marks.append(mark)
        if mark.wait(60):
            told.set()

    assert IsolatedModel(SyncChat(act=act)).batch(["p"], timeout=0.1) == [None]
    assert told.wait(60)
    told.clear()
    assert asyncio.run(IsolatedModel(SyncChat(act=act)).abatch(["p"], timeout=0.1)) == [None]
    assert told.wait(60)
    assert marks[0] is not marks[1]


class OneAtATime(Chat):
    keeps_no_prompts: ClassVar[bool] = True
    serializes_calls: ClassVar[bool] = True


class OneByOne(Bare):
    keeps_no_prompts: ClassVar[bool] = True
    serializes_calls = True


@BOTH
@pytest.mark.parametrize("kind", ["model", "bound", "in a sequence", "opaque"])
def test_a_timeout_is_refused_where_calls_wait_for_each_other(how: str, kind: str) -> None:
    """If it fails, one long record uses up the time of every other subset's call, and many votes move."""
    seen: list[str] = []
    model: Any = OneByOne(seen.append) if kind == "opaque" else OneAtATime(act=seen.append)
    model = {"bound": model.with_retry(), "in a sequence": model | RunnableLambda(text)}.get(kind, model)
    quiet = IsolatedModel(model, trust_opaque_model=True)
    for call in (
        lambda: ask(how, quiet, ["p"], timeout=60),
        lambda: quiet.check_timeout(60),
        lambda: quiet.probe("public?", timeout=60),
    ):
        with pytest.raises(InvalidParameter, match=r"timeout=60 to be None: One(AtATime|ByOne) answers one call after"):
            call()
    assert seen == []
    quiet.check_timeout(None)
    assert text(ask(how, quiet, ["p"])[0]) == "p"
