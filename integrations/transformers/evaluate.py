"""One torch model, one sequence at a time: from what is cached of it to the logits after its next tokens."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from langchain_dp.errors import InvalidParameter

from .._choice import Logits

Layers = list[tuple[Any, Any]]
"""Keys and values of every layer: torch tensors of one row, all positions."""

PUBLIC = range(1, 24)
"""Tokens whatever they mean, for the check at start-up."""


class LoneEvaluator:
    """The arithmetic on one model."""

    def __init__(self, model: Any) -> None:
        import torch  # here, not above: the extra is optional and takes seconds to load
        from transformers import DynamicCache

        self._torch, self._cache = torch, DynamicCache
        self._model = model
        # Logits of the last row only, where the model can leave out the others.
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.bytes_per_token = self._check_cut()

    def extended(
        self, layers: Layers, kept: int, tokens: Sequence[int], *, rows: int = 1
    ) -> tuple[Layers, list[Logits]]:
        """The first ``kept`` positions of ``layers`` followed by ``tokens``; logits after the last ``rows`` of them.

        The given tensors stay as they are. What is computed hangs on the values and shapes of this sequence alone: it
        is the only row, nothing is padded, and each part of a sequence is evaluated by a call of its own.
        """
        torch = self._torch
        cache = self._cache()
        for i, (keys, values) in enumerate(layers if kept else []):
            cache.update(keys[..., :kept, :], values[..., :kept, :], i)  # copies, so that memory is laid out afresh
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
        """Return what torch keeps of freed memory on a GPU."""
        if self._model.device.type == "cuda":
            self._torch.cuda.empty_cache()

    def tokens_per_second(self) -> float:
        """Tokens of a prompt evaluated per second: best of two runs over public ones."""
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
        """Bytes of a token, after a check that a sequence evaluated in parts, and cut back, is the sequence."""
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
    """Overwrite tensors, with all the memory they are views of."""
    for pair in layers:
        for tensor in pair:
            tensor.untyped_storage().fill_(0)


def size(layers: Layers) -> int:
    """Bytes of the memory they are views of."""
    return sum(int(tensor.untyped_storage().nbytes()) for pair in layers for tensor in pair)


def _tensors(cache: Any) -> Layers:
    return [(layer.keys, layer.values) for layer in cache.layers]
