"""What else the same budget buys: a linear head on MiniLM's sentence vectors, beside the tables of the papers.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl: the same private rows as bench_accuracy takes, and all test rows.
Arms: "head EPSILON" (DP-SGD of all rows; "inf": no noise) and "vectors EPSILON" with as many principal directions
(every text noised by its author, train and test). Finished arms are kept in the results file and not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from comparators import heads
from made import made, so_far

from langchain_dp.attacks import SentenceEmbeddings
from langchain_dp.records import read_jsonl

TASKS = ("sst2", "trec", "agnews", "amazon", "mpqa", "disaster")
ROWS, DELTA = 8000, 1e-5
PUBLIC = {"sst2": "amazon"}
"""Whose test rows are the public texts by which vectors are scaled: those of SST-2, unless they are attacked."""
DIRECTIONS = (None, 16)
EPSILONS = ("1", "3", "8")


def main() -> None:
    """Run what is missing, a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("bench_comparators.jsonl"))
    options = parser.parse_args()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with a folder for every task (train.jsonl and test.jsonl each).")
    arms: list[tuple[str, int | None]] = [(f"head {epsilon}", None) for epsilon in ("inf", *EPSILONS)]
    arms += [(f"vectors {epsilon}", kept) for kept in DIRECTIONS for epsilon in ("inf", *EPSILONS)]
    for task in options.tasks:
        for arm, kept in arms:
            for seed in options.seeds:
                key = {"task": task, "arm": arm, "directions": kept, "seed": seed}
                if any(row["key"] == key for row in so_far(options.out)):
                    continue
                began = time.perf_counter()
                row = {"key": key, **_arm(Path(data), task, arm, kept, seed)}
                row |= {"seconds": round(time.perf_counter() - began, 1), **made()}
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def _arm(data: Path, task: str, arm: str, kept: int | None, seed: int) -> dict[str, Any]:
    kind, epsilon = arm.split()
    train, labels = _vectors(data, task, "train")
    test, truth = _vectors(data, task, "test")
    names = sorted(set(labels))
    classes = np.array([names.index(label) for label in labels])
    asked = np.array([names.index(label) for label in truth])
    if kind == "head":
        weights = heads.dp_sgd(
            heads.unit(train), classes, count=len(names), epsilon=float(epsilon), delta=DELTA, seed=seed
        )
        found = heads.accuracy(weights, heads.unit(test), asked)
        noise = {} if epsilon == "inf" else {"sigma": round(heads.noise_multiplier(float(epsilon), DELTA), 4)}
        return {"accuracy": found, "train_rows": len(train), "test_rows": len(test), "delta": DELTA, **noise}
    public = _vectors(data, PUBLIC.get(task, "sst2"), "test")[0]
    sent = [
        heads.noised(some, epsilon=float(epsilon), kept=kept, seed=1000 * place + seed, public=public)
        for place, some in enumerate((train, test))
    ]
    return {"accuracy": heads.trained_on(sent[0], classes, sent[1], asked), "train_rows": len(train),
            "test_rows": len(test)}  # fmt: skip


@cache
def _embeddings() -> SentenceEmbeddings:
    return SentenceEmbeddings("minilm", longest=128)


@cache
def _vectors(data: Path, task: str, part: str) -> tuple[heads.Floats, list[str]]:
    rows = read_jsonl(data / task / f"{part}.jsonl")[: ROWS if part == "train" else None]
    texts = [" ".join(f"{row.get('title', '')} {row['text']}".split()) for row in rows]
    return _embeddings()(texts), [str(row["label"]) for row in rows]


if __name__ == "__main__":
    main()
