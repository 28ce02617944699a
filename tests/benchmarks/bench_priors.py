"""How to calibrate a language model's scores beside prototypes: on empty texts, public texts or the queries.

Reads LANGCHAIN_DP_DATA/agnews/{train,test}.jsonl, asks the same 500 test rows as `bench_side_by_side.py`, and keeps
label scores in --scores FILE. A row of results is one prompt and calibration: the accuracy of the model alone, and
beside prototypes by private rows, epsilon and seed. There the model's log-probabilities are added, by the library's
rule (a factor from public numbers, weight 0.5) or to 8 times the cosine at weight 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bench_prototypes import KeptStatic
from bench_side_by_side import DELTA, KeptScores, drawn
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from numpy.typing import NDArray
from scipy.special import log_softmax

from langchain_dp import DPPrototypeClassifier, PrivacyBudget
from langchain_dp.aggregate import public_texts
from langchain_dp.aggregate.prior import _SCORER_PROMPT
from langchain_dp.ports import CONTENT_FREE, MemberPrompt

LABELS = ("World", "Sports", "Business", "Technology")
_BEFORE, _AFTER = _SCORER_PROMPT.replace("{names}", ", ".join(LABELS)).split("{text}")
PROMPTS = {
    "library": (_BEFORE, _AFTER, " "),
    "question": (
        "<|im_start|>user\nIs this news about World, Sports, Business or Technology? Answer with one word.\n\n",
        "<|im_end|>\n<|im_start|>assistant\n",
        "",
    ),
}
"""Text before and after the query, and what stands before a label."""
ROWS, EPSILONS = (500, 1000, 2000), (1.0, 3.0)
RESULTS = Path(__file__).parent / "results" / "priors.jsonl"
Logs = NDArray[np.float64]


def scored(model: KeptScores, prompt: str, texts: list[str]) -> Logs:
    """Log-probabilities of the labels after each text."""
    before, after, space = PROMPTS[prompt]
    start = before.rfind("\n") + 1
    words = [f"{space}{label}" for label in LABELS]
    asked = (MemberPrompt(before[:start], "", f"{before[start:]}{text}{after}", member="prior") for text in texts)
    return np.asarray(log_softmax([model.score_labels([each], words)[0] for each in asked], axis=1))


def calibrated(model: KeptScores, prompt: str, texts: list[str]) -> dict[str, Logs]:
    """Scores of the queries, divided by those of nothing, of empty texts, of public texts and of the queries."""
    rows = scored(model, prompt, texts)
    by = {
        "nothing": np.zeros((1, len(LABELS))),
        "empty texts": scored(model, prompt, list(CONTENT_FREE)),
        "public texts": scored(model, prompt, list(public_texts()[::29])),
        "queries": rows,
    }
    return {name: log_softmax(rows - usual.mean(axis=0), axis=1) for name, usual in by.items()}


def prototypes(texts: list[str], seeds: list[int]) -> list[tuple[dict[str, Any], Logs, float]]:
    """Log-probabilities of prototypes by rows, epsilon and seed, with their factor of the cosine."""
    encoder, found = KeptStatic(), []
    for count in ROWS:
        for epsilon in EPSILONS:
            for seed in seeds:
                rows, budget = drawn("agnews", count, seed)[0], PrivacyBudget(epsilon, DELTA)
                own = DPPrototypeClassifier.fit(rows, labels=LABELS, budget=budget, encoder=encoder)
                key = {"rows": count, "epsilon": epsilon, "seed": seed}
                found.append((key, np.log(own._shares(texts)), own._sharpness))
    return found


def beside(scores: Logs, right: NDArray[np.int64], logs: Logs, factor: float) -> dict[str, float]:
    """Accuracies of prototypes, and of both by each rule."""
    rules = {"prototypes": logs, "library": logs + 0.5 * scores, "8": logs * 8 / factor + scores}
    return {name: round(float((rule.argmax(axis=1) == right).mean()), 4) for name, rule in rules.items()}


def accuracies(row: Mapping[str, Any], rule: str) -> list[list[list[float]]]:
    """Percentages of the seeds, by number of private rows and epsilon."""
    return [
        [
            [100 * cell[rule] for cell in row["beside"] if (cell["rows"], cell["epsilon"]) == (count, epsilon)]
            for epsilon in EPSILONS
        ]
        for count in ROWS
    ]


def table(model: str = "1.5B") -> tuple[str, float]:
    """One row per prompt and calibration, by 8 times the cosine; cells have epsilon 1 / 3. And the largest error."""
    rows = [row for row in so_far(RESULTS) if row["key"]["model"] == model]
    found = [("none: prototypes", "", "", accuracies(row, "prototypes")) for row in rows[:1]]
    found += [
        (row["key"]["prompt"], row["key"]["calibration"], f"{100 * row['alone']:.1f}", accuracies(row, "8"))
        for row in rows
    ]
    titles = " | ".join(f"{count:,} rows" for count in ROWS)
    lines = [f"| prompt | divided by the scores of | alone | {titles} |", "| --- " * (3 + len(ROWS)) + "|"]
    for *names, cells in found:
        shown = [" / ".join(f"{statistics.mean(each):.1f}" for each in cell) for cell in cells]
        lines.append(f"| {' | '.join([*names, *shown])} |")
    drawn_cells = [each for *_, cells in found for cell in cells for each in cell]
    return "\n".join(lines), max(statistics.stdev(each) / len(each) ** 0.5 for each in drawn_cells)


def main() -> None:
    """Measure each prompt and calibration of one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="path of a GGUF; the embedded model by default")
    parser.add_argument("--name", default="135M")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    _, test = drawn("agnews", 1, 1)
    texts = [row["text"] for row in test]
    right = np.array([LABELS.index(row["label"]) for row in test])
    drawings = prototypes(texts, asked.seeds)
    options: dict[str, Any] = {"model_path": asked.model} if asked.model else {}
    with LlamaCppEnsemble(**options, max_tokens=512, slots=2, n_threads=asked.threads) as engine:
        model = KeptScores(engine, asked.scores)
        for prompt in PROMPTS:
            for calibration, scores in calibrated(model, prompt, texts).items():
                alone = round(float((scores.argmax(axis=1) == right).mean()), 4)
                key = {"task": "agnews", "model": asked.name, "prompt": prompt, "calibration": calibration}
                cells = [{**cell, **beside(scores, right, logs, factor)} for cell, logs, factor in drawings]
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "alone": alone, "beside": cells, **made()}) + "\n")
                print(*key.values(), alone, flush=True)


if __name__ == "__main__":
    main()
