"""Claims of the papers, and the rule that turns rows into a verdict.

A claim is a difference between two arms that lies above a number. First a check has to show that the effect could have
appeared at all. Without it the verdict is "not tested fairly yet".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from reproduce_rows import SEEDS, Cell, Found, Results, Run

NOT_FAIR = "not tested fairly yet"
NO_ROWS = "no rows yet"
Check = Callable[[Results], tuple[bool, str]]
"""The answer of a check, and the figure that it rests on."""


def shown(found: Found | None, kind: str = "percent", sign: str = "") -> str:
    """Mean and standard error, with the number of seeds in brackets unless there are three."""
    if found is None:
        return "not run"
    scale, form = (100, ".1f") if kind == "percent" else (1, ",.0f" if abs(found.mean) >= 1_000 else ".3g")
    error = found.spread if kind == "percent" or found.spread else None
    text = f"{scale * found.mean:{sign}{form}}" + ("" if error is None else f" ± {scale * error:{form}}")
    return text if len(found.seeds) == len(SEEDS) else f"{text} ({len(found.seeds)})"


def judged(found: Found | None, least: float = 0.0) -> str:
    """The rule: "shown" and "contradicted" need more than two standard errors from the bound."""
    if found is None:
        return NOT_FAIR
    distance, error = found.mean - least, 2 * (found.spread or 0.0)
    return "shown" if distance > error else "contradicted" if -distance > error else "undecided"


def above(cell: Cell, least: float) -> Check:
    """An arm reaches a share."""

    def check(results: Results) -> tuple[bool, str]:
        found = results.found(cell)
        return bool(found and found.mean > least), shown(found) if found else NO_ROWS

    return check


def beats(more: Cell, less: Cell) -> Check:
    """One arm is better than another by the rule."""

    def check(results: Results) -> tuple[bool, str]:
        found = results.difference(more, less)
        return judged(found) == "shown", shown(found, more.kind, "+") if found else NO_ROWS

    return check


def both(one: Check, other: Check) -> Check:
    """Two checks at once."""

    def check(results: Results) -> tuple[bool, str]:
        (fair, text), (too, more) = one(results), other(results)
        return fair and too, text if text == more else f"{text} and {more}"

    return check


def moves(run: Run, arm: str, **where: str) -> Check:
    """At least half of the prompts of an arm differ from the initial instruction of their task."""

    def check(results: Results) -> tuple[bool, str]:
        names = ("source", "target", "task", "seed", "arm")
        rows = [
            (dict(zip(names, row["key"], strict=True)), row.get("instruction", "").strip())
            for row in results.rows(run.out)
        ]
        first = {key["task"]: text for key, text in rows if key["arm"] == "0-shot"}
        texts = [(key["task"], text) for key, text in rows if key["arm"] == arm and where.items() <= key.items()]
        moved = sum(text.strip() != first[task].strip() for task, text in texts if task in first)
        return bool(texts) and 2 * moved >= len(texts), f"{moved} of {len(texts)}" if texts else NO_ROWS

    return check


def never(reason: str) -> Check:
    """A trial that was not made."""
    return lambda results: (False, reason)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One difference on one data set: ``more`` minus ``less`` is claimed to be above ``least``."""

    name: str
    check: Check
    more: Cell | None = None
    less: Cell | None = None
    least: float = 0.0

    def checked(self, results: Results) -> tuple[bool, str]:
        """The check. A trial without rows of its own fails it."""
        if self.more and self.less and results.difference(self.more, self.less) is None:
            return False, NO_ROWS
        return self.check(results)

    def difference(self, results: Results) -> Found | None:
        """The difference of a fair trial."""
        fair, _ = self.checked(results)
        return results.difference(self.more, self.less) if fair and self.more and self.less else None

    def verdict(self, results: Results) -> str:
        """The verdict by the rule."""
        return judged(self.difference(results), self.least)


@dataclasses.dataclass(frozen=True)
class Claim:
    """One line of the first table: a claim, the name of its check, and a trial for every data set."""

    where: str
    says: str
    check: str
    trials: tuple[Trial, ...]

    def line(self, paper: str, results: Results) -> str:
        """As a line of the table."""
        checks = {trial.name: trial.checked(results) for trial in self.trials}
        passed = [fair for fair, _ in checks.values()]
        state = "yes" if all(passed) else "in part" if any(passed) else "no"
        verdicts: dict[str, list[str]] = {}
        for trial in self.trials:
            verdicts.setdefault(trial.verdict(results), []).append(trial.name)
        found = [(trial, one) for trial in self.trials if trial.more and (one := trial.difference(results))]
        figures = (f"{trial.name} {shown(one, trial.more.kind, '+')}".strip() for trial, one in found)
        few = len(self.trials) <= 4
        verdict = ". ".join(f"{one}: {', '.join(names) if few else len(names)}" for one, names in verdicts.items())
        if len(verdicts) == 1:
            verdict = next(iter(verdicts))
        fair = ": ".join(filter(None, (state, self.check, figures_of(checks))))
        return f"| {paper} {self.where} | {self.says} | {fair} | {', '.join(figures)} | {verdict} |"

    def cells(self) -> Iterator[Cell]:
        """The cells it is judged by."""
        for trial in self.trials:
            yield from (cell for cell in (trial.more, trial.less) if cell is not None)


def figures_of(checks: Mapping[str, tuple[bool, str]]) -> str:
    """Figures of checks, each once. A figure of a check that fails is marked."""
    marks = {True: "", False: " (fails)"}
    texts = {name: text + marks[fair or not any(map(str.isdigit, text))] for name, (fair, text) in checks.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    known = [f"{name} {text}".strip() for name, text in texts.items() if text != NO_ROWS]
    return ", ".join([*known, *([f"{NO_ROWS} for the others"] if len(known) < len(texts) else [])])


def claim(
    where: str,
    says: str,
    check: str,
    names: Mapping[str, str] | Sequence[str],
    checks: Callable[[str], Check],
    more: Callable[[str], Cell],
    less: Callable[[str], Cell],
    least: float = 0.0,
) -> Claim:
    """A claim with a trial for every name, whose check and cells are functions of it."""
    shown_as = names if isinstance(names, Mapping) else {name: name for name in names}
    trials = tuple(Trial(name, checks(of), more(of), less(of), least) for of, name in shown_as.items())
    return Claim(where, says, check, trials)


def untested(where: str, says: str, reason: str) -> Claim:
    """A claim without a fair trial, and the reason."""
    return Claim(where, says, "", (Trial("", never(reason)),))


def table(claims: Mapping[str, tuple[Claim, ...]], results: Results) -> str:
    """The first table of the page."""
    head = "| where | claim | fair set-up? | difference, points | verdict |\n|---|---|---|---|---|"
    return "\n".join([head, *(one.line(paper, results) for paper, some in claims.items() for one in some)])
