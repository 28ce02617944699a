"""The demonstration of DP-OPT as text for a terminal: prompts with their leaks marked, and a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from langchain_dp.attacks import LeakReport
from langchain_dp.cli.demo_opt import Result, Shown

RED, SIGNS = ("\x1b[1;31m", "\x1b[0m"), (">>", "<<")
_OPEN, _CLOSE = "\x01", "\x02"
_WIDTH = 96
_BAR = 24


def table(result: Result, *, color: bool) -> str:
    """The result as text.

    Args:
        result: What was run. Text of the rows is shown: the demonstration is for whoever may see them.
        color: Mark leaked words in red, instead of by ``>>`` and ``<<``.
    """
    task, marks = result.task, RED if color else SIGNS
    lines = [
        f"{task.name}: {len(task.train):,} private examples; four instructions for the same task",
        f"Words of private rows are {'red' if color else f'between {marks[0]} and {marks[1]}'}.",
    ]
    for shown in result.shown:
        lines += ["", f"{shown.method}: {_origin(shown)}", *_found(shown.leaks, marks)]
        if shown.method == "DP-OPT":
            lines.append("    chosen, with noise, among the first and:")
            lines += [part for text in result.candidates for part in _wrapped(_printable(text), "      ")]
        if shown.method == "DLN-1" and not shown.leaks.spans:
            lines += _others(result.sampled, marks)
    lines += ["", *_scores(result.shown), "", str(result.plan), "", str(result.certificate)]
    return "\n".join(lines)


def _origin(shown: Shown) -> str:
    return {
        "start": "where all begin, public",
        "DLN-1": "the best of single prompts that show the model a few rows. NOT PRIVATE",
        "OPT": "votes of many subsets for every word, without noise. NOT PRIVATE",
        "DP-OPT": f"the same votes, counted with noise: epsilon {shown.epsilon or 0:g}",
    }[shown.method]


def _others(sampled: Sequence[LeakReport], marks: tuple[str, str]) -> list[str]:
    """Where the best prompt repeats no row: the worst of those that could have been the best."""
    leaking = [leaks for leaks in sampled if leaks.spans]
    if not leaking:
        return [f"    None of the {len(sampled)} prompts it sampled repeats a row this time. Nothing promises that."]
    some = f"{len(leaking)} of the {len(sampled)} prompts it sampled"
    worst = max(leaking, key=lambda leaks: sum(span.bits for span in leaks.spans))
    return [f"    This one repeats no row, but {some} did. It could have been:", *_found(worst, marks)]


def _found(leaks: LeakReport, marks: tuple[str, str]) -> list[str]:
    lines = _marked(leaks, marks)
    for span in leaks.spans:
        what = "all of it" if span.whole else f"{span.words} words"
        lines += _wrapped(f"{what} of row {span.rows[0]}: {_printable(span.row_text)}", "      ")
    return lines


def _marked(leaks: LeakReport, marks: tuple[str, str]) -> list[str]:
    lines, inside = [], False
    for line in leaks.marked(_OPEN, _CLOSE).splitlines():
        for part in _wrapped(_printable(line), "  | "):
            # A mark that is open at the end of a line is closed there, and opened again behind the next margin.
            opened, inside = inside, part.rfind(_OPEN) > part.rfind(_CLOSE) or (inside and _CLOSE not in part)
            text = f"{part[:4]}{_OPEN if opened else ''}{part[4:]}{_CLOSE if inside else ''}"
            lines.append(text.replace(_OPEN, marks[0]).replace(_CLOSE, marks[1]))
    return lines


def _scores(shown: Sequence[Shown]) -> list[str]:
    rows = shown[0].score.rows
    resolution = 2 * max(math.hypot(one.score.standard_error, shown[0].score.standard_error) for one in shown)
    lines = [f"  {'':<8} {'epsilon':>8}  {'accuracy':>15}  {'':<{_BAR}}  rows in the prompt"]
    for one in shown:
        epsilon = "inf" if one.epsilon is None else f"{one.epsilon:g}"
        spans = len(one.leaks.spans)
        chance = len(one.leaks.by_chance)
        leaked = f"{spans} spans, {one.leaks.rate:.0%} of its words" if spans else "none found"
        lines.append(
            f"  {one.method:<8} {epsilon:>8}  {one.score.accuracy:>7.1%} ± {one.score.standard_error:>5.1%}  "
            f"{'█' * round(one.score.accuracy * _BAR):<{_BAR}}  {leaked}"
            + (f" ({chance} of held-out rows, by chance)" if spans or chance else "")
        )
    return [
        *lines,
        "",
        f"  Accuracy of the local model on {rows} held-out rows; ± is one standard error. Differences below about "
        f"{resolution:.0%}",
        "  are not resolved. A search that finds no row proves nothing; the certificate does.",
    ]


def _wrapped(text: str, margin: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=margin, subsequent_indent=margin) or [margin.rstrip()]


def _printable(text: str) -> str:
    """Nothing that a model wrote may steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in (_OPEN, _CLOSE) else " " for letter in text)
