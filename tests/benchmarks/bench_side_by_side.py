"""Ways to use the same private rows, side by side: prototypes, prototypes with a language model, and a trained head.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. A seed chooses the rows; all methods get the same ones, and the same
500 test rows. A row of results is one accuracy. Label scores of language models are kept in --scores FILE, since each
model sees each test row once. `--table` prints the results as Markdown, with the votes of DP-ICL that
`bench_accuracy.py --fewer-rows` counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_prototypes import EPSILONS, TITLES, KeptStatic, load
from comparators import heads
from langchain_core.embeddings import Embeddings
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from remembering import Calibrating

from langchain_dp import DPPrototypeClassifier, PrivacyBudget
from langchain_dp.attacks import SentenceEmbeddings
from langchain_dp.icl import TREC

TASKS = ("agnews", "trec")
ROWS = (300, 1000, 2000, 8000)
DELTA, ASKED = 1e-5, 500
NAMES: dict[tuple[str, str], dict[str, str]] = {
    ("agnews", "135M"): {"World": "politics", "Sports": "sports", "Business": "business", "Technology": "technology"},
    ("trec", "135M"): dict(TREC.words),
    ("trec", "1.5B"): dict(TREC.words),
}
TREC_PROMPT = f"{TREC.instruction.rstrip()}\n\nText: {{text}}\nCategory:"
PROMPTS = {
    ("agnews", "1.5B"): "Topics: World, Sports, Business, Technology.\n\nText: {text}\nTopic:",
    ("trec", "135M"): TREC_PROMPT,
    ("trec", "1.5B"): TREC_PROMPT,
}
"""Prompts other than that of the library. The first was the best of nine for its model on 80 training rows."""
MODELS = ("135M", "1.5B")
RESULTS = Path(__file__).parent / "results" / "side_by_side.jsonl"
PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "accuracy.svg"
METHODS = {
    "prototypes": "prototypes, static encoder", "minilm": "prototypes, MiniLM", "135M": "static, with 135M model",
    "1.5B": "static, with 1.5B model", "vote": "DP-ICL's vote, 135M model", "head": "DP-SGD head on MiniLM",
}  # fmt: skip


class MiniLM(Embeddings):
    """MiniLM's sentence vectors, one text after the other. They are kept: these texts are public."""

    name = "all-MiniLM-L6-v2"
    batch_invariant = True
    keeps_no_prompts = True

    def __init__(self) -> None:
        self._encode, self._kept = SentenceEmbeddings("minilm", batch=1, longest=128), dict[str, list[float]]()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        if new:
            self._kept.update(zip(new, self._encode(new).tolist(), strict=True))
        return [self._kept[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Vector of a text."""
        return self.embed_documents([text])[0]


class KeptScores(Calibrating):
    """Label scores that are also kept in a file, so that the trial can go on after a pause."""

    def __init__(self, engine: LlamaCppEnsemble, path: Path | None) -> None:
        super().__init__(engine)
        self._path, self._saved = path, 0
        for row in [] if path is None else so_far(path):
            self._rows[bytes.fromhex(row["key"])] = row["scores"]
        self._saved = len(self._rows)

    def score_labels(self, *args: Any, **options: Any) -> list[list[float] | None]:
        found = super().score_labels(*args, **options)
        if self._path is not None and len(self._rows) > self._saved:
            with self._path.open("a", encoding="utf-8") as file:
                for key in list(self._rows)[self._saved :]:
                    file.write(json.dumps({"key": key.hex(), "scores": self._rows[key]}) + "\n")
            self._saved = len(self._rows)
        return found


def drawn(task: str, count: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Private rows of a seed, and the test rows of all seeds."""
    train, test = load(task)
    return random.Random(seed).sample(train, min(count, len(train))), random.Random(0).sample(test, ASKED)


def prototypes(task: str, encoder: Embeddings, method: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Accuracy of prototypes, of the language model alone, and of both."""
    labels = sorted({row["label"] for row in load(task)[0]})
    with contextlib.ExitStack() as stack:
        model: Any = None
        if method in MODELS:
            options: dict[str, Any] = {} if method == "135M" else {"model_path": asked.model}
            engine = stack.enter_context(LlamaCppEnsemble(**options, max_tokens=512, slots=2, n_threads=asked.threads))
            model = KeptScores(engine, asked.scores and asked.scores.with_suffix(f".{method}.jsonl"))
        for count in asked.rows:
            for seed in asked.seeds:
                rows, test = drawn(task, count, seed)
                for epsilon in EPSILONS:
                    budget = PrivacyBudget(epsilon, DELTA)
                    found = DPPrototypeClassifier.fit(rows, labels=labels, budget=budget, encoder=encoder)
                    if model is not None:
                        found = found.with_prior(model, NAMES.get((task, method)), prompt=PROMPTS.get((task, method)))
                    answers = found.batch([row["text"] for row in test])
                    key = {"task": task, "rows": len(rows), "seed": seed, "epsilon": epsilon, "method": method}
                    right = [answer == row["label"] for answer, row in zip(answers, test, strict=True)]
                    yield {"key": key, "accuracy": round(statistics.mean(right), 4)}
        if model is not None:
            yield alone(task, labels, model, method)


def alone(task: str, labels: Sequence[str], model: Any, method: str) -> dict[str, Any]:
    """Accuracy of the language model without any row: its weight is so large that no prototype counts."""
    rows, test = drawn(task, 300, 1)
    found = DPPrototypeClassifier.fit(rows, labels=list(labels), budget=PrivacyBudget(1.0, DELTA), encoder=KeptStatic())
    only = found.with_prior(model, NAMES.get((task, method)), prompt=PROMPTS.get((task, method)), weight=1e6)
    answers = only.batch([row["text"] for row in test])
    key = {"task": task, "rows": 0, "seed": 0, "epsilon": 0.0, "method": f"{method} alone"}
    return {"key": key, "accuracy": statistics.mean(a == row["label"] for a, row in zip(answers, test, strict=True))}


def trained(task: str, encoder: MiniLM, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Accuracy of a linear head on sentence vectors, trained by DP-SGD."""
    labels = sorted({row["label"] for row in load(task)[0]})

    def parts(rows: list[dict[str, Any]]) -> tuple[heads.Floats, heads.Classes]:
        vectors = np.array(encoder.embed_documents([row["text"] for row in rows]))
        return heads.unit(vectors), np.array([labels.index(row["label"]) for row in rows])

    for count in asked.rows:
        for seed in asked.seeds:
            rows, test = (parts(each) for each in drawn(task, count, seed))
            for epsilon in EPSILONS:
                weights = heads.dp_sgd(*rows, count=len(labels), epsilon=epsilon, delta=DELTA, seed=seed)
                key = {"task": task, "rows": len(rows[0]), "seed": seed, "epsilon": epsilon, "method": "head"}
                yield {"key": key, "accuracy": round(heads.accuracy(weights, *test), 4)}


def measured() -> dict[tuple[str, int, str], dict[float, list[float]]]:
    """Accuracies by task, rows and method, then by epsilon."""
    found: dict[tuple[str, int, str], dict[float, list[float]]] = {}
    for row in so_far(RESULTS):
        key = row["key"]
        cell = found.setdefault((key["task"], key["rows"], key["method"]), {})
        cell.setdefault(key["epsilon"], []).append(row["accuracy"])
    for row in so_far(RESULTS.with_name("votes_by_rows.jsonl")):
        for line in row["methods"]:
            if "rows" in line and ", uncalibrated" not in line["method"]:
                cell = found.setdefault((row["key"]["task"], line["rows"], "vote"), {})
                cell.setdefault(line["epsilon"], []).append(line["accuracy"])
    return found


def table() -> str:
    """One row per task and number of private rows; each cell has epsilon .5, 1 and 3."""
    found = measured()
    shown = {name: title for name, title in METHODS.items() if any(name == method for *_, method in found)}
    lines = [f"| | rows | {' | '.join(shown.values())} |", "|---" * (len(shown) + 2) + "|"]
    sizes = sorted({(TASKS.index(task), rows) for task, rows, _ in found if rows})
    for place, rows in sizes:
        cells = []
        for method in shown:
            cell = found.get((TASKS[place], rows, method), {})
            cells.append(" / ".join(f"{100 * statistics.mean(cell[epsilon]):.0f}" for epsilon in sorted(cell)))
        lines.append(f"| {TITLES[TASKS[place]]} | {rows:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def picture_data(task: str = "agnews", rows: int = 1000) -> dict[str, Any]:
    """Accuracy in percent of each method by epsilon, and without noise."""
    cells = measured()
    drawn = {
        title: {str(epsilon): round(100 * statistics.mean(cell[epsilon]), 1) for epsilon in sorted(cell)}
        for method, title in METHODS.items()
        if (cell := cells.get((task, rows, method)))
    }
    known = so_far(RESULTS.with_name("prototypes.jsonl"))
    clean = [row["clean"] for row in known if (row["task"], row["rows"]) == (task, rows)]
    return {"task": TITLES[task], "rows": rows, "methods": drawn, "no noise": round(100 * statistics.mean(clean[0]), 1)}


def draw(path: Path = PICTURE) -> None:
    """Write the picture of accuracy against epsilon; its figures stand in its description."""
    import matplotlib
    from matplotlib.figure import Figure

    data = picture_data()
    with matplotlib.rc_context({"svg.hashsalt": "side by side", "font.size": 9}):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for title, points in data["methods"].items():
            axes.plot([float(epsilon) for epsilon in points], [*points.values()], marker="o", markersize=4, label=title)
        axes.axhline(data["no noise"], color="#444444", linestyle="--", linewidth=1, label="prototypes, not private")
        axes.axhline(25, color="#b9bec4", linestyle=":", linewidth=1, label="guessing")
        axes.set(
            xscale="log", xlabel="epsilon", ylabel="right answers, %", ylim=(20, 90),
            title=f"{data['task']}, {data['rows']:,} private rows",
        )  # fmt: skip
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        figure.savefig(path, metadata={"Date": None, "Description": json.dumps(data)})


def main() -> None:
    """Run the arms that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--methods", nargs="+", default=["prototypes", "minilm", "135M", "1.5B", "head"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--model", help="path of the GGUF of 1.5 billion parameters")
    parser.add_argument("--scores", type=Path, help="file for label scores, one per model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    parser.add_argument("--picture", action="store_true", help=f"draw {PICTURE.name} from the results")
    asked = parser.parse_args()
    if asked.table:
        return print(table())
    if asked.picture:
        return draw()
    static, minilm = KeptStatic(), MiniLM()
    for task in asked.tasks:
        for method in asked.methods:
            arm = trained(task, minilm, asked) if method == "head" else None
            encoder = minilm if method == "minilm" else static
            for row in arm or prototypes(task, encoder, method, asked):
                row |= {"test": ASKED, "delta": DELTA, **made()}
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                key = row["key"]
                print(*key.values(), row["accuracy"], flush=True)
    return None


if __name__ == "__main__":
    main()
