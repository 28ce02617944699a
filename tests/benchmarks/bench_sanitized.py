"""What sanitizing a text costs in accuracy: `make bench-sanitized`.

Reads LANGCHAIN_DP_DATA/sst2/{train,test}.jsonl. Test rows go through a RAPTSanitizer and then to the embedded model,
which classifies them by the vote of a few public examples; the chain is ``sanitizer | classifier``. Every finished
setting is appended to the results file, and a restart skips it. With --picture the table is drawn too.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import math
import os
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from tqdm import tqdm

from langchain_dp import DPICLClassifier, PrivacyBudget, RAPTSanitizer
from langchain_dp.icl import SST2
from langchain_dp.rapt import CalibrationTarget, Vocabulary, load
from langchain_dp.records import read_jsonl

MECHANISMS = ("exponential", "laplace")
TARGETS = (0.1, 0.3, 0.5, 0.9)


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200, help="test rows (default: %(default)s)")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--subsets", type=int, default=4)
    parser.add_argument("--table", default="glove", help="glove or minilm (default: %(default)s)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("bench_sanitized.jsonl"))
    parser.add_argument("--picture", type=Path, help="SVG or PNG to draw")
    options = parser.parse_args()
    folder = os.environ.get("LANGCHAIN_DP_DATA")
    if not folder:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/ (train.jsonl and test.jsonl).")
    train, test = (read_jsonl(Path(folder) / "sst2" / f"{name}.jsonl") for name in ("train", "test"))
    random.Random(1).shuffle(train)
    random.Random(0).shuffle(test)
    examples, test = train[: options.shots * options.subsets], test[: options.rows]
    done = so_far(options.out)
    wanted = [(None, 0.0), *((mechanism, target) for target in TARGETS for mechanism in MECHANISMS)]
    missing = [key for key in wanted if not any(row["key"] == [options.table, *key] for row in done)]
    if missing:
        with LlamaCppEnsemble(max_tokens=768, slots=2 * options.subsets, n_threads=options.threads) as engine:
            classifier = DPICLClassifier(
                model=engine,
                examples=examples,
                labels=["negative", "positive"],
                budget=PrivacyBudget(1.0, 1e-5),
                max_queries=1,
                shots=options.shots,
                subsets=options.subsets,
                prompt=SST2,
            ).baseline("vote", private=False)
            for mechanism, target in missing:
                row = _one(classifier, test, train, mechanism, target, options)
                done.append(row)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    _table(done)
    if options.picture:
        _picture(done, options.picture)


def _one(
    classifier: Any, test: list[Any], train: list[Any], mechanism: Any, target: float, options: Any
) -> dict[str, Any]:
    texts, found = [row["text"] for row in test], {}
    if mechanism is not None:
        sanitizer = RAPTSanitizer(
            options.table,
            target_replacement=target,
            mechanism=mechanism,
            target=CalibrationTarget(texts=[row["text"] for row in train[:500]]),
        )
        clear, texts = texts, sanitizer.batch(texts)
        pairs = [
            (_words(options.table, one), _words(options.table, other)) for one, other in zip(clear, texts, strict=True)
        ]
        kept, words = sum(_kept(*pair) for pair in pairs), sum(len(one) for one, _ in pairs)
        found = {"eta": sanitizer.calibration().eta, "replaced": 1 - kept / words, "words": words}
    asked = tqdm(texts, desc=f"{mechanism or 'plain'} {target:g}", unit="row")
    right = [classifier.invoke(text) == row["label"] for text, row in zip(asked, test, strict=True)]
    accuracy = statistics.fmean(right)
    return {
        "key": [options.table, mechanism, target],
        "accuracy": accuracy,
        "standard_error": math.sqrt(accuracy * (1 - accuracy) / len(right)),
        "rows": len(right),
        "shots": options.shots,
        "subsets": options.subsets,
        **found,
        **made(),
    }


@functools.cache
def _vocabulary(table: str) -> Vocabulary:
    return load(table)


def _words(table: str, text: str) -> list[str]:
    return [word.lower() for word in _vocabulary(table).surfaces(text)]


def _kept(one: list[str], other: list[str]) -> int:
    """Words that are still there, in their order: what is released may be cut into words at other places."""
    return sum(block.size for block in difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks())


def _table(done: list[dict[str, Any]]) -> None:
    print(f"{'table':8} {'mechanism':12} {'target':>6} {'eta':>7} {'replaced':>8}  accuracy")
    for row in done:
        table, mechanism, target = row["key"]
        eta, replaced = (f"{row[name]:.2f}" if name in row else "" for name in ("eta", "replaced"))
        accuracy = f"{row['accuracy']:.3f} +- {row['standard_error']:.3f} (n={row['rows']})"
        print(f"{table:8} {mechanism or 'plain':12} {target:6.1f} {eta:>7} {replaced:>8}  {accuracy}")


def _picture(done: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for mechanism in MECHANISMS:
        rows = sorted((row for row in done if row["key"][1] == mechanism), key=lambda row: float(row["key"][2]))
        axes.errorbar(
            [row["key"][2] for row in rows],
            [row["accuracy"] for row in rows],
            yerr=[row["standard_error"] for row in rows],
            label=mechanism,
            marker="o",
            capsize=3,
        )
    for row in done:
        if row["key"][1] is None:
            axes.axhline(row["accuracy"], color="grey", linestyle=":", label="as written")
    axes.axhline(0.5, color="grey", linewidth=0.5, label="chance")
    axes.set(xlabel="probability that a word is replaced", ylabel="accuracy on SST-2", xlim=(0, 1), ylim=(0.4, 1))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
