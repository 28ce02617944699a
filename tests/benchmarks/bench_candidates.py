"""How good examples are that private votes choose among public candidates: `bench_candidates.py`, and --table.

results/candidates.json has what Qwen2.5-Coder-1.5B-Instruct wrote from public words alone: `candidates` (topics first,
then texts), `own` (texts for each label by its name), and `second` (texts like the candidates that lead without noise).
Labels are codes to the votes. Rows go to results/candidates.jsonl: the accuracy on 1,000 test texts of the nearest mean
of the chosen examples' static vectors, and of a logistic regression on them; with --model, of a GGUF whose prompt holds
four examples a label. Arms: `chosen`; `own`, the public model's own examples by the labels' true names; `second`, where
half of the budget is taken to be spent on a first round, and the candidates of a second one are there for nothing;
`written`, texts that bench_synth wrote token by token and kept in synth.jsonl; `few`, as many chosen ones as those.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_prototypes import KeptStatic
from made import made, so_far
from sklearn.linear_model import LogisticRegression

from langchain_dp import DPExampleSelector, PrivacyBudget
from langchain_dp.aggregate.encoders import projection_for
from langchain_dp.records import read_jsonl
from langchain_dp.sample import load_tickets

RESULTS = Path(__file__).parent / "results" / "candidates.jsonl"
TEXTS = RESULTS.with_suffix(".json")
TASKS = {"agnews": (500, 2000), "trec": (500, 2000), "tickets": (500, 1000)}
NAMES = {"agnews": "AG News", "trec": "TREC", "tickets": "tickets"}
EPSILONS = (0.5, 1.0, 3.0, None)
PER_LABEL = 16
SHOWN = 4
ENCODER = KeptStatic()


def main() -> None:
    """Run the arms that are missing."""
    options = _options()
    if options.table:
        print(f"{table()}\n\n{prompts('embedded')}\n\n{prompts('qwen15')}\n\n{beside_written()}")
        return
    done = {json.dumps(row["arm"]) for row in so_far(RESULTS)}
    stamp = made()
    engine = _engine(options.model, options.threads) if options.model else None
    for task in options.tasks:
        train, test = _rows(task)
        for arm, examples in _arms(task, train, prompts=engine is not None):
            settings = {"task": task, **arm, "by": Path(options.model).stem if options.model else "static"}
            if json.dumps(settings) in done:
                continue
            chosen = examples()
            figures = _static(chosen, test) if engine is None else _prompted(engine, chosen, test[: options.queries])
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"arm": settings, "figures": figures, **stamp}) + "\n")
            print(settings, {name: round(value, 3) for name, value in figures.items()}, flush=True)


def _rows(task: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if task == "tickets":
        return load_tickets()
    folder = Path(os.environ["LANGCHAIN_DP_DATA"]) / task
    return read_jsonl(folder / "train.jsonl"), read_jsonl(folder / "test.jsonl")[:1000]


def _arms(task: str, train: Sequence[dict[str, Any]], *, prompts: bool) -> Any:
    """Settings of each arm, and a function that makes its examples."""
    texts = json.loads(TEXTS.read_text(encoding="utf-8"))[task]
    labels = sorted({row["label"] for row in train})
    for seed in range(3):
        yield {"arm": "own", "seed": seed}, lambda seed=seed: _own(texts["own"], labels, seed, prompts)
    if not prompts:
        yield from _beside_written(task, train, texts, labels)
    for rows in TASKS[task]:
        for epsilon in (1.0,) if prompts else EPSILONS:
            for seed in range(3):
                private = random.Random(seed).sample(list(train), min(rows, len(train)))
                for arm in ("chosen",) if prompts or "second" not in texts else ("chosen", "second"):
                    settings = {"arm": arm, "rows": rows, "epsilon": epsilon, "seed": seed}
                    yield (
                        settings,
                        lambda arm=arm, private=private, epsilon=epsilon: _chosen(
                            texts, labels, private, arm, epsilon, SHOWN if prompts else PER_LABEL
                        ),
                    )


def _beside_written(task: str, train: Any, texts: Any, labels: Sequence[str]) -> Any:
    for row in so_far(RESULTS.with_name("synth.jsonl")):
        engine, of, _, count, known, epsilon, _, seed, *reader = row["key"]
        written = [(str(one["text"]), one["label"]) for one in row.get("texts", ())]
        if (engine, of, reader) != ("qwen1.5b-q4_k_m", task, []) or count > SHOWN * len(labels) or len(written) < 12:
            continue
        if (known, epsilon) in {("named", "1"), ("coded", "3")}:
            settings = {"arm": "written", "labels": known, "epsilon": float(epsilon), "seed": seed}
            yield settings | {"minutes": round(row["seconds"] / 60, 1)}, lambda written=written: written
    for seed in range(3):
        private = random.Random(seed).sample(list(train), min(TASKS[task][-1], len(train)))
        settings = {"arm": "few", "rows": len(private), "epsilon": 1.0, "seed": seed}
        yield settings, lambda private=private: _chosen(texts, labels, private, "chosen", 1.0, SHOWN)


def _own(own: Any, labels: Sequence[str], seed: int, prompts: bool) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    by_label = dict(zip(labels, own.values(), strict=True))  # both in the labels' order
    count = SHOWN if prompts else PER_LABEL
    return [(text, label) for label in labels for text in draw.sample(by_label[label], count)]


def _chosen(
    texts: Any, labels: Sequence[str], private: Any, arm: str, epsilon: float | None, per_label: int
) -> list[tuple[str, str]]:
    candidates = [*texts["candidates"], *(texts["second"] if arm == "second" else ())]
    selector = DPExampleSelector(candidates, encoder=ENCODER, per_label=per_label)
    budget = PrivacyBudget(500.0 if epsilon is None else epsilon, 1e-5)
    if arm == "second" and epsilon is not None:  # the noise of one of two equal rounds
        budget = _half(budget)
    found = selector.select(private, labels=labels, budget=budget)
    return [(str(one.text), one.label) for one in found]


def _half(budget: PrivacyBudget) -> PrivacyBudget:
    """The budget of a Gaussian release with sqrt(2) times the noise."""
    from langchain_dp.accounting import VectorSumEvent, calibrate_vector_sum, epsilon

    noise = calibrate_vector_sum(budget, replaced=2**0.5) * 2**0.5
    return PrivacyBudget(epsilon([(VectorSumEvent(noise, 2**0.5), 1)], budget.delta), budget.delta)


def _static(examples: Sequence[tuple[str, str]], test: Sequence[dict[str, Any]]) -> dict[str, float]:
    projection = projection_for(ENCODER)
    vectors = projection.vectors(ENCODER.array([text for text, _ in examples])) / 4096
    queries = projection.vectors(ENCODER.array([row["text"] for row in test])) / 4096
    labels = sorted({label for _, label in examples})
    of = np.array([label for _, label in examples])
    means = np.array([vectors[of == label].mean(axis=0) for label in labels])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    truth = np.array([row["label"] for row in test])
    nearest = np.array(labels)[(queries @ means.T).argmax(axis=1)]
    fitted = LogisticRegression(C=10, max_iter=1000).fit(vectors, of)
    return {
        "nearest mean": float((nearest == truth).mean()),
        "regression": float((fitted.predict(queries) == truth).mean()),
    }


def _engine(path: str, threads: int | None) -> Any:
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

    return LlamaCppEnsemble(model_path=None if path == "embedded" else path, n_threads=threads)


def _prompted(engine: Any, examples: Sequence[tuple[str, str]], test: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Accuracy of a prompt with the examples in turn; calibrated by texts without content."""
    from langchain_dp.ports import MemberPrompt

    labels = sorted({label for _, label in examples})
    by_label = {label: [text for text, own in examples if own == label] for label in labels}
    turns = [(by_label[label][turn], label) for turn in range(SHOWN) for label in labels if turn < len(by_label[label])]
    body = "".join(f"Text: {text}\nLabel: {label}\n\n" for text, label in turns)
    right = 0
    free = [f"Text: {text}\nLabel:" for text in ("N/A", "", "[MASK]")]
    for row in test:
        prompt = MemberPrompt("", body, f"Text: {row['text']}\nLabel:", "examples")
        [scores] = engine.score_labels([prompt], [f" {label}" for label in labels], content_free=free)
        right += labels[int(np.argmax(scores))] == row["label"]
    engine.forget("examples")
    return {"prompt": right / len(test)}


def table() -> str:
    """Accuracy of 100 of the nearest mean, mean and standard error over three seeds."""
    lines = [
        "| | records | own, by true names | chosen, epsilon 0.5 | epsilon 1 | epsilon 3 | no noise |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, counts in TASKS.items():
        for count in counts:
            chosen = [_cell("nearest mean", task, "chosen", "static", rows=count, epsilon=each) for each in EPSILONS]
            own = _cell("nearest mean", task, "own", "static")
            lines.append(f"| {NAMES[task]} | {count:,} | {own} | {' | '.join(chosen)} |")
    return "\n".join(lines)


def prompts(model: str) -> str:
    """Accuracy of 100 of a model's prompt with four examples a label, epsilon 1."""
    lines = ["| | own | chosen by 500 records | by all |", "|---|---|---|---|"]
    for task, counts in TASKS.items():
        chosen = [_cell("prompt", task, "chosen", model, rows=count) for count in counts]
        lines.append(f"| {NAMES[task]} | {_cell('prompt', task, 'own', model)} | {' | '.join(chosen)} |")
    return "\n".join(lines)


def beside_written() -> str:
    """Nearest mean and minutes of examples that votes chose, and of those that an ensemble wrote."""
    minutes = {
        json.dumps(row["arm"]): row["arm"]["minutes"] for row in so_far(RESULTS) if row["arm"]["arm"] == "written"
    }
    lines = ["| 2,000 records, 4 examples per label | AG News | TREC | minutes |", "|---|---|---|---|"]
    few = [_cell("nearest mean", task, "few", "static") for task in ("agnews", "trec")]
    lines.append(f"| chosen under codes, epsilon 1 | {' | '.join(few)} | 4 to 7, once |")
    for label, known, epsilon in (
        ("written by names, epsilon 1", "named", 1.0),
        ("written under codes, epsilon 3", "coded", 3.0),
    ):
        cells = [
            _cell("nearest mean", task, "written", "static", labels=known, epsilon=epsilon)
            for task in ("agnews", "trec")
        ]
        took = sorted(took for arm, took in minutes.items() if json.loads(arm)["labels"] == known)
        lines.append(f"| {label} | {' | '.join(cells)} | {took[0]:.0f} to {took[-1]:.0f} each |".replace("|  |", "| |"))
    return "\n".join(lines)


def _cell(figure: str, task: str, arm: str, model: str, **wanted: Any) -> str:
    wanted |= {"task": task, "arm": arm, "by": model}
    found = [
        100 * row["figures"][figure]
        for row in so_far(RESULTS)
        if all(row["arm"].get(key) == value for key, value in wanted.items())
    ]
    if len(found) < 2:
        return ""
    return f"{statistics.mean(found):.0f} ± {statistics.stdev(found) / len(found) ** 0.5:.0f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--model", help="GGUF whose prompt holds the examples, or 'embedded'")
    parser.add_argument("--queries", type=int, default=120, help="queries with --model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--table", action="store_true", help="print the table of docs/how-to/choose-examples.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
