"""One torch model, one sequence at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import MemberPrompt

from .._engine import BoundedStore, Calibration, Logits, Part, Scores, body_digest, log_softmax

Layers = list[tuple[Any, Any]]
"""Keys and values of every layer."""

PUBLIC = range(1, 24)


class LoneEvaluator:
    """The arithmetic on one model."""

    def __init__(self, model: Any) -> None:
        import torch  # here, not above: the extra is optional and takes seconds to load
        from transformers import DynamicCache

        self._torch, self._cache = torch, DynamicCache
        self._model = model
        # Logits of the last row only, if supported.
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.bytes_per_token = self._check_cut()

    def extended(
        self, layers: Layers, kept: int, tokens: Sequence[int], *, rows: int = 1
    ) -> tuple[Layers, list[Logits]]:
        """Append ``tokens`` to ``kept`` positions. Return the last ``rows`` logits."""
        torch = self._torch
        cache = self._cache()
        for i, (keys, values) in enumerate(layers if kept else []):
            cache.update(keys[..., :kept, :], values[..., :kept, :], i)  # copies, in fresh memory
        passing = _tensors(cache)
        try:
            with torch.inference_mode():
                ids = torch.tensor([list(tokens)], device=self._model.device)
                keep = {"logits_to_keep": rows} if self._keeps else {}
                logits = self._model(input_ids=ids, past_key_values=cache, use_cache=True, **keep).logits
                wanted = [row.float().cpu().numpy().copy() for row in logits[0, -rows:]]
            return _tensors(cache), wanted
        finally:
            wipe(passing)

    def give_back(self) -> None:
        if self._model.device.type == "cuda":
            self._torch.cuda.empty_cache()

    def tokens_per_second(self) -> float:
        tokens = self._public() * 4
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            self.extended([], 0, tokens)
            taken.append(time.perf_counter() - began)
        return len(tokens) / min(taken)

    def _public(self) -> list[int]:
        return [token % int(self._model.config.get_text_config().vocab_size) for token in PUBLIC]

    def _check_cut(self) -> int:
        """Cut sequences must give the same logits."""
        problem = InvalidParameter(
            f"Expected {type(self._model).__name__} to keep keys and values of each position, which a sequence is cut "
            "back by. Use a causal language model without recurrent state."
        )
        tokens = self._public()
        try:
            _, [whole] = self.extended([], 0, tokens)
            start, _ = self.extended([], 0, tokens[:12])
            longer, _ = self.extended(start, 12, tokens[:5])
            again = [self.extended(layers, 12, tokens[12:])[1][0] for layers in (start, longer)]
            shapes = {tensor.shape[:1] + tensor.shape[2:3] for pair in longer for tensor in pair}
        except Exception:  # of a model that takes no such cache, or has none
            raise problem from None
        close = np.abs(again[0] - whole).max() <= 0.1 * np.ptp(whole)  # in whatever precision the weights are
        if shapes != {(1, 17)} or not close or not np.array_equal(again[0], again[1]):
            raise problem
        return size(longer) // 17


def wipe(layers: Layers) -> None:
    for pair in layers:
        for tensor in pair:
            tensor.untyped_storage().fill_(0)


def size(layers: Layers) -> int:
    return sum(int(tensor.untyped_storage().nbytes()) for pair in layers for tensor in pair)


def _tensors(cache: Any) -> Layers:
    return [(layer.keys, layer.values) for layer in cache.layers]


Head = tuple[str, bool]
"""Public text, and whether it is in a chat template."""


@dataclasses.dataclass(repr=False)
class Member:
    """One member's parts, with keys and values."""

    digest: bytes
    parts: list[Part]
    layers: Layers
    calibrations: dict[Calibration, Scores] = dataclasses.field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return size(self.layers)

    def replace(self, layers: Layers, parts: Sequence[Part]) -> None:
        wipe(self.layers)
        self.layers, self.parts = layers, list(parts)

    def wipe(self) -> None:
        wipe(self.layers)
        self.layers = []
        self.parts.clear()
        self.calibrations.clear()


MemberStore = BoundedStore[Member]


class MemberSequences:
    """Evaluates members, and keeps their sequences."""

    def __init__(self, evaluator: LoneEvaluator, store: MemberStore) -> None:
        self.evaluator = evaluator
        self._store = store

    @contextlib.contextmanager
    def _borrowed(self, head: Head, prompt: MemberPrompt) -> Iterator[Member]:
        """Take a member out of the store, and wipe it if the block fails."""
        digest = body_digest(prompt)
        member = self._store.take(head, prompt.member, digest) or Member(digest, [], [])
        self._store.wipe_put_out()
        try:
            yield member
        except BaseException:
            member.wipe()
            raise
        self._store.put(head, prompt.member, member)
        self._store.wipe_put_out()

    def logits(self, head: Head, prompt: MemberPrompt, parts: Sequence[Part]) -> Logits:
        with self._borrowed(head, prompt) as member:
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
        """The first tail is scored, the others calibrate."""
        with self._borrowed(head, prompt) as member:
            if len(tails) > 1 and key not in member.calibrations:
                free = np.stack([self._label_scores(member, [*start, tail], labels) for tail in tails[1:]])
                member.calibrations[key] = np.logaddexp.reduce(free) - np.log(len(free))
            scores = self._label_scores(member, [*start, tails[0]], labels)
            return scores - member.calibrations[key] if len(tails) > 1 else scores

    def warm(self, head: Head, prompt: MemberPrompt, start: Sequence[Part]) -> None:
        with self._borrowed(head, prompt) as member:
            if member.parts[: len(start)] != list(start):
                self._rows(member, start)

    def _rows(self, member: Member, parts: Sequence[Part], *, rows: int = 1) -> list[Logits]:
        """Equal leading parts come from the cache."""
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
        first = log_softmax(self._rows(member, parts)[0])
        scores = np.array([first[label[0]] for label in labels])
        for column, label in enumerate(labels):
            if len(label) > 1:
                rows = self._rows(member, [*parts, label[:-1]], rows=len(label) - 1)
                scores[column] += sum(log_softmax(row)[token] for row, token in zip(rows, label[1:], strict=True))
        return np.asarray(scores - np.logaddexp.reduce(scores))
