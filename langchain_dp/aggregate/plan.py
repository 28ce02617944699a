"""Accuracy forecasts from public numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from importlib import resources
from typing import Any

import numpy as np

from langchain_dp._util.reprs import InNotebooks
from langchain_dp.accounting import PrivacyBudget
from langchain_dp.errors import InvalidParameter

_FEWEST, _MOST = 8, 256


@dataclasses.dataclass(frozen=True)
class _Curve:
    """Right answers of 100 by records per label over the noise multiplier, and without noise."""

    task: str
    labels: int
    clean: int
    ratios: list[int]
    accuracy: list[int]


@functools.cache
def curves() -> list[_Curve]:
    """Return the accuracies that ``tests/benchmarks/bench_prototypes.py`` measured on public tasks."""
    text = resources.files("langchain_dp.aggregate").joinpath("curves.json").read_text(encoding="utf-8")
    return [_Curve(**fields) for fields in json.loads(text)]


def components_for(users: int | None, labels: int, noise_multiplier: float) -> int:
    """Return fewer components under more noise."""
    if users is None:
        raise InvalidParameter(
            "Expected components= under add/remove neighbors, where the number of users is private and nothing may "
            "follow from it. Give 16 for some hundred examples, 64 for some thousand."
        )
    ratio = users / labels / noise_multiplier
    return max(_FEWEST, min(_MOST, round((1.2 if labels > 2 else 0.5) * ratio)))


def sharpness_for(ratio: float | None) -> float:
    """Tuned on seven public tasks (``bench_prototypes.py --sharpness``)."""
    return 8.0 if ratio is None else 24 * ratio / (ratio + 80)


@dataclasses.dataclass(frozen=True)
class PrototypePlan(InNotebooks):
    """Forecast of a prototype classifier, from curves on public data with the default encoder.

    Args:
        examples: Number of examples, or of users.
        labels: Number of labels.
        budget: The promise.
        components: Number of principal components.
        noise_multiplier: Standard deviation of the noise per coordinate, in records.

    Examples:
        >>> plan = DPPrototypeClassifier.plan(1_000, labels=["a", "b", "c", "d"], budget=PrivacyBudget(1.0))
        >>> 50 < plan.right_of_100 < plan.right_without_noise
        True
    """

    examples: int
    labels: int
    budget: PrivacyBudget
    components: int
    noise_multiplier: float

    def _of(self, curve: _Curve) -> float:
        ratio = self.examples / self.labels / self.noise_multiplier
        return min(float(np.interp(np.log(ratio), np.log(curve.ratios), curve.accuracy)), curve.clean)

    @property
    def tasks(self) -> dict[str, tuple[int, int]]:
        """Right answers of 100 on similar tasks, with this noise and without."""
        alike = [curve for curve in curves() if (curve.labels > 2) == (self.labels > 2)]
        return {curve.task: (round(self._of(curve)), curve.clean) for curve in alike}

    @property
    def right_of_100(self) -> int:
        """Their mean with noise."""
        return round(statistics.mean(right for right, _ in self.tasks.values()))

    @property
    def right_without_noise(self) -> int:
        """Their mean without noise."""
        return round(statistics.mean(clean for _, clean in self.tasks.values()))

    @property
    def mostly_noise(self) -> bool:
        """Whether noise costs more than 15 right answers of 100."""
        return self.right_without_noise - self.right_of_100 > 15

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            **vars(self), "budget": self.budget.to_dict(), "right_of_100": self.right_of_100,
            "right_without_noise": self.right_without_noise,
            "tasks": {task: [*pair] for task, pair in self.tasks.items()},
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{self.examples:,} examples, {self.labels} labels, {self.budget}: one release, then any number of queries",
            f"noise: as if {self.noise_multiplier:.1f} random records were added to each of {self.components} "
            "coordinates of a label's sum",
            f"expected: right on about {self.right_of_100} of 100 texts ({self.right_without_noise} without noise, "
            f"{round(100 / self.labels)} by a blind guess), in the mean over public tasks with the default encoder:",
            *(f"  {task}: {right} of 100 ({clean} without noise)" for task, (right, clean) in self.tasks.items()),
        ]
        if self.mostly_noise:
            lines.append("Most of it is noise. More examples, fewer labels or a larger epsilon help.")
        return "\n".join(lines)
