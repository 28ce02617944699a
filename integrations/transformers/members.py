"""Members that are kept between calls: what is known of one is evaluated no second time, and to the same bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from langchain_dp.ports import MemberPrompt

from .._choice import Logits, Scores, log_softmax
from .._engine import Part, body_digest
from .._store import BoundedStore, Calibration
from .evaluate import Layers, LoneEvaluator, size, wipe

Head = tuple[str, bool]
"""Public text before the members' own, and whether it stands in a chat template."""


@dataclasses.dataclass(repr=False)
class Member:
    """One member's sequence, in the parts in which it was evaluated, with the keys and values of all of them.

    ``digest`` is the hash of the body. ``calibrations`` are logs of the mean label probabilities after the
    content-free tails.
    """

    digest: bytes
    parts: list[Part]
    layers: Layers
    calibrations: dict[Calibration, Scores] = dataclasses.field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return size(self.layers)

    def replace(self, layers: Layers, parts: Sequence[Part]) -> None:
        """Overwrite the sequence that it was with the one that it became."""
        wipe(self.layers)
        self.layers, self.parts = layers, list(parts)

    def wipe(self) -> None:
        """Overwrite what the records left behind."""
        wipe(self.layers)
        self.layers = []
        self.parts.clear()
        self.calibrations.clear()


MemberStore = BoundedStore[Member]


class MemberSequences:
    """Sequences of members, each as the parts that it is made of."""

    def __init__(self, evaluator: LoneEvaluator, store: MemberStore) -> None:
        self.evaluator = evaluator
        self._store = store

    def logits(self, head: Head, prompt: MemberPrompt, parts: Sequence[Part]) -> Logits:
        """Logits after ``parts``, which hold the whole of a member's prompt."""
        with _Borrowed(self._store, head, prompt) as member:
            return self._rows(member, parts)[0]

    def scores(
        self,
        head: Head,
        prompt: MemberPrompt,
        start: Sequence[Part],
        tails: Sequence[Part],
        labels: Sequence[Part],
        key: Calibration,
    ) -> Scores:
        """Log-softmax over the labels after the first tail, less the log of their mean probability after the others.

        ``start`` are the member's parts up to its body; ``key`` names words and tails.
        """
        with _Borrowed(self._store, head, prompt) as member:
            if len(tails) > 1 and key not in member.calibrations:
                free = np.stack([self._label_scores(member, [*start, tail], labels) for tail in tails[1:]])
                member.calibrations[key] = np.logaddexp.reduce(free) - np.log(len(free))
            scores = self._label_scores(member, [*start, tails[0]], labels)
            return scores - member.calibrations[key] if len(tails) > 1 else scores

    def warm(self, head: Head, prompt: MemberPrompt, start: Sequence[Part]) -> None:
        """Evaluate a member up to its body, unless it was."""
        with _Borrowed(self._store, head, prompt) as member:
            if member.parts[: len(start)] != list(start):
                self._rows(member, start)

    def _rows(self, member: Member, parts: Sequence[Part], *, rows: int = 1) -> list[Logits]:
        """Logits after the last ``rows`` tokens of ``parts``, of which as much as possible is taken from the member."""
        same = 0
        while same < min(len(parts) - 1, len(member.parts)) and parts[same] == member.parts[same]:
            same += 1
        wanted: list[Logits] = []
        for i in range(same, len(parts)):
            last = i == len(parts) - 1
            kept = sum(map(len, parts[:i]))
            layers, wanted = self.evaluator.extended(member.layers, kept, parts[i], rows=rows if last else 1)
            member.replace(layers, parts[: i + 1])
        return wanted

    def _label_scores(self, member: Member, parts: Sequence[Part], labels: Sequence[Part]) -> Scores:
        """Log-softmax over the labels after ``parts``."""
        first = log_softmax(self._rows(member, parts)[0])
        scores = np.array([first[label[0]] for label in labels])
        for column, label in enumerate(labels):
            if len(label) > 1:
                rows = self._rows(member, [*parts, label[:-1]], rows=len(label) - 1)
                scores[column] += sum(log_softmax(row)[token] for row, token in zip(rows, label[1:], strict=True))
        return np.asarray(scores - np.logaddexp.reduce(scores))


class _Borrowed:
    """A member of the store for the time of a block: put back at its end, wiped if the block failed."""

    def __init__(self, store: MemberStore, head: Head, prompt: MemberPrompt) -> None:
        digest = body_digest(prompt)
        self._store, self._head, self._key = store, head, prompt.member
        self._member = store.take(head, prompt.member, digest) or Member(digest, [], [])
        store.wipe_put_out()

    def __enter__(self) -> Member:
        return self._member

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._store.put(self._head, self._key, self._member)
            self._store.wipe_put_out()
        else:
            self._member.wipe()
