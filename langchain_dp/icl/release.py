"""Release labels: charge, ask, count, add noise. Sync and async shells around the same steps."""

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
from langchain_dp.icl.model_calls import ModelCallOptions
from langchain_dp.icl.replicas import Released, Replicas
from langchain_dp.icl.reservation import AnswerReservation
from langchain_dp.icl.subset_prompts import SubsetPrompt, SubsetPrompts, Vote, count_votes
from langchain_dp.icl.voters import Voter
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.isolation.context import find_problem
from langchain_dp.mechanisms import Randomness, ReportNoisyMax
from langchain_dp.records import Label
from langchain_dp.redact import PrivateArgs, arun_redacted, run_redacted

_WHEN = "while a label was released"


@dataclasses.dataclass(frozen=True)
class DPAnswer(Generic[Label]):
    """A released label with its certificate, as of the moment it was handed over.

    Args:
        label: The released label, as it was given to the classifier.
        certificate: Under which promise it was released.
        shares: Noisy vote shares per label if they were asked for, at the same price; else None.

    Examples:
        >>> answer = chain.invoke_with_certificate("Nobody called me back.")
        >>> answer.label in LABELS
        True
        >>> print(answer.certificate)
    """

    label: Label
    certificate: PrivacyCertificate
    shares: dict[Label, float] | None = None


class Releaser:
    """Releases labels under one reservation, and keeps them, so that the same question costs nothing twice.

    Args:
        labels: Public labels, in the public order.
        subset_prompts: Private records in their subsets.
        voter: Asks the model.
        reservation: Where every release is charged.
        rng: Source of the noise.
        model_calls: Its ``min_response_seconds`` holds every new answer until so long after its question; its
            ``max_concurrency`` limits the model calls at a time, over all questions.
        vote_shares: Whether noisy shares are released too.
        answer_cache_size: How many answers are kept.
        replicas: Others that answer under the same plan; None where there are none.
    """

    def __init__(
        self,
        *,
        labels: Sequence[str],
        subset_prompts: SubsetPrompts,
        voter: Voter,
        reservation: AnswerReservation,
        rng: Randomness,
        model_calls: ModelCallOptions,
        vote_shares: bool,
        answer_cache_size: int,
        replicas: Replicas | None = None,
    ) -> None:
        self.reservation = reservation
        self._labels = tuple(labels)
        self._subset_prompts = subset_prompts
        self._voter = voter
        self._mechanism = ReportNoisyMax(reservation.event)
        self.remaining = BudgetMonitor(reservation.plan, reservation.event, reservation.max_queries)
        self._rng = rng
        self._model_calls = model_calls
        self._vote_shares = vote_shares
        self._replicas = replicas
        self._answer_cache_size = answer_cache_size
        self._answers = AnswerCache[Released](answer_cache_size)
        # Where the promise covers whether a record is there at all, a question that costs again would show that one
        # was. An answer that was released stays released, and giving it out again shows nothing more.
        self._presence_is_private = not count_is_public(reservation.budget.neighbors)
        if not self._presence_is_private:
            subset_prompts.keep(self._answers)
        self._running: set[asyncio.Task[Released]] = set()  # a loop alone would forget them
        self._probed = False
        self._unanswered: set[bytes] = set()  # no more than were charged
        calls = reservation.scheme.expected_subsets + voter.companions
        # Few releases at a time: what is charged when the model dies is lost, and others would only wait for places.
        self._under_way = FairSemaphore(math.ceil(model_calls.max_concurrency / max(calls, 1.0)))

    def with_reservation(self, reservation: AnswerReservation) -> Releaser:
        """A second releaser over the same subsets and model, charged to another reservation."""
        return Releaser(
            labels=self._labels,
            subset_prompts=self._subset_prompts,
            voter=self._voter,
            reservation=reservation,
            rng=self._rng,
            model_calls=self._model_calls,
            vote_shares=self._vote_shares,
            answer_cache_size=self._answer_cache_size,
        )

    def _cache_epoch(self) -> int:
        """The number of records that were forgotten, on any replica: answers from before are not given out again."""
        if self._replicas is not None:
            self._replicas.catch_up()
        if self._presence_is_private:
            return 0
        return self._subset_prompts.forgotten if self._replicas is None else self._replicas.epoch

    def release(self, question: str, user_id: str | None = None) -> Released:
        """Answer a rendered, checked question: from what was released before, or by one new release.

        Args:
            question: The question.
            user_id: Who asks, where the plan has accounts, and pays if it is a new one.

        Raises:
            ModelUnavailable: A public question showed that the model does not answer: before the charge, or beside
                the subsets, after it. The next release starts with a public test question.
        """
        started = time.monotonic()
        key, epoch = _key(question), self._cache_epoch()
        answer, owner = None, object()
        try:
            cached = self._answers.claim(key, epoch, owner)
            if cached is not None:
                return cached
            if self._replicas is not None and (answer := self._replicas.answered(question, epoch)) is not None:
                return answer
            self.remaining.warn_if_low(user_id)
            with self._under_way.held():
                drawn = run_redacted(self._answered, PrivateArgs(question, user_id), _WHEN)
            # All replicas give the answer that was stored first.
            answer = drawn if self._replicas is None else self._replicas.keep(question, epoch, drawn)
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

    async def arelease(self, question: str, user_id: str | None = None) -> Released:
        """Async twin of :meth:`release`. Who is cancelled after the charge has paid: the answer is found, and kept."""
        started, key = time.monotonic(), _key(question)
        epoch = self._cache_epoch() if self._replicas is None else await in_own_thread(self._cache_epoch)
        cached = await self._answers.aclaim(key, epoch)
        if cached is not None:
            return cached
        charging = asyncio.Event()
        release = asyncio.create_task(self._aclaimed(question, user_id, key, epoch, started, charging))
        self._running.add(release)
        release.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(release)
        except asyncio.CancelledError:
            if not charging.is_set():
                release.cancel()
            raise

    async def _aclaimed(
        self, question: str, user_id: str | None, key: bytes, epoch: int, started: float, charging: asyncio.Event
    ) -> Released:
        answer: Released | None = None
        try:
            if self._replicas is not None:
                answer = await in_own_thread(self._replicas.answered, question, epoch)
            if answer is not None:
                return answer
            await in_own_thread(self.remaining.warn_if_low, user_id)
            async with self._under_way.aheld():
                drawn: Released = await arun_redacted(self._aanswered, PrivateArgs(question, user_id, charging), _WHEN)
            if self._replicas is not None:
                drawn = await in_own_thread(self._replicas.keep, question, epoch, drawn)
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
        """Seconds to wait, so that how long an answer took does not show how many subsets were asked."""
        seconds = self._model_calls.min_response_seconds
        return 0.0 if seconds is None else max(0.0, started + seconds - time.monotonic())

    def _answered(self, question: str, user_id: str | None) -> Released:
        if not self._probed:
            with _nothing_charged():
                self._voter.probe()
            self._probed = True
        if _key(question) in self._unanswered:
            with _nothing_charged():
                self._voter.ask((), beside=question)
        subset_prompts = self._charge_and_draw_subsets(question, user_id)
        try:
            return self._count_and_add_noise(subset_prompts, self._voter.ask(subset_prompts, beside=question))
        except ModelUnavailable as error:
            message = str(error)
        raise self._charged(question, message)

    async def _aanswered(self, question: str, user_id: str | None, charging: asyncio.Event) -> Released:
        if not self._probed:
            with _nothing_charged():
                await self._voter.aprobe()
            self._probed = True
        if _key(question) in self._unanswered:
            with _nothing_charged():
                await self._voter.aask((), beside=question)
        charging.set()
        subset_prompts = await in_own_thread(self._charge_and_draw_subsets, question, user_id)
        try:
            return self._count_and_add_noise(subset_prompts, await self._voter.aask(subset_prompts, beside=question))
        except ModelUnavailable as error:
            message = str(error)
        raise self._charged(question, message)

    def _charge_and_draw_subsets(self, question: str, user_id: str | None) -> list[SubsetPrompt]:
        """Charge durably before anything private is drawn."""
        if problem := find_problem():
            raise UnsafeEnvironment(problem)
        plan = self.reservation.plan
        plan.spend(self._mechanism.event, caller=plan.name, user_id=user_id)
        return self._subset_prompts.draw(question)

    def _count_and_add_noise(self, subset_prompts: Sequence[SubsetPrompt], votes: Sequence[Vote]) -> Released:
        counts = count_votes(subset_prompts, votes, len(self._labels))
        result = self._mechanism.release(counts, rng=self._rng)
        shares = dict(zip(self._labels, result.shares(), strict=True)) if self._vote_shares else None
        return Released(self._labels[result.winner], shares)

    def _charged(self, question: str, message: str) -> ModelUnavailable:
        """The error of a charged release whose public companion got no answer. Its question is probed from now on."""
        self._unanswered.add(_key(question))
        return ModelUnavailable(
            f"{message} This answer was charged; the same question is asked in public first from now on, which costs "
            "nothing."
        )


@contextlib.contextmanager
def _nothing_charged() -> Iterator[None]:
    """Add to the error of a failed probe that nothing was charged."""
    try:
        yield
    except ModelUnavailable as error:
        raise ModelUnavailable(f"{error} This attempt was not charged.") from None


def _key(question: str) -> bytes:
    """Cache key of an answer: as short for a long question as for a short one."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()
