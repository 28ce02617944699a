"""Who is asked in one release: the configuration of DP-ICL, fixed once, and its subsets. No I/O, no LangChain."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from langchain_dp._util import forks
from langchain_dp.ensemble.answers import AnswerCache
from langchain_dp.ensemble.scheme import Scheme
from langchain_dp.ensemble.subsets import Subset, SubsetSampler
from langchain_dp.icl.votes import Shot, SubsetPrompt
from langchain_dp.mechanisms.randomness import Randomness
from langchain_dp.records import PrivateRecords


class SubsetPrompts:
    """The private records in their subsets, and what each subset is asked.

    Thread-safe. Records may come and go; each such edit touches one subset, whose key changes.

    Args:
        records: Private examples.
        scheme: Sampling scheme.
        render: Turns an example into a shot.
        rng: Source of assignment and sampling coins.
    """

    def __init__(
        self,
        records: PrivateRecords,
        scheme: Scheme,
        render: Callable[[Mapping[str, Any]], Shot],
        rng: Randomness,
    ) -> None:
        self.scheme = scheme
        self._records = records
        self._shots: dict[str, Shot] = {record_id: render(records.get(record_id)) for record_id in records.ids()}
        self._render = render
        self._lock = threading.Lock()
        forks.keep_still(self)
        self._forgotten = 0
        self._catch_up: Callable[[], None] = lambda: None
        self._kept: weakref.WeakSet[AnswerCache[Any]] = weakref.WeakSet()
        self._sampler = SubsetSampler(self._shots, scheme, rng)

    def draw(self, question: str) -> list[SubsetPrompt]:
        """Subset prompts of one release, by fresh coins."""
        self._catch_up()
        with self._lock:
            return [self._subset_prompt(subset, question) for subset in self._sampler.draw()]

    def balanced(self, question: str, rng: random.Random) -> list[SubsetPrompt]:
        """Plain few-shot prompting, without any privacy: as many records as a random subset has, of all labels alike.

        The labels are in random order, and so are the records of each: a prompt of one label only, which a subset can
        be, would make a weak opponent.
        """
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
        """Prompts of all fixed subsets (to warm caches); empty under "resample", which has nothing to keep."""
        self._catch_up()
        with self._lock:
            return [self._subset_prompt(subset, question) for subset in self._sampler.everyone()]

    def _subset_prompt(self, subset: Subset, question: str) -> SubsetPrompt:
        return SubsetPrompt(subset.member, tuple(self._shots[name] for name in subset.record_ids), question)

    def add(self, example: Mapping[str, Any], record_id: str | None) -> tuple[str, Hashable | None]:
        """Add a record by its own coin; returns its id and the key of the content that its subset had before."""
        with self._lock:
            shot = self._render(example)
            record_id = self._records.add(example, record_id=record_id)
            self._shots[record_id] = shot
            return record_id, self._sampler.add(record_id)

    def ask_first(self, catch_up: Callable[[], None]) -> None:
        """Have this called before every use of the records: it drops those that another replica has forgotten."""
        self._catch_up = catch_up

    def keep(self, answers: AnswerCache[Any]) -> None:
        """Have a page turned in ``answers``, for as long as they live, whenever a record is forgotten."""
        self._kept.add(answers)

    def forget(self, record_id: str) -> Hashable | None:
        """Remove a record; returns the key of the content that its subset had before."""
        with self._lock:
            self._records.forget(record_id)
            self._forgotten += 1
            del self._shots[record_id]
            epoch = self._forgotten
            stale = self._sampler.forget(record_id)
        for answers in list(self._kept):
            answers.invalidate_before(epoch)
        return stale

    @property
    def forgotten(self) -> int:
        """How many records were forgotten so far: answers from before belong to another page."""
        return self._forgotten

    def average_shot(self) -> str:
        """A shot of average length, for the operator's cost estimate. Private."""
        with self._lock:
            texts = sorted((f"{question} {word}\n\n" for question, word in self._shots.values()), key=len)
        mean = sum(map(len, texts)) / max(len(texts), 1)
        return min(texts, key=lambda text: abs(len(text) - mean), default="")
