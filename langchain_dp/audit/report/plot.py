"""Geometry of the picture of spending over time."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence

from langchain_dp._util.rounding import bound

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 18, 34, 62
_APART = 20  # of two names, so that they never overlap, not even on a phone


@dataclasses.dataclass(frozen=True)
class Plot:
    """Parts of a picture."""

    label: str  # the picture in words
    area: str  # path around the area below the curve
    curve: str  # path of the curve
    grid: Sequence[str]  # heights of the lines behind it
    levels: Sequence[tuple[str, str]]  # (class, height) of level lines
    texts: Sequence[tuple[str, str, str, str, str]]  # (class, anchor, x, y, text)
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT


def spent_over_time(
    curve: Sequence[tuple[str, float]], *, begins: str, lines: Sequence[tuple[str, float, str]], unit: str
) -> Plot:
    points = [(_seconds(begins), 0.0), *((_seconds(time), value) for time, value in curve)]
    start, end = points[0][0], max(points[-1][0], points[0][0])
    if end - start < 1e-3:  # one moment: still a picture
        end = start + 1.0
    shown = [line for line in lines if math.isfinite(line[1])]
    top = _ceiling(max([value for _, value in points] + [height for _, height, _ in shown] + [1e-12]))

    def x(time: float) -> float:
        return _LEFT + (time - start) / (end - start) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    path = f"M{x(start):.1f},{y(0):.1f}" + "".join(f"H{x(time):.1f}V{y(value):.1f}" for time, value in points[1:])
    steps = [top * step / 4 for step in range(5)]
    texts = [("tick", "end", f"{_LEFT - 6}", f"{y(value) + 4:.1f}", f"{value:.3g}") for value in steps]
    texts += _times(start, end)
    heights: list[float] = []
    for name, height, _ in shown:
        above = y(height) - 6
        while any(abs(above - other) < _APART for other in heights):
            above += _APART
        heights.append(above)
        texts.append(("name", "start", f"{_LEFT + 6}", f"{above:.1f}", f"{name} {bound(height)}"))
    time, last = points[-1]
    side = "end" if x(time) > _WIDTH / 2 else "start"
    at = min(y(last) - 6, _HEIGHT - _BOTTOM - 6)
    if all(abs(at - other) >= _APART for other in heights) or side == "end":
        texts.append(("value", side, f"{x(time):.1f}", f"{at:.1f}", f"spent {bound(last, 4)}"))
    return Plot(
        f"{unit} spent over time: {bound(last, 4)} of "
        + ", ".join(f"{name} {bound(height)}" for name, height, _ in shown),
        f"{path}H{x(end):.1f}V{y(0):.1f}Z",
        f"{path}H{x(end):.1f}",
        [f"{y(value):.1f}" for value in steps],
        [(style, f"{y(height):.1f}") for _, height, style in shown],
        texts,
    )


def _times(start: float, end: float) -> list[tuple[str, str, str, str, str]]:
    span = end - start
    form = "%Y-%m-%d" if span > 3 * 86400 else "%d %b %H:%M" if span > 6 * 3600 else "%H:%M:%S"

    def written(time: float, how: str) -> str:
        return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime(how)

    marks = [
        ("tick", anchor, f"{_LEFT + share * (_WIDTH - _LEFT - _RIGHT):.1f}", f"{_HEIGHT - 38}",
         written(start + share * span, form))
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    ]  # fmt: skip
    note = "time, UTC" if form == "%Y-%m-%d" else f"time, UTC, from {written(start, '%Y-%m-%d')}"
    return [*marks, ("axis", "end", f"{_WIDTH - _RIGHT}", f"{_HEIGHT - 12}", note)]


def _ceiling(value: float) -> float:
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10, 12) if unit * step >= 1.08 * value)


def _seconds(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()
