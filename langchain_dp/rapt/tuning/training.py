"""The training loop, from privatized rows to learned tensors and a report, without private values."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.batches import Assembler, Row, collate
from langchain_dp.rapt.tuning.checkpoint import Checkpoint, Progress
from langchain_dp.rapt.tuning.model import RECONSTRUCTION, TunedModel
from langchain_dp.rapt.tuning.wire import MOST, Kind, Plain, PredictionRequest, PrivatizedText

Rows = tuple[Any, list[Plain]]


@dataclasses.dataclass(frozen=True, repr=False)
class TrainingTexts:
    """Privatized texts of one epoch, with the numbers of their labels."""

    inputs: Sequence[PrivatizedText]
    labels: Sequence[int]


@dataclasses.dataclass(frozen=True)
class TrainingReport:
    """Report of a training.

    Args:
        steps: Steps of the optimizer.
        epochs: One mapping per epoch: loss, task, reconstruction, accuracy, recovered (share of plain tokens), and with
            validation texts validation_loss and validation_accuracy.
        best_epoch: Number of the epoch whose weights were kept, from 0.
        stopped_early: Whether patience ran out.
        parameters: Number of trained and kept weights.
        head_parameters: Number of weights of the temporary reconstruction head.
        truncated: Number of texts above the limit, which were truncated.
        seconds_per_step: Mean wall-clock time of a step, in this call.

    Examples:
        >>> classifier = tuner.fit(examples, validation=validation)
        >>> classifier.report.epochs[-1]["validation_accuracy"]
    """

    steps: int
    epochs: tuple[dict[str, float], ...]
    best_epoch: int
    stopped_early: bool
    parameters: int
    head_parameters: int
    truncated: int
    seconds_per_step: float


class Trainer:
    """Trains one model."""

    def __init__(
        self,
        model: TunedModel,
        assembler: Assembler,
        *,
        kind: Kind,
        plain: Callable[[int, np.random.Generator], Rows],
        pad: int,
        device: str,
        checkpoint: Checkpoint | None,
        every: int | None,
        progress: bool,
    ) -> None:
        self._model, self._assembler, self._settings = model.to(device), assembler, model.settings
        self._kind: Kind = kind
        self._plain, self._pad, self._device = plain, pad, device
        self._checkpoint, self._every, self._progress = checkpoint, every, progress
        self._optimizer = torch.optim.Adam(model.learned().values(), lr=self._settings.learning_rate)
        half = self._settings.precision == "float16"
        self._scaler = torch.amp.GradScaler(device.partition(":")[0], enabled=half)

    def fit(self, data: Callable[[int], TrainingTexts], validation: TrainingTexts | None) -> TrainingReport:
        """Train on ``data`` of each epoch until patience runs out, and keep the best weights."""
        devices = [torch.device(self._device)] if self._device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self._settings.seed)  # type: ignore[no-untyped-call]  # torch's own
            done = Progress()
            if self._checkpoint is not None:
                done = self._checkpoint.restore(self._model, self._optimizer, self._scaler) or done
            return self._fit(data, validation, done)

    def _fit(
        self, data: Callable[[int], TrainingTexts], validation: TrainingTexts | None, done: Progress
    ) -> TrainingReport:
        settings = self._settings
        held = None
        if validation is not None:
            _, rows, _ = self._rows(validation, np.random.default_rng([settings.seed, 3]))
            held = rows, torch.tensor(validation.labels)
        began, steps_before = time.perf_counter(), done.steps
        while done.epoch < settings.epochs and not done.stopped:
            self._epoch(data(done.epoch), done)
            sums = done.sums
            figures = {name: sums[name] / sums["texts"] for name in ("loss", "task", "reconstruction", "recovered")}
            figures["accuracy"] = sums["correct"] / sums["texts"]
            if held is not None:
                loss, accuracy = self._evaluate(*held)
                figures |= {"validation_loss": loss, "validation_accuracy": accuracy}
            done.end_epoch(figures, patience=settings.patience if held is not None else None)
            if held is not None and done.best_epoch == done.epoch - 1:
                done.best = {name: tensor.detach().cpu().clone() for name, tensor in self._model.learned().items()}
            self._save(done)
        if done.best:
            self._model.put(done.best, reconstruction=True)
        learned = self._model.learned()
        head = sum(t.numel() for name, t in learned.items() if name.startswith(RECONSTRUCTION))
        steps = done.steps - steps_before
        return TrainingReport(
            steps=done.steps,
            epochs=tuple(done.history),
            best_epoch=done.best_epoch if done.best else done.epoch - 1,
            stopped_early=done.stopped,
            parameters=sum(tensor.numel() for tensor in learned.values()) - head,
            head_parameters=head,
            truncated=done.truncated,
            seconds_per_step=(time.perf_counter() - began) / steps if steps else math.nan,
        )

    def _epoch(self, texts: TrainingTexts, done: Progress) -> None:
        settings, model = self._settings, self._model
        targets, rows, cut = self._rows(texts, np.random.default_rng([settings.seed, 1, done.epoch]))
        done.truncated = max(done.truncated, cut)
        order = np.random.default_rng([settings.seed, 2, done.epoch]).permutation(len(rows))
        batches = [order[i : i + settings.batch_size] for i in range(0, len(order), settings.batch_size)]
        labels = torch.tensor(texts.labels)
        model.train()
        bar = tqdm(
            total=len(batches), initial=done.step, desc=f"epoch {done.epoch + 1}", unit="step",
            disable=not self._progress,
        )  # fmt: skip
        with bar:
            for batch in batches[done.step :]:
                self._step([rows[i] for i in batch], labels[batch], targets[batch], done)
                sums = done.sums
                bar.set_postfix(loss=sums["loss"] / sums["texts"], accuracy=sums["correct"] / sums["texts"])
                bar.update()
                if self._every is not None and done.steps % self._every == 0 and done.step < len(batches):
                    self._save(done)

    def _step(self, rows: Sequence[Row], labels: Tensor, targets: Tensor, done: Progress) -> None:
        batch = collate(rows, self._pad).to(self._device)
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            losses = self._model.losses(batch, labels.to(self._device), targets.to(self._device))
        total = float(losses.total.detach())
        if not math.isfinite(total):
            raise InvalidParameter(
                f"Expected a finite loss, got {total} in step {done.steps}: learning_rate="
                f"{self._settings.learning_rate:g} is too high. Give a smaller one, or precision='float32'."
            )
        self._scaler.scale(losses.total).backward()  # type: ignore[no-untyped-call]  # torch's own
        self._scaler.step(self._optimizer)
        self._scaler.update()
        figures = {"loss": total, "task": losses.task, "reconstruction": losses.reconstruction}
        done.add(len(rows), correct=losses.correct, means={**figures, "recovered": losses.recovered})

    def _rows(self, texts: TrainingTexts, coins: np.random.Generator) -> tuple[Tensor, list[Row], int]:
        """Targets of the reconstruction, rows, and the number of truncated texts."""
        targets, plain = self._plain(len(texts.inputs), coins)
        rows: list[Row] = []
        cut = 0
        for start in range(0, len(plain), MOST):
            some = slice(start, start + MOST)
            request = PredictionRequest(self._kind, plain[some], list(texts.inputs[some]))
            new_rows, new_cut = self._assembler.rows(request)
            rows += new_rows
            cut += new_cut
        return torch.as_tensor(targets), rows, cut

    def _evaluate(self, rows: Sequence[Row], labels: Tensor) -> tuple[float, float]:
        """Mean loss of the task, and accuracy."""
        probabilities = torch.cat(list(probabilities_of(self._model, rows, self._pad, self._device, self._autocast)))
        chosen = probabilities[torch.arange(len(labels)), labels].clamp_min(1e-12)
        correct = (probabilities.argmax(dim=1) == labels).float().mean()
        return float(-chosen.log().mean()), float(correct)

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self._settings.precision, self._device)

    def _save(self, done: Progress) -> None:
        if self._checkpoint is not None:
            self._checkpoint.save(done, self._model, self._optimizer, self._scaler)


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """Context of mixed precision, if any."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.partition(":")[0], dtype=getattr(torch, precision))


def probabilities_of(
    model: TunedModel,
    rows: Sequence[Row],
    pad: int,
    device: str,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[Tensor]:
    """Probabilities of the labels, batch by batch, on the CPU."""
    model.eval()
    size = model.settings.batch_size
    for start in range(0, len(rows), size):
        batch = collate(rows[start : start + size], pad).to(device)
        with torch.no_grad(), context():
            logits = model.logits(batch, model.activations(batch))
        yield logits.float().softmax(dim=1).cpu()
