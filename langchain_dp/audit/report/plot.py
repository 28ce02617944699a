"""A picture of what was spent over time: inline SVG in the colours of the page, no script and no font of its own."""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Callable, Sequence

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 18, 34, 62
_APART = 20  # of two names, so that they never lie on each other, on a phone either


def spent_over_time(
    curve: Sequence[tuple[str, float]], *, begins: str, lines: Sequence[tuple[str, float, str]], unit: str
) -> str:
    """A step for every point, and level lines for what is reserved or allowed.

    Args:
        curve: (time, spent so far), in order.
        begins: When the ledger was made: the curve starts at 0 there.
        lines: (name, height, class of the line).
        unit: Name of the vertical axis.
    """
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

    path = f"M{x(points[0][0]):.1f},{y(0):.1f}"
    for time, value in points[1:]:
        path += f"H{x(time):.1f}V{y(value):.1f}"
    area = f"{path}H{x(end):.1f}V{y(0):.1f}Z"
    parts = [_grid(top, y), _times(start, end, x)]
    parts.append(f'<path class="area" d="{area}"/><path class="curve" d="{path}H{x(end):.1f}"/>')
    heights: list[float] = []
    for name, height, style in shown:
        at = y(height)
        parts.append(f'<line class="{style}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        above = at - 6
        while any(abs(above - other) < _APART for other in heights):
            above += _APART
        heights.append(above)
        parts.append(f'<text class="name" x="{_LEFT + 6}" y="{above:.1f}">{html.escape(name)} {height:.4g}</text>')
    last = points[-1][1]
    side = "end" if x(points[-1][0]) > _WIDTH / 2 else "start"
    at = min(y(last) - 6, _HEIGHT - _BOTTOM - 6)
    if all(abs(at - other) >= _APART for other in heights) or side == "end":
        parts.append(f'<text class="value" text-anchor="{side}" x="{x(points[-1][0]):.1f}" y="{at:.1f}">'
                     f"spent {last:.4g}</text>")  # fmt: skip
    label = f"{unit} spent over time: {last:.4g} of " + ", ".join(f"{name} {height:.4g}" for name, height, _ in shown)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(label, quote=True)}">'
        f'<text class="axis" x="4" y="16">{html.escape(unit)}</text>{"".join(parts)}</svg>'
    )


def _grid(top: float, place: Callable[[float], float]) -> str:
    lines = []
    for step in range(5):
        value = top * step / 4
        at = place(value)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{value:.3g}</text>'
        )
    return "".join(lines)


def _times(start: float, end: float, place: Callable[[float], float]) -> str:
    span = end - start
    form = "%Y-%m-%d" if span > 3 * 86400 else "%d %b %H:%M" if span > 6 * 3600 else "%H:%M:%S"
    marks = []
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        time = start + share * span
        shown = datetime.datetime.fromtimestamp(time, datetime.UTC).strftime(form)
        at = place(time)
        marks.append(f'<text class="tick" text-anchor="{anchor}" x="{at:.1f}" y="{_HEIGHT - 38}">{shown}</text>')
    day = datetime.datetime.fromtimestamp(start, datetime.UTC).strftime("%Y-%m-%d")
    note = "time, UTC" if form == "%Y-%m-%d" else f"time, UTC, from {day}"
    marks.append(f'<text class="axis" text-anchor="end" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 12}">{note}</text>')
    return "".join(marks)


def _ceiling(value: float) -> float:
    """A round number with room above the value."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10, 12) if unit * step >= 1.08 * value)


def _seconds(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()
