"""Places are handed out in order, to threads and event loops alike, and none is ever lost."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from langchain_dp._util.fair_semaphore import FairSemaphore


def free(places: FairSemaphore) -> int:
    """How many places can be taken at once."""
    taken = []
    while (leave := places.take(0.0)) is not None:
        taken.append(leave)
    for leave in taken:
        leave()
    return len(taken)


def test_a_place_is_given_back_once_however_often_it_is_left() -> None:
    """A call that expires and then ends gives its place back twice, and the cap grows."""
    places = FairSemaphore(2)
    leave = places.take()
    assert leave is not None
    assert free(places) == 1
    leave()
    leave()
    assert free(places) == 2
    leave, other = places.take(), places.take()
    assert leave is not None
    assert other is not None
    leave()
    leave()
    assert free(places) == 1, "the other call is still under way"


def test_who_waits_too_long_gets_none_and_takes_none() -> None:
    """A wait that ran out holds a place for ever."""
    places = FairSemaphore(1)
    leave = places.take()
    assert leave is not None
    assert places.take(0.01) is None
    leave()
    assert free(places) == 1


async def test_threads_and_tasks_wait_in_one_line() -> None:
    """Who comes later overtakes, or tasks and threads count apart."""
    places = FairSemaphore(1)
    first = await places.atake()
    order: list[str] = []
    lined_up = threading.Event()

    async def task() -> None:
        async with places.aheld():
            order.append("task")

    def thread() -> None:
        lined_up.set()
        with places.held():
            order.append("thread")

    waiting = asyncio.create_task(task())
    await asyncio.sleep(0)
    running = asyncio.create_task(asyncio.to_thread(thread))
    await asyncio.to_thread(lined_up.wait, 60)
    first()
    await asyncio.wait_for(asyncio.gather(waiting, running), 60)
    assert order == ["task", "thread"]
    assert await asyncio.to_thread(free, places) == 1


async def test_a_cancelled_wait_passes_its_place_on() -> None:
    """A cancelled question takes its place along, until nobody can ask any more."""
    places = FairSemaphore(1)
    first = await places.atake()
    waits = [asyncio.create_task(places.atake()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    first()  # given to the second, as the first stepped out; cancelled at the same moment
    waits[1].cancel()
    leave = await asyncio.wait_for(waits[2], 60)
    leave()
    await asyncio.gather(*waits[:2], return_exceptions=True)
    assert free(places) == 1


def test_never_more_than_there_are_and_all_come_through() -> None:
    """Under load the cap is passed, or somebody waits for ever."""
    places, lock = FairSemaphore(3), threading.Lock()
    now: list[int] = [0, 0]

    def work(_: int) -> None:
        with places.held():
            with lock:
                now[0] += 1
                now[1] = max(now)
            with lock:
                now[0] -= 1

    with ThreadPoolExecutor(16) as pool:
        assert len(list(pool.map(work, range(2000)))) == 2000
    assert now[1] <= 3
    assert free(places) == 3


async def test_on_a_loops_own_thread_nobody_waits() -> None:
    """A blocking call inside an event loop hangs it: the tasks that hold the places cannot go on."""
    places = FairSemaphore(1)
    leave = await places.atake()
    with places.held():
        pass
    leave()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_finds_all_places_free() -> None:
    """A worker that is forked while calls are under way waits for threads that it does not have."""
    places = FairSemaphore(1)
    leave = places.take()
    child = os.fork()
    if child == 0:
        os._exit(0 if free(places) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert free(places) == 0
    assert leave is not None
    leave()


def test_a_call_closed_by_the_garbage_collector_in_the_middle_of_another_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector closes an abandoned call in a thread that is just lining up, which then waits for itself."""
    places = FairSemaphore(2)
    other = places.take()
    held = places.aheld()
    with pytest.raises(StopIteration):
        held.__aenter__().send(None)
    abandoned = [held]

    class Collecting(list):  # type: ignore[type-arg]
        def append(self, value: object) -> None:
            for one in abandoned:
                with pytest.raises(StopIteration):
                    one.__aexit__(None, None, None).send(None)
            abandoned.clear()
            super().append(value)

    monkeypatch.setattr(places, "_waiting", Collecting())
    ended = threading.Thread(target=places.take, args=(0.01,), daemon=True)
    ended.start()
    ended.join(5)
    assert not ended.is_alive()
    assert other is not None
