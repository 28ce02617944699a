"""Concurrent calls that answer, abstain, or report an unsafe environment.

A model's SystemExit is an abstention: a stopped release would reveal a record. The caller's own Ctrl-C passes. A
timeout frees its slot, or one prompt could cost another its answer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_dp._util.fair_semaphore import FairSemaphore
from langchain_dp.errors import UnsafeEnvironment
from langchain_dp.isolation.tasks import guarded_tasks
from langchain_dp.ports import call_abandoned


@dataclasses.dataclass(slots=True, repr=False)
class Outcome:
    """An answer, or None. ``stop`` ends all calls, without private text."""

    answer: Any = None
    stop: UnsafeEnvironment | None = None


def ask_all(
    ask: Callable[[int, Any], Outcome],
    prompts: Sequence[Any],
    *,
    places: FairSemaphore,
    timeout: float | None,
    context: contextvars.Context,
) -> tuple[list[Any | None], BaseException | None]:
    """Return answers in order, None for failures, and a stop."""
    if places.would_hang():  # calls around this one hold them and would wait for it
        places = FairSemaphore(places.count)
    answers: list[Any | None] = [None] * len(prompts)
    finished: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
    waiting = deque(enumerate(prompts))
    calls: dict[int, _Call] = {}  # in the order of their deadlines

    def answer(index: int, prompt: Any, leave: Callable[[], None]) -> None:
        try:
            with places.entered():
                finished.put((index, ask(index, prompt)))
        finally:
            leave()

    try:
        while waiting or calls:
            patience = None
            if timeout is not None and calls:
                patience = max(0.0, next(iter(calls.values())).deadline - time.monotonic())
            if waiting:
                if (leave := places.take(patience)) is not None:
                    index, prompt = waiting.popleft()
                    call = calls[index] = _Call(leave, math.inf if timeout is None else time.monotonic() + timeout)
                    if not _start(functools.partial(answer, index, prompt, leave), call.mark, context):
                        calls.pop(index).give_up()
                patience = 0.0
            with contextlib.suppress(queue.Empty):
                while True:
                    index, outcome = finished.get(timeout=patience)
                    patience = 0.0
                    if calls.pop(index, None) is None:  # it expired and abstained
                        continue
                    if outcome.stop is not None:
                        return answers, outcome.stop
                    answers[index] = outcome.answer
            now = time.monotonic()
            for index in [index for index, call in calls.items() if call.deadline <= now]:
                calls.pop(index).give_up()
        return answers, None
    finally:
        for call in calls.values():
            call.give_up()


@dataclasses.dataclass
class _Call:
    """A call in a thread."""

    leave: Callable[[], None]
    deadline: float
    mark: threading.Event = dataclasses.field(default_factory=threading.Event)

    def give_up(self) -> None:
        self.mark.set()
        self.leave()


def _start(work: Callable[[], None], mark: threading.Event, context: contextvars.Context) -> bool:
    """A hanging model must not keep the process alive."""
    context = context.copy()
    context.run(call_abandoned.set, mark)
    try:
        threading.Thread(target=context.run, args=(work,), name="langchain_dp-call", daemon=True).start()
    except RuntimeError:  # no more threads: this call abstains
        return False
    return True


# Strong references: nobody awaits a task that expired.
_running: set[asyncio.Task[None]] = set()


async def aask_all(
    ask: Callable[[int, Any], Awaitable[Outcome]],
    prompts: Sequence[Any],
    *,
    places: FairSemaphore,
    patience: float | None,
    context: contextvars.Context,
) -> tuple[list[Any | None], BaseException | None]:
    """Cancelling it cancels every call under way."""
    answers: list[Any | None] = [None] * len(prompts)
    stops: list[BaseException] = []
    workers: list[asyncio.Task[None]] = []
    todo = iter(enumerate(prompts))

    async def work() -> None:
        for index, prompt in todo:
            async with places.aheld():
                outcome = await _ask_within(functools.partial(ask, index, prompt), places, patience, context)
            if outcome.stop is not None:
                stops.append(outcome.stop)
                for other in workers:
                    if other is not asyncio.current_task():
                        other.cancel()
                return
            answers[index] = outcome.answer

    workers.extend(asyncio.create_task(work()) for _ in range(min(places.count, len(prompts))))
    try:
        if workers:
            await asyncio.wait(workers)
    finally:
        for worker in workers:
            worker.cancel()
    return answers, stops[0] if stops else None


async def _ask_within(
    ask: Callable[[], Awaitable[Outcome]], places: FairSemaphore, patience: float | None, context: contextvars.Context
) -> Outcome:
    # asyncio's debug mode logs a task's result, so outcomes go through this list.
    cell: list[Outcome] = []

    async def hold() -> None:
        with guarded_tasks(), places.entered():
            cell.append(await ask())

    task = asyncio.create_task(hold(), context=context.copy())
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        # Not wait_for, which never returns if a model swallows the cancellation.
        await asyncio.wait({task}, timeout=patience)
    finally:
        task.cancel()
    return cell[0] if cell else Outcome()


async def in_own_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """The event loop's threads may all wait for this work."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(work, *arguments))
        except BaseException as error:  # raised where it is awaited
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run).start()
    return await asyncio.wrap_future(done)


async def in_thread(ask: Callable[[], Outcome]) -> Outcome:
    """The event loop's threads are joined at exit."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    cell: list[Outcome] = []
    mark = threading.Event()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def work() -> None:
        cell.append(ask())
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    if not _start(work, mark, contextvars.copy_context()):
        return Outcome()
    try:
        await woken
    finally:
        mark.set()
    return cell[0]
