"""The prompts of the subsets in one release, and their votes. No I/O."""

from __future__ import annotations

import dataclasses
import random
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from langchain_dp._util import forks
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.ensemble.subsets import Scheme, Subset, SubsetSampler
from langchain_dp.mechanisms.randomness import Randomness
from langchain_dp.records import PrivateRecords

Shot = tuple[str, str]
"""(rendered input up to the cue, label word)."""


@dataclasses.dataclass(frozen=True, repr=False)
class SubsetPrompt:
    """The prompt of one subset. Private, except the question."""

    member: Hashable  # changes with the subset's content
    shots: tuple[Shot, ...]  # without any the subset abstains
    question: str  # rendered, the same for every subset of a release

    def __repr__(self) -> str:
        return "SubsetPrompt(<private>)"


Vote = int | None
"""Index of a label. None abstains."""


def count_votes(subset_prompts: Sequence[SubsetPrompt], votes: Sequence[Vote], labels: int) -> list[int]:
    """Return private counts. Each subset moves at most one vote."""
    counts = [0] * labels
    for subset_prompt, vote in zip(subset_prompts, votes, strict=True):
        if subset_prompt.shots and vote is not None:
            counts[vote] += 1
    return counts


class SubsetPrompts:
    """The private records in subsets. A changed record changes one subset and its key."""

    def __init__(
        self, records: PrivateRecords, scheme: Scheme, render: Callable[[Mapping[str, Any]], Shot], rng: Randomness
    ) -> None:
        self.scheme = scheme
        self._records = records
        self._shots: dict[str, Shot] = {record_id: render(records.get(record_id)) for record_id in records.ids()}
        self._render = render
        self._lock = threading.Lock()
        forks.keep_still(self)
        self.forgotten = 0
        self.catch_up: Callable[[], None] | None = None  # with replicas, called first
        self.caches: weakref.WeakSet[AnswerCache[Any]] = weakref.WeakSet()
        # Coins are drawn for users. Without a user_key each record is one.
        self._shown = {records.user_of(group[0]): group for group in records.users(at_most=1)}
        self._sampler = SubsetSampler(self._shown, scheme, rng)

    def draw(self, question: str) -> list[SubsetPrompt]:
        return self._prompts(self._sampler.draw, question)

    def balanced(self, question: str, rng: random.Random) -> list[SubsetPrompt]:
        """Return a non-private few-shot prompt with balanced labels."""
        sizes = [len(each.shots) for each in self.everyone(question) or self.draw(question) if each.shots]
        with self._lock:
            by_word: dict[str, list[Shot]] = {}
            for shot in self._shots.values():
                by_word.setdefault(shot[1], []).append(shot)
        shots: list[Shot] = []
        size = rng.choice(sizes) if sizes else 0
        while len(shots) < size and (words := [word for word, left in by_word.items() if left]):
            chosen = rng.sample(words, min(len(words), size - len(shots)))
            shots += [by_word[word].pop(rng.randrange(len(by_word[word]))) for word in chosen]
        return [SubsetPrompt(None, tuple(shots), question)] if shots else []

    def everyone(self, question: str) -> list[SubsetPrompt]:
        return self._prompts(self._sampler.everyone, question)

    def _prompts(self, choose: Callable[[], Iterable[Subset]], question: str) -> list[SubsetPrompt]:
        if self.catch_up is not None:
            self.catch_up()
        with self._lock:
            return [
                SubsetPrompt(
                    subset.member,
                    tuple(self._shots[name] for user in subset.record_ids for name in self._shown[user]),
                    question,
                )
                for subset in choose()
            ]

    def add(self, example: Mapping[str, Any], record_id: str | None) -> tuple[str, Hashable | None]:
        """Return the id, and the previous key of its subset."""
        with self._lock:
            shot = self._render(example)
            record_id = self._records.add(example, record_id=record_id)
            self._shots[record_id] = shot
            return record_id, self._refresh(self._records.user_of(record_id))

    def _refresh(self, user: str) -> Hashable | None:
        before, now = self._shown.pop(user, []), self._records.records_of(user, at_most=1)
        if not now:
            return self._sampler.forget(user)
        self._shown[user] = now
        if not before:
            return self._sampler.add(user)
        return self._sampler.change(user) if now != before else None

    def forget(self, record_id: str) -> Hashable | None:
        """Return the previous key of the subset."""
        with self._lock:
            user = self._records.user_of(record_id)
            self._records.forget(record_id)
            self.forgotten += 1
            del self._shots[record_id]
            epoch = self.forgotten
            stale = self._refresh(user)
        for answers in list(self.caches):
            answers.invalidate_before(epoch)
        return stale

    def average_shot(self) -> str:
        with self._lock:
            texts = sorted((f"{question} {word}\n\n" for question, word in self._shots.values()), key=len)
        mean = sum(map(len, texts)) / max(len(texts), 1)
        return min(texts, key=lambda text: abs(len(text) - mean), default="")
