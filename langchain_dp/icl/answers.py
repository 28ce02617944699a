"""Answers that have left: each is kept, so that the same question costs nothing twice.

Returning a released answer again is post-processing and free. Two askers of the same question at the same time share
one release: the second waits for the first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import os
import threading
from collections.abc import Hashable

from langchain_dp._places import in_event_loop
from langchain_dp.accounting import PrivacyCertificate, _forks


@dataclasses.dataclass(frozen=True)
class Released:
    """What left: a label, and the noisy shares if they were asked for."""

    label: str
    shares: dict[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class DPAnswer:
    """A released label with its certificate, as of the moment it was handed over.

    Args:
        label: The released label.
        certificate: Under which promise it was released.
        shares: Noisy vote shares per label if they were asked for, at the same price; else None.
    """

    label: str
    certificate: PrivacyCertificate
    shares: dict[str, float] | None = None


class AnswerCache:
    """Released answers by question, and the questions under way. Thread-safe; holds released values only.

    Whoever claims a question and gets None must answer it and settle it, whatever happens.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._answers: dict[Hashable, Released] = {}
        self._under_way: dict[Hashable, concurrent.futures.Future[None]] = {}

        _forks.watch(self)

    def before_fork(self) -> None:
        """Keep still, so that a child finds the lock open."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on. In the child nobody is under way: threads do not come along."""
        if os.getpid() != self._process:
            self._process = os.getpid()
            self._under_way = {}
        self._lock.release()

    def claim(self, question: Hashable) -> Released | concurrent.futures.Future[None] | None:
        """The answer; or a future to wait for before claiming again; or None: the caller must answer."""
        with self._lock:
            if question in self._answers:
                return self._answers[question]
            if question in self._under_way:
                # On an event loop's own thread waiting could hang: answer once more, at a price.
                return None if in_event_loop() else self._under_way[question]
            self._under_way[question] = concurrent.futures.Future()
            return None

    async def aclaim(self, question: Hashable) -> Released | None:
        """Async twin: waits until there is an answer or the right to answer (None)."""
        while True:
            with self._lock:
                if question in self._answers:
                    return self._answers[question]
                waiting = self._under_way.get(question)
                if waiting is None:
                    self._under_way[question] = concurrent.futures.Future()
                    return None
            # shielded: a waiter that is cancelled must not cancel the future that the others wait for
            await asyncio.shield(asyncio.wrap_future(waiting))

    def settle(self, question: Hashable, answer: Released | None) -> None:
        """Store the answer (None: the release failed) and wake the waiters."""
        with self._lock:
            if answer is not None:
                self._answers[question] = answer
            waiting = self._under_way.pop(question, None)
        if waiting is not None:
            waiting.set_result(None)
