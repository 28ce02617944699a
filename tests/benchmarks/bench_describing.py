"""How surely a description says what it would say without noise: `bench_describing.py --model GGUF`.

For each label of AG News and TREC, hidden behind codes, 60 public rows (or as many as there are) are asked what they
have in common, along the words that are likeliest without noise. The law of the mechanism is then computed from the
members' log-probabilities, over 40 lots of as many members as coins would draw, at the noise that DPExampleSynthesizer
has for its descriptions (2,000 rows, 16 texts, delta 1e-6): with a temperature of 0.5 as it stands ("blunt"), with one
that is lower where the clip would be above 5 nats ("sharp"), each with and without the answers of the public examples
among the candidates. Kept: the chance that all labels come out so, and that of the worst one.
Reads LANGCHAIN_DP_DATA/<task>/train.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
from bench_synth import TASKS
from coded import CODED
from langchain_dp.ensemble.describing import answers
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far

from langchain_dp.accounting import ClippedSumRoundEvent, PrivacyBudget
from langchain_dp.ensemble.echo import Echo
from langchain_dp.ensemble.text_writer import TextWriter, public_prompt
from langchain_dp.mechanisms import ClippedSum, SystemRandomness
from langchain_dp.mechanisms.clipped_sum import GRID
from langchain_dp.ports import Continuation, MemberPrompt
from langchain_dp.records import read_jsonl
from langchain_dp.synth import DPExampleSynthesizer, LabelDescriptionOptions, SynthesisPrompts
from langchain_dp.synth.settings import DESCRIBED

MEMBERS, LOTS, WORDS = 60, 40, 2
HOW = {task: CODED[task].describing for task in ("agnews", "trec")}


def main() -> None:
    """Ask each label's rows once, and compute the laws at each epsilon."""
    options = _options()
    stamp = made()
    with LlamaCppEnsemble(model_path=options.model, slots=72, max_tokens=1024, n_threads=options.threads) as engine:
        for task in options.tasks:
            how = dataclasses.replace(HOW[task], max_new_tokens=options.tokens, clip_ratio=options.ratio)
            keys = [[engine.name, task, epsilon, options.tokens, options.ratio] for epsilon in options.epsilons]
            if all(any(row["key"] == key for row in so_far(options.out)) for key in keys):
                continue
            steps = [_asked(engine, task, label) for label in TASKS[task]]
            for key, epsilon in zip(keys, options.epsilons, strict=True):
                row = {"key": key, **_laws(engine, task, how, steps, epsilon), **stamp}
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


def _writer(engine: LlamaCppEnsemble, never: tuple[str, ...]) -> TextWriter:
    noise = ClippedSum(ClippedSumRoundEvent(1.0, 8), MEMBERS)
    return TextWriter(engine, "\n", noise, candidates=512, chat=False, rng=SystemRandomness(), never=Echo(whole=never))


def _asked(engine: LlamaCppEnsemble, task: str, label: str) -> list[dict[str, Any]]:
    """Log-probabilities of each step, with what was likeliest without noise and what may follow."""
    how, prompts = HOW[task], SynthesisPrompts()
    rows = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / task / "train.jsonl")[:2_000]
    there = [row for row in rows if row["label"] == label]
    shown = random.Random(0).sample(there, min(MEMBERS, len(there)))
    head, tail = how.asking("", prompts, chat=False)
    members = [MemberPrompt(head, prompts.body([row]), tail, ("member", i)) for i, row in enumerate(shown)]
    writers = {"": _writer(engine, ()), "never": _writer(engine, answers(how.shown, chat=False))}
    written: tuple[Any, ...] = ()
    steps: list[dict[str, Any]] = []
    while len(steps) < WORDS:
        asked = [Continuation(one, written, 0.0) for one in members]
        scores = engine.score_next_token(Continuation(public_prompt(head, tail), written, 0.0), asked, candidates=512)
        allowed = {name: list(writer._allowed(written, scores.tokens)) for name, writer in writers.items()}
        mean = np.mean([np.asarray(row) for row in scores.members], axis=0)
        best = max(allowed["never"], key=lambda at, mean=mean: mean[at])
        written = (*written, scores.tokens[best])
        if writers[""].ended(written):
            break
        steps.append({"public": np.asarray(scores.public), "members": np.array(scores.members), "best": best})
        steps[-1] |= {"allowed": allowed, "word": engine.detokenize([scores.tokens[best]])}
    engine.forget(*(one.member for one in members))
    print(task, label, [step["word"] for step in steps], flush=True)
    return steps


def _laws(
    engine: LlamaCppEnsemble,
    task: str,
    how: LabelDescriptionOptions,
    labels: list[list[dict[str, Any]]],
    epsilon: float,
) -> dict[str, Any]:
    made_of = DPExampleSynthesizer(
        model=engine, labels=TASKS[task], count=16, budget=PrivacyBudget(epsilon, 1e-6), scheme="rounds",
        max_new_tokens=30, describe=how,
    )  # fmt: skip
    event = made_of.plan(2_000).design.noise_of(DESCRIBED).event
    noises = {"blunt": ClippedSum(event, MEMBERS, 0.5), "sharp": ClippedSum.sharpened(event, MEMBERS, 0.5)}
    found: dict[str, Any] = {
        "said": ["".join(step["word"] for step in steps).strip() for steps in labels],
        "clips": {name: round(noise.clip, 3) for name, noise in noises.items()},
        "temperatures": {name: round(noise.temperature, 3) for name, noise in noises.items()},
    }
    for name, noise in noises.items():
        for allowed in ("", "never"):
            chances = [math.prod(_chance(noise, step, allowed) for step in steps) for steps in labels]
            told = f"{name}, {allowed}" if allowed else name
            found[told] = {"all": round(math.prod(chances), 4), "worst": round(min(chances), 4)}
    return found


def _chance(noise: ClippedSum, step: dict[str, Any], allowed: str) -> float:
    """Chance of the word that is likeliest without noise, the mean over lots of members."""
    kept = step["allowed"][allowed]
    public, members = step["public"][kept], step["members"][:, kept]
    if step["best"] not in kept:
        return 0.0
    moved = np.array([noise._moved(public, row) for row in members])
    weights = np.log(np.array(noise._weights(public), dtype=np.float64))
    rng = np.random.default_rng(0)
    chances = []
    for _ in range(LOTS):
        lot = rng.integers(0, len(members), rng.poisson(MEMBERS))
        exponents = weights + moved[lot].sum(axis=0) * noise.event.epsilon0 / (4 * GRID)
        law = np.exp(exponents - exponents.max())
        chances.append(law[kept.index(step["best"])] / law.sum())
    return float(np.mean(chances))


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--tasks", nargs="+", choices=list(HOW), default=list(HOW))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument(
        "--tokens", type=int, default=LabelDescriptionOptions().max_new_tokens, help="of a description, at most"
    )
    parser.add_argument(
        "--ratio", type=float, default=LabelDescriptionOptions().clip_ratio, help="of its clip to that of the texts"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "describing.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
