"""Faults that show between neighbors, in a log, or where one question is asked once more. NOT PRIVATE."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import langchain_dp.ensemble.text_writer
import langchain_dp.icl.release
import langchain_dp.icl.voters
from audits.planted import StandIn, Swap, method
from langchain_dp.ensemble.subsets import FixedPartition, SubsetSampler
from langchain_dp.ensemble.text_writer import TextWriter
from langchain_dp.icl.subset_prompts import SubsetPrompts
from langchain_dp.isolation.model import IsolatedModel
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.synth import DPAnswerGenerator

_LOG = logging.getLogger("langchain_dp.planted")


def to_the_smallest(real: StandIn, self: FixedPartition, record_id: str) -> int:
    """A record that is added later joins the smallest subset, and so where it sits hangs on all others."""
    return self._put(record_id, min(range(len(self)), key=lambda place: len(self.members(place))))


def from_the_first(real: StandIn, self: FixedPartition, record_id: str) -> int:
    """A record that is added later joins the subset that its number among all records says."""
    return self._put(record_id, len(self._subset) % len(self))


def filled_up(real: StandIn, self: FixedPartition, record_id: str) -> int:
    """The place of a forgotten record is taken by one of the largest subset."""
    place: int = real(self, record_id)
    largest = max(range(len(self)), key=lambda subset: len(self.members(subset)))
    if largest != place and self.members(largest):
        moved = self.members(largest)[-1]
        real(self, moved)
        self._put(moved, place)
    return place


def twins_once(real: StandIn, self: SubsetPrompts, question: str) -> Any:
    """Examples that are equal are shown once, in the first subset that has one."""
    shown: set[Any] = set()
    drawn = []
    for one in real(self, question):
        drawn.append(dataclasses.replace(one, shots=tuple(shot for shot in one.shots if shot not in shown)))
        shown.update(one.shots)
    return drawn


def as_many_of_each_label(real: StandIn, self: SubsetPrompts, question: str) -> Any:
    """Only as many examples of a label are shown as there are of the rarest one."""
    drawn = real(self, question)
    labels = collections.Counter(label for one in drawn for _, label in one.shots)
    left = dict.fromkeys(labels, min(labels.values(), default=0))
    kept = []
    for one in drawn:
        shots = []
        for shot in one.shots:
            left[shot[1]] -= 1
            if left[shot[1]] >= 0:
                shots.append(shot)
        kept.append(dataclasses.replace(one, shots=tuple(shots)))
    return kept


def for_the_leader(real: StandIn, prompts: Sequence[Any], received: Sequence[Any], labels: int) -> list[int]:
    """Subsets that abstain are counted for the label that leads."""
    counts: list[int] = real(prompts, received, labels)
    counts[counts.index(max(counts))] += len(prompts) - sum(counts)
    return counts


def by_place(real: StandIn, prompts: Sequence[Any], received: Sequence[Any], labels: int) -> list[int]:
    """Votes are matched with the subsets that have records, by their places."""
    counts = [0] * labels
    for _, vote in zip([one for one in prompts if one.shots], received, strict=False):
        if vote is not None:
            counts[vote] += 1
    return counts


def shares_of_votes(real: StandIn, prompts: Sequence[Any], received: Sequence[Any], labels: int) -> list[int]:
    """Counts are scaled up to all subsets, as if those that abstain had voted like the others."""
    counts: list[int] = real(prompts, received, labels)
    return [count * len(prompts) // max(sum(counts), 1) for count in counts]


def empty_ones_vote(real: StandIn, prompts: Sequence[Any], received: Sequence[Any], labels: int) -> list[int]:
    """An empty subset has the vote of the subset before it."""
    counts, last = [0] * labels, None
    for one, vote in zip(prompts, received, strict=True):
        last = vote if one.shots else last
        if last is not None:
            counts[last] += 1
    return counts


def none_where_one_fails(real: StandIn, ask: Callable[[Any], Any], members: Sequence[Any]) -> list[Any]:
    """One member that breaks a joint call silences all others of it."""
    try:
        return list(ask(members))
    except Exception:
        return [None] * len(members)


def none_of_a_batch(real: StandIn, self: IsolatedModel, *args: Any, **kwargs: Any) -> list[Any]:
    """One call that fails makes all others abstain."""
    answers: list[Any] = real(self, *args, **kwargs)
    return [None] * len(answers) if None in answers else answers


def silent_writers(real: StandIn, self: TextWriter, prompt: Any, prompts: Sequence[Any], written: Any) -> Any:
    """One member that breaks a joint call silences all others of a text."""
    try:
        return self._asked(*_as_continuations(prompt, prompts, written))
    except Exception:
        known = real(self, prompt, [], written)
        return dataclasses.replace(known, members=(None,) * len(prompts))


def _as_continuations(prompt: Any, prompts: Sequence[Any], written: Any) -> tuple[Any, list[Any]]:
    continuation = langchain_dp.ensemble.text_writer.Continuation
    return continuation(prompt, written, 0.0), [continuation(one, written, 0.0) for one in prompts]


def members_logged(real: StandIn, self: SubsetPrompts, question: str) -> Any:
    """How many members of each label take part is a line at INFO."""
    drawn = real(self, question)
    labels = collections.Counter(label for one in drawn for _, label in one.shots)
    _LOG.info("members of each label: %s", dict(labels))
    return drawn


def sizes_logged(real: StandIn, self: SubsetPrompts, question: str) -> Any:
    """How many subsets are empty is a line at DEBUG."""
    drawn = real(self, question)
    _LOG.debug("%d subsets have examples", sum(bool(one.shots) for one in drawn))
    return drawn


def winners_lead_logged(real: StandIn, self: Any, counts: Sequence[int], **how: Any) -> Any:
    """The votes of the leading label are a line of the lowest level."""
    _LOG.log(1, "the leading label has %d votes", max(counts))
    return real(self, counts, **how)


def records_logged(real: StandIn, self: DPAnswerGenerator, asked: str, answer: Any) -> Any:
    """How long the records are is a line at INFO."""
    _LOG.info("%d characters of records", sum(len(str(self._records.get(name))) for name in self._records.ids()))
    return real(self, asked, answer)


def _number_from(question: str) -> int:
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:16], "big")


def coins_of_the_question(real: StandIn, self: SubsetPrompts, question: str) -> Any:
    """The coins of a release are hashed from its question: asked anew it draws the same members."""
    self._sampler._rng = NotPrivateSeededRandomness(_number_from(question))
    return real(self, question)


def number_of_the_question(real: StandIn, self: DPAnswerGenerator, asked: str, *who: Any) -> Any:
    """The number of an answer, on which its members hang, is hashed from its question."""
    begun = real(self, asked, *who)
    begun.number = _number_from(asked)
    return begun


def coins_of_the_plan(real: StandIn, self: SubsetSampler, record_ids: Any, scheme: Any, rng: Any) -> None:
    """Every process that goes on with a plan tosses the same coins."""
    real(self, record_ids, scheme, NotPrivateSeededRandomness(len(list(record_ids))))


Faults = Mapping[str, Sequence[Swap]]
_VOTES = langchain_dp.icl.release
_VOTERS = langchain_dp.icl.voters

VOTES: Faults = {
    "added to the smallest subset": [(FixedPartition, "add", method(to_the_smallest))],
    "added in turn": [(FixedPartition, "add", method(from_the_first))],
    "forgotten place filled": [(FixedPartition, "forget", method(filled_up))],
    "twins shown once": [(SubsetPrompts, "draw", method(twins_once))],
    "labels balanced": [(SubsetPrompts, "draw", method(as_many_of_each_label))],
    "abstentions for the leader": [(_VOTES, "count_votes", method(for_the_leader))],
    "votes by place": [(_VOTES, "count_votes", method(by_place))],
    "votes scaled up": [(_VOTES, "count_votes", method(shares_of_votes))],
    "empty subsets vote": [(_VOTES, "count_votes", method(empty_ones_vote))],
    "one failure silences all": [(_VOTERS, "ask_together", method(none_where_one_fails))],
    "one failed call silences all": [(IsolatedModel, "batch", method(none_of_a_batch))],
    "members of a label logged": [(SubsetPrompts, "draw", method(members_logged))],
    "empty subsets logged": [(SubsetPrompts, "draw", method(sizes_logged))],
    "votes logged": [(langchain_dp.mechanisms.ReportNoisyMax, "release", method(winners_lead_logged))],
}
"""Found where two neighbors toss the same coins."""

WRITTEN: Faults = {
    "one failure silences a text": [(TextWriter, "_scores", method(silent_writers))],
    "lengths of records logged": [(DPAnswerGenerator, "_written", method(records_logged))],
}
"""The same of written answers."""

ASKED_AGAIN: Faults = {
    "coins of the question": [(SubsetPrompts, "draw", method(coins_of_the_question))],
    "coins of the plan": [(SubsetSampler, "__init__", method(coins_of_the_plan))],
    "members of the question": [(DPAnswerGenerator, "_begun", method(number_of_the_question))],
}
"""Found where one question is asked many times."""
