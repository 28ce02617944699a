"""RAPT under a frozen head: can a prompt tuned on privatized texts use it, and does reconstruction help?

A masked language model answers with its own frozen head, as in the paper. No such model can be had offline. So MiniLM
learns to fill in words of public texts, which end with "It was [MASK]." and the word of their label there. After each
lesson a prefix is tuned on clear rows of the task. When it reaches --goal on other rows, the model is frozen. All arms
of a seed then tune the same rows:

clear                 texts in clear: the check that a prompt can use this model at all
privatized            privatized texts
plain                 privatized behind plain tokens, without their loss
reconstruction sum    with the loss of the plain tokens, summed as in the paper
reconstruction mean   the same, averaged

Each finished arm is one row of --out: task, seed, arm, accuracy, clear (the clear arm's accuracy under this seed) and
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
from bench_tuning import _backbone, _release, _sanitizer, _tuned
from made import made, so_far

from langchain_dp.rapt.tuning import (
    Backbone,
    PlainTokens,
    PredictionRequest,
    RAPTPromptTuner,
    RAPTProvider,
    TuningSettings,
)
from langchain_dp.records import read_jsonl

ARMS = ("clear", "privatized", "plain", "reconstruction sum", "reconstruction mean")
REVIEWS = (masked_model.TEMPLATE, masked_model.VERBALIZER)
NEWS = ("It was about {mask}.", {"World": "politics", "Sports": "sports", "Business": "business", "Technology": "technology"})
TASKS = {"sst2": ("amazon", *REVIEWS), "amazon": ("amazon", *REVIEWS), "agnews": ("agnews", *NEWS)}
"""Task -> the data whose even rows are the public lessons, the sentence and the word of every label."""
TRIAL = 0
"""The seed that decides about lessons, on rows that no arm is tested on."""
LESSON_RATE = 2e-4


def main() -> None:
    """Prepare the model, then run the arms that are missing."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/, amazon/, trustpilot/ and agnews/.")
    made()
    options.folder.mkdir(parents=True, exist_ok=True)
    model = prepared(Path(data), options)
    for seed in options.seeds:
        for arm in options.arms:
            key = {**_settings(options), "task": options.task, "seed": seed, "arm": arm, "model": model.name}
            done = so_far(options.out)
            if any(row["key"] == key for row in done):
                continue
            measured = tuned(Path(data), model, arm, seed, options)
            same = {**key, "arm": "clear"}
            clear = measured["accuracy"] if arm == "clear" else None
            clear = next((row["accuracy"] for row in done if row["key"] == same), clear)
            row = {"task": options.task, "seed": seed, "arm": arm, **measured, "clear": clear, "key": key, **made()}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({name: value for name, value in row.items() if name != "key"}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="sst2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--method", choices=["prefix", "prompt"], default="prefix")
    parser.add_argument("--length", type=int, default=10, help="vectors (default: %(default)s; a prompt of the paper: 150)")
    parser.add_argument("--rate", type=float, default=0.01, help="of every arm (default: %(default)s)")
    parser.add_argument("--replacement", type=float, default=0.5, help="share of words replaced (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--test-rows", type=int, default=1_821)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--word-steps", type=int, default=0, help="of masked_model.py before the first lesson")
    parser.add_argument("--lessons", type=int, default=8, help="at most (default: %(default)s)")
    parser.add_argument("--lesson-steps", type=int, default=200, help="batches of a lesson (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=0.78, help="of the clear arm on dev rows (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("bench_frozen_head"), help="models, states and releases")
    parser.add_argument("--out", type=Path, default=Path("rapt_frozen.jsonl"))
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    names = ("method", "length", "rate", "replacement", "rows", "test_rows", "tokens", "batch", "epochs")
    return {name: getattr(options, name) for name in names}


def split(data: Path, task: str, seed: int, options: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Rows to tune on and to be asked. Even rows of a file that gave lessons are public, and in neither part."""
    rows = read_jsonl(data / task / "train.jsonl")
    rows = rows[1::2] if TASKS[task][0] == task else rows
    random.Random(seed).shuffle(rows)
    if seed == TRIAL:
        return rows[: options.rows], rows[options.rows : options.rows + 500]
    return rows[: options.rows], read_jsonl(data / task / "test.jsonl")[: options.test_rows]


# ---------------------------------------------------------------------------------------------------------- the model


def prepared(data: Path, options: argparse.Namespace) -> Path:
    """The folder of the first model that a prompt can use in clear; exits where no lesson was enough."""
    folder = options.folder / f"{options.word_steps} steps, no lesson"
    if options.word_steps:
        masked_model.train(data, folder, options.word_steps)
    log = options.folder / "lessons.jsonl"
    for lesson in range(options.lessons + 1):
        if lesson or not options.word_steps:
            folder = taught(data, folder, lesson, options)
        key = {**_settings(options), "task": options.task, "model": folder.name}
        row = next((row for row in so_far(log) if row["key"] == key), None)
        if row is None:
            row = {"key": key, **tuned(data, folder, "clear", TRIAL, options)}
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(f"{folder.name}: {row['accuracy']:.1%} in clear, task loss {row['task_loss']:.3f}", flush=True)
        if row["accuracy"] >= options.goal:
            return folder
    sys.exit(f"No prompt reached {options.goal:.0%} in clear after {options.lessons} lessons. Raise --lessons or --rows.")


def taught(data: Path, folder: Path, lesson: int, options: argparse.Namespace) -> Path:
    """The model after one more lesson: it fills in words of public texts, and the word of their label behind them."""
    source, template, words = TASKS[options.task]
    size = (options.lesson_steps, options.batch, options.tokens)
    out = options.folder / f"{options.word_steps} steps, {source} {lesson} of {size[0]} x {size[1]} x {size[2]}"
    if (out / "config.json").exists():
        return out
    known = (folder / "config.json").exists()
    backbone = _backbone(folder) if known else Backbone("minilm")
    model = copy.deepcopy(backbone.model) if known else masked_model.untrained(backbone)
    tokenizer = backbone.tokenizer
    rows = read_jsonl(data / source / "train.jsonl")[::2]
    random.Random(lesson).shuffle(rows)
    torch.manual_seed(lesson)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=LESSON_RATE)
    mask, ending = tokenizer.mask_token_id, backbone.encode(template.split("{mask}")[0])
    for step in range(options.lesson_steps):
        some = [rows[(step * options.batch + place) % len(rows)] for place in range(options.batch)]
        texts = [" ".join(filter(None, (row.get("title"), row["text"]))) for row in some]
        cut = [backbone.encode(text)[: options.tokens] for text in texts]
        answers = tokenizer.convert_tokens_to_ids([words[row["label"]] for row in some])
        whole = [[tokenizer.cls_token_id, *ids, *ending, answer, *backbone.encode("."), tokenizer.sep_token_id]
                 for ids, answer in zip(cut, answers, strict=True)]  # fmt: skip
        batch = tokenizer.pad({"input_ids": whole}, return_tensors="pt")
        ids, places = batch["input_ids"], torch.tensor([1 + len(one) + len(ending) for one in cut])
        hidden = (torch.rand(ids.shape) < 0.15) & ~torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
        labels = torch.zeros_like(hidden).scatter(1, places[:, None], True)
        states = model.bert(ids.masked_fill(hidden | labels, mask), batch["attention_mask"]).last_hidden_state
        cross = torch.nn.functional.cross_entropy
        lost = [cross(model.cls(states[some]), ids[some]) for some in (labels, hidden & ~labels)]
        optimizer.zero_grad()
        (lost[0] + lost[1]).backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"lesson {lesson}, step {step}: labels {lost[0].item():.2f}, words {lost[1].item():.2f}", flush=True)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


# ------------------------------------------------------------------------------------------------------------ one arm


def tuned(data: Path, model: Path, arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Tune one arm and ask it its test rows, which are privatized as its training rows are."""
    _, template, words = TASKS[options.task]
    rebuilt, share = arm.startswith("reconstruction"), None if arm == "clear" else options.replacement
    settings = TuningSettings(
        method=options.method,
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
    tuner = RAPTPromptTuner(
        _sanitizer("minilm", share, "laplace"), labels=list(words), settings=settings, backbone=_backbone(model),
        verbalizer=words, template=template,
    )  # fmt: skip
    rows, asked = split(data, options.task, seed, options)
    stored = options.folder / f"{options.task} {share} {seed} {options.rows} {options.tokens}"
    stored.mkdir(exist_ok=True)
    began = time.perf_counter()
    train, test = (_release(tuner, stored / f"{name}.json", part) for name, part in (("train", rows), ("test", asked)))
    key = {**_settings(options), "arm": arm, "seed": seed, "model": model.name, "task": options.task}
    classifier = _tuned(tuner, train, key, options.folder)
    assert isinstance(classifier.provider, RAPTProvider)
    assert classifier.report is not None
    _, plain = tuner.client.plain_rows(len(test), np.random.default_rng(seed))
    answer = classifier.provider.predict(PredictionRequest(test.kind, plain, list(test.inputs)))
    chosen = [list(words)[place] for place in np.array(answer.probabilities).argmax(axis=1)]
    right = sum(one == label for one, label in zip(chosen, test.labels, strict=True))
    last = classifier.report.epochs[-1]
    return {
        "accuracy": round(right / len(test), 4),
        "test_rows": len(test),
        "task_loss": round(last["task"], 4),
        "recovered": round(last["recovered"], 4),
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    main()
