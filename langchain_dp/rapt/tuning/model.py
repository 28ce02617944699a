"""The provider's model: a backbone with learned parts, and the heads of the two tasks."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.backbone import Backbone
from langchain_dp.rapt.tuning.batches import Batch
from langchain_dp.rapt.tuning.settings import TuningSettings

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
            handles.append(linear.register_forward_hook(partial(_record, outputs[number])))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _record(outputs: list[Tensor], module: nn.Module, args: Any, output: Tensor) -> None:
    outputs.append(output.detach())


RECONSTRUCTION = "reconstruction."
"""Prefix of the names of the temporary head."""


@dataclasses.dataclass(frozen=True)
class Losses:
    """Mean losses of one batch; L_rec of a text is the sum, or mean, over its plain tokens."""

    total: Tensor
    task: float
    reconstruction: float
    correct: int
    recovered: float


class TunedModel(nn.Module):
    """A backbone with a prompt, prefix, adapters or free weights, a head for the labels, and one for reconstruction.

    ``words`` are the tokens of the labels for a verbalizer; None: a linear head. ``reconstruct`` is the size |T| of the
    reconstruction head's vocabulary; 0: no such head.
    """

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
        self.seq2seq = backbone.family == "seq2seq"
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
        self.prompt: nn.Embedding | None = None
        self.prefixes = nn.ModuleList()
        self.body: Any = backbone.encoder
        used = self.full if verbalized else self.body  # an unused decoder is neither trained nor saved
        if settings.method == "full":
            used.requires_grad_(True)
        elif settings.method == "adapter":
            adapt(used, settings.adapter_size)
        elif settings.method == "prefix":
            self._add_prefix(verbalized)
        elif settings.method == "prompt":
            self._add_prompt()
        self.head = None if verbalized else nn.Linear(backbone.hidden_size, labels)
        self.reconstruction: nn.Sequential | None = None
        if reconstruct:
            self.reconstruction = nn.Sequential(
                nn.Linear(backbone.hidden_size, settings.head_size, bias=False),
                nn.Linear(settings.head_size, reconstruct, bias=False),
            )

    def _random_words(self) -> Tensor:
        """N random ordinary tokens, (1, N), one per virtual token."""
        special = set(self.backbone.table().special_ids)
        ordinary = torch.tensor([i for i in range(len(self.backbone.tokens)) if i not in special])
        return ordinary[torch.randint(len(ordinary), (1, self.settings.virtual_tokens))]

    def _add_prompt(self) -> None:
        length, words = self.settings.virtual_tokens, self.settings.start == "words"
        if self.seq2seq:  # peft hides the encoder's activations behind the decoder
            self.prompt = nn.Embedding(length, self.backbone.hidden_size)
            learned = self.prompt
        else:
            config = peft.PromptTuningConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=length)
            self.body = _wrapped(self.body, config)
            learned = self.body.prompt_encoder["default"].embedding
        with torch.no_grad():
            table = self.backbone.embedding
            if words:
                learned.weight.copy_(table(self._random_words()[0].to(table.weight.device)))
            else:
                learned.weight.normal_(std=float(table.weight.std()))

    def _add_prefix(self, verbalized: bool) -> None:
        length = self.settings.virtual_tokens
        if not self.seq2seq:
            started = self._keys_and_values(self.body)
            config = peft.PrefixTuningConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=length)
            self.body = _wrapped(self.body, config)
            learned = self.body.prompt_encoder["default"].embedding.weight
            with torch.no_grad():
                if started:  # row i: key and value of layer 0, key and value of layer 1, ...
                    learned.copy_(torch.cat([half for pair in started for half in pair], dim=1))
                else:
                    learned.mul_(0.02)
            return
        # peft passes prefixes to the decoder only.
        config = self.full.config
        stacks = [self.full.get_encoder(), *([self.full.get_decoder()] if verbalized else [])]
        started = self._keys_and_values(stacks[0])
        for number, stack in enumerate(stacks):
            attentions = self_attentions(stack)
            prefix = KeyValuePrefix(attentions, length=length, heads=config.num_heads, size=config.d_kv)
            if started and not number:
                prefix.fill(started)
            self.prefixes.append(prefix)

    def _keys_and_values(self, encoder: Any) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of random words in every layer, (N, width) each; empty for a random start."""
        if self.settings.start == "random":
            return []
        attentions = self_attentions(encoder)
        with torch.no_grad(), keys_and_values(attentions) as outputs:
            encoder(input_ids=self._random_words().to(self.backbone.embedding.weight.device))
        return [(key[0], value[0]) for key, value in outputs]

    def learned(self) -> dict[str, Tensor]:
        """Every trained tensor by name."""
        return {name: tensor for name, tensor in self.named_parameters() if tensor.requires_grad}

    def put(self, tensors: Mapping[str, Tensor], *, reconstruction: bool) -> None:
        """Load trained tensors, as of :meth:`learned`; with ``reconstruction`` also those of its head."""
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
        """Activations of the real tokens in the last layer: (B, L, h)."""
        mask: dict[str, Any] = {"attention_mask": batch.attended}
        if self.prompt is not None:
            vectors = self.backbone.embedding(batch.ids)
            prompt = self.prompt.weight.to(vectors.dtype).expand(len(vectors), -1, -1)
            ones = batch.attended.new_ones((len(vectors), self.virtual))
            mask["attention_mask"] = torch.cat([ones, batch.attended], dim=1)
            out = self.body(inputs_embeds=torch.cat([prompt, vectors], dim=1), **mask)
        else:
            out = self.body(input_ids=batch.ids, **mask)
        states: Tensor = out.last_hidden_state
        return states[:, self.virtual :]

    def logits(self, batch: Batch, states: Tensor) -> Tensor:
        """Scores of the labels, (B, labels), from activations of the last layer."""
        if self.head is not None:
            if self.settings.pooling == "first":
                pooled = states[:, 0]
            else:
                weight = batch.text[:, :, None].to(states.dtype)
                pooled = (states * weight).sum(dim=1) / weight.sum(dim=1)
            scores: Tensor = self.head(pooled)
            return scores
        if self.seq2seq:
            start = batch.ids.new_full((len(batch.ids), 1), int(self.full.config.decoder_start_token_id or 0))
            # Like a head, the decoder reads the text's activations only.
            out = self.full(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                attention_mask=batch.text.to(batch.attended.dtype),
                decoder_input_ids=start,
                use_cache=False,
            )
            words: Tensor = out.logits[:, 0]
        else:
            words = self.backbone.head(states[torch.arange(len(states)), batch.mask])
        return words[:, self.words]

    def losses(self, batch: Batch, labels: Tensor, targets: Tensor) -> Losses:
        """Both tasks on one batch: numbers of labels, (B,), and indices in T of the clear plain tokens, (B, m)."""
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
