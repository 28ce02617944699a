"""Labels that mean nothing to a model: what a private glossary of them is worth.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. The labels are called "team A", "team B" and so on, as categories of
tickets are. A model describes label by label what the texts have in common (``method="glossary"``), by votes or by
clipped sums; test rows are then answered by the same model (label scores, calibrated) under

- "codes": the instruction alone;
- "true": the labels' true names as answers, which nobody would have; "true, asked for": those, under the glossary's
  own instruction;
- "lines": the glossary's lines, answered by codes;
- "names": names taken from the descriptions as answers, from which the codes follow;
- "asked for": those, under the instruction that asks for what they are.

"regression" asks no model: logistic regression on word counts, trained on the rows themselves, NOT private.

Every arm is appended to the results file, and a restart skips it. A prompt that several arms share is scored once.
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
from coded import CODED, Coded, regression
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far

from langchain_dp import PrivacyBudget
from langchain_dp.opt import DPPromptOptimizer, PromptScore
from langchain_dp.opt.candidates import PromptChoice, choices
from langchain_dp.opt.forward import Forward

DELTA = 1e-5


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
                key = [engine.name, options.task, options.rows, arm, options.subsets, options.shots, seed]
                if any(row["key"] == key for row in so_far(options.out)):
                    continue
                began = time.perf_counter()
                if arm == "regression":
                    found = {"accuracy": regression(train, every), "asked": len(every)}
                    keep_row({"key": key, **made(), "seconds": round(time.perf_counter() - began, 1), arm: found})
                    continue
                optimizer = _optimizer(engine, coded, arm, options)
                forward = Forward.of(engine, optimizer.settings)
                row: dict[str, Any] = {"key": key, **made(), "load": round(os.getloadavg()[0], 1)}
                if arm in ("codes", "true", "true, asked for"):
                    words = tuple(coded.codes.values()) if arm == "codes" else coded.labels
                    said = coded.glossary.instruction if arm.endswith("asked for") else coded.instruction
                    asked = {arm: PromptChoice(said, words)}
                else:
                    prompt = optimizer.optimize(train)
                    asked_for, names, lines, _ = choices(optimizer.settings, prompt.candidates)
                    asked = {"asked for": asked_for, "names": names, "lines": lines}
                    given = {code: label for label, code in coded.codes.items()}
                    row |= {"descriptions": {given[code]: said for code, said in prompt.descriptions.items()}}
                    row |= {"chosen": list(prompt.words.values()), "instruction": prompt.instruction}
                    row |= {"noise": dict(prompt.certificate.parameters)}
                row |= {"seconds": round(time.perf_counter() - began, 1)}
                for name, choice in asked.items():
                    row[name] = _score(engine, forward, choice, test, optimizer.settings.labels, options)
                keep_row(row)


def _optimizer(engine: LlamaCppEnsemble, coded: Coded, arm: str, options: Any) -> DPPromptOptimizer:
    """That of an arm such as "clip 3" or "votes 3"; of any other, one whose templates are used."""
    decoder, _, epsilon = arm.partition(" ") if arm.startswith(("clip", "votes")) else ("clip", "", "1")
    return DPPromptOptimizer(
        model=engine,
        method="glossary",
        glossary=coded.glossary,
        decoder=decoder,
        labels=list(coded.codes.values()),
        instruction=coded.instruction,
        budget=PrivacyBudget(float(epsilon), DELTA),
        shots=options.shots,
        subsets=options.subsets,
        max_new_tokens=options.tokens,
        validation=options.judges / options.rows,
    )


def _score(
    engine: LlamaCppEnsemble,
    forward: Forward,
    choice: PromptChoice,
    test: Sequence[dict[str, str]],
    labels: Sequence[str],
    options: Any,
) -> dict[str, Any]:
    """Accuracy and confusion; of a row that asked the same under the same model, what it found."""
    asked = {"instruction": choice.instruction, "words": list(choice.words), "asked": len(test)}
    for row in so_far(options.out):
        for kept in row.values():
            if row["key"][0] == engine.name and isinstance(kept, dict) and kept.items() >= asked.items():
                return kept
    answers = forward.predict(choice.instruction, [row["text"] for row in test], choice.words)
    score = PromptScore.of(answers, [row["label"] for row in test], labels)
    return {**asked, "accuracy": score.accuracy, "standard_error": round(score.standard_error, 4),
            "confusion": {label: dict(counts) for label, counts in score.confusion.items()}}  # fmt: skip


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--task", choices=list(CODED), default="agnews")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--arms", nargs="+", default=["codes", "true", "clip 3", "clip 1"])
    parser.add_argument("--shots", type=int, default=1, help="texts of each label that a subset is expected to hold")
    parser.add_argument("--subsets", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--judges", type=int, default=40, help="rows that select (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--asked", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "codes.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
