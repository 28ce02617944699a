"""The page of the reproduction: claims first, then for every paper its differences and its tables."""

# ruff: noqa: E501  # lines of the page
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from reproduce_claims import Check, Claim, shown
from reproduce_claims import table as claims_table
from reproduce_rows import HERE, Cell, Results, Run

DIFFERENCES = HERE / "reproduce_differences.md"
HEAD = """# Reproduction

The claims of three papers, tested with small models on two CPU cores. A trial counts only where its check shows that the
effect could have appeared. Otherwise the verdict is "not tested fairly yet".

- A difference is a mean over three seeds, in points of accuracy unless a row names another unit. After ± stands its
  standard error, paired by seed. A number in brackets is the number of seeds, where there are fewer. With one seed the
  error is over test rows.
- "Shown" and "contradicted" need a distance of more than two standard errors from the claimed bound. Everything between is
  "undecided". Three seeds are few: without any effect, about one difference in five is that large.
- A check that is a gain or a difference follows the same rule, with zero as its bound.
- All our figures and verdicts come from the files in `tests/benchmarks/results`. `make reproduce` measures missing rows and
  writes this page. `python tests/benchmarks/reproduce.py --list` prints every command.

## Claims

"""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table: a cell for every column. A text is a figure that the paper prints."""

    label: str
    cells: tuple[str | Cell, ...]

    def known(self, results: Results) -> bool:
        """A line without any figure is left out."""
        return any(results.found(cell) if isinstance(cell, Cell) else cell for cell in self.cells)


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure of a paper beside ours.

    Args:
        name: For --only.
        title: Heading.
        measure: One sentence: the unit and the setting.
        columns: Headings of the cells.
        lines: The table.
        check: Name of the check, and the check, once for every arm it is needed for.
        note: At most one more sentence.
        picture: Caption and path of a picture.
    """

    name: str
    title: str
    measure: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    check: tuple[str, dict[str, Check]] | None = None
    note: str = ""
    picture: tuple[str, ...] = ()

    def cells(self) -> list[Cell]:
        """Our cells."""
        return [cell for line in self.lines for cell in line.cells if isinstance(cell, Cell)]

    def section(self, paper: str, results: Results) -> str:
        """As a section of the page. Without any row of ours, a sentence replaces the table."""
        met, check = self._checked(results)
        files = ", ".join(f"`{name}`" for name in sorted({cell.run.out for cell in self.cells()}))
        lines = [line for line in self.lines if line.known(results)]
        parts = [f"### {paper}, {self.title}"]
        if not any(results.found(cell) for cell in self.cells()):
            parts.append(f"No rows yet: {files}.")
        elif not met:
            parts.append(f"{check} Left out: {files}.")
        else:
            shown_lines = [("", *self.columns), ("---",) * (1 + len(self.columns))]
            shown_lines += [(line.label, *(_text(cell, results) for cell in line.cells)) for line in lines]
            parts += [
                self.measure,
                "\n".join(
                    f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in shown_lines
                ),
            ]
            parts += ["![{}]({})".format(*self.picture)] if self.picture else []
            parts.append(" ".join(filter(None, (check, self.note))))
        return "\n\n".join(filter(None, parts)) + "\n"

    def _checked(self, results: Results) -> tuple[bool, str]:
        if self.check is None:
            return True, ""
        name, checks = self.check
        met = [label for label, check in checks.items() if check(results)[0]]
        state = "met" if len(met) == len(checks) else f"met on {', '.join(met)} only" if met else "not met"
        return bool(met), f"Check {state}: {name}."


@dataclasses.dataclass(frozen=True)
class Paper:
    """One paper: its claims and its tables. DIFFERENCES holds its title and every difference of our set-up."""

    name: str
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]

    def cells(self) -> Iterator[Cell]:
        """The cells of all its tables and claims."""
        for part in (*self.tables, *self.claims):
            yield from part.cells()

    def section(self, results: Results) -> str:
        """Its part of the page."""
        _, _, text = DIFFERENCES.read_text(encoding="utf-8").partition(f"## {self.name}\n\n")
        title, _, lines = text.partition("\n## ")[0].strip().partition("\n\n")
        head = f"## {self.name}\n\n{title} Our set-up differs from the paper:\n\n{lines}\n"
        return "\n".join([head, *(table.section(self.name, results) for table in self.tables)])


def _text(cell: str | Cell, results: Results) -> str:
    return shown(results.found(cell), cell.kind) if isinstance(cell, Cell) else cell


def render(papers: Sequence[Paper], results: Results) -> str:
    """The whole page."""
    claims = claims_table({paper.name: paper.claims for paper in papers}, results)
    return "\n".join([HEAD + claims + "\n", *(paper.section(results) for paper in papers)])


def runs(cells: Sequence[Cell]) -> list[Run]:
    """The calls that cells need, in order. Calls without an estimate are started by hand."""
    return list(dict.fromkeys(cell.run for cell in cells if cell.run.minutes))
