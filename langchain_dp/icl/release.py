"""Release labels, sync and async: charge, ask, count, add noise."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Generic

from langchain_dp._util.fair_semaphore import FairSemaphore
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.ensemble.tools import BudgetMonitor
from langchain_dp.errors import ModelUnavailable, UnsafeEnvironment
from langchain_dp.icl.replicas import Replicas
from langchain_dp.icl.reservation import AnswerReservation
from langchain_dp.icl.subset_prompts import SubsetPrompt, SubsetPrompts, Vote, count_votes
from langchain_dp.icl.voters import ModelCallOptions, Voter
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.isolation.context import find_problem
from langchain_dp.mechanisms import Randomness, ReportNoisyMax
from langchain_dp.records import Label
from langchain_dp.redact import PrivateArgs, arun_redacted, run_redacted

_WHEN = "while a label was released"


@dataclasses.dataclass(frozen=True)
class DPAnswer(Generic[Label]):
    """A released label with its certificate as of that moment.

    Args:
        label: The released label, as the classifier got it.
        certificate: The promise that covers it.

    Examples:
        >>> answer = chain.invoke_with_certificate("Nobody called me back.")
        >>> answer.label in LABELS
        True
        >>> print(answer.certificate)
    """

    label: Label
    certificate: PrivacyCertificate


@dataclasses.dataclass(repr=False, eq=False, kw_only=True)
class Releaser:
    """Releases labels under one reservation. Repeated questions are free."""

    labels: Sequence[str]
    subset_prompts: SubsetPrompts
    voter: Voter
    reservation: AnswerReservation
    rng: Randomness
    model_calls: ModelCallOptions
    answer_cache_size: int
    replicas: Replicas | None = None

    def __post_init__(self) -> None:
        reservation = self.reservation
        self._mechanism = ReportNoisyMax(reservation.event)
        self.remaining = BudgetMonitor(reservation.plan, reservation.event, reservation.max_queries)
        self._min_seconds = self.model_calls.min_response_seconds or 0.0
        self._answers = AnswerCache[str](self.answer_cache_size)
        # Under add/remove, charging a repeated question again would reveal that a record was forgotten.
        self._presence_is_private = not count_is_public(reservation.budget.neighbors)
        if not self._presence_is_private:
            self.subset_prompts.caches.add(self._answers)
        self._running: set[asyncio.Task[str]] = set()  # an event loop keeps no strong references to tasks
        self._probed = False
        self._unanswered: set[bytes] = set()  # no more than were charged
        calls = reservation.scheme.expected_subsets + self.voter.companions
        # An outage loses every charge under way, and more releases would only wait.
        self._under_way = FairSemaphore(math.ceil(self.model_calls.max_concurrency / max(calls, 1.0)))

    def with_reservation(self, reservation: AnswerReservation) -> Releaser:
        return dataclasses.replace(self, reservation=reservation, replicas=None)

    def _cache_epoch(self) -> int:
        if self.replicas is not None:
            self.replicas.catch_up()
        if self._presence_is_private:
            return 0
        return self.subset_prompts.forgotten if self.replicas is None else self.replicas.epoch

    def release(self, question: str, user_id: str | None = None) -> str:
        """Answer from the cache, or charge ``user_id`` and release."""
        started = time.monotonic()
        key, epoch = _key(question), self._cache_epoch()
        answer, owner = None, object()
        try:
            if (cached := self._answers.claim(key, epoch, owner)) is not None:
                return cached
            if self.replicas is not None and (answer := self.replicas.answered(question, epoch)) is not None:
                return answer
            self.remaining.warn_if_low(user_id)
            with self._under_way.held():
                drawn = run_redacted(self._answered, PrivateArgs(question, user_id), _WHEN)
            # All replicas give the answer that was stored first.
            answer = drawn if self.replicas is None else self.replicas.keep(question, epoch, drawn)
            if seconds := self._seconds_left(started):
                time.sleep(seconds)
            return answer
        except ModelUnavailable:
            self._probed = False
            if seconds := self._seconds_left(started):
                time.sleep(seconds)
            raise
        finally:
            self._answers.settle(key, answer, epoch, owner)

    async def arelease(self, question: str, user_id: str | None = None) -> str:
        """A cancellation after the charge still caches the answer."""
        started, key = time.monotonic(), _key(question)
        epoch = self._cache_epoch() if self.replicas is None else await in_own_thread(self._cache_epoch)
        cached = await self._answers.aclaim(key, epoch)
        if cached is not None:
            return cached
        charging = asyncio.Event()
        release = asyncio.create_task(self._release_claimed(question, user_id, key, epoch, started, charging))
        self._running.add(release)
        release.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(release)
        except asyncio.CancelledError:
            if not charging.is_set():
                release.cancel()
            raise

    async def _release_claimed(
        self, question: str, user_id: str | None, key: bytes, epoch: int, started: float, charging: asyncio.Event
    ) -> str:
        answer: str | None = None
        try:
            if self.replicas is not None:
                answer = await in_own_thread(self.replicas.answered, question, epoch)
            if answer is not None:
                return answer
            await in_own_thread(self.remaining.warn_if_low, user_id)
            async with self._under_way.aheld():
                drawn: str = await arun_redacted(self._aanswered, PrivateArgs(question, user_id, charging), _WHEN)
            if self.replicas is not None:
                drawn = await in_own_thread(self.replicas.keep, question, epoch, drawn)
            answer = drawn
            if seconds := self._seconds_left(started):
                await asyncio.sleep(seconds)
            return drawn
        except ModelUnavailable:
            self._probed = False
            if seconds := self._seconds_left(started):
                await asyncio.sleep(seconds)
            raise
        finally:
            self._answers.settle(key, answer, epoch)

    def _seconds_left(self, started: float) -> float:
        """Response times show the number of calls, so wait for ``min_response_seconds``."""
        return max(0.0, started + self._min_seconds - time.monotonic()) if self._min_seconds else 0.0

    def _answered(self, question: str, user_id: str | None) -> str:
        if not self._probed:
            with _nothing_charged():
                self.voter.probe()
            self._probed = True
        if _key(question) in self._unanswered:
            with _nothing_charged():
                self.voter.ask((), beside=question)
        subset_prompts = self._charge_and_draw_subsets(question, user_id)
        try:
            return self._count_and_add_noise(subset_prompts, self.voter.ask(subset_prompts, beside=question))
        except ModelUnavailable as error:
            message = str(error)
        raise self._charged(question, message)

    async def _aanswered(self, question: str, user_id: str | None, charging: asyncio.Event) -> str:
        if not self._probed:
            with _nothing_charged():
                await self.voter.aprobe()
            self._probed = True
        if _key(question) in self._unanswered:
            with _nothing_charged():
                await self.voter.aask((), beside=question)
        charging.set()
        subset_prompts = await in_own_thread(self._charge_and_draw_subsets, question, user_id)
        try:
            return self._count_and_add_noise(subset_prompts, await self.voter.aask(subset_prompts, beside=question))
        except ModelUnavailable as error:
            message = str(error)
        raise self._charged(question, message)

    def _charge_and_draw_subsets(self, question: str, user_id: str | None) -> list[SubsetPrompt]:
        """Charge durably before any private draw."""
        if problem := find_problem():
            raise UnsafeEnvironment(problem)
        self.reservation.plan.spend(self._mechanism.event, caller=self.reservation.plan.name, user_id=user_id)
        return self.subset_prompts.draw(question)

    def _count_and_add_noise(self, subset_prompts: Sequence[SubsetPrompt], votes: Sequence[Vote]) -> str:
        counts = count_votes(subset_prompts, votes, len(self.labels))
        return self.labels[self._mechanism.release(counts, rng=self.rng).winner]

    def _charged(self, question: str, message: str) -> ModelUnavailable:
        self._unanswered.add(_key(question))
        return ModelUnavailable(
            f"{message} This answer was charged. The same question is asked in public first from now on, which costs "
            "nothing."
        )


@contextlib.contextmanager
def _nothing_charged() -> Iterator[None]:
    try:
        yield
    except ModelUnavailable as error:
        raise ModelUnavailable(f"{error} This attempt was not charged.") from None


def _key(question: str) -> bytes:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()
