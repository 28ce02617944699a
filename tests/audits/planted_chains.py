"""Faults planted into whole chains: for as long as an audit runs, one part of this package is another. NOT PRIVATE.

Each takes the place of a part with its interface, so that the chain around it stays the one that is shipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import langchain_dp.accounting._account
import langchain_dp.accounting.calibrate
import langchain_dp.ensemble.subsets
import langchain_dp.icl.reservation
import langchain_dp.opt.data
import langchain_dp.opt.private
from audits.planted import StandIn, Swap, UnchargedRetries, best_of_all, instead, method
from langchain_dp.accounting import LedgerPlan, MetricLedger, NoisyMaxEvent
from langchain_dp.accounting.metric import Owner
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.ensemble.engine_calls import PromptBudget, beginning
from langchain_dp.ensemble.subsets import FixedPartition
from langchain_dp.errors import BudgetExceeded
from langchain_dp.icl import ChatDPICL, DPICLClassifier
from langchain_dp.icl.release import Releaser
from langchain_dp.icl.reservation import AnswerReservation
from langchain_dp.icl.subset_prompts import SubsetPrompts
from langchain_dp.icl.voters import EngineVoter, ModelVoter
from langchain_dp.mechanisms import Exponential, LimitedDomain, NoisyMax, ReportNoisyMax
from langchain_dp.opt.data import Data
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.reservation import VALIDATION
from langchain_dp.opt.voters import PrivateVote
from langchain_dp.rapt.privatize import Items, TextPrivatizer
from langchain_dp.rapt.vocabulary import PAD


def remembered_by_the_prompt(
    real: StandIn, room: PromptBudget, texts: Sequence[str], *, whole: Callable[[Sequence[str]], str], tokens: int
) -> list[str]:
    """Texts that make the same prompt are cut alike: as those that were asked first."""
    found: dict[str, int] = vars(room).setdefault("planted", {})
    shown = real(room, texts, whole=whole, tokens=tokens)
    most = found.setdefault(whole(texts), max(map(len, shown)))
    return [beginning(text, most) for text in texts]


def cut_as_the_first(
    real: StandIn, room: PromptBudget, texts: Sequence[str], *, whole: Callable[[Sequence[str]], str], tokens: int
) -> list[str]:
    """Every subset's texts are cut where those of the first had to be."""
    most: int = vars(room).setdefault("planted", max(map(len, real(room, texts, whole=whole, tokens=tokens))))
    return [beginning(text, most) for text in texts]


def every_third_free(real: StandIn) -> Any:
    """Every third charge of a ledger is skipped."""
    calls = iter(range(10**9))
    return lambda *args, **kwargs: None if next(calls) % 3 == 2 else real(*args, **kwargs)


def free_in_threads(real: StandIn, *args: Any, **kwargs: Any) -> None:
    """What is asked in a batch, or by an async caller, is not charged."""
    if threading.current_thread() is threading.main_thread():
        real(*args, **kwargs)


async def async_certificate_free(real: StandIn, self: DPICLClassifier, *args: Any) -> Any:
    """An async caller who wants a certificate is not charged."""
    with instead(LedgerPlan, "spend", lambda spend: lambda *args, **kwargs: None):
        return self.invoke_with_certificate(*args)


async def async_chat_free(real: StandIn, self: ChatDPICL, *args: Any, **kwargs: Any) -> Any:
    """An async caller of the chat model is not charged."""
    with instead(LedgerPlan, "spend", lambda spend: lambda *args, **kwargs: None):
        return self._generate(*args, **kwargs)


def anew_for_free(real: StandIn) -> Any:
    """A question that was charged once is answered anew for nothing, once its answer is no longer kept."""
    paid: set[str] = set()

    def answered(self: Releaser, question: str, *who: Any) -> Any:
        if question not in paid:
            paid.add(question)
            return real(self, question, *who)
        with instead(LedgerPlan, "spend", lambda spend: lambda *args, **kwargs: None):
            return real(self, question, *who)

    return answered


def companion_of_records(real: StandIn, self: ModelVoter, subset_prompts: Any, beside: Any, even_empty: bool) -> Any:
    """The public companion is shown the examples of a subset, and what it says may be said aloud."""
    prompts = real(self, subset_prompts, beside, even_empty)
    return [prompts[1], *prompts[1:]] if beside and self.companions and len(prompts) > 1 else prompts


def larger_after_restart(real: StandIn, *args: Any, resumed: Callable[[LedgerPlan], Any], **kwargs: Any) -> Any:
    """A chain that goes on with its plan draws more of its subsets than the plan was made for."""

    def larger(plan: LedgerPlan) -> AnswerReservation:
        found: AnswerReservation = resumed(plan)
        more = min(1.0, 1.5 * found.scheme.sampling_probability)
        return dataclasses.replace(found, scheme=dataclasses.replace(found.scheme, sampling_probability=more))

    return real(*args, resumed=larger, **kwargs)


def overdrawn(real: StandIn, *args: Any, **kwargs: Any) -> None:
    """A plan that is used up goes on: its count is larger than what the noise was made for."""
    with contextlib.suppress(BudgetExceeded):
        real(*args, **kwargs)


def charged_late(real: StandIn) -> Any:
    """Every charge is made when the next one is due: a crash in between makes a release free."""
    due: list[Callable[[], None]] = []

    def late(*args: Any, **kwargs: Any) -> None:
        due.append(lambda: real(*args, **kwargs))
        if len(due) > 1:
            due.pop(0)()

    return late


def asked_twice(real: StandIn, self: Any, subset_prompts: Sequence[Any], **kwargs: Any) -> Any:
    """Two rounds of votes for one charge."""
    real(self, subset_prompts, **kwargs)
    return real(self, subset_prompts, **kwargs)


def without_pages(real: StandIn, self: Any, key: Any, *args: Any) -> Any:
    """Released answers are kept by their question alone, whatever was forgotten since."""
    return real(self, key[-1], *args)


def still_asked(real: StandIn, self: SubsetPrompts, record_id: str) -> Any:
    """A record is forgotten by the records, and stays in its subset."""
    shot = self._shots[record_id]
    stale = real(self, record_id)
    self._shots[record_id] = shot
    self._shown[record_id] = [record_id]  # without user_key a record is its own user
    self._sampler.add(record_id)
    return stale


def everybody_votes(real: StandIn, self: FixedPartition, *args: Any) -> list[int]:
    """Every subset is drawn, and charged as sampled."""
    return list(range(len(self)))


def all_records(real: StandIn, record_ids: Sequence[str], slots: int, rate: Any, rng: Any) -> Any:
    """Every record is drawn, and charged as sampled."""
    return real(record_ids, slots, type(rate)(1), rng)


def twice_the_rate(real: StandIn, self: FixedPartition, rate: Any, rng: Any) -> list[int]:
    """Half as many again take part as are charged for."""
    return list(real(self, rate * 3 / 2, rng))


def one_coin_for_two(real: StandIn) -> Any:
    """Coins are tossed for every second release, and used again for the next one."""
    kept: dict[int, list[int]] = {}

    def draw(self: FixedPartition, *args: Any) -> list[int]:
        if id(self) in kept:
            return kept.pop(id(self))
        kept[id(self)] = real(self, *args)
        return kept[id(self)]

    return draw


def added_twice(real: StandIn, self: FixedPartition, record_id: str) -> int:
    """A record that is added later sits in two subsets."""
    subset: int = real(self, record_id)
    self._members[(subset + 1) % len(self)].append(record_id)
    return subset


def neighbor_looks_in(real: StandIn, self: SubsetPrompts, question: str) -> Any:
    """A prompt also shows the first example of the subset that was drawn before it."""
    subset_prompts = real(self, question)
    moved = [subset_prompt.shots[:1] for subset_prompt in subset_prompts]
    return [
        type(subset_prompt)(subset_prompt.member, subset_prompt.shots + before, subset_prompt.question)
        if subset_prompt.shots
        else subset_prompt
        for subset_prompt, before in zip(subset_prompts, moved[-1:] + moved[:-1], strict=True)
    ]


def better_of_two(real: StandIn, self: ReportNoisyMax, counts: Sequence[int], **kwargs: Any) -> NoisyMax:
    """Noise is drawn twice, and the draw kept in which the larger count wins."""
    drawn: list[NoisyMax] = [real(self, counts, **kwargs) for _ in range(2)]
    return max(drawn, key=lambda each: counts[each.winner])


def renormalized(real: StandIn, self: ReportNoisyMax, counts: Sequence[int], **kwargs: Any) -> NoisyMax:
    """Who abstains is made up for: counts are scaled up to a fixed number of votes."""
    voters = max(sum(counts), 1)
    return real(self, [round(18 * count / voters) for count in counts], **kwargs)  # type: ignore[no-any-return]


def agreed(real: StandIn, self: ReportNoisyMax, counts: Sequence[int], **kwargs: Any) -> NoisyMax:
    """Where most agree there is nothing to hide: hardly any noise."""
    little = ReportNoisyMax(NoisyMaxEvent(0.3))
    return real(little if max(counts) > 0.6 * sum(counts) else self, counts, **kwargs)  # type: ignore[no-any-return]


def end_for_free(real: StandIn, self: PrivateVote, message: int, written: Any) -> Any:
    """A token is charged once it is known, and the end of a text is not."""
    held: list[Callable[[], None]] = []
    with instead(
        LedgerPlan, "spend", lambda spend: lambda *args, **kwargs: held.append(lambda: spend(*args, **kwargs))
    ):
        token = real(self, message, written)
    if token != 0:
        held[0]()
    return token


def drawn_again(real: StandIn, self: LimitedDomain[Any], votes: Any, **kwargs: Any) -> Any:
    """Where nothing stands out, the noise is drawn again over the same votes."""
    token = real(self, votes, **kwargs)
    return real(self, votes, **kwargs) if token is None else token


def lower_threshold(real: StandIn, self: LimitedDomain[Any], votes: Any, **kwargs: Any) -> Any:
    """The threshold for votes that appear, used where votes move."""
    return real(dataclasses.replace(self, moved_votes=False), votes, **kwargs)


def clamped(real: StandIn, self: LimitedDomain[Any], votes: Any, **kwargs: Any) -> Any:
    """Kbar is clamped below the number of distinct votes."""
    most = max(min(self.kbar, sum(map(bool, votes.values())) - 1), 1)
    return real(dataclasses.replace(self, kbar=most), votes, **kwargs)


def training_sees_all(real: StandIn, record_ids: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """Validation records are set apart, and teach all the same."""
    return list(record_ids), real(record_ids, *args, **kwargs)[1]


def split_by_place(real: StandIn, record_ids: Sequence[str], share: float, *args: Any, **kwargs: Any) -> Any:
    """The last records validate, whatever the key."""
    cut = len(record_ids) - round(share * len(record_ids))
    return list(record_ids[:cut]), list(record_ids[cut:])


def answers_of_the_batch(
    real: StandIn, self: Forward, instruction: str, texts: Sequence[str], *words: Any
) -> list[int | None]:
    """What a demonstration shows as the model's answer is the most frequent one of its batch."""
    answers = real(self, instruction, texts, *words)
    return [max(set(answers), key=answers.count)] * len(answers) if answers else []


def teaching_rows(real: StandIn, self: Data, ids: list[str]) -> Any:
    """The choice is made by the records that taught."""
    return real(self, self.training)


def choice_for_free(real: StandIn, self: LedgerPlan, event: Any, *args: Any, **kwargs: Any) -> None:
    """The choice among the candidates is not charged."""
    if event.part != VALIDATION:
        real(self, event, *args, **kwargs)


def best_candidate(real: StandIn, self: Exponential, counts: Sequence[int], **kwargs: Any) -> int:
    """No noise at all."""
    return best_of_all(counts, self.event.epsilon)


def charged_nothing(real: StandIn, self: MetricLedger, eta: float, *args: Any, **kwargs: Any) -> None:
    """A billionth is charged, whatever is drawn."""
    real(self, 1e-9, *args, **kwargs)


def equal_ones_once(real: StandIn, self: MetricLedger, eta: float, owners: Sequence[Owner], **kwargs: Any) -> None:
    """Equal texts of one call are charged as one, and drawn each."""
    kinds = {(owner.document.rsplit("#", 1)[0], owner.user): owner for owner in owners}
    real(self, eta, list(kinds.values()), **kwargs)


def first_user_pays(real: StandIn) -> Any:
    """Whoever came first is charged for all."""
    first: dict[int, str | None] = {}

    def spend(self: MetricLedger, eta: float, owners: Sequence[Owner], **kwargs: Any) -> None:
        payer = first.setdefault(id(self), owners[0].user)
        real(self, eta, [Owner(owner.document, payer) for owner in owners], **kwargs)

    return spend


def shared_releases(real: StandIn, self: MetricLedger, domain: str, text: str) -> Any:
    """What was released for one user is given out to another who has the same text."""
    return real(self, domain, text.replace('["two"', '["one"') if domain == "release" else text)


def names_in_clear(real: StandIn, self: TextPrivatizer, texts: Sequence[str]) -> Any:
    """A word that the table does not hold stays as it is."""
    draw = real(self, texts)

    def drawn() -> list[Any]:
        found = []
        for text, released in zip(texts, draw(), strict=True):
            pairs = zip(text.split(), released.split(), strict=False)
            found.append(" ".join(new if old.lower() in self.vocabulary.index else old for old, new in pairs))
        return found

    return drawn


def closer_of_two(real: StandIn, self: TextPrivatizer, ids: Any) -> Any:
    """Every word is drawn twice, and kept if it came once."""
    given = np.array(ids)
    one, other = real(self, given), real(self, given)
    return np.where(other == given, other, one)


def one_draw_a_word(real: StandIn, self: TextPrivatizer, ids: Any) -> Any:
    """A word that comes again in a text is written as it was before."""
    distinct, places = np.unique(ids, return_inverse=True)
    return real(self, distinct)[places]


def pads_by_lot(real: StandIn, self: TextPrivatizer, ids: Any) -> Any:
    """What fills a text up is any word, each as likely as the next: it tells where the text ends."""
    given = np.array(ids)
    lot = np.random.default_rng().integers(len(self.vocabulary), size=given.shape)
    return np.where(given == PAD, lot, real(self, given))


def pads_without_noise(real: StandIn, self: TextPrivatizer, ids: Any) -> Any:
    """What fills a text up is the word next to the vector of a pad, always."""
    given = np.array(ids)
    pad = self.vocabulary.points(np.array([PAD]))
    closest = np.argmin(np.linalg.norm(self.vocabulary.table.vectors - pad, axis=1))
    return np.where(given == PAD, closest, real(self, given))


def only_cut(real: StandIn, self: Items, length: int) -> None:
    """Texts are cut and never filled up."""
    before = len(self.ids)
    real(self, length)
    del self.ids[before:]


CUTS: dict[str, list[Swap]] = {
    "remembered by the prompt": [(PromptBudget, "truncate", method(remembered_by_the_prompt))],
    "cut as the first was": [(PromptBudget, "truncate", method(cut_as_the_first))],
}
ANSWERS: dict[str, list[Swap]] = {
    "every third answer free": [(LedgerPlan, "spend", every_third_free)],
    "batches and async for free": [(LedgerPlan, "spend", method(free_in_threads))],
    "async certificates for free": [(DPICLClassifier, "ainvoke_with_certificate", method(async_certificate_free))],
    "async chats for free": [(ChatDPICL, "_agenerate", method(async_chat_free))],
    "answered anew for free": [(Releaser, "_answered", anew_for_free)],
    "overdrawn plan": [(LedgerPlan, "spend", method(overdrawn))],
    "charged after the answer": [(LedgerPlan, "spend", charged_late)],
    "votes asked twice": [(EngineVoter, "ask", method(asked_twice))],
    "answers outlive the forgotten": [
        (AnswerCache, name, method(without_pages)) for name in ("claim", "aclaim", "settle")
    ],
    "forgotten, and still asked": [(SubsetPrompts, "forget", method(still_asked))],
    "a second budget for free": [(Releaser, "with_reservation", lambda real: lambda self, reservation: self)],
}
"""Faults of who pays for an answer."""

SUBSET_PROMPTS: dict[str, list[Swap]] = {
    "every subset drawn": [(FixedPartition, "draw", method(everybody_votes))],
    "every record drawn": [(langchain_dp.ensemble.subsets, "resample", method(all_records))],
    "half as many again drawn": [(FixedPartition, "draw", method(twice_the_rate))],
    "one sample for two questions": [(FixedPartition, "draw", one_coin_for_two)],
    "added to two subsets": [(FixedPartition, "add", method(added_twice))],
    "another's example shown": [(SubsetPrompts, "draw", method(neighbor_looks_in))],
    "more drawn after a restart": [(langchain_dp.icl.reservation, "reserved_once", method(larger_after_restart))],
}
"""Faults of who votes and what is shown, and one that few releases show."""

NOISE: dict[str, list[Swap]] = {
    "better noise of two": [(ReportNoisyMax, "release", method(better_of_two))],
    "abstainers made up for": [(ReportNoisyMax, "release", method(renormalized))],
    "no noise where most agree": [(ReportNoisyMax, "release", method(agreed))],
}
"""Faults of what is counted and drawn."""

ELSEWHERE: dict[str, list[Swap]] = {
    "a companion with examples": [(ModelVoter, "_prompts", method(companion_of_records))],
}
"""Faults of the public call beside the subsets."""

TOKENS: dict[str, list[Swap]] = {
    "uncharged retry": [(langchain_dp.opt.private, "PrivateVote", lambda real: UnchargedRetries)],
    "an end for free": [(PrivateVote, "next_token", method(end_for_free))],
    "every subset writes": [(FixedPartition, "draw", method(everybody_votes))],
    "one sample for two tokens": [(FixedPartition, "draw", one_coin_for_two)],
    "validation records teach": [(langchain_dp.opt.data, "split", method(training_sees_all))],
    "split by place": [(langchain_dp.opt.data, "split", method(split_by_place))],
    "answers of the batch": [(Forward, "predict", method(answers_of_the_batch))],
}
"""Faults of who pays for a token, who is asked, and what is shown."""


def half_the_noise(real: StandIn, self: LimitedDomain[Any], votes: Any, **rest: Any) -> Any:
    """Tokens are drawn with half the noise that is charged."""
    event = dataclasses.replace(self.event, epsilon0=2 * self.event.epsilon0)
    return real(dataclasses.replace(self, event=event), votes, **rest)


VOTES: dict[str, list[Swap]] = {
    "half the noise of a run": [(LimitedDomain, "release", method(half_the_noise))],
    "+1 where votes move": [(LimitedDomain, "release", method(lower_threshold))],
    "clamped kbar of a run": [(LimitedDomain, "release", method(clamped))],
    "noise drawn again": [(LimitedDomain, "release", method(drawn_again))],
}
"""Faults of what comes out of the votes."""

CHOICE: dict[str, list[Swap]] = {
    "the best candidate of a run": [(Exponential, "release", method(best_candidate))],
    "a choice for free": [(LedgerPlan, "spend", method(choice_for_free))],
    "chosen by those who taught": [(Data, "rows", method(teaching_rows))],
}
"""Faults of a run that chooses."""

PUBLIC: dict[str, list[Swap]] = {
    "the best public prompt": [(Exponential, "release", method(best_candidate))],
    "a public choice for free": [(LedgerPlan, "spend", method(choice_for_free))],
    "chosen by nobody": [(Data, "rows", method(teaching_rows))],
}
"""Faults of a run that writes nothing."""

FACES: dict[str, list[Swap]] = {
    "a billionth is charged": [(MetricLedger, "spend", method(charged_nothing))],
    "every third text free": [(MetricLedger, "spend", every_third_free)],
    "equal texts charged once": [(MetricLedger, "spend", method(equal_ones_once))],
    "the first user pays for all": [(MetricLedger, "spend", first_user_pays)],
    "one user's text for another": [(MetricLedger, "digest", method(shared_releases))],
    "beyond the limit": [(MetricLedger, "spend", method(overdrawn))],
    "unknown names in clear": [(TextPrivatizer, "written", method(names_in_clear))],
    "closer word of two": [(TextPrivatizer, "release", method(closer_of_two))],
    "one draw for equal words": [(TextPrivatizer, "release", method(one_draw_a_word))],
}
"""Faults of a sanitizer and its account."""

PADS: dict[str, list[Swap]] = {
    "pads are any word": [(TextPrivatizer, "release", method(pads_by_lot))],
    "pads without noise": [(TextPrivatizer, "release", method(pads_without_noise))],
    "short texts stay short": [(Items, "fit", method(only_cut))],
}
"""Faults of a fixed length."""
