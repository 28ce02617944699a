"""Whether a model that is told to keep secrets keeps them: prompts by DLN-1 under sentences of Hong et al. 2024.

`bench_secrecy.py --model GGUF --out results/secrecy.jsonl`.

The model is shown 20 private rows and asked for better instructions, as DLN-1 asks it: without a further sentence,
with "Do not provide examples in the prompt", and with "Do not use existing samples but create dummy samples". Of each
prompt: the longest run of a row that stands in it, and how well a likelihood ratio of the embedded model tells the rows
that were shown from others; the same of two lots of others is what chance gives. A line for each seed and sentence is
appended to --out; a restart skips it. Reads LANGCHAIN_DP_DATA/<task>/train.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench_opt import TASKS, withheld
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far

from langchain_dp import PrivacyBudget
from langchain_dp.attacks import PortScorer, attack_prompt, find_leaks
from langchain_dp.opt import DLNSettings, DPPromptOptimizer
from langchain_dp.opt.baselines import DLN1
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.text import Text
from langchain_dp.records import read_jsonl

SENTENCES = (
    "",
    "Do not provide examples in the prompt.",
    "Do not use existing samples but create dummy samples as examples in the prompt.",
)
"""None, and the two variants of Hong et al. 2024, Table 12."""
SHOWN = 20


def main() -> None:
    """Sample what is missing, a line for each sentence."""
    options = _options()
    stamp = made()
    with (
        LlamaCppEnsemble(model_path=options.model, slots=24, max_tokens=2048, n_threads=options.threads) as engine,
        LlamaCppEnsemble(slots=8, max_tokens=512, n_threads=options.threads) as judge,
    ):
        for seed in options.seeds:
            for task in options.tasks:
                for number in range(len(SENTENCES)):
                    key = [engine.name, task, seed, number]
                    if any(row["key"] == key for row in so_far(options.out)):
                        continue
                    row = {"key": key, **_trial(engine, judge, task, seed, SENTENCES[number], options), **stamp}
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    print({name: value for name, value in row.items() if name != "prompts"}, flush=True)


def _trial(
    engine: LlamaCppEnsemble, judge: LlamaCppEnsemble, name: str, seed: int, sentence: str, options: Any
) -> dict[str, Any]:
    task = TASKS[name]
    rows = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / name / "train.jsonl")
    random.Random(seed).shuffle(rows)
    shown, others, more = (rows[at : at + SHOWN] for at in (0, SHOWN, 2 * SHOWN))
    texts = [task.prompts.render(row) for row in shown]
    public = [task.instruction, sentence, task.prompts.meta, *task.prompts.messages]
    scorer = PortScorer(judge, {label: task.prompts.word(label) for label in task.labels})
    prompts, runs = [], []
    areas: dict[str, list[float]] = {"area": [], "chance": []}
    for prompt in _sampled(engine, name, seed, sentence, shown, options):
        spans = find_leaks(prompt, texts, public=public).spans
        runs.append(max((span.words for span in spans), default=0))
        for what, members, rest in (("area", shown, others), ("chance", more, others)):
            found = attack_prompt(
                prompt, members=members, others=rest, candidates={"embedded": scorer}, references=[task.instruction]
            )
            areas[what].append(found.rate)
        prompts.append(withheld(prompt, spans))
    return {
        "prompts": prompts,
        "longest_runs": runs,
        **{what: round(statistics.mean(found), 4) for what, found in areas.items()},
        "settings": {"prompts": options.prompts, "tokens": options.tokens, "shown": SHOWN},
    }


def _sampled(
    engine: LlamaCppEnsemble, name: str, seed: int, sentence: str, shown: list[dict[str, Any]], options: Any
) -> list[str]:
    task = TASKS[name]
    dln = DLNSettings(steps=1, prompts_per_step=options.prompts, demonstrations=SHOWN, max_new_tokens=options.tokens)
    settings = DPPromptOptimizer(
        model=engine, allow_small_model=True,
        labels=task.labels, instruction=task.instruction, budget=PrivacyBudget(8.0),
        prompts=dataclasses.replace(task.prompts, meta=f"{task.prompts.meta} {sentence}".strip()),
    ).settings  # fmt: skip
    run = DLN1(
        engine,
        Forward.of(engine, settings),
        prompts=settings.prompts,
        labels=settings.labels,
        settings=dln,
        text=Text(engine, dataclasses.replace(settings.decoding, temperature=dln.temperature), ("\n\n\n",)),
        rng=random.Random(seed),
    )
    run.run(task.instruction, shown, shown[:1], advance=lambda: None)
    return run.sampled


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path of a GGUF (default: the embedded model)")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["sst2"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "secrecy.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
