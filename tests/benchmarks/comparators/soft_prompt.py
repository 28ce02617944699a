"""Prompts by gradients, on a frozen causal model: soft ones, soft ones with a promise, and words.

- PromptSGD (Lester et al. 2021): the vectors of the instruction's tokens are learned; the rest of the prompt is text.
- PromptDPSGD (Duan et al. 2023): the same by DP-SGD: Poisson batches, the gradient of every row clipped, Gaussian noise
  by dp-accounting's accountant, and Adam on what is released.
- PEZ (Wen et al. 2023): gradients are taken at the nearest tokens of the vectors, and move the vectors. What comes out
  is a text, which another model can read. It promises nothing.

A soft prompt can be used on the model it was learned on alone.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comparators.heads import noise_multiplier
from langchain_dp.opt import OptTask

sys.path.insert(0, str(Path(__file__).parents[2]))
from fakes.gguf_model import from_gguf

STEPS, RATE, LEARNING, CLIP = 40, 0.1, 0.01, 1.0
"""Of all three, for all tasks and budgets. LEARNING is the rate of Adam."""
TOGETHER = 8
"""Rows of one pass through the model."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """One input of the model without the learned vectors, in tokens: what stands before them and behind."""

    before: list[int]
    after: list[int]


class PromptLearner:
    """Learns what stands in the place of a task's initial instruction.

    Args:
        path: GGUF of a causal model of the Llama architecture.
        task: Its answers' first tokens must differ.
    """

    def __init__(self, path: str, task: OptTask) -> None:
        self.model, self.tokenizer = from_gguf(path)
        self.model.requires_grad_(False).eval()
        self.table: Tensor = self.model.get_input_embeddings().weight
        self.task = task
        self.words = [task.prompts.word(label) for label in task.labels]
        first = [self.tokens(f" {word}")[0] for word in self.words]
        if len(set(first)) < len(first):
            raise ValueError(f"Expected words whose first tokens differ, got {self.words}.")
        self.answers = torch.tensor(first)

    def tokens(self, text: str) -> list[int]:
        """Tokens of a piece of text, without special ones."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def asked(self, rows: Sequence[Mapping[str, Any]]) -> list[Asked]:
        """The task's prompt for every row, cut where the instruction stands, whose first token has the space before."""
        prompts = self.task.prompts
        head, tail = prompts.forward_head(self.task.instruction, self.words), prompts.forward_tail
        before, _, after = head.partition(f" {self.task.instruction}")
        bodies = [prompts.forward_body(prompts.render(row)) for row in rows]
        return [Asked(self.tokens(before), self.tokens(after + body + tail)) for body in bodies]

    def classes(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Number of every row's label."""
        return [self.task.labels.index(row["label"]) for row in rows]

    def started(self) -> Tensor:
        """Vectors of the instruction's tokens, (m, d): where learning begins."""
        return self._of(self.tokens(f" {self.task.instruction}")).clone()

    def _of(self, tokens: Sequence[int]) -> Tensor:
        return self.table[torch.tensor(tokens, dtype=torch.long)]

    def scores(self, learned: Tensor, rows: Sequence[Asked]) -> Tensor:
        """Scores of the answers, (rows, labels), where every row has vectors of its own, (rows, m, d)."""
        pieces = [
            torch.cat([self._of(row.before), vectors, self._of(row.after)])
            for row, vectors in zip(rows, learned, strict=True)
        ]
        longest = max(map(len, pieces))
        shape = (len(rows), longest, self.table.shape[1])
        padded = torch.stack([torch.nn.functional.pad(piece, (0, 0, 0, longest - len(piece))) for piece in pieces])
        attended = torch.tensor([[1] * len(piece) + [0] * (longest - len(piece)) for piece in pieces])
        states = self.model.model(inputs_embeds=padded.view(shape), attention_mask=attended).last_hidden_state
        last = states[torch.arange(len(rows)), torch.tensor([len(piece) - 1 for piece in pieces])]
        return last @ self.model.get_output_embeddings().weight[self.answers].T

    def predicted(self, learned: Tensor, rows: Sequence[Asked]) -> list[int]:
        """Number of the most probable answer to every row."""
        found: list[int] = []
        for at in range(0, len(rows), TOGETHER):
            some = rows[at : at + TOGETHER]
            with torch.no_grad():
                found += self.scores(learned.expand(len(some), -1, -1), some).argmax(dim=1).tolist()
        return found

    def gradients(self, at: Tensor, rows: Sequence[Asked], classes: Sequence[int]) -> Tensor:
        """Gradient of every row's loss at one place, (rows, m, d)."""
        found = []
        for start in range(0, len(rows), TOGETHER):
            some = rows[start : start + TOGETHER]
            own = at.expand(len(some), -1, -1).clone().requires_grad_(True)  # a copy a row: each has its own gradient
            truth = torch.tensor(list(classes[start : start + TOGETHER]))
            torch.nn.functional.cross_entropy(self.scores(own, some), truth, reduction="sum").backward()
            assert own.grad is not None
            found.append(own.grad)
        return torch.cat(found) if found else at.new_zeros((0, *at.shape))

    def soft(self, rows: Sequence[Asked], classes: Sequence[int], *, epsilon: float, delta: float, seed: int) -> Tensor:
        """Learned vectors, (m, d), from private rows at an epsilon of the whole training; infinity adds no noise."""
        rng, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        sigma = noise_multiplier(epsilon, delta, RATE, STEPS)
        vectors = self.started()
        optimizer = torch.optim.Adam([vectors], lr=LEARNING)
        for _ in range(STEPS):
            vectors.grad = self.released(vectors, self._batch(rows, rng), rows, classes, sigma, noise)
            optimizer.step()
        return vectors

    def released(
        self,
        at: Tensor,
        batch: Sequence[int],
        rows: Sequence[Asked],
        classes: Sequence[int],
        sigma: float,
        noise: torch.Generator,
    ) -> Tensor:
        """Mean gradient of a batch as it leaves: that of every row clipped, and noise of sigma clips on their sum."""
        each = self.gradients(at, [rows[i] for i in batch], [classes[i] for i in batch])
        lengths = each.flatten(1).norm(dim=1).clamp(min=CLIP)
        total = (each * (CLIP / lengths)[:, None, None]).sum(dim=0)
        return (total + sigma * CLIP * torch.randn(total.shape, generator=noise)) / (RATE * len(rows))

    def _batch(self, rows: Sequence[Asked], rng: np.random.Generator) -> list[int]:
        return [place for place in range(len(rows)) if rng.random() < RATE]

    def written(self, rows: Sequence[Asked], classes: Sequence[int], *, seed: int) -> str:
        """A text in the instruction's place, from rows that it may hold words of: NOT private."""
        rng = np.random.default_rng(seed)
        vectors = self.started()
        optimizer = torch.optim.Adam([vectors], lr=LEARNING)
        for _ in range(STEPS):
            batch = self._batch(rows, rng)
            each = self.gradients(self._nearest(vectors)[1], [rows[i] for i in batch], [classes[i] for i in batch])
            vectors.grad = each.sum(dim=0) / max(1, len(batch))
            optimizer.step()
        return str(self.tokenizer.decode(self._nearest(vectors)[0].tolist())).strip()

    def _nearest(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens whose vectors point most nearly the same way, and these vectors."""
        unit = torch.nn.functional.normalize
        similar = unit(vectors, dim=1) @ unit(self.table, dim=1).T
        similar[:, sorted(self.tokenizer.all_special_ids)] = -math.inf
        ids = similar.argmax(dim=1)
        return ids, self.table[ids]
