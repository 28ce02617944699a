"""Stores the state of a training in files, each written as a whole, with privatized texts only.

An :class:`~langchain_dp.rapt.tuning.IdentitySanitizer` leaves these in clear.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from langchain_dp._util.whole_files import write_whole
from langchain_dp.errors import InvalidParameter
from langchain_dp.rapt.tuning.examples import PrivatizedExamples
from langchain_dp.rapt.tuning.model import TunedModel
from langchain_dp.rapt.tuning.settings import TuningSettings

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
        """Count one step."""
        self.steps += 1
        self.step += 1
        self.sums.update(texts=texts, correct=correct)
        for name, mean in means.items():
            self.sums[name] += mean * texts  # type: ignore[assignment]  # a Counter of floats

    def end_epoch(self, figures: dict[str, float], *, patience: int | None) -> None:
        """Close an epoch: update the best one, and decide whether to stop."""
        self.history.append(figures)
        if "validation_loss" in figures:
            lows = [one["validation_loss"] for one in self.history]
            self.best_epoch = lows.index(min(lows))
            self.stopped = patience is not None and self.epoch - self.best_epoch >= patience
        self.epoch += 1
        self.step = 0
        self.sums = Counter()


class Checkpoint:
    """A folder with the state of a training and the privatized texts of the current epoch.

    Settings and ``identity`` (further public facts) must be equal to resume. ``marks`` are keyed hashes of private
    texts, compared if the folder holds one under the same name. ``compared`` is False if one is missing.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        settings: TuningSettings,
        identity: Mapping[str, str | int],
        marks: Mapping[str, str],
    ) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidParameter(
                f"Expected checkpoint={str(folder)!r} to be a folder that is there or can be made "
                f"({type(error).__name__}). Give another."
            ) from None
        self._state = self._folder / STATE
        self._facts = self._folder / "checkpoint.json"
        self.compared = True
        if not self._facts.exists():
            facts = {"format": FORMAT, "settings": settings.to_dict(), "identity": identity, "marks": marks}
            write_whole(self._facts, json.dumps(facts).encode())
            return
        try:
            facts = json.loads(self._facts.read_bytes())
            own, stored, known = TuningSettings.from_dict(facts["settings"]), facts["identity"], dict(facts["marks"])
        except (ValueError, KeyError, TypeError):
            raise InvalidParameter(
                f"Expected checkpoint={str(self._folder)!r} to hold a checkpoint of this version. Give another folder."
            ) from None
        others = settings.differences(own)
        others += sorted(name for name in identity if stored.get(name) != identity[name])
        others += sorted(name for name, mark in marks.items() if known.get(name, mark) != mark)
        if others:
            raise InvalidParameter(
                f"Expected checkpoint={str(self._folder)!r} to be of the same training, but it differs in "
                f"{', '.join(others)}. Give the same values, or another folder."
            )
        self.compared = marks.keys() <= known.keys()

    @property
    def begun(self) -> bool:
        """Whether privatized texts are stored."""
        return any(path != self._facts for path in self._folder.glob("*.json"))

    def examples(self, name: str) -> PrivatizedExamples | None:
        """Stored privatized texts, which are not charged again."""
        path = self._folder / f"{name}.json"
        return PrivatizedExamples.load(path) if path.exists() else None

    def keep(self, name: str, examples: PrivatizedExamples) -> None:
        """Store privatized texts, and delete those of earlier epochs."""
        examples.save(self._folder / f"{name}.json")
        if name.startswith("epoch-"):
            for path in self._folder.glob("epoch-*.json"):
                if path.stem != name:
                    path.unlink()

    def save(self, done: Progress, model: TunedModel, optimizer: Any, scaler: Any) -> None:
        """Write weights, best weights, optimizer, random state and ``done``."""
        learned = model.learned()
        tensors = {f"{_MODEL}{name}": tensor for name, tensor in learned.items()}
        tensors |= {f"{_BEST}{name}": tensor for name, tensor in done.best.items()}
        for name, parameter in learned.items():
            for part, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{_OPTIMIZER}{part}.{name}"] = value
        tensors[_RNG] = torch.get_rng_state()
        progress = {field.name: getattr(done, field.name) for field in dataclasses.fields(done) if field.name != "best"}
        metadata = {"progress": json.dumps(progress), "scaler": json.dumps(scaler.state_dict())}
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_whole(self._state, save(whole, metadata))

    def restore(self, model: TunedModel, optimizer: Any, scaler: Any) -> Progress | None:
        """Restore the training; None if it had not begun."""
        if not self._state.exists():
            return None
        try:
            with safe_open(self._state, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            progress = json.loads(metadata["progress"])
            progress["sums"] = Counter(progress["sums"])
            done = Progress(**progress, best=_part(tensors, _BEST))
            scaled, coins = json.loads(metadata["scaler"]), tensors[_RNG]
        except (SafetensorError, KeyError, ValueError, TypeError):
            raise InvalidParameter(
                f"Expected {str(self._state)!r} to be the state of a training; it is damaged. Give another folder."
            ) from None
        model.put(_part(tensors, _MODEL), reconstruction=True)
        for name, parameter in model.learned().items():
            parts = _part(tensors, _OPTIMIZER)
            state = {key.partition(".")[0]: value for key, value in parts.items() if key.partition(".")[2] == name}
            if state:
                optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
                }
        if scaled:
            scaler.load_state_dict(scaled)
        torch.set_rng_state(coins)
        return done


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
