"""The page of the reproduction, and the same as JSON: both from the result files and from nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from reproduce_rows import Cell, Found, Line, Results, Run, Table

NOT_RUN = "not run"
HEAD = """# Reproduction

The tables and figures of the three papers, in their shape, at the size that two cores without a GPU allow: small
embedded models, real public data, seeds 1 to 3. They show whether the methods behave here as they do there, and not how
good they can be. `make reproduce` measures what is missing and writes this page from the files in
`tests/benchmarks/results`. The figures come from these files. The verdicts in the first table are written by hand.

A line says whose figures it holds: those of the paper, as printed there, or ours. After ± stands the standard error
over seeds, and n is their number; with one seed it is the standard error over test rows, and says so. "not run" means
that no result is there. Dates and commits are those in the rows of the results; "+" after a commit means that the
sources were changed from it.
"""


def render(tables: Sequence[Table], results: Results, first: str = "", last: str = "") -> str:
    """The whole page; ``first`` and ``last`` are sections that stand before and after the tables."""
    parts = [HEAD, *([first] if first else []), _overview(tables, results)]
    for paper in dict.fromkeys(table.paper for table in tables):
        parts.append(f"## {paper.name}\n\n{paper.citation}.\n\n{_differs('In all tables', paper.differences)}")
        parts += [_section(table, results) for table in tables if table.paper == paper]
    return "\n".join([*parts, *([last] if last else [])])


def as_json(tables: Sequence[Table], results: Results) -> str:
    """Every table with its cells: mean, standard error, seeds, settings, dates and commits."""
    found = [
        {
            "name": table.name,
            "paper": table.paper.citation,
            "title": table.title,
            "source": table.source,
            "measure": table.measure,
            "columns": table.columns,
            "lines": [
                {"label": line.label, "whose": line.whose, "cells": [_plain(cell, results) for cell in line.cells]}
                for line in table.lines
            ],
            "differences": [*table.paper.differences, *table.differences],
        }
        for table in tables
    ]
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _plain(cell: str | Cell | None, results: Results) -> Any:
    if not isinstance(cell, Cell):
        return cell
    found = results.found(cell)
    if found is None:
        return {"file": cell.run.out, "state": NOT_RUN}
    return {
        "file": cell.run.out,
        "value": f"{cell.value} - {cell.minus}" if cell.minus else cell.value,
        "mean": round(found.mean, 6),
        "standard_error": None if found.error is None else round(found.error, 6),
        "seeds": found.seeds,
        "made": _distinct([one.made for one in found.measured]),
        "commit": _distinct([one.commit for one in found.measured]),
        "settings": found.measured[0].settings,
    }


def _overview(tables: Sequence[Table], results: Results) -> str:
    lines = ["| table | cells with all their seeds | cells with some | cells |", "|---|---|---|---|"]
    for table in tables:
        whole, some, every = progress(table, results)
        lines.append(f"| [{_heading(table)}](#{_anchor(_heading(table))}) | {whole} | {some} | {every} |")
    return "\n".join(lines) + "\n"


def progress(table: Table, results: Results) -> tuple[int, int, int]:
    """Cells of ours with all their seeds, with some, and all; those without a run count as cells."""
    ours = [cell for line in table.lines if line.whose != "paper" for cell in line.cells if not isinstance(cell, str)]
    found = [(cell, results.found(cell)) for cell in ours if cell is not None]
    whole = sum(1 for cell, one in found if one is not None and len(one.seeds) == len(cell.seeds))
    return whole, sum(1 for _, one in found if one is not None) - whole, len(ours)


def _section(table: Table, results: Results) -> str:
    head = ["", "whose", *table.columns]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join((line.label, line.whose, *_shown(line, results)))} |" for line in table.lines]
    picture = "![{}]({})".format(*table.picture) if table.picture else ""
    parts = [f"### {_heading(table)}", f"{table.source}. {table.measure}", table.says, "\n".join(lines), picture]
    parts += ["Made with:", "\n".join(_made_with(run, table, results) for run in table.runs())]
    if table.differences:
        parts.append(_differs("Besides", table.differences))
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _heading(table: Table) -> str:
    return f"{table.paper.name}, {table.title}"


def _differs(where: str, sentences: Sequence[str]) -> str:
    return f"{where}, this differs from the paper:\n\n" + "\n".join(f"- {one}" for one in sentences) + "\n"


def _shown(line: Line, results: Results) -> list[str]:
    empty = "" if line.whose == "paper" else NOT_RUN
    given = (shown(cell, results.found(cell)) if isinstance(cell, Cell) else cell for cell in line.cells)
    return [empty if cell is None else cell for cell in given]


def shown(cell: Cell, found: Found | None) -> str:
    """A cell as text."""
    if found is None:
        return NOT_RUN
    number = len(found.seeds)
    if cell.kind == "number":
        value = f"{found.mean:,.0f}" if found.mean >= 1_000 else f"{found.mean:.4g}"
        spread = "" if not found.error else f" ± {found.error:.2g}"
        return f"{value}{spread} (n = {number})"
    value = f"{100 * found.mean:+.1f}" if cell.minus else f"{100 * found.mean:.1f}"
    if found.error is not None:
        return f"{value} ± {100 * found.error:.1f} (n = {number})"
    over = "" if found.within is None else f", ± {100 * found.within:.1f} over {found.rows} rows"
    return f"{value} (n = {number}{over})"


def _made_with(run: Run, table: Table, results: Results) -> str:
    cells = [cell for cell in table.cells() if cell.run == run]
    found = [one for cell in cells if (one := results.found(cell)) is not None]
    command = f"- `{run.command()}`"
    if not found:
        return f"{command}: {NOT_RUN}."
    rows = [one for cell in found for one in cell.measured]
    settings: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.settings.items():
            settings.setdefault(name, []).append(value)
    said = ", ".join(f"{name} {' / '.join(_distinct(values))}" for name, values in settings.items())
    dates = ", ".join(_distinct([row.made for row in rows]))
    commits = ", ".join(_distinct([row.commit for row in rows]))
    return f"{command}: made {dates}; commit {commits}; {said}."


def _distinct(values: Sequence[Any]) -> list[str]:
    """Every value once, as text, in order."""
    return sorted({"none" if value is None or value == [] else _text(value) for value in values})


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
