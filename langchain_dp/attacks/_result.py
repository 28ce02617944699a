"""What an attack reached, in a form that shows no private text unless it is asked to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_dp._util.pictures import new_figure
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.attacks._leak_report import LeakReport

Setting = str | int | float | bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackResult:
    """A success rate with its interval, beside the rate of an attacker who saw no release.

    No promise covers these figures: where the attacked texts are private, they are counted without noise, and whoever
    publishes them releases something about the texts.

    Args:
        name: Which attack, on what: a label of at most four words, for reports.
        rate: Success, in [0, 1]; what counts as one is in ``measure``.
        interval: Its 95% interval, by ``interval_method``. It covers the draw of what was attacked and of the noise,
            not the choice of the attack: a better attack may exist. An attack that fails proves nothing.
        baseline: What the same measure gives without the release, or by chance.
        n: Number of attempts.
        measure: What the rate counts, as a label.
        interval_method: How the interval was found, as a label.
        settings: Public settings, plain values by name.
    """

    name: str
    rate: float
    interval: tuple[float, float]
    baseline: float
    n: int
    measure: str
    interval_method: str
    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", dict(self.settings))  # frozen: a copy of its own

    @property
    def empirical_privacy(self) -> float:
        """1 - rate, the measure of Li, Tan, Liu 2023, section 4.2."""
        return 1 - self.rate

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain values, without any text: name, rate, low, high, baseline, n, settings."""
        return {
            "name": self.name,
            "rate": self.rate,
            "low": self.interval[0],
            "high": self.interval[1],
            "baseline": self.baseline,
            "n": self.n,
            "settings": {**self.settings, "measure": self.measure, "interval": self.interval_method},
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Write a picture of rate, interval and baseline.

        Raises:
            InvalidParameter: The ending of ``path`` names no kind of picture.
            MissingExtra: matplotlib is not installed.
        """
        plot_attacks([self], path)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.name}: {self.rate:.3f} ({low:.3f} to {high:.3f}, 95% {self.interval_method}), "
            f"{self.baseline:.3f} without the release; {self.measure}, n = {self.n:,}"
        )


def plot_attacks(results: Sequence[AttackResult | LeakReport], path: str | PathLike[str]) -> None:
    """Write a picture that compares attacks: a line each, with its interval, and a mark where chance is.

    Args:
        results: One or more results; what :func:`langchain_dp.attacks.find_leaks` found is one, too.
        path: File to write; its ending says the format.

    Raises:
        InvalidParameter: There are no results, one is none, or the ending of ``path`` names no kind of picture.
        MissingExtra: matplotlib is not installed.
    """
    if not results:
        raise InvalidParameter("Expected results to hold at least one attack, got none. Run one first.")
    for result in results:
        if not all(hasattr(result, name) for name in ("name", "rate", "interval", "baseline")):
            raise InvalidParameter(
                f"Expected results to hold results of attacks, but one is of type {type(result).__name__}."
            )
    figure, axes = new_figure(7, 1.2 + 0.5 * len(results))
    for place, result in enumerate(results):
        low, high = result.interval
        axes.plot([low, high], [place, place], color="C0", lw=2, zorder=1)
        axes.plot(result.rate, place, "o", color="C0", label="attack, 95%" if place == 0 else None)
        axes.plot(result.baseline, place, "|", color="C1", ms=16, mew=2, label="baseline" if place == 0 else None)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(results) - 0.5, -0.5), xlabel="share of attempts")
    axes.set_yticks(range(len(results)), [result.name for result in results])
    axes.legend(loc="best", frameon=False)
    save_picture(figure, path)


def save_picture(figure: Any, path: str | PathLike[str]) -> None:
    """Write a figure; the ending of the path says the format, PNG if there is none."""
    ending = Path(path).suffix[1:].lower()
    known = figure.canvas.get_supported_filetypes()
    if ending and ending not in known:
        raise InvalidParameter(
            f"Expected the ending of path, {ending!r}, to be one of {sorted(known)}. Write to a file such as "
            "attacks.png."
        )
    figure.savefig(path)


def texts_of(name: str, texts: Sequence[str], *, at_least: int = 1) -> list[str]:
    """The texts as a list, if they are one; no text stands in the message."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence) or any(not isinstance(t, str) for t in texts):
        raise InvalidParameter(f"Expected {name} to be a list of str. Give the texts, without labels.")
    if len(texts) < at_least:
        raise InvalidParameter(f"Expected {name} to hold at least {at_least} texts, got {len(texts)}. Give more.")
    return list(texts)
