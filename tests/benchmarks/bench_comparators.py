"""What else the same budget buys, beside the tables of the papers: linear heads and soft prompts.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. Arms of MiniLM's sentence vectors, on the same private rows as
bench_accuracy takes and all test rows: "head EPSILON" (DP-SGD of all rows; "inf": no noise) and "vectors EPSILON" with
as many principal directions (every text noised by its author, train and test). Arms of the embedded model, on the rows
of bench_opt: "soft EPSILON", a soft prompt in the place of the initial instruction ("inf": PromptSGD; else
PromptDPSGD). Finished arms are kept in the results file and not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from comparators import heads
from langchain_dp.integrations.llama_cpp import embedded_model_path
from made import made, so_far

from langchain_dp.attacks import SentenceEmbeddings
from langchain_dp.opt import DISASTER, MPQA, SST2, TREC
from langchain_dp.records import read_jsonl

TASKS = ("sst2", "trec", "agnews", "amazon", "mpqa", "disaster")
ROWS, DELTA = 8000, 1e-5
PUBLIC = {"sst2": "amazon"}
"""Whose test rows are the public texts by which vectors are scaled: those of SST-2, unless they are attacked."""
DIRECTIONS = (None, 16)
EPSILONS = ("1", "3", "8")
KINDS = ("head", "vectors", "soft")
PROMPTED = {"sst2": SST2, "trec": TREC, "mpqa": MPQA, "disaster": DISASTER}
"""Tasks with an initial instruction, which a soft prompt takes the place of."""
FEW, ASKED = 400, 200
"""Private rows and questions of bench_opt."""


def main() -> None:
    """Run what is missing, a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of arms")
    parser.add_argument("--epsilons", nargs="+", default=["inf", *EPSILONS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("bench_comparators.jsonl"))
    options = parser.parse_args()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with a folder for every task (train.jsonl and test.jsonl each).")
    arms = [
        (f"{kind} {epsilon}", kept)
        for kind in options.kinds
        for kept in (DIRECTIONS if kind == "vectors" else (None,))
        for epsilon in options.epsilons
    ]
    for task in options.tasks:
        for arm, kept in arms:
            if arm.startswith("soft") and task not in PROMPTED:
                continue
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
    if kind == "soft":
        return _soft(data, task, float(epsilon), seed)
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
        sigma = heads.noise_multiplier(float(epsilon), DELTA, heads.RATE, heads.STEPS)
        noise = {} if epsilon == "inf" else {"sigma": round(sigma, 4)}
        return {"accuracy": found, "train_rows": len(train), "test_rows": len(test), "delta": DELTA, **noise}
    public = _vectors(data, PUBLIC.get(task, "sst2"), "test")[0]
    sent = [
        heads.noised(some, epsilon=float(epsilon), kept=kept, seed=1000 * place + seed, public=public)
        for place, some in enumerate((train, test))
    ]
    return {"accuracy": heads.trained_on(sent[0], classes, sent[1], asked), "train_rows": len(train),
            "test_rows": len(test)}  # fmt: skip


def _soft(data: Path, name: str, epsilon: float, seed: int) -> dict[str, Any]:
    """A soft prompt on the model that it is used on: no other one can read it."""
    from comparators.soft_prompt import LEARNING, RATE, STEPS

    learner = _learner(name)
    train, test = read_jsonl(data / name / "train.jsonl"), read_jsonl(data / name / "test.jsonl")
    random.Random(seed).shuffle(train)
    random.Random(0).shuffle(test)
    train, test = train[:FEW], test[:ASKED]
    start, questions, truth = learner.started(), learner.asked(test), learner.classes(test)
    vectors = learner.soft(learner.asked(train), learner.classes(train), epsilon=epsilon, delta=DELTA, seed=seed)
    right, before = (
        [a == b for a, b in zip(learner.predicted(asked, questions), truth, strict=True)] for asked in (vectors, start)
    )
    sigma = heads.noise_multiplier(epsilon, DELTA, RATE, STEPS)
    return {
        "accuracy": sum(right) / len(right), "before": sum(before) / len(before), "train_rows": len(train),
        "test_rows": len(test), "vectors": len(start), "steps": STEPS, "batch": RATE, "learning_rate": LEARNING,
        "sigma": round(sigma, 4), "delta": DELTA,
    }  # fmt: skip


@cache
def _learner(name: str) -> Any:
    from comparators.soft_prompt import PromptLearner

    return PromptLearner(str(embedded_model_path()), PROMPTED[name])


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
