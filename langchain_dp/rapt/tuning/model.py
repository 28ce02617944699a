"""The provider's model: a backbone with learned parts and two heads."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import peft
import torch
from torch import Tensor, nn

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.backbone import Backbone
from langchain_dp.rapt.tuning.batches import Batch
from langchain_dp.rapt.tuning.settings import TuningSettings

_ADAPTED = ".output.dense"  # behind the attention, and behind the feed-forward block
_ADAPTER_SIZE = 64


class Adapter(nn.Module):
    """A projection and a bottleneck with a shortcut (Houlsby et al. 2019)."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.projection = projection
        self.down = nn.Linear(projection.out_features, _ADAPTER_SIZE)
        self.up = nn.Linear(_ADAPTER_SIZE, projection.out_features)
        nn.init.normal_(self.down.weight, std=0.02)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.projection(hidden)
        bottleneck: Tensor = self.up(nn.functional.gelu(self.down(out)))
        return out + bottleneck


def adapt(model: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and f".{name}".endswith(_ADAPTED):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Adapter(module))


@contextmanager
def keys_and_values(encoder: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Record each layer's projections: [[key, value], ...]."""
    attentions: list[Any] = [one for name, one in encoder.named_modules() if f".{name}".endswith(".attention.self")]
    outputs: list[list[Tensor]] = [[] for _ in attentions]
    handles = [
        linear.register_forward_hook(partial(_record, outputs[number]))
        for number, attention in enumerate(attentions)
        for linear in (attention.key, attention.value)
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _record(outputs: list[Tensor], module: nn.Module, args: Any, output: Tensor) -> None:
    outputs.append(output.detach())


RECONSTRUCTION = "reconstruction."
"""Names the temporary head."""


@dataclasses.dataclass(frozen=True)
class Losses:
    """Means of one batch."""

    total: Tensor
    task: float
    reconstruction: float
    correct: int
    recovered: float


class TunedModel(nn.Module):
    """A backbone with learned parts and heads. ``words`` are the labels' tokens for a verbalizer."""

    def __init__(
        self,
        backbone: Backbone,
        settings: TuningSettings,
        *,
        labels: int,
        words: Sequence[int] | None = None,
        reconstruct: int = 0,
    ) -> None:
        super().__init__()
        if words is not None and len(set(words)) < labels:
            raise InvalidParameter("Expected verbalizer to name words that begin with different tokens, one a label.")
        backbone.check(words=words is not None)
        self.backbone = backbone
        self.settings = settings
        self.virtual = settings.virtual_tokens if settings.method == "prompt" else 0
        self.words: Tensor
        self.register_buffer("words", torch.tensor(list(words or ()), dtype=torch.long), persistent=False)
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)  # type: ignore[no-untyped-call]  # torch's own
            self._build(labels, words is not None, reconstruct)

    def _build(self, labels: int, verbalized: bool, reconstruct: int) -> None:
        backbone, settings = self.backbone, self.settings
        self.full: Any = backbone.taken()
        self.full.requires_grad_(False)
        self.full.eval()
        self.body: Any = backbone.encoder
        used = self.full if verbalized else self.body  # an unused head is neither trained nor saved
        if settings.method == "full":
            used.requires_grad_(True)
        elif settings.method == "adapter":
            adapt(used)
        elif settings.method == "prefix":
            self._add_prefix()
        elif settings.method == "prompt":
            config = peft.PromptTuningConfig(
                task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=self.settings.virtual_tokens
            )
            table = self.backbone.embedding
            self.body = _wrapped(self.body, config)
            with torch.no_grad():
                words = table(self._random_words()[0].to(table.weight.device))
                self.body.prompt_encoder["default"].embedding.weight.copy_(words)
        self.head = None if verbalized else nn.Linear(backbone.hidden_size, labels)
        self.reconstruction: nn.Sequential | None = None
        if reconstruct:
            self.reconstruction = nn.Sequential(
                nn.Linear(backbone.hidden_size, settings.head_size, bias=False),
                nn.Linear(settings.head_size, reconstruct, bias=False),
            )

    def _random_words(self) -> Tensor:
        """Draw ordinary tokens, (1, N)."""
        special = set(self.backbone.special_ids)
        ordinary = torch.tensor([i for i in range(len(self.backbone.words)) if i not in special])
        return ordinary[torch.randint(len(ordinary), (1, self.settings.virtual_tokens))]

    def _add_prefix(self) -> None:
        """Start from random words (Li and Liang 2021, section 7.4)."""
        with torch.no_grad(), keys_and_values(self.body) as outputs:
            self.body(input_ids=self._random_words().to(self.backbone.embedding.weight.device))
        config = peft.PrefixTuningConfig(
            task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=self.settings.virtual_tokens
        )
        self.body = _wrapped(self.body, config)
        with torch.no_grad():  # row i: key and value of layer 0, key and value of layer 1, ...
            halves = [half[0] for pair in outputs for half in pair]
            self.body.prompt_encoder["default"].embedding.weight.copy_(torch.cat(halves, dim=1))

    def learned(self) -> dict[str, Tensor]:
        """Return every trained tensor."""
        return {name: tensor for name, tensor in self.named_parameters() if tensor.requires_grad}

    def put(self, tensors: Mapping[str, Tensor], *, reconstruction: bool) -> None:
        """Load trained tensors."""
        own = {
            name: tensor
            for name, tensor in self.learned().items()
            if reconstruction or not name.startswith(RECONSTRUCTION)
        }
        if {name: tuple(tensor.shape) for name, tensor in own.items()} != {
            name: tuple(tensor.shape) for name, tensor in tensors.items()
        }:
            raise InvalidParameter(
                "Expected saved weights of the same names and shapes as this model's. They were saved with another "
                "backbone, other settings or another version of transformers or peft."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    def activations(self, batch: Batch) -> Tensor:
        """Real tokens' last layer, (B, L, h)."""
        states: Tensor = self.body(input_ids=batch.ids, attention_mask=batch.attended).last_hidden_state
        return states[:, self.virtual :]

    def logits(self, batch: Batch, states: Tensor) -> Tensor:
        """Score labels, (B, labels)."""
        if self.head is not None:
            weight = batch.text[:, :, None].to(states.dtype)
            scores: Tensor = self.head((states * weight).sum(dim=1) / weight.sum(dim=1))
            return scores
        words: Tensor = self.backbone.head(states[torch.arange(len(states)), batch.mask])
        return words[:, self.words]

    def losses(self, batch: Batch, labels: Tensor, targets: Tensor) -> Losses:
        """Labels are (B,), targets in T (B, m)."""
        states = self.activations(batch)
        logits = self.logits(batch, states).float()
        task = nn.functional.cross_entropy(logits, labels)
        total, rec, recovered = task, 0.0, 0.0
        if self.reconstruction is not None:
            places = batch.plain[:, :, None].expand(-1, -1, states.shape[2])
            guesses = self.reconstruction(states.gather(1, places)).float()
            each = nn.functional.cross_entropy(guesses.flatten(0, 1), targets.flatten())
            lost = each * targets.shape[1] if self.settings.reconstruction_reduction == "sum" else each
            total = task + self.settings.reconstruction_weight * lost
            rec = float(lost.detach())
            recovered = float((guesses.detach().argmax(dim=-1) == targets).float().mean())
        correct = int((logits.detach().argmax(dim=-1) == labels).sum())
        return Losses(total, float(task.detach()), rec, correct, recovered)


def _wrapped(encoder: Any, config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft uses an old name of transformers
        return peft.get_peft_model(encoder, config)
