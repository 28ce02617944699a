"""What a local model writes when DP-OPT asks it for a better instruction, on public rows.

`bench_wording.py --tasks trec`.

Votes of a few subsets without noise (method "opt"): what is asked for is on trial, not the noise. Printed, and appended
to --out: every candidate with why it would be dropped, and the share that repeats the request. Reads
LANGCHAIN_DP_DATA/<task>/train.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far

from langchain_dp import PrivacyBudget
from langchain_dp.opt import Decoding, DPPromptOptimizer, optimize_with_opt
from langchain_dp.opt.templates import TASKS
from langchain_dp.records import read_jsonl

ECHO = "it repeats the request"
LONGEST = 200
"""Characters of a row: long ones say more of the model's context than of the wording."""


def trial(task: str, options: argparse.Namespace) -> dict[str, object]:
    """One task's candidates, as a row."""
    known = TASKS[task]
    found = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / task / "train.jsonl")
    rows = [{"text": row["text"], "label": str(row["label"])} for row in found if len(row["text"]) < LONGEST]
    random.Random(options.seed).shuffle(rows)
    needed = round(options.subsets * options.shots / 0.9) + 2
    began = time.monotonic()
    with LlamaCppEnsemble(model_path=options.model, slots=24, max_tokens=640, cache_bytes=2**32) as engine:
        optimizer = DPPromptOptimizer(
            model=engine,
            allow_small_model=True,
            budget=PrivacyBudget(8.0),
            labels=known.labels,
            instruction=known.instruction,
            prompts=known.prompts,
            shots=options.shots,
            subsets=options.subsets,
            num_prompts=4,
            max_new_tokens=options.tokens,
            decoding=Decoding(chat=False if options.no_chat else None),
        )
        prompt = optimize_with_opt(optimizer, rows[:needed])
        name = engine.name
    candidates = [{"text": each.text, "dropped": each.dropped} for each in prompt.candidates]
    return {
        "task": task,
        "model": name,
        "chat": not options.no_chat,
        "requests": list(known.prompts.messages),
        "seed": options.seed,
        "shots": options.shots,
        "subsets": options.subsets,
        "tokens": options.tokens,
        "candidates": candidates,
        "echoes": sum(each["dropped"] == ECHO for each in candidates) / len(candidates),
        "chosen": prompt.instruction,
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["sst2", "trec", "mpqa", "disaster"])
    parser.add_argument("--model", help="GGUF (default: the embedded model)")
    parser.add_argument("--no-chat", action="store_true", help="continue plain text, without the chat template")
    parser.add_argument("--shots", type=int, default=3)
    parser.add_argument("--subsets", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file of rows to append to; finished ones are skipped")
    options = parser.parse_args()
    model = "embedded" if options.model is None else Path(options.model).stem
    done = {
        (row["asked"], row["task"], row["chat"], row["seed"]) for row in (so_far(options.out) if options.out else [])
    }
    stamp = made()
    for task in options.tasks:
        if (model, task, not options.no_chat, options.seed) in done:
            continue
        row = {"asked": model, **trial(task, options), **stamp}
        print(f"{task}, {row['model']}: {row['echoes']:.0%} repeat the request, {row['seconds']} s")
        for each in row["candidates"]:
            print(f"  {each['text']!r}{' (dropped: ' + each['dropped'] + ')' if each['dropped'] else ''}", flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
