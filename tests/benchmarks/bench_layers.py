"""What tuning does to representations: layer by layer, and to a private attribute (RAPT, Figures 3b, 3c, 5 and 6).

Reads LANGCHAIN_DP_DATA/sst2/{train,test}.jsonl and LANGCHAIN_DP_DATA/trustpilot/{train,test}.jsonl. Under each seed
MiniLM is tuned on the same 2,000 rows of SST-2 three times: on texts in clear, on privatized ones, and on privatized
ones with reconstruction, at the rates that bench_tuning found and in its other settings. Then

- test rows of SST-2 are shown to all three, each as it was tuned, and how far apart the same texts lie is measured in
  every layer, in the plane of the two greatest principal components;
- reviews are shown, and a network that was trained on the last layer of others guesses the gender of their authors;
- with --map, the last layer of some of these reviews is laid out in the plane by t-SNE, for a picture.

A seed of a method is one row, appended to --out; a restart skips it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from attribute_inference import infer_attribute
from layers import attribute_map, layer_distances, layer_representations
from made import made, so_far

from langchain_dp.rapt import RAPTSanitizer
from langchain_dp.rapt.tuning import (
    IdentitySanitizer,
    PlainTokens,
    RAPTClassifier,
    RAPTPromptTuner,
    TuningSettings,
)
from langchain_dp.records import read_jsonl

LABELS = ["negative", "positive"]
RATES = {
    "prefix": {"clear": 0.01, "privatized": 0.03, "reconstruction": 0.03},
    "prompt": {"clear": 0.003, "privatized": 0.003, "reconstruction": 0.003},
}
"""Learning rates, as bench_tuning chose them on privatized dev rows."""
PAIRS = (("privatized", "clear"), ("reconstruction", "clear"), ("reconstruction", "privatized"))
MAPPED = 300


def main() -> None:
    """Tune and measure what is missing, a line each."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/ and trustpilot/ (train.jsonl and test.jsonl each).")
    made()
    for method in options.methods:
        for seed in options.seeds:
            key = {"method": method, "replacement": options.replacement, "rows": options.rows, "seed": seed}
            if any(row["key"] == key for row in so_far(options.out)):
                continue
            began = time.perf_counter()
            row = {"key": key, **_measured(Path(data), method, seed, options)}
            row |= {"seconds": round(time.perf_counter() - began, 1), **made()}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({name: value for name, value in row.items() if name != "maps"}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--replacement", type=float, default=0.5, help="share of the words that is replaced")
    parser.add_argument("--rows", type=int, default=2_000, help="training rows, and known reviews")
    parser.add_argument("--asked", type=int, default=500, help="test rows whose layers are compared")
    parser.add_argument("--attacked", type=int, default=1_000, help="reviews whose authors are guessed")
    parser.add_argument("--map", action="store_true", help="also write the layout of some reviews, of the first seed")
    parser.add_argument("--out", type=Path, default=Path("bench_layers.jsonl"))
    return parser.parse_args()


def _measured(data: Path, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    rows = random.Random(seed).sample(read_jsonl(data / "sst2" / "train.jsonl"), options.rows)
    asked = read_jsonl(data / "sst2" / "test.jsonl")
    reviews = read_jsonl(data / "trustpilot" / "train.jsonl")
    random.Random(seed).shuffle(reviews)
    known, others = reviews[: options.rows], reviews[options.rows :]
    attacked = [*read_jsonl(data / "trustpilot" / "test.jsonl"), *others][: options.attacked]
    layers: dict[str, Any] = {}
    row: dict[str, Any] = {"test": {}, "gender": {}, "maps": {}}
    for arm, rate in RATES[method].items():
        classifier = _tuned(method, arm, rate, rows, seed, options)
        request = classifier.client.request([one["text"] for one in asked])
        layers[arm] = layer_representations(classifier.provider, _first(request, options.asked))
        chosen = np.array(classifier.provider.predict(request).probabilities).argmax(axis=1)
        row["test"][arm] = round(float((chosen == [LABELS.index(one["label"]) for one in asked]).mean()), 4)
        last = [_last_layer(classifier, [one["text"] for one in some]) for some in (known, attacked)]
        found = infer_attribute(
            last[0], [one["label"] for one in known], last[1], [one["label"] for one in attacked], attribute="gender"
        )
        figures = found.to_dict()
        row["gender"][arm] = {name: round(figures[name], 4) for name in ("rate", "low", "high", "baseline")}
        if options.map and seed == options.seeds[0]:
            row["maps"][arm] = np.round(attribute_map(last[1][:MAPPED], seed=seed), 2).tolist()
    row["distances"] = {
        f"{one}, {other}": np.round(layer_distances(layers[one], layers[other]), 4).tolist() for one, other in PAIRS
    }
    if row["maps"]:
        row["maps"]["gender"] = [one["label"] for one in attacked[:MAPPED]]
    return row


def _tuned(
    method: str, arm: str, rate: float, rows: list[dict[str, Any]], seed: int, options: argparse.Namespace
) -> RAPTClassifier:
    rebuilt = arm == "reconstruction"
    settings = TuningSettings(
        method=method,  # type: ignore[arg-type]  # one of RATES
        reconstruction=rebuilt,
        prompt_length={"prefix": 10, "prompt": 20}[method],
        plain=PlainTokens(length=40 if rebuilt else 0, choice="fresh"),
        reconstruction_reduction="mean",
        learning_rate=rate,
        batch_size=16,
        epochs=2,
        max_tokens=32,
        seed=seed,
    )
    client = (
        IdentitySanitizer("minilm")
        if arm == "clear"
        else RAPTSanitizer("minilm", target_replacement=options.replacement)
    )
    return RAPTPromptTuner(client, labels=LABELS, settings=settings).fit(rows, progress=False)


def _first(request: Any, count: int) -> Any:
    return type(request)(request.kind, list(request.plain)[:count], list(request.inputs)[:count])


def _last_layer(classifier: RAPTClassifier, texts: list[str]) -> Any:
    return layer_representations(classifier.provider, classifier.client.request(texts))[-1]


if __name__ == "__main__":
    main()
