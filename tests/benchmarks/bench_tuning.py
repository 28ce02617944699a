"""Prompt tuning on privatized text against its baselines, on real SST-2: `make bench-tuning`.

Reads LANGCHAIN_DP_DATA/sst2/{train,dev,test}.jsonl. Four arms: texts in clear ("clear"), privatized only
("privatized"), privatized behind plain tokens without L_rec ("plain"), and with it ("reconstruction"). Two more where
they are named, with --backbone: reconstruction on texts in clear ("reconstruction in clear"), and a model that is not
tuned at all ("untuned", on privatized texts, and "untuned in clear"). Under one seed all arms train on the same rows,
and the private ones on the same release of them; test texts are privatized too, once a seed. The learning rate of
every arm and method is the one of --rates with the best accuracy on privatized dev rows, found with a seed of its own
at the first of --replacements, and used at all of them. Every finished run is appended to --out, and a restart goes
on in the middle of a run (--minutes stops after so long).

--cost instead measures seconds per step against plain prefix tuning with peft alone, steps of both in turn.
--backbone tunes a model that predicts words (masked_model.py trains one, if the folder is not there): its own frozen
head says which of two words stands behind a text, as in the paper, where the runs without it learn a head.

--ablations instead adds the runs of section 4.5: content, number and length of plain tokens, size and vocabulary of the
head, length of the prefix, reduction of the loss, and other tables for the client.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import math
import os
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from made import made, so_far
from masked_model import TEMPLATE, VERBALIZER, train

from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import (
    Backbone,
    IdentitySanitizer,
    PlainTokens,
    PredictionRequest,
    PrivatizedExamples,
    RAPTClassifier,
    RAPTPromptTuner,
    RAPTProvider,
    TuningSettings,
)
from langchain_dp.rapt.tuning.model import TunedModel
from langchain_dp.rapt.tuning.provider import label_words
from langchain_dp.records import read_jsonl

ARMS = ("clear", "privatized", "plain", "reconstruction")
MORE_ARMS = ("reconstruction in clear", "untuned", "untuned in clear")
IN_CLEAR = ("clear", "reconstruction in clear", "untuned in clear")
LABELS = ["negative", "positive"]
PLAIN_LENGTH = 40
PROMPT_LENGTHS = {"prefix": 10, "prompt": 20}
"""Without --prompt-length, of the methods that have prompts. The paper's have 150 vectors: five times as long."""
ALIKE = ("rows", "tokens", "batch", "epochs", "prompt_length")
"""What two arms must share if one is to be taken from the other."""
TRIAL = 0
"""The seed with which rates are tried: on dev rows, where all others are on test rows."""
CHANGES: dict[str, list[dict[str, Any]]] = {
    "table-5": [{"plain_seed": seed, "choice": "fixed"} for seed in range(1, 6)],
    "figure-4a": [{"choice": "sets", "sets": sets} for sets in (2, 20)],
    "figure-4b": [{"plain_length": length} for length in (10, 20, 60)],
    "figure-4c": [{"head_size": size} for size in (24, 192)],
    "figure-4d": [{"vocabulary": size} for size in (100, 1_000, 15_000)],
    "table-7": [{"prompt_length": length} for length in (40, 100)],
    "reduction": [{"reduction": "sum"}],
    "table-4": [{"table": "glove"}],
}
"""Of section 4.5, by the table or figure they belong to: what differs from the main runs."""


class TimeUp(Exception):
    """The minutes are over."""


def main() -> None:
    """Run what is missing and print the table."""
    options = _options()
    if options.cost:
        cost(options)
        return
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/ (train.jsonl, dev.jsonl and test.jsonl).")
    made()
    options.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _time_up)
    if options.minutes:
        signal.alarm(round(60 * options.minutes))
    try:
        for plan in _plans(options):
            _run(plan, Path(data) / "sst2", options)
    except TimeUp:
        print("time is up: start again to go on", file=sys.stderr)
    _table(so_far(options.out))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["prefix", "prompt"])
    parser.add_argument("--replacements", nargs="+", type=float, default=[0.15, 0.1, 0.3])
    parser.add_argument("--arms", nargs="+", choices=ARMS + MORE_ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rates", nargs="+", type=float, default=[6e-5, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2])
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--dev-rows", type=int, default=872)
    parser.add_argument("--test-rows", type=int, default=1_821)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--choice", choices=["fixed", "sets", "fresh"], default="fresh")
    parser.add_argument("--reduction", choices=["sum", "mean"], default="mean")
    parser.add_argument("--mechanism", choices=["exponential", "laplace"], default="exponential")
    parser.add_argument("--prompt-length", type=int, default=None, help="10 for a prefix, 20 for a prompt")
    parser.add_argument("--backbone", type=Path, help="folder of a model whose own head predicts words")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=list(CHANGES), help="of --ablations")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--steps", type=int, default=20, help="of --cost")
    parser.add_argument("--folder", type=Path, default=Path("bench_tuning"), help="states and stored releases")
    parser.add_argument("--out", type=Path, default=Path("bench_tuning.jsonl"))
    return parser.parse_args()


# ------------------------------------------------------------------------------------------------------ what to run


def _plans(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Settings of every run, in order; those of the chosen rate once the rates were tried."""
    if options.ablations:
        yield from _ablations(options)
        return
    rates = {}
    for method, arm in itertools.product(options.methods, options.arms):
        base = _base(method, arm, options.replacements[0])
        if len(options.rates) > 1:
            for rate in options.rates:
                yield {**base, "seed": TRIAL, "rate": rate}
        rates[method, arm] = _best(options, base)
    for replacement, method, seed in itertools.product(options.replacements, options.methods, options.seeds):
        for arm in options.arms:
            yield {**_base(method, arm, replacement), "seed": seed, "rate": rates[method, arm]}


def _base(method: str, arm: str, replacement: float) -> dict[str, Any]:
    return {"method": method, "replacement": 0.0 if arm in IN_CLEAR else replacement, "arm": arm}


def _best(options: argparse.Namespace, base: dict[str, Any]) -> float:
    """Rate with the best accuracy on dev rows."""
    if len(options.rates) == 1:
        return float(options.rates[0])
    wanted = {**base, **_settings(options, base["method"])}
    tried = [
        row
        for row in so_far(options.out)
        if row["seed"] == TRIAL and row["rate"] in options.rates and wanted.items() <= row["key"].items()
    ]
    return float(max(tried, key=lambda row: row["dev"])["rate"])


def _settings(options: argparse.Namespace, method: str) -> dict[str, Any]:
    """What all runs of a call share."""
    names = ("rows", "tokens", "batch", "epochs", "choice", "reduction", "mechanism")
    length = options.prompt_length or PROMPT_LENGTHS.get(method)
    own = {"backbone": options.backbone.name} if options.backbone else {}
    return {**{name: getattr(options, name) for name in names}, "prompt_length": length, **own}


def _ablations(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    base = {"method": "prefix", "replacement": options.replacements[0], "arm": "reconstruction"}
    for seed in options.seeds:
        for change in (change for name in options.changes for change in CHANGES[name]):
            yield {**base, "seed": seed, "rate": options.rates[0], **change}


# ----------------------------------------------------------------------------------------------------------- one run


def _run(plan: dict[str, Any], data: Path, options: argparse.Namespace) -> None:
    key = {**_settings(options, plan["method"]), **plan}
    if any(row["key"] == key for row in so_far(options.out)):
        return
    arm, seed = plan["arm"], plan["seed"]
    rebuilt = arm.startswith("reconstruction")
    settings = TuningSettings(
        method="full" if arm.startswith("untuned") else plan["method"],
        reconstruction=rebuilt,
        prompt_length=key["prompt_length"],
        plain=PlainTokens(
            length=key.get("plain_length", PLAIN_LENGTH) if rebuilt or arm == "plain" else 0,
            choice=key["choice"],
            sets=key.get("sets", 5),
            vocabulary=key.get("vocabulary", 7_630),
            seed=key.get("plain_seed", 0),
        ),
        head_size=key.get("head_size", 96),
        reconstruction_reduction=key["reduction"],
        learning_rate=plan["rate"],
        batch_size=options.batch,
        epochs=options.epochs,
        max_tokens=options.tokens,
        seed=seed,
    )
    table = key.get("table", "minilm")
    sanitizer = _sanitizer(table, plan["replacement"] or None, options.mechanism)
    words: dict[str, Any] = {}
    if options.backbone:
        train(data.parent, options.backbone)
        words = {"backbone": _backbone(options.backbone), "verbalizer": VERBALIZER, "template": TEMPLATE}
    tuner = RAPTPromptTuner(sanitizer, labels=LABELS, settings=settings, **words)
    stored = options.folder / (
        f"{table} {key['mechanism']} {plan['replacement']} {seed} {options.rows} {options.tokens}"
    )
    stored.mkdir(exist_ok=True)
    part, count = ("dev", options.dev_rows) if seed == TRIAL else ("test", options.test_rows)
    asked = _release(tuner, stored / f"{part}.json", read_jsonl(data / f"{part}.jsonl")[:count])
    began = time.perf_counter()
    if arm.startswith("untuned"):
        provider = _untuned(tuner, words)
        told: dict[str, Any] = {"parameters": 0, "steps": 0}
    else:
        rows = random.Random(seed).sample(read_jsonl(data / "train.jsonl"), options.rows)
        classifier = _tuned(tuner, _release(tuner, stored / "train.json", rows), key, options.folder)
        provider, report = classifier.provider, classifier.report
        assert report is not None
        told = {"train": report.epochs[-1], "parameters": report.parameters, "steps": report.steps}
    row = {
        "key": key,
        **plan,
        part: _accuracy(provider, tuner, asked, seed),
        "eta": tuner.client.eta if plan["replacement"] else None,
        **told,
        "seconds_since_start": round(time.perf_counter() - began, 1),
        **made(),
    }
    shutil.rmtree(options.folder / "state", ignore_errors=True)
    with options.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps({name: value for name, value in row.items() if name != "key"}), flush=True)


def _tuned(tuner: RAPTPromptTuner, train: PrivatizedExamples, key: dict[str, Any], folder: Path) -> RAPTClassifier:
    """The tuned model; a run of the same settings that was interrupted last is gone on with."""
    state, current = folder / "state", folder / "current.json"
    if not current.exists() or json.loads(current.read_bytes()) != key:
        shutil.rmtree(state, ignore_errors=True)
        current.write_text(json.dumps(key))
    return tuner.fit(train, checkpoint=state, checkpoint_every=10, progress=False)


def _untuned(tuner: RAPTPromptTuner, words: dict[str, Any]) -> RAPTProvider:
    """The backbone as it is, its own head for words the classifier."""
    given = copy.deepcopy(tuner.backbone)
    labels = tuple(words.get("verbalizer") or LABELS)
    spoken = label_words(given, labels, words.get("verbalizer"))
    if spoken is None:
        sys.exit("Expected --backbone with the arm 'untuned': without tuning only a head for words can answer.")
    model = TunedModel(given, tuner.settings, labels=len(labels), words=spoken).eval()
    told = {name: words[name] for name in ("verbalizer", "template")}
    return RAPTProvider(model, given, labels=labels, kind=tuner.client.kind, **told)


@functools.cache
def _backbone(folder: Path) -> Backbone:
    return Backbone(folder, words=True)


@functools.cache
def _sanitizer(table: str, replacement: float | None, mechanism: Any) -> RAPTSanitizer | IdentitySanitizer:
    """Calibrated once, or none where texts stay in clear."""
    if replacement is None:
        return IdentitySanitizer(table)
    return RAPTSanitizer(table, target_replacement=replacement, mechanism=mechanism)


def _release(tuner: RAPTPromptTuner, path: Path, rows: list[dict[str, Any]]) -> PrivatizedExamples:
    """One release of rows, the same for all arms of a seed."""
    if path.exists():
        stored = PrivatizedExamples.load(path)
        if len(stored) == len(rows):
            return stored
    released = tuner.privatize(rows)
    released.save(path)
    return released


def _accuracy(provider: Any, tuner: RAPTPromptTuner, examples: PrivatizedExamples, seed: int) -> float:
    assert isinstance(provider, RAPTProvider)
    _, plain = tuner.client.plain.draw(len(examples), np.random.default_rng(seed))
    answer = provider.predict(PredictionRequest(examples.kind, plain, list(examples.inputs)))
    chosen = np.array(answer.probabilities).argmax(axis=1)
    truth = np.array([LABELS.index(label) for label in examples.labels])
    return round(float((chosen == truth).mean()), 4)


def _time_up(number: int, frame: object) -> None:
    raise TimeUp


def _table(rows: Sequence[dict[str, Any]]) -> None:
    """Mean and standard error over seeds, and of the paired gain of reconstruction."""
    groups: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["seed"] != TRIAL:
            name = json.dumps({key: value for key, value in row["key"].items() if key != "seed"})
            groups.setdefault(name, {})[row["seed"]] = row["test"]
    for name, found in groups.items():
        key = json.loads(name)
        print(f"{_mean(list(found.values()))}  {name}")
        if key["arm"] == "reconstruction":
            for other_name, other in groups.items():
                its = json.loads(other_name)
                same = all(its.get(part) == key[part] for part in ("method", "replacement", *ALIKE))
                both = sorted(set(found) & set(other))
                if same and its["arm"] in ("privatized", "plain") and both:
                    print(f"    gain over {its['arm']}: {_mean([found[s] - other[s] for s in both])}")


def _mean(values: list[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):+.4f} (standard error {error:.4f}, {len(values)} seeds)"


# -------------------------------------------------------------------------------------------------------------- cost


def cost(options: argparse.Namespace) -> None:
    """Seconds per step of prefix tuning with and without our parts, on inputs of one shape, in turn."""
    from langchain_dp.rapt.tuning.batches import Batch

    torch.manual_seed(0)
    length = options.tokens + PLAIN_LENGTH + 2
    ids = torch.randint(1_000, 20_000, (options.batch, length))
    attended = torch.ones_like(ids)
    labels = torch.randint(2, (options.batch,))
    targets = torch.randint(7_630, (options.batch, PLAIN_LENGTH))
    places = torch.arange(1, PLAIN_LENGTH + 1).expand(options.batch, -1)
    text = torch.zeros_like(ids, dtype=torch.bool)
    text[:, PLAIN_LENGTH + 1 : -1] = True
    batch = Batch(ids, attended, text, places, torch.full((options.batch,), -1))
    settings = TuningSettings(
        plain=PlainTokens(length=PLAIN_LENGTH),
        reconstruction=True,
        batch_size=options.batch,
        max_tokens=options.tokens,
    )
    ours = TunedModel(Backbone(), settings, labels=2, reconstruct=7_630).train()
    our_optimizer = torch.optim.Adam(ours.learned().values(), lr=1e-4)

    config = peft.PrefixTuningConfig(task_type=peft.TaskType.FEATURE_EXTRACTION, num_virtual_tokens=10)
    plain = peft.get_peft_model(Backbone().model, config).train()
    head = torch.nn.Linear(384, 2)
    own = [p for p in plain.parameters() if p.requires_grad]
    plain_optimizer = torch.optim.Adam([*own, *head.parameters()], lr=1e-4)

    def our_step() -> None:
        our_optimizer.zero_grad()
        ours.losses(batch, labels, targets).total.backward()
        our_optimizer.step()

    def plain_step() -> None:
        plain_optimizer.zero_grad()
        states = plain(input_ids=ids, attention_mask=attended).last_hidden_state
        torch.nn.functional.cross_entropy(head(states.mean(dim=1)), labels).backward()
        plain_optimizer.step()

    times: dict[str, list[float]] = {"ours": [], "peft": []}
    for number in range(options.steps + 2):
        for name, step in (("ours", our_step), ("peft", plain_step)):
            began = time.perf_counter()
            step()
            if number >= 2:
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["ours"], times["peft"], strict=True)]
    print(
        f"batch {options.batch} x {length} tokens, {options.steps} steps each, in turn: ours {medians['ours']:.3f} s, "
        f"peft alone {medians['peft']:.3f} s a step; ratio of medians {medians['ours'] / medians['peft']:.3f}, "
        f"median of ratios {statistics.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
