"""RAPT under a frozen head: can a prompt tuned on privatized texts use it, and does reconstruction help?

A masked language model answers with its own frozen head, as in the paper. No such model can be had offline, so MiniLM
gets a head (masked_model.py). In lessons it learns to fill in words of public texts, which end with "It was [MASK]."
and the word of their label. After each lesson a prompt is tuned on clear rows of the task. When it reaches --goal on
other rows, the model is frozen. All arms of a seed then have the same rows: "clear" and "untuned" (in clear, with a
prompt and without), "privatized", "plain" (plain tokens without their loss), and "reconstruction sum" and
"reconstruction mean" (with their loss, summed as in the paper, or averaged).

Each finished arm is one row of --out: task, seed, arm, accuracy, clear (accuracy of the clear arm under this seed) and
settings. A restart skips it, and continues in the middle of an arm. Needs LANGCHAIN_DP_DATA.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import masked_model
import numpy as np
import torch
from bench_tuning import _backbone, _release, _sanitizer, _tuned, _untuned
from made import made, so_far

from langchain_dp.rapt.tuning import Backbone, PlainTokens, PredictionRequest, RAPTPromptTuner, TuningSettings
from langchain_dp.records import read_jsonl

ARMS = ("clear", "untuned", "privatized", "plain", "reconstruction sum", "reconstruction mean")
REVIEWS = (masked_model.TEMPLATE, masked_model.VERBALIZER)
TOPICS = {"World": "politics", "Sports": "sports", "Business": "business", "Technology": "technology"}
TASKS = {
    "sst2": ("amazon", *REVIEWS),
    "amazon": ("amazon", *REVIEWS),
    "agnews": ("agnews", "It was about {mask}.", TOPICS),
}
"""Task -> the data whose even rows are the public lessons, the sentence, and the word of every label."""
TRIAL = 0
"""The seed that decides about lessons, on rows that no arm is tested on."""
LESSON_RATE, TRIAL_ROWS = 2e-4, 500


def main() -> None:
    """Prepare the model, then run the arms that are missing."""
    options = _options()
    if not os.environ.get("LANGCHAIN_DP_DATA"):
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/, amazon/ and agnews/.")
    made()
    options.folder.mkdir(parents=True, exist_ok=True)
    model = prepared(options)
    for seed in options.seeds:
        for arm in options.arms:
            key = _key(options, model, arm, seed)
            done = {json.dumps(row["key"]): row["accuracy"] for row in so_far(options.out)}
            if json.dumps(key) in done:
                continue
            row = {"task": options.task, "seed": seed, "arm": arm, **tuned(model, arm, seed, options)}
            clear = row["accuracy"] if arm == "clear" else done.get(json.dumps({**key, "arm": "clear"}))
            _append(options.out, {**row, "clear": clear, "key": key, **made()})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="sst2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--method", choices=["prefix", "prompt"], default="prefix")
    parser.add_argument("--length", type=int, default=10, help="vectors, 150 for a prompt of the paper")
    parser.add_argument("--rate", type=float, default=0.01, help="of every arm (default: %(default)s)")
    parser.add_argument("--replacement", type=float, default=0.5, help="share of words replaced (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--test-rows", type=int, default=1_821)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lessons", type=int, default=5, help="at most (default: %(default)s)")
    parser.add_argument("--lesson-steps", type=int, default=200, help="batches of a lesson (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=0.78, help="of the clear arm, to stop (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("bench_frozen_head"), help="models, states and releases")
    parser.add_argument("--out", type=Path, default=Path("rapt_frozen.jsonl"))
    return parser.parse_args()


def _key(options: argparse.Namespace, model: Path, arm: str, seed: int) -> dict[str, Any]:
    names = ("task", "method", "length", "rate", "replacement", "rows", "test_rows", "tokens", "batch", "epochs")
    return {**{name: getattr(options, name) for name in names}, "model": model.name, "arm": arm, "seed": seed}


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps({name: value for name, value in row.items() if name != "key"}), flush=True)


def _data(name: str, part: str = "train") -> list[Any]:
    return read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / name / f"{part}.jsonl")


def split(seed: int, options: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Rows to tune on and rows to ask. Even rows of data that gave lessons are public, and in neither part."""
    rows = _data(options.task)
    rows = rows[1::2] if TASKS[options.task][0] == options.task else rows
    random.Random(seed).shuffle(rows)
    asked = rows[options.rows :][:TRIAL_ROWS] if seed == TRIAL else _data(options.task, "test")[: options.test_rows]
    return rows[: options.rows], asked


def prepared(options: argparse.Namespace) -> Path:
    """The folder of the first model that a prompt can use in clear. Exits if no lesson is enough."""
    folder, log = Path("minilm"), options.folder / "lessons.jsonl"
    for lesson in range(1, options.lessons + 1):
        folder = taught(folder, lesson, options)
        key = _key(options, folder, "clear", TRIAL)
        if not any(row["key"] == key for row in so_far(log)):
            _append(log, {"key": key, "lesson": lesson, **tuned(folder, "clear", TRIAL, options)})
        if next(row["accuracy"] for row in so_far(log) if row["key"] == key) >= options.goal:
            return folder
    sys.exit(f"No prompt reached {options.goal:.0%} in clear after {options.lessons} lessons. Raise --lessons.")


def taught(folder: Path, lesson: int, options: argparse.Namespace) -> Path:
    """The model after one more lesson: it fills in words of public texts, and the word of their label behind them."""
    source, template, words = TASKS[options.task]
    out = options.folder / f"{source} {lesson} of {options.lesson_steps} x {options.batch} x {options.tokens}"
    if (out / "config.json").exists():
        return out
    backbone = Backbone("minilm") if lesson == 1 else _backbone(folder)
    model = masked_model.untrained(backbone) if lesson == 1 else copy.deepcopy(backbone.model)
    tokenizer, cross_entropy = backbone.tokenizer, torch.nn.functional.cross_entropy
    rows = _data(source)[::2]
    random.Random(lesson).shuffle(rows)
    torch.manual_seed(lesson)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=LESSON_RATE)
    before, after = (backbone.encode(part) for part in template.split("{mask}"))
    for step in range(options.lesson_steps):
        some = [rows[(step * options.batch + place) % len(rows)] for place in range(options.batch)]
        texts = [backbone.encode(f"{row.get('title', '')} {row['text']}")[: options.tokens] for row in some]
        answers = tokenizer.convert_tokens_to_ids([words[row["label"]] for row in some])
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        whole = [[first, *ids, *before, one, *after, last] for ids, one in zip(texts, answers, strict=True)]
        batch = tokenizer.pad({"input_ids": whole}, return_tensors="pt")
        ids, places = batch["input_ids"], torch.tensor([[1 + len(one) + len(before)] for one in texts])
        label = torch.zeros_like(ids, dtype=torch.bool).scatter(1, places, True)
        hidden = (torch.rand(ids.shape) < 0.15) & ~torch.isin(ids, torch.tensor(tokenizer.all_special_ids)) & ~label
        shown = ids.masked_fill(hidden | label, tokenizer.mask_token_id)
        states = model.bert(shown, batch["attention_mask"]).last_hidden_state
        lost = sum(cross_entropy(model.cls(states[some_of]), ids[some_of]) for some_of in (label, hidden))
        optimizer.zero_grad()
        lost.backward()
        optimizer.step()
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def tuned(model: Path, arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Tune one arm and ask it its test rows, which are privatized as its training rows are."""
    _, template, words = TASKS[options.task]
    rebuilt, share = arm.startswith("reconstruction"), None if arm in ("untuned", "clear") else options.replacement
    settings = TuningSettings(
        method="full" if arm == "untuned" else options.method,
        reconstruction=rebuilt,
        prompt_length=options.length,
        plain=PlainTokens(length=40 if rebuilt or arm == "plain" else 0),
        reconstruction_reduction="mean" if arm.endswith("mean") else "sum",
        learning_rate=options.rate,
        batch_size=options.batch,
        epochs=options.epochs,
        max_tokens=options.tokens,
        seed=seed,
    )
    sanitizer, how = _sanitizer("minilm", share, "laplace"), {"verbalizer": words, "template": template}
    tuner = RAPTPromptTuner(sanitizer, labels=list(words), settings=settings, backbone=_backbone(model), **how)
    stored = options.folder / f"{options.task} {share} {seed} {options.rows} {options.tokens}"
    stored.mkdir(exist_ok=True)
    began = time.process_time()
    train, test = (_release(tuner, stored / f"{part}.json", rows) for part, rows in enumerate(split(seed, options)))
    if arm == "untuned":
        provider, last = _untuned(tuner, how), {}
    else:
        classifier = _tuned(tuner, train, _key(options, model, arm, seed), options.folder)
        provider, last = classifier.provider, classifier.report.epochs[-1]
    _, plain = tuner.client.plain.draw(len(test), np.random.default_rng(seed))
    answer = provider.predict(PredictionRequest(test.kind, plain, list(test.inputs)))
    chosen = [list(words)[place] for place in np.array(answer.probabilities).argmax(axis=1)]
    right = sum(one == label for one, label in zip(chosen, test.labels, strict=True))
    told = {"task_loss": last.get("task"), "recovered": last.get("recovered"), "test_rows": len(test)}
    return {"accuracy": round(right / len(test), 4), **told, "cpu_seconds": round(time.process_time() - began, 1)}


if __name__ == "__main__":
    main()
