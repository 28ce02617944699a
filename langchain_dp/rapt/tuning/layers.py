"""Additions to a backbone: keys and values before those of a layer, and bottlenecks behind its projections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_ADAPTED = (".attention.output.dense", ".output.dense", ".SelfAttention.o", ".EncDecAttention.o", ".DenseReluDense.wo")


class KeyValuePrefix(nn.Module):
    """A prefix for attention modules: ``length`` learned keys and values that every position attends to.

    It replaces a cache of past tokens, to which modules of transformers add their own keys and values. So relative
    positions count it as past, and it also reaches encoders whose models pass no cache on, such as T5's. ``attentions``
    accept ``past_key_values``; ``size`` is the width of a head.
    """

    def __init__(self, attentions: Sequence[nn.Module], *, length: int, heads: int, size: int) -> None:
        super().__init__()
        self.length = length
        self.values = nn.Parameter(torch.randn(len(attentions), 2, heads, length, size) * 0.02)
        for number, attention in enumerate(attentions):
            attention.register_forward_pre_hook(self._hook(number), with_kwargs=True)

    def fill(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Start from keys and values, (N, heads * size) each, one pair per module."""
        _, _, heads, length, size = self.values.shape
        with torch.no_grad():
            for number, pair in enumerate(pairs):
                for half, tensor in enumerate(pair):
                    self.values[number, half] = tensor.view(length, heads, size).transpose(0, 1)

    def _hook(self, number: int) -> Callable[..., tuple[Any, dict[str, Any]]]:
        def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            key, value = self.values[number]
            kwargs = {**kwargs, "past_key_values": _Past(key, value)}
            for name in ("mask", "attention_mask"):
                mask = kwargs.get(name)
                if mask is not None:
                    seen = True if mask.dtype == torch.bool else 0.0
                    kwargs[name] = nn.functional.pad(mask, (self.length, 0), value=seen)
            return args, kwargs

        return before


class _Past:
    """The part of a cache that an attention module uses."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self._key, self._value = key, value

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        return int(self._key.shape[1])

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return _before(self._key, keys), _before(self._value, values)


def _before(learned: Tensor, own: Tensor) -> Tensor:
    return torch.cat([learned.to(own.dtype).expand(own.shape[0], -1, -1, -1), own], dim=2)


class Adapter(nn.Module):
    """A frozen projection and a bottleneck with a shortcut (Houlsby et al. 2019), at first without effect."""

    def __init__(self, projection: nn.Linear, size: int) -> None:
        super().__init__()
        self.projection = projection
        self.down = nn.Linear(projection.out_features, size)
        self.up = nn.Linear(size, projection.out_features)
        nn.init.normal_(self.down.weight, std=0.02)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    @property
    def weight(self) -> Tensor:
        """Weight of the projection, whose type T5 reads."""
        return self.projection.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Projection, plus its bottleneck."""
        out: Tensor = self.projection(hidden)
        bottleneck: Tensor = self.up(nn.functional.gelu(self.down(out)))
        return out + bottleneck


def adapt(model: nn.Module, size: int) -> None:
    """Add an adapter behind every attention and feed-forward block, in place."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and f".{name}".endswith(_ADAPTED):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Adapter(module, size))


def self_attentions(stack: nn.Module) -> list[nn.Module]:
    """Self-attention modules of a stack, in order."""
    ends = (".attention.self", ".SelfAttention")
    return [module for name, module in stack.named_modules() if f".{name}".endswith(ends)]


@contextmanager
def keys_and_values(attentions: Sequence[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """Record the outputs of the key and value projections in the block: [[key, value], ...] in order."""
    outputs: list[list[Tensor]] = [[] for _ in attentions]
    handles = []
    for number, attention in enumerate(attentions):
        for names in (("key", "k"), ("value", "v")):
            linear: Any = next(getattr(attention, name) for name in names if hasattr(attention, name))
            handles.append(linear.register_forward_hook(_recorder(outputs[number])))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _recorder(outputs: list[Tensor]) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, output: Tensor) -> None:
        outputs.append(output.detach())

    return record
