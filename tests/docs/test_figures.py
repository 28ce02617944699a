"""Every figure that the README, or a page beside it, quotes of a measurement is that of a row in the results."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_side_by_side
import benchmarks_page
import made
import reproduce_icl
from benchmarks_page import quoted
from reproduce_rows import RESULTS, Cell

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def larger(task: str, method: str) -> Cell:
    """What a method got of the larger model's votes."""
    few = reproduce_icl.FEW if task == "agnews" else None
    return reproduce_icl.cell(task, method, model=reproduce_icl.LARGER, questions=few)


def test_the_page_of_benchmarks_is_made_from_the_results() -> None:
    """If it breaks, the page shows a figure that no row in the results has. `python benchmarks_page.py` writes it."""
    assert benchmarks_page.PAGE.read_text(encoding="utf-8") == benchmarks_page.page()


def test_the_first_picture_is_drawn_from_the_results() -> None:
    """If it breaks, the README's picture shows what no row in the results has. `bench_side_by_side.py --picture`."""
    drawn = bench_side_by_side.PICTURE.read_text(encoding="utf-8")
    assert json.dumps(bench_side_by_side.picture_data()) in html.unescape(drawn)


def test_the_page_quotes_what_recognizers_found() -> None:
    """If it breaks, the page on pseudonyms shows a recall that no row in the results has."""
    page = (ROOT / "docs" / "how-to" / "pseudonyms.md").read_text(encoding="utf-8")
    rows = {tuple(row["key"]): row for row in made.so_far(RESULTS / "pseudonyms.jsonl")}
    halves = ("presidio-evaluator, seen half", "presidio-evaluator, held out half")
    for label, arm in (
        ("`PatternEntities`", "PatternEntities"),
        ("the same, and names of people as terms", "PatternEntities, and all names of people as terms"),
        ("the same, and names of people, companies and places as terms", "PatternEntities, and all names as terms"),
        ("LangChain's `PIIMiddleware`, all its detectors", "langchain PIIMiddleware, all its detectors"),
        ("Presidio without a language model", "Presidio without a language model"),
        ("`PatternEntities` and that", "PatternEntities and Presidio without a language model"),
    ):
        both = [rows[arm, source] for source in ("own", "presidio-evaluator")]
        cells = [f"{row['recall']:.2f} | {row['recall_formed']:.2f} | {row['leaky_texts']}" for row in both]
        cells += [f"{rows[arm, half]['recall']:.2f} | {rows[arm, half]['recall_formed']:.2f}" for half in halves]
        assert f"| {label} | {' | '.join(cells)} |" in page
        assert {row["precision"] for row in both} == {1.0}
    entities = [rows["PatternEntities", source]["entities"] for source in ("own", "presidio-evaluator", halves[1])]
    assert entities == [630, 587, 614]
    ours, theirs = (
        rows[arm, "public texts"] for arm in ("PatternEntities", "langchain PIIMiddleware, all its detectors")
    )
    assert ours["texts"] == 2002
    assert ours["findings"] == {"ADDRESS": 1, "DATE": 20, "EMAIL": 1, "NUMBER": 4, "PHONE": 1, "URL": 172}
    assert theirs["findings"] == {"email": 1, "url": 172}
    missed = 1 - rows["PatternEntities", "presidio-evaluator"]["recall"]
    assert f"Of the other author's entities {missed:.0%} passed in clear" in page


def test_the_readme_quotes_what_was_measured() -> None:
    """If it breaks, the README shows accuracies of DP-ICL, or of a larger model, that no row in the results has."""
    for task in ["agnews", "trec"]:
        private, plain = (quoted(reproduce_icl.cell(task, method)) for method in ("dp-icl 3", "zero-shot"))
        text = " ".join(README.split())
        name = {"agnews": "AG News"}.get(task, reproduce_icl.NAMES[task])
        said = text[text.index(f"on {name} ") :]
        assert [figure[0] for figure in re.finditer(r"\d+\.\d ± \d\.\d", said)][:2] == [private, plain]
    text = " ".join(README.split())
    private, plain = (quoted(larger("trec", method)) for method in ("dp-icl 3", "zero-shot"))
    assert f"TREC {private}, alone {plain}" in text


def test_private_answers_say_where_a_head_is_better() -> None:
    """If it breaks, we hide how good the plain alternative is, or make it better than it was."""
    head = {task: quoted(reproduce_icl.compared(task, "head 3")).split()[0] for task in reproduce_icl.NAMES}
    won = {task for task in head if float(quoted(reproduce_icl.cell(task, "dp-icl 3")).split()[0]) > float(head[task])}
    assert won == {"amazon"}  # "better on three of four", says the page


def test_private_answers_quote_what_names_for_codes_were_worth() -> None:
    """If it breaks, the page shows an accuracy that no row in the results has."""
    cells = (
        larger("named", "zero-shot"),
        larger("named", "dp-icl 2"),
        larger("coded", "zero-shot"),
        larger("coded", "dp-icl 3"),
    )
    means = [quoted(cell).split()[0] for cell in cells]
    answers = " ".join((ROOT / "docs" / "private-answers.md").read_text(encoding="utf-8").split())
    assert (
        "{} percent without any example, {} with a private vote at epsilon 2, where codes alone get {} and a vote on "
        "codes {} at epsilon 3".format(*means)
        in answers
    )
