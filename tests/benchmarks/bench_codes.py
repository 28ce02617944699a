"""Labels that mean nothing to a model, and what it answers under them.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. The labels are called "team A", "team B" and so on, as categories of
tickets are. Test rows are answered by a model (label scores, calibrated) under

- "codes": the instruction alone;
- "true": the labels' true names as answers, which nobody would have; "true, asked for": those, under the instruction
  that asks for what they are.

"regression" asks no model: logistic regression on word counts, trained on the rows themselves, NOT private.

Every arm is appended to the results file, and a restart skips it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from coded import CODED, regression
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far

from langchain_dp.opt import OptPrompts, PromptScore
from langchain_dp.opt.forward import Forward


def main() -> None:
    """Write and score what is missing, a line each."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with a folder for every task (train.jsonl and test.jsonl each).")
    coded = CODED[options.task]
    train = coded.rows(Path(data) / options.task / "train.jsonl")[: options.rows]
    test = coded.rows(Path(data) / options.task / "test.jsonl")
    random.Random(0).shuffle(test)
    test, every = test[: options.asked], test

    def keep_row(row: dict[str, Any]) -> None:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(json.dumps(row, ensure_ascii=False), flush=True)

    with LlamaCppEnsemble(
        model_path=options.model, slots=options.slots, max_tokens=1024, n_threads=options.threads
    ) as engine:
        for seed in range(options.seeds):
            for arm in options.arms:
                key = [engine.name, options.task, options.rows, arm, 60, 1, seed]  # two sizes of former arms
                if any(row["key"] == key for row in so_far(options.out)):
                    continue
                began = time.perf_counter()
                if arm == "regression":
                    found = {"accuracy": regression(train, every), "asked": len(every)}
                    keep_row({"key": key, **made(), "seconds": round(time.perf_counter() - began, 1), arm: found})
                    continue
                words = list(coded.codes.values()) if arm == "codes" else list(coded.labels)
                said = coded.asked_for if arm.endswith("asked for") else coded.instruction
                row: dict[str, Any] = {"key": key, **made(), "load": round(os.getloadavg()[0], 1)}
                row[arm] = _score(engine, said, words, test, list(coded.codes.values()))
                keep_row(row | {"seconds": round(time.perf_counter() - began, 1)})


def _score(
    engine: LlamaCppEnsemble, instruction: str, words: list[str], test: Sequence[dict[str, str]], labels: list[str]
) -> dict[str, Any]:
    """Accuracy and confusion of answers by these words."""
    forward = Forward(engine, OptPrompts(), words, calibrate=True)
    answers = forward.predict(instruction, [row["text"] for row in test], words)
    score = PromptScore.of(answers, [row["label"] for row in test], labels)
    return {"instruction": instruction, "words": words, "asked": len(test),
            "accuracy": score.accuracy, "standard_error": round(score.standard_error, 4),
            "confusion": {label: dict(counts) for label, counts in score.confusion.items()}}  # fmt: skip


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--task", choices=list(CODED), default="agnews")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--arms", nargs="+", default=["codes", "true", "true, asked for", "regression"])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "codes.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
