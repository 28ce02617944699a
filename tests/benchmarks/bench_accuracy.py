"""Accuracy of DP-ICL against its baselines on public data sets: `make bench-accuracy`.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. For every question the subsets vote once; the same votes are then
counted without noise and released many times at each epsilon, as the paper does (100 runs of the noise). What is
printed is thus the expected accuracy over the noise. A seed chooses the questions. Every finished arm (task, seed,
shots, subsets) is appended to the results file, and a restart skips it.

With --together K every K questions are asked of one draw of the subsets, whose examples are then read once. Every
question still meets subsets that were drawn by the coins of a release, so no expectation changes; but questions that
share a draw share its luck, and the standard error is taken over draws. The library itself draws for every question.

Every method is also counted without calibration ("uncalibrated": the paper's own argmax). "balanced" is one prompt of
as many examples as a subset has, of all labels alike: few-shot prompting without any privacy. What is kept beside the
accuracies: the share of the subsets that agree with the winner, and how often each label has the most votes.

With --fewer-rows the same votes are also released under the noise that fewer private rows ask for, at epsilon .5, 1 and
3: subsets of a random choice of the rows are subsets of all rows, but each row is asked more often.

With --thin the votes are counted again as if fewer subsets had been asked: subsets are asked by independent coins, so
keeping each vote by a coin of its own gives what a lower rate would have given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coded import CODED, not_long
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from remembering import Calibrating
from tqdm import tqdm

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.accounting import NoisyMaxEvent, calibrate_noisy_max
from langchain_dp.icl import AGNEWS, AMAZON, SST2, TREC, ICLPrompt, ModelCallOptions
from langchain_dp.icl.subset_prompts import SubsetPrompt
from langchain_dp.icl.voters import EngineVoter
from langchain_dp.mechanisms import ReportNoisyMax

TOPICS = ICLPrompt(
    instruction="Sort the articles into folder A, B, C or D.",
    question="Article: {text}",
    answer="Folder:",
    words=dict(zip(CODED["agnews"].labels, "ABCD", strict=True)),
)
"""The news topics under codes that no model knows, as the categories of tickets are."""
NAMES = {"World": "politics", "Sports": "sports", "Business": "business", "Technology": "technology"}
"""What the 1.5B model wrote of these topics under codes, at epsilon 3 (synth.jsonl) and at 1 (codes.jsonl)."""
NAMED = ICLPrompt(
    instruction="Sort the articles into folders.", question="Article: {text}", answer="Folder:", words=NAMES
)
"""The same codes, answered by the names that were written of them first, from a budget of its own."""
MPQA = ICLPrompt(
    instruction="Read the phrase, then choose whether its opinion is negative or positive.",
    question="Phrase: {text}",
    answer="Opinion:",
)
KINDS = ICLPrompt(
    instruction="Sort the questions into folder A, B, C, D, E or F.",
    question="Question: {text}",
    answer="Folder:",
    words=dict(zip(CODED["trec"].labels, "ABCDEF", strict=True)),
)
REVIEWS = ICLPrompt(
    instruction="Sort the reviews into folder A or B.",
    question="Review: {text}",
    answer="Folder:",
    words=dict(zip(CODED["trustpilot"].labels, "AB", strict=True)),
)
TASKS = {"sst2": SST2, "mpqa": MPQA, "trec": TREC, "agnews": AGNEWS, "amazon": AMAZON, "coded": TOPICS, "named": NAMED,
         "coded trec": KINDS, "coded trustpilot": REVIEWS}  # fmt: skip
FOLDERS = {"coded": "agnews", "named": "agnews", "coded trec": "trec", "coded trustpilot": "trustpilot"}
MAX_TOKENS = {"sst2": 512, "mpqa": 256, "trec": 384, "agnews": 1280, "amazon": 2048, "coded": 1280, "named": 1280,
              "coded trec": 384, "coded trustpilot": 1280}  # fmt: skip
"""Of four examples; half for the question, half for head and examples."""
TRAINED_ON = 2048
EPSILONS = (1.0, 2.0, 3.0, 8.0)
NOISE_RUNS = 100
SETTINGS = ("rows", "questions", "together", "queries", "more_queries", "thin", "delta")


def main() -> None:
    """Print one row per task and method."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with a folder for every task (train.jsonl and test.jsonl each).")
    made()
    done = so_far(options.out)
    for task, seed in ((task, seed) for task in options.tasks for seed in options.seeds):
        key = {"task": task, "seed": seed, "shots": options.shots, "subsets": options.subsets}
        key |= {name: getattr(options, name) for name in SETTINGS}
        key |= {"model": options.model and Path(options.model).name}
        row = next((row for row in done if row["key"] == key), None)
        if row is None:
            started = time.perf_counter()
            row = {"key": key, **_arm(Path(data) / FOLDERS.get(task, task), task, seed, options)}
            row |= {"seconds": round(time.perf_counter() - started, 1), **made()}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{task}: {row['seconds']:.0f} s", file=sys.stderr)
        for line in row["methods"]:
            print(json.dumps({"task": task, "seed": seed, **line, "subsets": row["groups"]}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["sst2", "trec", "agnews"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--together", type=int, default=1, help="questions that share a draw (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--more-queries", type=int, nargs="+", default=[], help="noise for these at epsilon 3 as well")
    parser.add_argument("--thin", type=int, nargs="+", default=[], help="fewer subsets to count, at epsilon 3 as well")
    parser.add_argument("--fewer-rows", type=int, nargs="+", default=[], help="noise as for so many private rows")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--subsets", type=int, default=10)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--cache-gib", type=float, default=1.0, help="for caches of subsets (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="default: measured at start-up")
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--out", type=Path, default=Path("bench_accuracy.jsonl"))
    return parser.parse_args()


def _arm(folder: Path, task: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracy of every method on the questions of one seed."""
    train = not_long(folder.name, folder / "train.jsonl")[: options.rows]
    test = not_long(folder.name, folder / "test.jsonl")
    test = random.Random(seed).sample(test, min(options.questions, len(test)))
    labels = sorted({row["label"] for row in train})
    with LlamaCppEnsemble(
        model_path=options.model,
        max_tokens=min(TRAINED_ON, MAX_TOKENS[task] * math.ceil(options.shots / 4)),
        slots=14,
        cache_bytes=round(options.cache_gib * 2**30),
        n_threads=options.threads,
    ) as engine:
        chain = DPICLClassifier(
            model=engine,
            examples=train,
            labels=labels,
            budget=PrivacyBudget(EPSILONS[0], options.delta),
            max_queries=options.queries,
            shots=options.shots,
            subsets=options.subsets,
            prompt=TASKS[task],
        )
        noise = _noise(chain.scheme.sampling_probability, options)
        noise |= _noise_of_fewer([*options.fewer_rows, len(train)] if options.fewer_rows else [], options)
        once = Calibrating(engine)
        voters = {"": _voter(chain, once, calibrate=True), ", uncalibrated": _voter(chain, once, calibrate=False)}
        hits: dict[str, list[list[float]]] = {}
        agreement: list[float] = []
        winners = dict.fromkeys(labels, 0)
        drawn: list[SubsetPrompt] = []
        for number, row in enumerate(tqdm(test, desc=f"{task}, seed {seed}", unit="question")):
            if new := number % options.together == 0:
                drawn = chain._subset_prompts.draw("")
                (alike,) = chain._subset_prompts.balanced("", random.Random(f"{seed} {number}"))
                plain = [dataclasses.replace(alike, member=("balanced", number)), SubsetPrompt(None, (), "")]
            asked = chain._checked_question({name: row[name] for name in chain.prompt.variables})
            truth = labels.index(row["label"])
            for suffix, voter in voters.items():
                everyone = [dataclasses.replace(each, question=asked) for each in (*drawn, *plain)]
                *votes, balanced, zero = voter.ask(everyone, even_empty=True)
                cast = [vote for each, vote in zip(drawn, votes, strict=True) if each.shots and vote is not None]
                found = {"zero-shot": float(zero == truth), "balanced": float(balanced == truth)}
                found |= _answers(cast, truth, labels, noise)
                for method, value in found.items():
                    draws = hits.setdefault(method + suffix, [])
                    if new:
                        draws.append([])
                    draws[-1].append(value)
                if not suffix:
                    counts = _counted(cast, labels)
                    winners[labels[_most(counts)]] += 1
                    agreement.append(max(counts) / max(sum(counts), 1))
        return {
            "methods": [
                _line(method, draws, noise.get(method.partition(", unc")[0], {})) for method, draws in hits.items()
            ],
            "agreement": round(statistics.fmean(agreement), 4),
            "winners": winners,
            "groups": chain.scheme.groups,
            "train_rows": len(train),
            "sampling_probability": chain.scheme.sampling_probability,
            "engine": engine.name,
        }


def _noise(rate: float, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Method -> epsilon, number of queries, share of the votes that is counted, scale of the noise."""
    wanted = [(f"dp-icl {value:g}", value, options.queries, options.subsets) for value in EPSILONS]
    wanted += [(f"dp-icl 3, {number} queries", 3.0, number, options.subsets) for number in options.more_queries]
    wanted += [(f"dp-icl 3, {number} subsets", 3.0, options.queries, number) for number in options.thin]
    return {
        method: {
            "epsilon": value,
            "queries": queries,
            "share": subsets / options.subsets,
            "sigma": calibrate_noisy_max(
                PrivacyBudget(value, options.delta),
                queries=queries,
                sampling_probability=rate * subsets / options.subsets,
            ),
        }
        for method, value, queries, subsets in wanted
    }


def _noise_of_fewer(counts: Sequence[int], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The same for fewer private rows."""
    return {
        f"dp-icl {value:g}, {count} rows": {
            "epsilon": value,
            "queries": options.queries,
            "share": 1.0,
            "rows": count,
            "sigma": calibrate_noisy_max(
                PrivacyBudget(value, options.delta),
                queries=options.queries,
                sampling_probability=min(1.0, options.subsets / (count // options.shots)),
            ),
        }
        for count in counts
        for value in (0.5, 1.0, 3.0)
    }


def _voter(chain: DPICLClassifier, engine: Calibrating, *, calibrate: bool) -> EngineVoter:
    """Votes as the chain casts them, and by the label scores as they are."""
    words = [chain.prompt.word(label) for label in chain.labels]
    return EngineVoter(
        engine, prompt=chain.prompt, words=words, calibrate=calibrate, keep_caches=True, model_calls=ModelCallOptions()
    )  # fmt: skip


def _answers(
    votes: Sequence[int], truth: int, labels: Sequence[str], noise: dict[str, dict[str, Any]]
) -> dict[str, float]:
    """Whether each method answers one question right from these votes, or how often."""
    counts = _counted(votes, labels)
    found = {"single votes": counts[truth] / max(sum(counts), 1), "vote": float(_most(counts) == truth)}
    for method, how in noise.items():
        won, mechanism = 0, ReportNoisyMax(NoisyMaxEvent(how["sigma"]))
        for _ in range(NOISE_RUNS):
            counts = _counted(_thinned(votes, how["share"]), labels)
            won += mechanism.release(counts).winner == truth
        found[method] = won / NOISE_RUNS
    return found


def _thinned(votes: Sequence[int], share: float) -> list[int]:
    """Every vote with this probability."""
    return [vote for vote in votes if share == 1 or random.random() < share]


def _counted(votes: Sequence[int], labels: Sequence[str]) -> list[int]:
    return [votes.count(label) for label in range(len(labels))]


def _most(counts: Sequence[int]) -> int:
    """The label with most votes, ties to the smaller one."""
    return max(range(len(counts)), key=lambda i: (counts[i], -i))


def _line(method: str, draws: Sequence[Sequence[float]], how: dict[str, Any]) -> dict[str, Any]:
    values = [value for draw in draws for value in draw]
    mean, error = statistics.fmean(values), _standard_error(draws)
    found = {"method": method, "accuracy": round(mean, 4), "standard_error": round(error, 4), "n": len(values)}
    return {**found, "sigma": None, **how}


def _standard_error(draws: Sequence[Sequence[float]]) -> float:
    """Of the mean over all values, from how the sums of the draws scatter; 0 for a single draw."""
    if len(draws) == 1:
        return 0.0
    values = [value for draw in draws for value in draw]
    mean = statistics.fmean(values)
    squares = sum((sum(draw) - mean * len(draw)) ** 2 for draw in draws)
    return math.sqrt(squares * len(draws) / (len(draws) - 1)) / len(values)


if __name__ == "__main__":
    main()
