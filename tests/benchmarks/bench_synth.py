"""What synthetic examples are worth: classifiers and prompts made of them, beside real rows and the public model alone.

Reads LANGCHAIN_DP_DATA/<task>/train.jsonl and test.jsonl. A local model writes examples at several epsilons; with no
private record at all ("public"); and without clip ("unclipped", NOT private). Two readers judge them: logistic
regression on word counts, trained on the examples alone, and the same local model with 16 of them in its prompt. The
labels keep their names, with a description, or stand for nothing ("team A" ..., described by that name).
Every arm is appended to the results file, and a restart skips it; a private one that was
stopped goes on with its next token, by a ledger of its own beside that file. Texts are kept of arms that hold no
private row. With --read another model, which wrote none of them, answers with the examples of all rows in that file.
With --speed one run at epsilon 3 is timed instead, beside its floor: the floating-point operations of the tokens that
the plan expects, at the speed of a large matrix product.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
from coded import not_long, regression
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import keep, made, so_far

from langchain_dp.accounting import ClippedSumRoundEvent, PrivacyBudget
from langchain_dp.ensemble.text_writer import TextWriter
from langchain_dp.mechanisms import ClippedSum, SystemRandomness
from langchain_dp.ports import MemberPrompt
from langchain_dp.synth import DPExampleSynthesizer, SynthesisPrompts

TASKS = {
    "agnews": {
        "World": "world news: politics, wars and events abroad",
        "Sports": "sports news: matches, players and teams",
        "Business": "business news: companies, markets and money",
        "Technology": "science and technology news: software, devices and research",
    },
    "trec": {
        "expression": "a question about what letters stand for",
        "description": "a question about a definition, a reason or a manner",
        "entity": "a question about a thing, an animal or a product",
        "human": "a question about a person or a group",
        "location": "a question about a place",
        "number": "a question about a number, a date or a price",
    },
    "mpqa": {"negative": "a phrase with a negative opinion", "positive": "a phrase with a positive opinion"},
    "trustpilot": {"female": "a review of a shop by a woman", "male": "a review of a shop by a man"},
}
"""The labels, each with a description."""
DELTA = 1e-6
_ARMS = ["none", "real", "public", "3", "8", "1", "unclipped"]


def main() -> None:
    """Write and score what is missing, a line each."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with agnews/ (train.jsonl and test.jsonl).")
    train = not_long(options.task, Path(data) / options.task / "train.jsonl")[: options.rows]
    test = not_long(options.task, Path(data) / options.task / "test.jsonl")
    random.Random(0).shuffle(test)
    if options.read:
        _read(options, train, test)
        return
    engine = LlamaCppEnsemble(
        model_path=options.model,
        slots=options.members + 12,
        max_tokens=2048,
        n_threads=options.threads,
    )
    name = engine.name
    if options.speed:
        _timed(options, engine, train)
        return
    for seed in range(options.seeds):
        for labels in options.labels:
            for arm in options.arms:
                key = [name, options.task, options.rows, options.count, labels, arm, options.members, seed]
                if any(row["key"] == key for row in so_far(options.out)):
                    continue
                began = time.perf_counter()
                examples, kept = _examples(key, engine, train, options)
                seconds = time.perf_counter() - began
                found = {**kept, "seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1)}
                found["kept"] = len(examples)
                found["regression"] = regression(examples, test[:1000])
                found["prompted"] = _prompted(engine, examples, test[: options.asked], options, labels, seed)
                row = {"key": key, **made(), **found}
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                for kept_beside in options.out.parent.glob(f"{_ledger(key, options).name}*"):
                    kept_beside.unlink()
                print(key, found, flush=True)


def _read(options: Any, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> None:
    """Ask another model with the examples of every row of the results, a line each."""
    with LlamaCppEnsemble(model_path=options.read, slots=36, max_tokens=2048, n_threads=options.threads) as engine:
        rows = so_far(options.out)
        for row in rows:
            _, task, size, _, labels, arm, _, seed, *reader = row["key"]
            key = [*row["key"], engine.name]
            if reader or task != options.task or size != options.rows or any(other["key"] == key for other in rows):
                continue
            examples = row.get("texts")
            if arm in ("none", "real"):
                examples, _ = _examples(row["key"], engine, train, options)
            if examples is None:
                continue
            found = {"prompted": _prompted(engine, examples, test[: options.asked], options, labels, seed)}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **made(), **found}) + "\n")
            print(key, found, flush=True)


def _timed(options: Any, engine: LlamaCppEnsemble, train: list[dict[str, Any]]) -> None:
    """Write once and keep how long it took, with the floor and the memory at its highest."""
    made_of = _synthesizer("3", engine, TASKS[options.task], options)
    tokens = made_of.plan(len(train)).tokens
    one = np.ones((2048, 2048), dtype=np.float32)
    products = []
    for _ in range(9):
        began = time.perf_counter()
        one @ one
        products.append(time.perf_counter() - began)
    began = time.perf_counter()
    written = made_of.invoke(train)
    took = time.perf_counter() - began
    parameters = int(engine._context.llama.llama_model_n_params(engine._context._model))
    floor = 2 * parameters * tokens * statistics.median(products) / (2 * 2048**3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    settings = {"model": engine.name, "rows": len(train), "count": options.count, "members": options.members}
    settings |= {"tokens": options.tokens, "threads": engine.n_threads, "load": round(os.getloadavg()[0], 2)}
    figures = {"seconds": took, "floor": floor, "peak": float(peak), "evaluated": tokens, "kept": float(len(written))}
    print(settings, figures)
    keep(options.out, "synth", settings, figures)


def _kinds(task: str, labels: str) -> dict[str, str]:
    """The labels with what the writer is told of each."""
    if labels == "named":
        return TASKS[task]
    return {label: f"a text of {word}" for label, word in _words(task, labels).items()}


def _words(task: str, labels: str) -> dict[str, str]:
    """The labels with the word that stands for each in a prompt."""
    return {
        label: label if labels == "named" else f"team {letter}"
        for label, letter in zip(TASKS[task], "ABCDEF", strict=False)
    }


def _examples(
    key: list[Any], engine: LlamaCppEnsemble, train: list[dict[str, Any]], options: Any
) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Examples of one arm, and what is to be kept of how they came about."""
    *_, named, arm, _, seed = key
    labels = _kinds(options.task, named)
    if arm == "none":
        return [], {}
    if arm == "real":
        rows = random.Random(seed).sample(train, len(train))
        each = options.count // len(labels)
        return [row for label in labels for row in [row for row in rows if row["label"] == label][:each]], {}
    if arm == "public":
        examples = _alone(engine, labels, options)
        return examples, {"texts": examples}
    if arm == "unclipped":
        return _unclipped(engine, train, labels, options), {}
    written = _synthesizer(arm, engine, labels, options, _ledger(key, options)).invoke(train)
    noise = written.certificate.parameters
    kept = {"clip": round(float(noise["clip"]), 3), "dropped": len(written.dropped), "texts": written.rows()}
    return written.rows(), kept


def _ledger(key: list[Any], options: Any) -> Path:
    """What has been written of an arm, until its row is kept."""
    return Path(options.out).parent / ("-".join(map(str, key)) + ".ledger")


def _synthesizer(
    arm: str, engine: LlamaCppEnsemble, labels: dict[str, str], options: Any, ledger: Path | None = None
) -> DPExampleSynthesizer:
    """That of an arm, its epsilon."""
    return DPExampleSynthesizer(
        model=engine, allow_small_model=True,
        labels=labels, count=options.count, budget=PrivacyBudget(float(arm), DELTA),
        members=options.members, max_new_tokens=options.tokens, temperature=options.temperature,
        ledger=ledger,
    )  # fmt: skip


def _alone(engine: LlamaCppEnsemble, labels: dict[str, str], options: Any) -> list[dict[str, str]]:
    """By the public model alone, judged by the same filters; no budget is touched."""
    return _synthesizer("1", engine, labels, options).public_examples().rows()


def _unclipped(
    engine: LlamaCppEnsemble, train: list[dict[str, Any]], labels: dict[str, str], options: Any
) -> list[dict[str, str]]:
    """NOT private."""
    prompts, coins = SynthesisPrompts(), random.SystemRandom()
    noise = ClippedSum(ClippedSumRoundEvent(20.0, options.tokens), options.members, options.temperature)
    writer = TextWriter(engine, prompts.after, noise, candidates=512, chat=False, rng=SystemRandomness())
    examples = []
    for _ in range(options.count // len(labels)):
        for label, description in labels.items():
            rows = [row for row in train if row["label"] == label]
            some = coins.sample(rows, min(options.members, len(rows)))
            bodies = {("plain", row["text"]): prompts.body([row]) for row in some}
            tokens = list(writer.tokens(prompts.described(description), prompts.tail, bodies))
            engine.forget(*bodies)
            examples.append({"text": writer.text(tokens), "label": label})
    return examples


def _prompted(
    engine: LlamaCppEnsemble,
    examples: list[dict[str, str]],
    test: list[dict[str, Any]],
    options: Any,
    labels: str,
    seed: int,
) -> float:
    """Share of test rows that the model gets right with 16 examples, the labels in turn, in its prompt; calibrated."""
    words = _words(options.task, labels)
    turns: list[dict[str, str]] = []
    for turn in range(math.ceil(options.shown / len(words))):
        for label in words:
            turns += [one for one in examples if one["label"] == label][turn : turn + 1]
    random.Random(seed).shuffle(turns)
    head = f"Sort each text. The kinds: {', '.join(words.values())}.\n\n"
    cut = (" ".join(one["text"].split()[:30]) for one in turns)  # real rows are longer than what is written
    head += "".join(f"Text: {text}\nKind: {words[one['label']]}\n\n" for text, one in zip(cut, turns, strict=True))

    def scores(texts: Sequence[str]) -> Any:
        """Scores of the words, (texts, labels); the texts are members, whose last step is one for all of them."""
        prompts = [MemberPrompt(head, f"Text: {text}\n", "Kind:", ("reader", i)) for i, text in enumerate(texts)]
        found = engine.score_labels(prompts, [f" {word}" for word in words.values()])
        engine.forget(*(prompt.member for prompt in prompts))
        return np.array(found)

    prior = np.log(np.mean(np.exp(scores(["N/A", ""])), axis=0))  # of texts without content
    asked = scores([" ".join(row["text"].split()) for row in test]) - prior
    right = sum(list(words)[_largest(row)] == each["label"] for row, each in zip(asked, test, strict=True))
    return round(right / len(test), 4)


def _largest(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda at: (scores[at], -at))


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--read", help="path of a GGUF that is asked with the examples that another wrote")
    parser.add_argument("--speed", action="store_true", help="time one run; give --out results/speed.jsonl")
    parser.add_argument("--task", choices=list(TASKS), default="agnews")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--shown", type=int, default=16, help="examples in a prompt, at least (default: %(default)s)")
    parser.add_argument("--asked", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--labels", nargs="+", default=["named", "coded"])
    parser.add_argument("--arms", nargs="+", default=_ARMS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "synth.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
