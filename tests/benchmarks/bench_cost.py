"""What a private vote costs at a provider that charges by the token: what `plan()` says, by number of subsets.

Reads LANGCHAIN_DP_DATA/<task>/train.jsonl. No model is asked: tokens are counted, by the embedded model's own cutting.
Every finished row is appended to the results file, and a restart skips it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from bench_accuracy import TASKS
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.records import read_jsonl

ROWS, QUESTIONS, SHOTS = 8000, 100, 4
PRICE = 0.5
"""Dollars for a million tokens of GPT-3 Babbage, which the paper asked in 2023."""
SUBSETS = (5, 10, 20, 40)


def main() -> None:
    """Count what is missing, a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["sst2", "amazon", "agnews", "trec"])
    parser.add_argument("--out", type=Path, default=Path("bench_cost.jsonl"))
    options = parser.parse_args()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with a folder for every task (train.jsonl).")
    made()
    with LlamaCppEnsemble(slots=4, max_tokens=512) as engine:
        for task, subsets in ((task, subsets) for task in options.tasks for subsets in SUBSETS):
            key = {"task": task, "subsets": subsets, "shots": SHOTS, "rows": ROWS, "questions": QUESTIONS}
            if any(row["key"] == key for row in so_far(options.out)):
                continue
            rows = read_jsonl(Path(data) / task / "train.jsonl")[:ROWS]
            plan = DPICLClassifier(
                model=engine,
                examples=rows,
                labels=sorted({row["label"] for row in rows}),
                budget=PrivacyBudget(3.0),
                max_queries=QUESTIONS,
                shots=SHOTS,
                subsets=subsets,
                prompt=TASKS[task],
            ).plan(price_per_million_tokens=PRICE)
            assert plan.price_per_query is not None
            row = {
                "key": key,
                "tokens": round(plan.tokens_per_query * QUESTIONS),
                "dollars": round(plan.price_per_query * QUESTIONS, 6),
                "records_asked": round(subsets * SHOTS / len(rows), 6),
                "price": PRICE,
                "engine": engine.name,
                **made(),
            }
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
