"""Accuracy of DP-ICL against its baselines on public data sets: `make bench-accuracy`.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. For every question the subsets vote once; the same votes are then
counted without noise and released many times at each epsilon, as the paper does (100 runs of the noise). What is
printed is thus the expected accuracy over the noise, with the standard error over the questions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import secrets
import statistics
import sys
import time
from pathlib import Path

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from tqdm import tqdm

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.accounting import calibrate_noisy_max
from langchain_dp.icl import AGNEWS, SST2, TREC
from langchain_dp.icl.votes import Ballot
from langchain_dp.mechanisms import report_noisy_max
from langchain_dp.records import read_jsonl

TASKS = {"sst2": SST2, "trec": TREC, "agnews": AGNEWS}
MAX_TOKENS = {"sst2": 512, "trec": 384, "agnews": 1280}  # half for the question, half for head and examples
EPSILONS = (1.0, 3.0, 8.0)
NOISE_RUNS = 100


def main() -> None:
    """Print one row per task and method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--subsets", type=int, default=10)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--threads", type=int, help="default: measured at start-up")
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    options = parser.parse_args()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/, trec/ and agnews/ (train.jsonl and test.jsonl each).")
    for task in options.tasks:
        engine = LlamaCppEnsemble(
            model_path=options.model,
            max_tokens=MAX_TOKENS[task],
            slots=14,
            n_threads=options.threads,
            flash_attention=True,
        )
        started = time.perf_counter()
        train = read_jsonl(Path(data) / task / "train.jsonl")[: options.rows]
        test = read_jsonl(Path(data) / task / "test.jsonl")
        test = random.Random(1).sample(test, min(options.questions, len(test)))
        labels = sorted({row["label"] for row in train})
        chain = DPICLClassifier(
            llm=engine,
            examples=train,
            labels=labels,
            budget=PrivacyBudget(EPSILONS[0], options.delta),
            max_queries=options.queries,
            shots=options.shots,
            subsets=options.subsets,
            prompt=TASKS[task],
        )
        rate = chain.scheme.sampling_probability
        sigmas = {
            value: calibrate_noisy_max(
                PrivacyBudget(value, options.delta), queries=options.queries, sampling_probability=rate
            )
            for value in EPSILONS
        }
        hits: dict[str, list[float]] = {}
        for row in tqdm(test, desc=task, unit="question"):
            asked = chain._checked_question(row["text"])
            ballots = chain._electorate.draw(asked)
            some = secrets.SystemRandom().choice(chain._electorate.everyone(asked))
            cast = chain._voter.ask([*ballots, some, Ballot(None, (), asked)], even_empty=True)
            counts = [0] * len(labels)
            for vote in cast[:-2]:
                if vote is not None:
                    counts[vote] += 1
            truth = labels.index(row["label"])
            best = max(range(len(labels)), key=lambda i: (counts[i], -i))
            hits.setdefault("zero-shot", []).append(cast[-1] == truth)
            hits.setdefault("few-shot", []).append(cast[-2] == truth)
            hits.setdefault("single votes", []).append(counts[truth] / max(sum(counts), 1))
            hits.setdefault("vote", []).append(best == truth)
            for value, sigma in sigmas.items():
                won = sum(report_noisy_max(counts, sigma).winner == truth for _ in range(NOISE_RUNS))
                hits.setdefault(f"dp-icl {value:g}", []).append(won / NOISE_RUNS)
        for method, values in hits.items():
            mean = statistics.fmean(values)
            error = statistics.pstdev(values) / math.sqrt(len(values))
            sigma = sigmas.get(float(method.split()[1])) if method.startswith("dp-icl") else None
            line = {"task": task, "method": method, "accuracy": round(mean, 4), "standard_error": round(error, 4)}
            print(json.dumps({**line, "n": len(values), "sigma": sigma, "subsets": chain.scheme.groups}), flush=True)
        engine.close()
        print(f"{task}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
