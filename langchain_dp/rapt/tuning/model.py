"""The provider's model: a backbone with learned parts, and the heads of the two tasks."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning import layers
from langchain_dp.rapt.tuning.backbone import Backbone
from langchain_dp.rapt.tuning.batches import Batch
from langchain_dp.rapt.tuning.settings import TuningSettings

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

    Args:
        backbone: Its model becomes part of this one, frozen except under "full".
        settings: Method, lengths and initial values.
        labels: Number of labels.
        words: Token of each label, for a verbalizer; None: a linear head of its own.
        reconstruct: Size |T| of the reconstruction head's vocabulary; 0: no such head.
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
            layers.adapt(used, settings.adapter_size)
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
            attentions = layers.self_attentions(stack)
            prefix = layers.KeyValuePrefix(attentions, length=length, heads=config.num_heads, size=config.d_kv)
            if started and not number:
                prefix.fill(started)
            self.prefixes.append(prefix)

    def _keys_and_values(self, encoder: Any) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of random words in every layer, (N, width) each; empty for a random start."""
        if self.settings.start == "random":
            return []
        attentions = layers.self_attentions(encoder)
        with torch.no_grad(), layers.keys_and_values(attentions) as outputs:
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
