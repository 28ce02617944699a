"""The training loop, and its checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from tqdm.auto import tqdm

from langchain_dp._util.whole_files import write_whole
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.batches import Assembler, Row, collate
from langchain_dp.rapt.tuning.model import RECONSTRUCTION, TunedModel
from langchain_dp.rapt.tuning.settings import TuningSettings
from langchain_dp.rapt.tuning.wire import MOST, Kind, Plain, PredictionRequest, PrivatizedText

FORMAT = "langchain-dp tuning checkpoint 1"
STATE = "state.safetensors"

_MODEL, _BEST, _OPTIMIZER, _RNG = "model.", "best.", "optimizer.", "rng"


@dataclasses.dataclass
class Progress:
    """Progress of a training."""

    steps: int = 0
    epoch: int = 0
    step: int = 0
    sums: Counter[str] = dataclasses.field(default_factory=Counter)
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_epoch: int = -1
    stopped: bool = False
    truncated: int = 0
    best: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def add(self, texts: int, *, correct: int, means: Mapping[str, float]) -> None:
        self.steps += 1
        self.step += 1
        self.sums.update(texts=texts, correct=correct)
        for name, mean in means.items():
            self.sums[name] += mean * texts  # type: ignore[assignment]  # a Counter of floats

    def end_epoch(self, figures: dict[str, float], *, patience: int | None) -> None:
        self.history.append(figures)
        if "validation_loss" in figures:
            lows = [one["validation_loss"] for one in self.history]
            self.best_epoch = lows.index(min(lows))
            self.stopped = patience is not None and self.epoch - self.best_epoch >= patience
        self.epoch += 1
        self.step = 0
        self.sums = Counter()


class Checkpoint:
    """The state of a training, resumed under equal settings and ``identity``."""

    def __init__(self, folder: Path, *, settings: TuningSettings, identity: Mapping[str, str]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidParameter(
                f"Expected checkpoint={str(folder)!r} to be a folder that is there or can be made "
                f"({type(error).__name__}). Give another."
            ) from None
        self._state, path = folder / STATE, folder / "checkpoint.json"
        if not path.exists():
            facts = {"format": FORMAT, "settings": settings.to_dict(), "identity": identity}
            write_whole(path, json.dumps(facts).encode())
            return
        try:
            facts = json.loads(path.read_bytes())
            others = settings.differences(TuningSettings.from_dict(facts["settings"]))
            others += sorted(name for name in identity if facts["identity"].get(name) != identity[name])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidParameter(
                f"Expected checkpoint={str(folder)!r} to hold a checkpoint of this version. Give another folder."
            ) from None
        if others:
            raise InvalidParameter(
                f"Expected checkpoint={str(folder)!r} to be of the same training, but it differs in "
                f"{', '.join(others)}. Give the same values, or another folder."
            )

    def save(self, done: Progress, model: TunedModel, optimizer: Any) -> None:
        learned = model.learned()
        tensors = {f"{_MODEL}{name}": tensor for name, tensor in learned.items()}
        tensors |= {f"{_BEST}{name}": tensor for name, tensor in done.best.items()}
        for name, parameter in learned.items():
            for part, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{_OPTIMIZER}{part}.{name}"] = value
        tensors[_RNG] = torch.get_rng_state()
        progress = {field.name: getattr(done, field.name) for field in dataclasses.fields(done) if field.name != "best"}
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_whole(self._state, save(whole, {"progress": json.dumps(progress)}))

    def restore(self, model: TunedModel, optimizer: Any) -> Progress | None:
        if not self._state.exists():
            return None
        try:
            with safe_open(self._state, framework="pt") as file:
                progress = json.loads(file.metadata()["progress"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            progress["sums"] = Counter(progress["sums"])
            done = Progress(**progress, best=_part(tensors, _BEST))
            coins = tensors[_RNG]
        except (SafetensorError, KeyError, ValueError, TypeError):
            raise InvalidParameter(
                f"Expected {str(self._state)!r} to be the state of a training, but it is damaged. Give another folder."
            ) from None
        model.put(_part(tensors, _MODEL), reconstruction=True)
        for name, parameter in model.learned().items():
            parts = _part(tensors, _OPTIMIZER)
            state = {key.partition(".")[0]: value for key, value in parts.items() if key.partition(".")[2] == name}
            if state:
                optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
                }
        torch.set_rng_state(coins)
        return done


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


Rows = tuple[Any, list[Plain]]


@dataclasses.dataclass(frozen=True, repr=False)
class TrainingTexts:
    """Privatized texts, with label numbers."""

    inputs: Sequence[PrivatizedText]
    labels: Sequence[int]


@dataclasses.dataclass(frozen=True)
class TrainingReport:
    """Report of a training.

    Args:
        steps: Steps of the optimizer.
        epochs: One mapping per epoch: loss, task, reconstruction, accuracy, recovered (share of plain tokens), and
            maybe validation_loss and validation_accuracy.
        best_epoch: Number of the kept epoch, from 0.
        stopped_early: Whether patience ran out.
        parameters: Number of trained and kept weights.
        head_parameters: Number of weights of the reconstruction head.
        truncated: Number of truncated texts.
        seconds_per_step: Mean time of a step, in this call.

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


@dataclasses.dataclass(eq=False, kw_only=True)
class Trainer:
    """Trains one model. ``every`` counts steps between checkpoints."""

    model: TunedModel
    assembler: Assembler
    kind: Kind
    plain: Callable[[int, np.random.Generator], Rows]
    pad: int
    device: str
    checkpoint: Checkpoint | None
    every: int | None
    progress: bool

    def __post_init__(self) -> None:
        self._settings = self.model.settings
        self._optimizer = torch.optim.Adam(
            self.model.to(self.device).learned().values(), lr=self._settings.learning_rate
        )

    def fit(self, texts: TrainingTexts, validation: TrainingTexts | None) -> TrainingReport:
        devices = [torch.device(self.device)] if self.device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self._settings.seed)  # type: ignore[no-untyped-call]  # torch's own
            done = Progress()
            if self.checkpoint is not None:
                done = self.checkpoint.restore(self.model, self._optimizer) or done
            return self._fit(texts, validation, done)

    def _fit(self, texts: TrainingTexts, validation: TrainingTexts | None, done: Progress) -> TrainingReport:
        settings = self._settings
        held = None
        if validation is not None:
            _, rows, _ = self._rows(validation, np.random.default_rng([settings.seed, 3]))
            held = rows, torch.tensor(validation.labels)
        began, steps_before = time.perf_counter(), done.steps
        while done.epoch < settings.epochs and not done.stopped:
            self._epoch(texts, done)
            sums = done.sums
            figures = {name: sums[name] / sums["texts"] for name in ("loss", "task", "reconstruction", "recovered")}
            figures["accuracy"] = sums["correct"] / sums["texts"]
            if held is not None:
                loss, accuracy = self._evaluate(*held)
                figures |= {"validation_loss": loss, "validation_accuracy": accuracy}
            done.end_epoch(figures, patience=settings.patience if held is not None else None)
            if held is not None and done.best_epoch == done.epoch - 1:
                done.best = {name: tensor.detach().cpu().clone() for name, tensor in self.model.learned().items()}
            self._save(done)
        if done.best:
            self.model.put(done.best, reconstruction=True)
        learned = self.model.learned()
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
        settings, model = self._settings, self.model
        targets, rows, cut = self._rows(texts, np.random.default_rng([settings.seed, 1, done.epoch]))
        done.truncated = max(done.truncated, cut)
        order = np.random.default_rng([settings.seed, 2, done.epoch]).permutation(len(rows))
        batches = [order[i : i + settings.batch_size] for i in range(0, len(order), settings.batch_size)]
        labels = torch.tensor(texts.labels)
        model.train()
        bar = tqdm(
            total=len(batches), initial=done.step, desc=f"epoch {done.epoch + 1}", unit="step",
            disable=not self.progress,
        )  # fmt: skip
        with bar:
            for batch in batches[done.step :]:
                self._step([rows[i] for i in batch], labels[batch], targets[batch], done)
                sums = done.sums
                bar.set_postfix(loss=sums["loss"] / sums["texts"], accuracy=sums["correct"] / sums["texts"])
                bar.update()
                if self.every is not None and done.steps % self.every == 0 and done.step < len(batches):
                    self._save(done)

    def _step(self, rows: Sequence[Row], labels: Tensor, targets: Tensor, done: Progress) -> None:
        batch = collate(rows, self.pad).to(self.device)
        self._optimizer.zero_grad(set_to_none=True)
        losses = self.model.losses(batch, labels.to(self.device), targets.to(self.device))
        total = float(losses.total.detach())
        if not math.isfinite(total):
            raise InvalidParameter(
                f"Expected a finite loss, got {total} in step {done.steps}: learning_rate="
                f"{self._settings.learning_rate:g} is too high. Give a smaller one."
            )
        losses.total.backward()  # type: ignore[no-untyped-call]  # torch's own
        self._optimizer.step()
        figures = {"loss": total, "task": losses.task, "reconstruction": losses.reconstruction}
        done.add(len(rows), correct=losses.correct, means={**figures, "recovered": losses.recovered})

    def _rows(self, texts: TrainingTexts, coins: np.random.Generator) -> tuple[Tensor, list[Row], int]:
        targets, plain = self.plain(len(texts.inputs), coins)
        rows: list[Row] = []
        cut = 0
        for start in range(0, len(plain), MOST):
            some = slice(start, start + MOST)
            request = PredictionRequest(self.kind, plain[some], list(texts.inputs[some]))
            new_rows, new_cut = self.assembler.rows(request)
            rows += new_rows
            cut += new_cut
        return torch.as_tensor(targets), rows, cut

    def _evaluate(self, rows: Sequence[Row], labels: Tensor) -> tuple[float, float]:
        probabilities = probabilities_of(self.model, rows, self.pad, self.device)
        chosen = probabilities[torch.arange(len(labels)), labels].clamp_min(1e-12)
        correct = (probabilities.argmax(dim=1) == labels).float().mean()
        return float(-chosen.log().mean()), float(correct)

    def _save(self, done: Progress) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save(done, self.model, self._optimizer)


def probabilities_of(model: TunedModel, rows: Sequence[Row], pad: int, device: str) -> Tensor:
    """Return probabilities, (rows, labels)."""
    model.eval()
    size = model.settings.batch_size
    parts = [torch.empty(0, 0)] if not rows else []
    for start in range(0, len(rows), size):
        batch = collate(rows[start : start + size], pad).to(device)
        with torch.no_grad():
            parts.append(model.logits(batch, model.activations(batch)).float().softmax(dim=1).cpu())
    return torch.cat(parts)
