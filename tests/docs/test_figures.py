"""Every figure that the README, or a page beside it, quotes of a measurement is that of a row in the results."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import made
import reproduce_icl
import reproduce_opt
import reproduce_rapt
from reproduce_rows import RESULTS, Cell, Results

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
"""Where the tables stand."""
COMMITTED = Results(RESULTS)
SHOWN_OPT = {
    "initial instruction": "0-shot",
    "DLN-1 (not private)": "dln-1",
    "OPT (not private)": "opt",
    "votes, epsilon 8": "dp-opt 8",
    "clipped sums, epsilon 8": "clip 8",
    "clipped sums, epsilon 1": "clip 1",
}


KEPT = {
    "opt": "OPT hands over the initial instruction in",
    "dp-opt 8": "DP-OPT by votes in",
    "clip 8": "by clipped sums at epsilon 8 in",
    "clip 1": "and at epsilon 1 in",
}


SHOWN_TUNING = {
    "texts in clear": "clear",
    "privatized only": "privatized",
    "with plain tokens, without their loss": "plain",
    "with reconstruction": "reconstruction",
}


SHOWN_EXAMPLES = {
    "real rows (not private)": "real",
    "none": "none",
    "the public model alone (free)": "public",
    "epsilon 1": "1",
    "epsilon 3": "3",
    "epsilon 8": "8",
}


def quoted(cell: Cell | None, form: str = ".1f") -> str:
    """A cell as the page writes it."""
    assert cell is not None
    found = COMMITTED.found(cell)
    assert found is not None, cell.where
    return f"{100 * found.mean:{form}}" + (f" ± {100 * found.error:.1f}" if found.error is not None else "")


def larger(task: str, method: str) -> Cell:
    """What a method got of the larger model's votes."""
    few = reproduce_icl.FEW if task == "agnews" else None
    return reproduce_icl.cell(task, method, model=reproduce_icl.LARGER, questions=few)


def voted(task: str, method: str) -> list[float | None]:
    """The same, each seed alone."""
    found = COMMITTED.found(larger(task, method))
    assert found is not None
    assert found.seeds == [1, 2, 3]
    return [one.values["accuracy"] for one in found.measured]


@pytest.mark.parametrize("task", ["sst2", "agnews", "trec", "amazon"])
def test_the_page_quotes_what_was_measured_of_dp_icl(task: str) -> None:
    """If it breaks, the page shows accuracies that no row in the results has."""
    methods = ("zero-shot", "single votes", "vote", "dp-icl 1", "dp-icl 3", "dp-icl 8")
    shown = [quoted(reproduce_icl.cell(task, method)) for method in methods]
    shown.append(quoted(reproduce_icl.cell(task, "dp-icl 3", minus="zero-shot"), "+.1f"))
    assert f"| {reproduce_icl.NAMES[task]} | {' | '.join(shown)} |" in PAGE.replace("**", "")


@pytest.mark.parametrize("label", SHOWN_OPT)
@pytest.mark.parametrize("ways", [("source", "scored"), ("target", "second")], ids=["scored", "as chat"])
def test_the_page_quotes_what_was_measured_of_dp_opt(ways: tuple[str, str], label: str) -> None:
    """If it breaks, the page shows accuracies that no row in the results has."""
    cells = [
        reproduce_opt.cell("smollm2", task, SHOWN_OPT[label], on)
        for task, on in itertools.product(reproduce_opt.TASKS.values(), ways)
    ]
    shown = [quoted(cell) if cell and COMMITTED.found(cell) else "not run" for cell in cells]
    assert f"| {label} | {' | '.join(shown)} |" in PAGE


@pytest.mark.parametrize(("label", "arm"), SHOWN_TUNING.items())
@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_the_page_quotes_what_was_measured_of_tuning(method: str, label: str, arm: str) -> None:
    """If it breaks, the page shows accuracies that no row in the results has."""
    replaced = (0.0,) if arm == "clear" else (0.1, 0.15, 0.3)
    shown = [quoted(reproduce_rapt.cell(method, arm, share)) for share in replaced]
    cells = [*shown, "", "", ""] if arm == "clear" else ["", *shown]
    line = f"| {method}, {label} | {' | '.join(cells)} |"
    assert re.sub(" +", " ", line) in PAGE


def test_the_page_quotes_what_was_measured_of_the_ablations() -> None:
    """If it breaks, the page shows accuracies that no row in the results has."""
    text = " ".join(PAGE.split())
    said = text[text.index("Nothing that section 4.5") : text.index("single seeds differ")]
    tables = (reproduce_rapt.TABLE_4, reproduce_rapt.TABLE_7, reproduce_rapt.FIGURE_4)
    cells = [
        cell
        for table in tables
        for cell in table.cells()
        if cell.value == "test" and cell.where["replacement"] == 0.15 and cell.where["arm"] == "reconstruction"
    ]
    assert len(cells) == 17
    assert [cell.where for cell in cells if f"{quoted(cell)}" not in said] == []
    fixed = [COMMITTED.found(cell).mean for cell in reproduce_rapt.TABLE_5.cells()]  # type: ignore[union-attr]  # all run
    assert f"five fixed rows {100 * min(fixed):.1f} to {100 * max(fixed):.1f}" in said


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
def test_the_page_quotes_what_was_measured_of_sanitizing(mechanism: str) -> None:
    """If it breaks, the page shows accuracies, or an eta, that no row in the results has."""
    rows = {
        (row["key"][1], row["key"][2]): row
        for row in made.so_far(RESULTS / "sanitized.jsonl")
        if row["key"][0] == "glove"
    }
    some = [rows[None, 0.0], *(rows[mechanism, share] for share in (0.1, 0.3, 0.5, 0.9))]
    shown = [f"{100 * row['accuracy']:.1f} ± {100 * row['standard_error']:.1f}" for row in some]
    etas = [f"{row['eta']:.3g}" for row in some[1:]]
    name = {"exponential": "exponential", "laplace": "metric Laplace"}[mechanism]
    for line in (f"| {name}: accuracy | {' | '.join(shown)} |", f"| {name}: eta | | {' | '.join(etas)} |"):
        assert line in PAGE


def test_the_page_quotes_what_was_measured_of_paraphrases() -> None:
    """If it breaks, the page shows an accuracy, or the success of an attack, that no row in the results has."""
    rows = {tuple(row["key"][:4]): row for row in made.so_far(RESULTS / "paraphrase.jsonl")}
    for label, *arm in (
        ("as written", "plain", 0.0, 0.0),
        ("words, exponential, 0.7 replaced", "words", "exponential", 0.7),
        ("words, exponential, 0.9 replaced", "words", "exponential", 0.9),
        ("the model's paraphrase, no promise", "free", 1.0, 0.5),
        ("DP-Prompt, clip 8, temperature 0.5", "clipped", 8.0, 0.5),
        ("DP-Prompt, clip 12, temperature 1", "clipped", 12.0, 1.0),
        ("DP-Prompt, clip 6, temperature 0.5", "clipped", 6.0, 0.5),
        ("`RAPTParaphraser`, clip 4", "package", 4.0, 1.0),
        ("`RAPTParaphraser`, clip 2 (default)", "package", 2.0, 1.0),
        ("`RAPTParaphraser`, clip 1", "package", 1.0, 1.0),
    ):
        both = [rows[name, *arm] for name in ("sst2", "agnews")]
        cells = [
            f"{100 * row['accuracy']:.1f} ± {100 * row['standard_error']:.1f} | {100 * row['linked']:.1f} | "
            f"{100 * row['telling_words']:.1f}"
            for row in both
        ]
        promise = "none"
        if "eta" in both[0]:
            promise = f"eta {both[0]['eta']:.2f} and {both[1]['eta']:.2f}"
        elif "epsilon_text" in both[0]:
            promise = f"epsilon {both[0]['epsilon_text']:,.0f} a text"
        assert f"| {label} | {' | '.join(cells)} | {promise} |" in PAGE
    gender = rows["trustpilot", "plain", 0.0, 0.0]
    assert f"({100 * gender['accuracy']:.0f} ± {100 * gender['standard_error']:.0f} percent)" in PAGE


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("released words, metric Laplace", "inversion, words (laplace, "),
        ("released words, exponential", "inversion, words (exponential, "),
        ("noisy vectors, if they were released instead of words", "inversion, noisy vectors ("),
    ],
)
def test_the_page_quotes_the_better_attacker(label: str, name: str) -> None:
    """If it breaks, the page says that less is guessed than the results show."""
    rows = [row for row in made.so_far(RESULTS / "attacks.jsonl") if row["key"][:2] == ["inversion", "trustpilot"]]
    best = [
        max(row["rate"] for row in rows if row["name"].startswith(name) and row["key"][2] == share)
        for share in (0.1, 0.5, 0.9)
    ]
    shown = [f"{100 * rate:.1f}" for rate in best]
    assert f"| {label} | {' | '.join(shown)} |" in PAGE.replace("**", "")


@pytest.mark.parametrize("mechanism", ["laplace", "exponential"])
def test_the_page_quotes_what_attackers_guess_of_authors(mechanism: str) -> None:
    """If it breaks, the page shows rates that no row in the results has."""
    rates = {
        (row["key"][1], row["settings"]["mechanism"], row["settings"]["representation"]): row["rate"]
        for row in made.so_far(RESULTS / "attacks.jsonl")
        if row["name"].startswith("attribute inference (gender")
    }
    shares = (0.0, 0.1, 0.5, 0.9)
    pairs = [[rates[share, mechanism if share else "plain", how] for how in ("mean", "contextual")] for share in shares]
    shown = [" / ".join(f"{100 * rate:.1f}" for rate in pair) for pair in pairs]
    name = {"exponential": "exponential", "laplace": "metric Laplace"}[mechanism]
    assert f"| gender, {name} | {' | '.join(shown)} | 50.8 |" in PAGE


RUNS = ("cold", "warm", "from text")


def speed(bench: str, **settings: object) -> dict[str, float]:
    """Figures of the one run of a benchmark of speed with these settings."""
    (found,) = (
        row["figures"]
        for row in made.so_far(RESULTS / "speed.jsonl")
        if row["bench"] == bench and settings.items() <= row["settings"].items()
    )
    return dict(found)


def test_the_page_quotes_what_a_vote_took() -> None:
    """If it breaks, the page shows a speed that no row in the results has."""
    took = speed("icl")
    said = (
        f"takes {took['vote'] / took['plain']:.1f} x as long as one plain 4-shot call of the same model without caches "
        f"({took['vote']:.2f} s against {took['plain']:.2f} s); asking 10 times the plain way takes "
        f"{took['plain calls'] / took['plain']:.1f} x."
    )
    assert said in " ".join(PAGE.split())


def test_the_page_quotes_what_ledgers_took() -> None:
    """If it breaks, the page shows a speed of a ledger that no row in the results has."""
    rows = made.so_far(RESULTS / "ledger.jsonl")
    spends = [(row["settings"], row["figures"]) for row in rows if row["bench"] == "ledger spends"]
    one = {what["store"]: took["spends a second"] for what, took in spends if what["threads"] * what["processes"] == 1}
    assert len(spends) == 10
    for what, took in spends:
        rate, slowest = took["spends a second"], took["slowest"] / took["median"]
        cells = f"{what['store']} | {what['processes']} x {what['threads']} | {what['prepaid'] or 'no'} | {rate:,.0f}"
        assert f"| {cells} | {rate / one[what['store']]:.2f} | {slowest:.1f} |" in PAGE
    fair = {row["settings"]["store"]: row["figures"] for row in rows if row["bench"] == "ledger fairness"}
    for store, took in fair.items():
        said = (
            f"{took['slowest'] / took['median']:.1f} times the median ({took['slowest']:.2f} s), and together they do "
        )
        assert f"{store}: {said}{took['of one']:.1f} times what one writer does" in " ".join(PAGE.split())
    long = {row["settings"]["store"]: row["figures"] for row in rows if row["bench"] == "ledger history"}
    ratios = {store: took["spend after many"] / took["spend"] for store, took in long.items()}
    text = " ".join(PAGE.split())
    assert f"takes {ratios['file']:.2f} (file) and {ratios['postgres']:.2f} (PostgreSQL) times as long" in text
    opened = [long[store]["open after many"] for store in ("file", "postgres")]
    assert f"To open it takes {opened[0]:.2f} s and {opened[1]:.2f} s" in text


def test_the_page_quotes_what_bulk_took() -> None:
    """If it breaks, the page shows a throughput that no row in the results has."""
    rate = {row["key"][0]: row["a_second"] for row in made.so_far(RESULTS / "bulk.jsonl")}
    text = " ".join(PAGE.split())
    assert f"The plain loop of one process does {rate['plain']:,} texts a second" in text
    ratios = [rate[f"ray {workers}"] / rate["plain"] for workers in (1, 2)]
    assert f"Ray with one worker does {ratios[0]:.2f} x as many, with two {ratios[1]:.2f} x" in text


def mean_of(shares: list[float | None], digits: int) -> str:
    """The mean with its standard error, as the page has it; nothing where there is no value."""
    values = [value for value in shares if value is not None]
    if not values:
        return ""
    shown = [statistics.mean(values)]
    if len(values) > 1:
        shown.append(statistics.stdev(values) / math.sqrt(len(values)))
    return " ± ".join(f"{value:.{digits}f}".removeprefix("0") for value in shown)


def test_the_page_quotes_what_synthetic_examples_under_codes_were_worth() -> None:
    """If it breaks, the page shows an accuracy that no row in the results has."""
    arms: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in made.so_far(RESULTS / "synth.jsonl"):
        if row["key"][0] == "qwen1.5b-q4_k_m" and row["key"][4] == "coded" and len(row["key"]) == 8:
            arms.setdefault((row["key"][1], row["key"][5]), []).append(row)
    for label, arm in {
        "real rows (not private)": "real",
        "none": "none",
        "the public model alone (free)": "public",
        "epsilon 3": "3",
        "no clip (not private)": "unclipped",
    }.items():
        cells = [
            mean_of([row.get(name) for row in arms.get((task, arm), [])[: 1 if arm == "none" else None]], digits)
            for task in ("agnews", "trec")
            for name, digits in (("prompted", 2), ("regression", 3))
        ]
        assert re.sub(r"  +", " ", f"| {label} | {' | '.join(cells)} |") in PAGE
    shares = [mean_of([row["prompted"] for row in arms["trustpilot", arm][:most]], 2) for arm, most in
              (("none", 1), ("real", 3), ("public", 3))]  # fmt: skip
    text = " ".join(PAGE.split())
    assert "{} without any, {} with real rows, {} with texts of the public model alone".format(*shares) in text


def test_the_page_quotes_synthetic_examples_of_labels_with_names() -> None:
    """If it breaks, the page shows an accuracy that no row in the results has."""
    rows = [row for row in made.so_far(RESULTS / "synth.jsonl") if len(row["key"]) == 8 and row["key"][4] == "named"]
    rows = [row for row in rows if row["key"][3] < 100]

    def share(task: str, arm: str, name: str, digits: int) -> str:
        found = [row for row in rows if row["key"][1] == task and row["key"][5] == arm]
        return mean_of([row[name] for row in found if row["key"][0] == "qwen1.5b-q4_k_m"], digits)

    for label, arm in (SHOWN_EXAMPLES | {"no clip (not private)": "unclipped"}).items():
        measures = [(task, *how) for task in ("trec", "mpqa", "agnews") for how in (("prompted", 2), ("regression", 3))]
        cells = [share(task, arm, *how) for task, *how in measures]
        assert re.sub(r"  +", " ", f"| {label} | {' | '.join(cells)} |") in PAGE
    public, real = (share("agnews", arm, "prompted", 2) for arm in ("public", "real"))
    text = " ".join(PAGE.split())
    assert f"nearly all of them: {public}, real rows {real}" in text
    free, whole = (share("trec", arm, "regression", 3) for arm in ("public", "unclipped"))
    assert f"{whole} without clip where the public model has {free}" in text


def test_the_page_quotes_what_other_models_make_of_synthetic_examples() -> None:
    """If it breaks, the page shows an accuracy of a reader that no row in the results has."""
    rows = [row for row in made.so_far(RESULTS / "synth.jsonl") if len(row["key"]) == 9]

    def share(reader: str, labels: str, arm: str, name: str = "prompted", *, task: str = "agnews") -> str:
        found = [row for row in rows if row["key"][8].startswith(reader) and row["key"][4:6] == [labels, arm]]
        found = [row for row in found if row["key"][:2] == ["qwen1.5b-q4_k_m", task]]
        assert len(found) == (1 if arm == "none" else 3)
        return mean_of([row.get(name) for row in found], 2)

    readers = ("SmolLM2", "gemma")
    for label, arm in SHOWN_EXAMPLES.items():
        tasks = ("agnews", "trec", "mpqa")
        cells = [share(reader, "named", arm, task=task) for task in tasks for reader in readers]
        assert f"| {label} | {' | '.join(cells)} |\n" in PAGE
    text = " ".join(PAGE.split())
    best, free = (float(share("gemma", "named", arm, task="trec").split()[0]) for arm in ("8", "public"))
    assert f"examples of epsilon 8 are worth {100 * (best - free):.0f} points more" in text


def test_the_page_quotes_votes_beside_synthetic_examples() -> None:
    """If it breaks, the page compares examples with votes that nobody counted."""
    tasks = ("trec", "mpqa", "agnews", "coded", "named")
    arms = {"no example": "zero-shot", "vote without noise (not private)": "vote"}
    for label, method in (arms | {f"epsilon {number}": f"dp-icl {number}" for number in (1, 3, 8)}).items():
        cells = [mean_of(voted(task, method), 2) for task in tasks]
        assert f"| {label} | {' | '.join(cells)} |" in PAGE
    gains = [dataclasses.replace(larger(task, "dp-icl 3"), minus="zero-shot") for task in tasks]
    assert f"| gain of epsilon 3, in points | {' | '.join(quoted(cell, '+.1f') for cell in gains)} |" in PAGE


def test_the_page_quotes_what_synthetic_rows_train() -> None:
    """If it breaks, the page shows an accuracy of a classifier that no rows in the results have."""
    writers = {("SmolLM2-135M-Instruct.BF16", "agnews"), ("qwen1.5b-q4_k_m", "trec")}
    many: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in made.so_far(RESULTS / "synth.jsonl"):
        engine, task, _, count, _, arm, *_ = row["key"]
        if (engine, task) in writers and count > 100:
            many.setdefault((task, arm), []).append(row)
    text = " ".join(PAGE.split())
    rows, questions = ({arm: some for (of, arm), some in many.items() if of == task} for task in ("agnews", "trec"))
    assert {arm: len(some) for arm, some in rows.items()} == {"real": 1, "public": 1, "3": 1}
    assert {arm: len(some) for arm, some in questions.items()} == {"real": 3, "public": 3, "3": 3}
    asked = {arm: mean_of([row["regression"] for row in some], 3) for arm, some in questions.items()}
    shown = {arm: mean_of([row["prompted"] for row in some], 2) for arm, some in questions.items()}
    kept = {arm: f"{statistics.fmean(row['kept'] for row in some):.0f}" for arm, some in questions.items()}
    assert f"kept {kept['3']} of 258 questions on average. Trained on them it gets {asked['3']}, on" in text
    assert f"on {kept['real']} real ones {asked['real']}, on those of the public model alone {asked['public']}" in text
    right = f"{shown['3']} of 100 right, with real ones {shown['real']}, with the public model's {shown['public']}."
    assert f"that model has {right}" in text
    trained = {arm: f"{some[0]['regression']:.3f}".removeprefix("0") for arm, some in rows.items()}
    assert f"trained on them gets {trained['3']} of 1,000 test rows right; on 256 real rows {trained['real']}" in text
    assert f"which cost nothing, {trained['public']}. A fifth of the gap" in text
    one, none, real = (rows[arm][0]["regression"] for arm in ("3", "public", "real"))
    assert 0.15 < (one - none) / (real - none) < 0.25
    assert f"its filters kept {rows['3'][0]['kept']}, in {rows['3'][0]['seconds'] / 60:.0f} minutes" in text


def test_the_page_quotes_what_writing_examples_took() -> None:
    """If it breaks, the page shows a time, or a memory, that no row in the results has."""
    took = speed("synth", threads=2)
    text = " ".join(PAGE.split())
    assert f"labels named, in {took['seconds']:.0f} s on two quiet cores" in text
    assert f"{took['seconds'] / took['floor']:.1f} times its floor" in text
    assert f"of the {round(took['evaluated'], -3):,.0f} tokens" in text
    assert f"The process had {took['peak'] / 1e9:.1f} GB at most" in text


def test_the_page_quotes_whether_members_of_synthetic_examples_are_found() -> None:
    """If it breaks, the page shows an area under a curve that no row in the results has."""
    row, *larger = (row for row in made.so_far(RESULTS / "attacks.jsonl") if row["key"][0] == "synthetic")
    assert f"an area under its curve of {row['rate']:.3f} ({row['low']:.3f} to {row['high']:.3f};" in " ".join(
        PAGE.split()
    )
    assert row["settings"]["members"] == 400
    low, high = (extreme(one["rate"] for one in larger) for extreme in (min, max))
    assert f"the areas are {low:.3f} to {high:.3f}, and every interval holds 0.5" in " ".join(PAGE.split())
    assert all(one["low"] <= 0.5 <= one["high"] and one["settings"]["members"] == 400 for one in larger)
    assert len(larger) == 3
    invented = [row for row in made.so_far(RESULTS / "attacks.jsonl") if row["key"][0] == "canary"]
    *found, leaked = (row["rate"] for row in sorted(invented, key=lambda row: row["key"][1:]))
    text = " ".join(PAGE.split())
    assert f"are {found[0]:.3f}, {found[1]:.3f} and {found[2]:.3f}. Where" in text
    assert f"as they stand, the area is {leaked:.3f}" in text
    assert [row["settings"]["words_found"] > 0 for row in invented] == [row["key"][1] == "leaked" for row in invented]


def test_the_page_quotes_whether_members_of_prompts_are_found() -> None:
    """If it breaks, the page says that prompts hide their rows, and the results say something else."""
    every = [row for row in made.so_far(RESULTS / "attacks.jsonl") if row["key"][0] == "lira"]
    found = [row for row in every if row["key"][5] == "dln-1"]
    rates = [row["rate"] for row in found]
    plain = " ".join(PAGE.split())
    text = plain.replace(" .", " 0.").replace("(.", "(0.")
    assert len(found) == 12
    assert f"DLN-1 {min(rates):.2f} to {max(rates):.2f}, on average {statistics.mean(rates):.2f}, where" in text
    one, two = sorted(row["low"] for row in found if not row["low"] <= 0.5 <= row["high"])
    assert f"Two intervals of twelve begin above it, at {one:.3f} and {two:.3f}:".replace(" 0.", " .") in plain
    others = [row for row in every if row not in found]
    told = [row for row in others if row["rate"] != 0.5]
    assert f"Of the {len(others)} prompts of OPT" in text
    assert f"{len(others) - len(told)} tell no row from another (0.50)" in text
    low, high = (extreme(row["rate"] for row in told) for extreme in (min, max))
    assert (len(told), {row["key"][3] for row in told}) == (5, {"trec"})
    assert f"have {low:.2f} to {high:.2f}, and every interval holds .5.".replace(" 0.", " .") in plain
    assert all(row["low"] <= 0.5 <= row["high"] for row in others)


def test_the_page_quotes_what_recognizers_found() -> None:
    """If it breaks, the page on pseudonyms shows a recall that no row in the results has."""
    page = (ROOT / "docs" / "how-to" / "pseudonyms.md").read_text(encoding="utf-8")
    rows = {tuple(row["key"]): row for row in made.so_far(RESULTS / "pseudonyms.jsonl")}
    for label, arm in (
        ("`PatternEntities`", "PatternEntities"),
        ("the same, and all names as terms", "PatternEntities, and all names as terms"),
        ("LangChain's `PIIMiddleware`, all its detectors", "langchain PIIMiddleware, all its detectors"),
        ("Presidio without a language model", "Presidio without a language model"),
        ("`PatternEntities` and that", "PatternEntities and Presidio without a language model"),
    ):
        both = [rows[arm, source] for source in ("own", "presidio-evaluator")]
        cells = [f"{row['recall']:.2f} | {row['recall_formed']:.2f} | {row['leaky_texts']}" for row in both]
        assert f"| {label} | {' | '.join(cells)} |" in page
        assert {row["precision"] for row in both} == {1.0}
    assert [rows["PatternEntities", source]["entities"] for source in ("own", "presidio-evaluator")] == [630, 587]
    missed = 1 - rows["PatternEntities", "presidio-evaluator"]["recall"]
    assert f"of the other author's entities {missed:.0%} passed in clear" in page


def test_the_page_quotes_what_writing_took() -> None:
    """If it breaks, the page shows a speed that no row in the results has."""
    one, two = speed("writer", threads=1), speed("writer", threads=2)
    text = " ".join(PAGE.split())
    for label, ours, theirs in (
        ("one more token (warm)", "warm step", "published step"),
        ("a prompt of 50 tokens, caches built first", "whole", "published whole"),
    ):
        assert f"| {label} | {one[ours]:.3g} s | {one[theirs]:,.4g} s | {one[theirs] / one[ours]:.0f} x |" in text
    assert f"A warm step is {one['warm step'] / one['floor']:.1f} times its floor" in text
    assert f"({one['floor']:.3f} s); {one['in the model'] / one['warm step']:.0%} of it is spent in llama.cpp's" in text
    assert f"Two threads take {two['warm step']:.2f} s" in text


def test_the_page_quotes_what_file_types_took() -> None:
    """If it breaks, the page names a rule, or shows a speed, that no row in the results has."""
    rows = [row for row in made.so_far(RESULTS / "speed.jsonl") if row["bench"] == "together"]
    assert rows
    for row in rows:
        took, what = row["figures"], row["settings"]
        cells = (
            what["model"],
            what["type"],
            what["rule"],
            f"{took['together']:.2f} s",
            f"{took['one by one']:.2f} s",
            f"{took['one by one'] / took['together']:.1f} x",
            f"{took['together'] / took['floor']:.1f} x",
            f"{took['beside'] / took['together']:.1f} x",
        )
        assert PAGE.count(f"| {' | '.join(cells)} |\n") == 1
    assert PAGE.count("| multiples of 8 rows |") + PAGE.count("| at least 2 rows |") == len(rows)


def test_the_page_quotes_what_prompts_gain_on_their_targets() -> None:
    """If it breaks, the page tells of prompts on other models what no row in the results has."""
    rows = made.so_far(RESULTS / "opt_scored.jsonl")

    def points(gain: float, error: float | None = None) -> str:
        shown = f"{round(100 * gain, 1) + 0:+.1f}"
        return f"{shown} ± {100 * error:.1f}" if error is not None else shown

    for target, label in (("smollm2", "SmolLM2-135M"), ("gemma", "Gemma-3-270M")):
        for how in ("plain", "calibrated"):
            lines: list[list[str]] = [[], [], [], [], []]
            for task in ("sst2", "trec", "mpqa", "disaster"):
                found = [row for row in rows if row["key"][1:3] == [target, task]]
                (initial,) = (row for row in found if row["key"][4] == "0-shot")
                runs = [row for row in found if row["key"][4].startswith("clip")]
                assert len(runs) == 9
                gains = [row["gain"][how] for row in runs]
                taken = [row["chosen"][how] or [0, None] for row in runs]
                least = min(taken, key=lambda pair: pair[0])
                mean, number = statistics.mean(gain for gain, _ in taken), sum(error is not None for _, error in taken)
                assert round(mean, 4) >= 0
                cells = (
                    f"{100 * initial['scored'][how]:.1f}",
                    points(statistics.mean(gain for gain, _ in gains)),
                    points(*min(gains)),
                    f"{points(mean)} ({number})",
                    points(*least) if least[0] < 0 else points(0),
                )
                for line, cell in zip(lines, cells, strict=True):
                    line.append(cell)
            named = [f"| {label}, {how} | initial instruction", "| | gain of nine runs, mean", "| | the least of them"]
            named += ["| | chosen by 100 rows, mean gain (chosen)", "| | the least of them"]
            assert "\n".join(f"{name} | {' | '.join(line)} |" for name, line in zip(named, lines, strict=True)) in PAGE
    taken = [pair for row in rows if row["key"][4].startswith("clip") for pair in row["chosen"].values()]
    assert len(taken) == 144
    assert min(pair[0] for pair in taken if pair) == pytest.approx(-0.015)


@pytest.mark.parametrize(("name", "table"), [("GloVe, 400,000 x 50", "glove"), ("MiniLM, 30,522 x 384", "minilm")])
def test_the_page_quotes_what_sanitizing_took(name: str, table: str) -> None:
    """If it breaks, the page shows a speed that no row in the results has."""
    rate = speed("rapt", table=table)
    floor = rate["floor, product alone"]
    ratios = " / ".join(f"{floor / rate[run]:.2f} x" for run in ("laplace", "laplace, from text"))
    cells = [
        f"{floor:,.0f}",
        f"{rate['laplace']:,.0f} ({ratios})",
        *(f"{rate[peer]:.1f} ({rate['laplace'] / rate[peer]:,.0f} x)" for peer in ("mldp-text", "pypantera")),
    ]
    assert f"| {name} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize(("name", "table"), [("GloVe", "glove"), ("MiniLM", "minilm")])
def test_the_page_quotes_what_sanitizing_a_long_text_took(name: str, table: str) -> None:
    """If it breaks, the page shows the speed of a list of few words, or one that no row in the results has."""
    (row,) = (
        row
        for row in made.so_far(RESULTS / "speed.jsonl")
        if row["bench"] == "rapt_text" and row["settings"]["table"] == table
    )
    rate, settings = row["figures"], row["settings"]
    floor = rate["floor, distinct tokens"]
    cells = [
        f"{settings['tokens']:,} ({settings['distinct']:,})",
        f"{floor:,.0f}",
        *(f"{rate[f'exponential, {run}']:,.0f} ({floor / rate[f'exponential, {run}']:.2f} x)" for run in RUNS),
    ]
    assert f"| {name} | {' | '.join(cells)} |" in PAGE


def test_the_page_quotes_what_the_command_took() -> None:
    """If it breaks, the page promises seconds and memory of a long file that no row in the results has."""
    took = speed("rapt_command")
    sizes = [name.removeprefix("peak, ").removesuffix(" MB") for name in took if name.startswith("peak, ")]
    seconds = " / ".join(f"{took[f'processor seconds, {size} MB']:.0f}" for size in sizes)
    peak = " / ".join(f"{took[f'peak, {size} MB'] / 2**20:.0f}" for size in sizes)
    waited = " / ".join(f"{took[f'seconds, {size} MB']:.0f}" for size in sizes)
    text = " ".join(PAGE.split())
    said = f"{' / '.join(sizes)} MB of such lines take {seconds} processor seconds, the start included, and {peak} MiB"
    assert said in text
    assert f"{waited} seconds on two quiet cores" in text


@pytest.mark.parametrize("task", ["agnews", "trec"])
def test_the_readme_quotes_what_was_measured_of_dp_icl(task: str) -> None:
    """If it breaks, the README shows accuracies that no row in the results has."""
    private, plain = (quoted(reproduce_icl.cell(task, method)) for method in ("dp-icl 3", "zero-shot"))
    text = " ".join(README.split())
    said = text[text.index(f"on {reproduce_icl.NAMES[task]} ") :]
    assert [figure[0] for figure in re.finditer(r"\d+\.\d ± \d\.\d", said)][:2] == [private, plain]


def test_the_readme_quotes_what_was_measured_on_a_larger_model() -> None:
    """If it breaks, the README promises of larger models what no row in the results has."""
    text = " ".join(README.split())
    for before, task in (("TREC ", "trec"), ("codes it gets ", "coded")):
        private, plain = (quoted(larger(task, method)) for method in ("dp-icl 3", "zero-shot"))
        assert f"{before}{private}, alone {plain}" in text
    names, vote = (quoted(larger("named", method)) for method in ("zero-shot", "dp-icl 2"))
    assert f"it gets {names} alone, and {vote} with a vote on names" in text


def test_the_page_says_how_often_a_small_writer_keeps_the_instruction() -> None:
    """If it breaks, the page says of prompts, or of the time they took, what no row in the results has."""
    rows = [row for row in made.so_far(RESULTS / "opt_smollm2.jsonl") if row["key"][4] in SHOWN_OPT.values()]
    said = {tuple(row["key"][2:]): re.findall(r"\w+", row["instruction"]) for row in rows}
    text = " ".join(PAGE.split())
    for method in ("opt", "dp-opt 8", "clip 8", "clip 1"):
        some = [words == said[task, 1, "0-shot"] for (task, _, arm), words in said.items() if arm == method]
        assert f"{KEPT[method]} {sum(some)} of {len(some)} runs" in text
    took = {
        method: {tuple(row["key"][2:4]): row["seconds"] for row in rows if row["key"][4] == method} for method in KEPT
    }
    ratio = statistics.median(seconds / took["clip 8"][run] for run, seconds in took["dp-opt 8"].items())
    assert f"votes took {ratio:.1f} times as long as clipped sums" in text


def test_the_page_quotes_what_a_larger_writer_wrote() -> None:
    """If it breaks, the page shows of a larger writer's prompts what no row in the results has."""
    rows = made.so_far(RESULTS / "opt_qwen.jsonl")

    def line(task: str, arm: str) -> str:
        found = [row for row in rows if row["key"][2] == task and row["key"][4] == arm]
        columns = zip(
            *(
                [
                    *(scored[how] for scored in row["scored"].values() for how in ("plain", "calibrated")),
                    row["target_accuracy"],
                ]
                for row in found
            ),
            strict=True,
        )
        said = " | ".join(f"{statistics.fmean(column):.2f}" for column in columns).replace("0.", ".")
        return said if arm == "0-shot" else f"({len(found)} run{'s' * (len(found) > 1)}) | {said}"

    for task, name in {"sst2": "SST-2", "trec": "TREC", "mpqa": "MPQA", "disaster": "Disaster"}.items():
        assert f"| {name} | initial instruction | {line(task, '0-shot')} |" in PAGE
        for arm in {row["key"][4] for row in rows if row["key"][2] == task and row["key"][4].startswith("clip")}:
            assert f"| | clipped sums, epsilon {arm.removeprefix('clip ')} {line(task, arm)} |" in PAGE
    written = [each for row in rows if row["key"][4].startswith("clip") for each in row["candidates"]]
    said = " ".join(PAGE.split())
    assert f"Of {len(written)} released candidates one repeats the request, at epsilon 1, and was dropped" in said
    arms = [row["key"][4] for row in rows for each in row.get("candidates", []) if "repeats" in each["dropped"]]
    assert arms == ["clip 1"]
    later = [row for row in rows if row["key"][4] == "clip 3" and row["key"][3] > 1]
    dropped = [each["dropped"] for row in later for each in row["candidates"] if each["dropped"]]
    assert (len(later), sorted(dropped)) == (8, ["it no longer names the task", *["it stops in mid-sentence"] * 3])
    initial = {row["key"][2]: row["instruction"] for row in rows if row["key"][4] == "0-shot"}
    assert sum(row["instruction"] == initial[row["key"][2]] for row in later) == 5
    runs = [row for row in rows if row["key"][4].startswith("clip")]
    kept = sum(row["instruction"] == initial[row["key"][2]] for row in runs)
    assert f"{kept} of the {len(runs)} runs kept the initial instruction" in said


def test_the_page_quotes_what_a_private_head_does() -> None:
    """If it breaks, we hide how good the plain alternative is, or make it better than it was."""
    head = {task: quoted(reproduce_icl.compared(task, "head 3")).split()[0] for task in reproduce_icl.NAMES}
    text = " ".join(PAGE.split())
    assert (
        f"at epsilon 3 {head['sst2']} on SST-2, {head['agnews']} on AG News, {head['trec']} on TREC and "
        f"{head['amazon']} on Amazon" in text
    )
    won = {task for task in head if float(quoted(reproduce_icl.cell(task, "dp-icl 3")).split()[0]) > float(head[task])}
    assert won == {"amazon"}  # "better on three of four", says the page on private answers


def test_the_page_quotes_what_each_method_makes_of_codes() -> None:
    """If it breaks, the page shows an accuracy under codes that no row in the results has."""
    tasks, model = ("agnews", "trec", "trustpilot"), "qwen1.5b-q4_k_m"
    codes = [row for row in made.so_far(RESULTS / "codes.jsonl") if row["key"][0] == model]
    prompts = made.so_far(RESULTS / "opt_coded.jsonl")
    votes = [row for row in made.so_far(RESULTS / "accuracy.jsonl") if row["engine"] == model]

    def of_codes(arm: str, value: str) -> list[list[float]]:
        found = [[row for row in codes if row["key"][1:4] == [task, 2000, arm]] for task in tasks]
        return [[row[value]["accuracy"] for row in rows if value in row] for rows in found]

    def of_votes(method: str) -> list[list[float]]:
        names = ("coded", "coded trec", "coded trustpilot")
        found = [[line for row in votes if row["key"]["task"] == name for line in row["methods"]] for name in names]
        return [[line["accuracy"] for line in lines if line["method"] == method] for lines in found]

    def of_prompts(arm: str) -> list[list[float]]:
        found = [[row for row in prompts if row["key"][2:] == [f"coded {task}", 1, arm]] for task in tasks]
        return [[row["scored"]["source"]["calibrated"] for row in rows] for rows in found]

    shown = {
        "codes alone": of_codes("codes", "codes"),
        "four rows in the prompt (not private)": of_votes("balanced"),
        "votes without noise (not private)": of_votes("vote"),
        "DP-ICL, epsilon 3": of_votes("dp-icl 3"),
        "DP-OPT by clipped sums, epsilon 3": of_prompts("clip 3"),
        "OPT (not private)": of_prompts("opt"),
        "DLN-1 (not private)": of_prompts("dln-1"),
        "a choice among three public prompts, epsilon 3": of_prompts("choose 3"),
        "the true names, which nobody has": of_codes("true", "true"),
        "regression on 2,000 rows (not private)": of_codes("regression", "regression"),
    }
    for label, found in shown.items():
        cells = [
            f"{statistics.fmean(values):.2f}"[1:] + (f" ({len(values)})" if len(values) > 1 else "") if values else ""
            for values in found
        ]
        assert f"| {label} | {' | '.join(cells)} |".replace("|  |", "| |") in PAGE


def test_the_pages_quote_what_names_for_codes_were_worth() -> None:
    """If it breaks, a page shows an accuracy that no row in the results has."""
    text = " ".join(PAGE.split())
    small = [quoted(reproduce_icl.cell("named", method)).split()[0] for method in ("zero-shot", "dp-icl 3")]
    assert "{} without examples, {} at epsilon 3 (three seeds)".format(*small) in text
    methods = ("zero-shot", "vote", "dp-icl 1", "dp-icl 2", "dp-icl 3")
    named = {method: quoted(larger("named", method)) for method in methods}
    coded, without = (quoted(larger("coded", method)) for method in ("dp-icl 3", "zero-shot"))
    assert f"no example {named['zero-shot']} percent, the vote {named['vote']}, at epsilon 1, 2 and 3 " in text
    assert f"{named['dp-icl 1']}, {named['dp-icl 2']} and {named['dp-icl 3']}, where the vote on codes gets " in text
    assert f"gets {coded} at epsilon 3, and {without} without examples" in text
    means = [share.split()[0] for share in (named["zero-shot"], named["dp-icl 2"], without, coded)]
    answers = " ".join((ROOT / "docs" / "private-answers.md").read_text(encoding="utf-8").split())
    assert (
        "{} percent without any example, {} with a private vote at epsilon 2, where codes alone get {} and a vote on "
        "codes {} at epsilon 3".format(*means)
        in answers
    )
