"""A cache of released answers. Repeating one is post-processing and free."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from langchain_dp._util import forks
from langchain_dp._util.fair_semaphore import in_event_loop

Answer = TypeVar("Answer")

KEPT = 10_000


class AnswerCache(forks.ForkSafe, Generic[Answer]):
    """Released answers and questions in progress, least recently used dropped first.

    Claim a question inside the ``try`` whose ``finally`` settles it. A new epoch drops earlier answers, also in
    progress.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._epoch = 0
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._under_way: dict[tuple[int, Hashable], tuple[object, concurrent.futures.Future[None]]] = {}
        self._watch()

    def __len__(self) -> int:
        return len(self._answers)

    def invalidate_before(self, epoch: int) -> None:
        with self._lock:
            self._refresh(epoch)

    def _refresh(self, epoch: int) -> bool:
        if epoch > self._epoch:
            self._epoch = epoch
            self._answers.clear()
        return epoch == self._epoch

    def _find(self, question: Hashable, epoch: int) -> Answer | None:
        if not self._refresh(epoch) or question not in self._answers:
            return None
        self._answers.move_to_end(question)
        return self._answers[question]

    def _alone(self) -> None:
        self._under_way = {}

    def kept(self, question: Hashable, epoch: int = 0) -> Answer | None:
        with self._lock:
            return self._find(question, epoch)

    def take(self, question: Hashable, epoch: int = 0) -> Answer | None:
        """Only one caller gets the answer."""
        with self._lock:
            answer = self._find(question, epoch)
            return None if answer is None else self._answers.pop(question)

    def claim(self, question: Hashable, epoch: int = 0, owner: object = None) -> Answer | None:
        """Wait for an answer. None: the caller must answer."""
        while isinstance(answer := self._look(question, epoch, owner), concurrent.futures.Future):
            if in_event_loop():  # waiting on the loop's thread could hang: charge another release
                return None
            answer.result()
        return answer

    async def aclaim(self, question: Hashable, epoch: int = 0) -> Answer | None:
        while isinstance(answer := self._look(question, epoch, None), concurrent.futures.Future):
            # A cancelled waiter must not cancel the others' future.
            await asyncio.shield(asyncio.wrap_future(answer))
        return answer

    def _look(self, question: Hashable, epoch: int, owner: object) -> Answer | concurrent.futures.Future[None] | None:
        """Return the answer, a future, or None: the caller must answer."""
        with self._lock:
            if (answer := self._find(question, epoch)) is not None:
                return answer
            if (waiting := self._under_way.get((epoch, question))) is not None:
                return waiting[1]
            self._under_way[epoch, question] = owner, concurrent.futures.Future()
            return None

    def settle(self, question: Hashable, answer: Answer | None, epoch: int = 0, owner: object = None) -> None:
        """Store the answer, if any, and wake the waiters of its owner's claim, if any."""
        with self._lock:
            if answer is not None and self._refresh(epoch):
                self._answers[question] = answer
                self._answers.move_to_end(question)
                while len(self._answers) > self._most:
                    self._answers.popitem(last=False)
            waiting = self._under_way.get((epoch, question))
            if waiting is None or waiting[0] is not owner:
                return
            del self._under_way[epoch, question]
        waiting[1].set_result(None)
