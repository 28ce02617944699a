"""One release after the other: spend, ask, count, draw noise. The shell that drives the plan, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Generator, Iterator, Sequence

from langchain_dp._util.fair_semaphore import FairSemaphore
from langchain_dp.accounting.events import count_is_public
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.ensemble.tools import BudgetMonitor
from langchain_dp.errors import ModelUnavailable
from langchain_dp.icl.answers import Released
from langchain_dp.icl.pace import Pace
from langchain_dp.icl.replicas import Replicas
from langchain_dp.icl.reservation import AnswerReservation
from langchain_dp.icl.subset_prompts import SubsetPrompts
from langchain_dp.icl.voters import Voter
from langchain_dp.icl.votes import SubsetPrompt, Vote, votes
from langchain_dp.isolation.calls import in_own_thread
from langchain_dp.isolation.run import check_environment
from langchain_dp.mechanisms import Randomness, ReportNoisyMax
from langchain_dp.redact import PrivateArgs, arun_redacted, run_redacted

_WHEN = "while a label was released"


class Releaser:
    """Releases labels under one reservation, and keeps them, so that the same question costs nothing twice.

    Args:
        labels: Public labels, in the public order.
        subset_prompts: Private records in their subsets.
        voter: Asks the model.
        reservation: Where every release is charged.
        rng: Source of the noise.
        pace: Holds answers back.
        vote_shares: Whether noisy shares are released too.
        max_calls: Model calls at a time, over all questions.
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
        pace: Pace,
        vote_shares: bool,
        max_calls: int,
        answer_cache_size: int,
        replicas: Replicas | None = None,
    ) -> None:
        self.reservation = reservation
        self.pace = pace
        self._labels = tuple(labels)
        self._subset_prompts = subset_prompts
        self._voter = voter
        self._mechanism = ReportNoisyMax(reservation.event)
        self.remaining = BudgetMonitor(reservation.plan, reservation.event, reservation.max_queries)
        self._rng = rng
        self._vote_shares = vote_shares
        self._max_calls = max_calls
        self._keep_answers = answer_cache_size
        self.replicas = replicas
        self._answers = AnswerCache[Released](answer_cache_size)
        if not self._presence_is_private():
            subset_prompts.keep(self._answers)
        self._running: set[asyncio.Task[Released]] = set()  # a loop alone would forget them
        self._probed = False
        self._unanswered: set[bytes] = set()  # no more than were charged
        calls = reservation.scheme.expected_subsets + voter.companions
        # Few releases at a time: what is charged when the model dies is lost, and others would only wait for places.
        self._under_way = FairSemaphore(math.ceil(max_calls / max(calls, 1.0)))

    def _presence_is_private(self) -> bool:
        return not count_is_public(self.reservation.budget.neighbors)

    def _cache_epoch(self) -> int:
        """A forgotten record turns the page: what it may have helped to find is not given out again.

        Not where the promise covers whether a record is there at all: that a question costs again would show that one
        was. An answer that was released stays released, and giving it out again shows nothing more.
        """
        if self._presence_is_private():
            return 0
        return self._subset_prompts.forgotten if self.replicas is None else self.replicas.epoch

    def _refresh_epoch(self) -> int:
        """The page, once it is known what other replicas have forgotten."""
        if self.replicas is not None:
            self.replicas.catch_up()
        return self._cache_epoch()

    def _find_shared_answer(self, question: str, epoch: int) -> Released | None:
        return None if self.replicas is None else self.replicas.answered(question, epoch)

    def _publish_answer(self, question: str, epoch: int, answer: Released) -> Released:
        """What all replicas give: stored before it leaves."""
        return answer if self.replicas is None else self.replicas.keep(question, epoch, answer)

    def with_reservation(self, reservation: AnswerReservation) -> Releaser:
        """A second releaser over the same subsets and model, charged to another reservation."""
        return Releaser(
            labels=self._labels,
            subset_prompts=self._subset_prompts,
            voter=self._voter,
            reservation=reservation,
            rng=self._rng,
            pace=self.pace,
            vote_shares=self._vote_shares,
            max_calls=self._max_calls,
            answer_cache_size=self._keep_answers,
        )

    def release(self, question: str, user_id: str | None = None) -> Released:
        """Answer a rendered, checked question: from what was released before, or by one new release.

        Args:
            question: The question.
            user_id: Who asks, where the plan has accounts, and pays if it is a new one.

        Raises:
            ModelUnavailable: A public question showed that the model does not answer: before the charge, or beside
                the subsets, after it. The next release starts with a public test question.
        """
        started = self.pace.start()
        key, epoch = _key(question), self._refresh_epoch()
        answer, owner = None, object()
        try:
            claim = self._answers.claim(key, epoch, owner)
            if claim is not None:
                return claim
            answer = self._find_shared_answer(question, epoch)
            if answer is not None:
                return answer
            self.remaining.warn_if_low(user_id)
            with self._under_way.held():
                drawn = run_redacted(self._answered, PrivateArgs(question, user_id), _WHEN)
            answer = self._publish_answer(question, epoch, drawn)
            self.pace.hold(started)
            return answer
        except ModelUnavailable:
            self._probed = False
            self.pace.hold(started)
            raise
        finally:
            self._answers.settle(key, answer, epoch, owner)

    async def arelease(self, question: str, user_id: str | None = None) -> Released:
        """Async twin of :meth:`release`. Who is cancelled after the charge has paid: the answer is found, and kept."""
        started = self.pace.start()
        key, epoch = (
            _key(question),
            self._cache_epoch() if self.replicas is None else await in_own_thread(self._refresh_epoch),
        )
        claim = await self._answers.aclaim(key, epoch)
        if claim is not None:
            return claim
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
            if self.replicas is not None:
                answer = await in_own_thread(self._find_shared_answer, question, epoch)
            if answer is not None:
                return answer
            await in_own_thread(self.remaining.warn_if_low, user_id)
            async with self._under_way.aheld():
                drawn: Released = await arun_redacted(self._aanswered, PrivateArgs(question, user_id, charging), _WHEN)
            if self.replicas is not None:
                drawn = await in_own_thread(self._publish_answer, question, epoch, drawn)
            answer = drawn
            await self.pace.ahold(started)
            return drawn
        except ModelUnavailable:
            self._probed = False
            await self.pace.ahold(started)
            raise
        finally:
            self._answers.settle(key, answer, epoch)

    def _answered(self, question: str, user_id: str | None) -> Released:
        with _nothing_charged():
            if not self._probed:
                self._voter.probe()
                self._probed = True
            if _key(question) in self._unanswered:
                self._voter.ask((), beside=question)
        steps = self._steps(question, user_id)
        subset_prompts = next(steps)
        try:
            return _finish(steps, self._voter.ask(subset_prompts, beside=question))
        except ModelUnavailable as error:
            said = str(error)
        raise self._charged(question, said)

    async def _aanswered(self, question: str, user_id: str | None, charging: asyncio.Event) -> Released:
        with _nothing_charged():
            if not self._probed:
                await self._voter.aprobe()
                self._probed = True
            if _key(question) in self._unanswered:
                await self._voter.aask((), beside=question)
        steps = self._steps(question, user_id)
        charging.set()
        subset_prompts = await in_own_thread(next, steps)
        try:
            return _finish(steps, await self._voter.aask(subset_prompts, beside=question))
        except ModelUnavailable as error:
            said = str(error)
        raise self._charged(question, said)

    def _charged(self, question: str, said: str) -> ModelUnavailable:
        """What a charged release ends in whose public companion got no answer; its question is known from now on."""
        self._unanswered.add(_key(question))
        return ModelUnavailable(
            f"{said} This answer was charged; the same question is asked in public first from now on, which costs "
            "nothing."
        )

    def _steps(self, question: str, user_id: str | None) -> Generator[Sequence[SubsetPrompt], Sequence[Vote], Released]:
        """The order of every release: spend (durable), draw subsets, count votes, draw noise, name the winner."""
        check_environment()
        plan = self.reservation.plan
        plan.spend(self._mechanism.event, caller=plan.name, user_id=user_id)
        counts = yield from votes(self._subset_prompts.draw(question), len(self._labels))
        result = self._mechanism.release(counts, rng=self._rng)
        shares = dict(zip(self._labels, result.shares(), strict=True)) if self._vote_shares else None
        return Released(self._labels[result.winner], shares)


@contextlib.contextmanager
def _nothing_charged() -> Iterator[None]:
    """A model that fails on a public question, before a release is charged: its error says so."""
    try:
        yield
    except ModelUnavailable as error:
        raise ModelUnavailable(f"{error} This attempt was not charged.") from None


def _key(question: str) -> bytes:
    """What an answer is kept under: as short for a long question as for a short one."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()


def _finish(steps: Generator[Sequence[SubsetPrompt], Sequence[Vote], Released], cast: Sequence[Vote]) -> Released:
    try:
        steps.send(cast)
    except StopIteration as stop:
        result: Released = stop.value
        return result
    raise AssertionError("a release has one round of subset prompts")
