"""``langchain-dp optimize``: a prompt written from private rows by a model on this machine, as a file."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_dp._cli_parts import DONE, INTERRUPTED, add_model_options, epilog, formatter, read_off
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerMismatch, PlanError

if TYPE_CHECKING:
    from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
    from langchain_dp.opt import DPPromptOptimizer, OptimizedPrompt, OptPlanReport, OptTask, PromptScore
    from langchain_dp.opt.settings import Settings
    from langchain_dp.ports import VotesNextToken

NEIGHBORS = ("replace-one", "add-or-remove-one", "replace-special")
TASKS = ("sst2", "trec", "mpqa", "disaster")

EXAMPLES = """\
  langchain-dp optimize --data train.jsonl --task sst2 --epsilon 8 --out prompt.json --plan
  langchain-dp optimize --data train.jsonl --task sst2 --epsilon 8 --out prompt.json --test test.jsonl
  langchain-dp optimize --data tickets.jsonl --labels praise complaint --epsilon 8 --out prompt.json \\
      --instruction "Classify the message as praise or complaint." --shots 3 --subsets 48 --prompts 3 --tokens 20
"""

_NOTES = """\
The file holds "prompt", ready for any chat model, and its "certificate". A ledger and the journal of the run lie beside
it. After Ctrl-C, what was released is kept, and the same command goes on; a finished one gives the same prompt again,
at no cost. In messages, num_prompts= is --prompts, max_new_tokens= is --tokens, and name= is --name.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "optimize",
        help="write a prompt from private rows with a model on this machine (DP-OPT)",
        epilog=epilog(EXAMPLES, _NOTES),
        formatter_class=formatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="JSONL of {text, label}: the private rows")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write: the prompt and its certificate")
    task = parser.add_argument_group("task")
    task.add_argument("--task", choices=TASKS, help="labels, instruction, templates, shots and subsets of a known task")
    task.add_argument("--instruction", help="what to start from, public (default: that of --task)")
    task.add_argument("--labels", nargs="+", help="the public labels (default: of --task, or those found in --data)")
    promise = parser.add_argument_group("promise")
    promise.add_argument("--epsilon", type=float, help="the budget; required for the private method")
    promise.add_argument("--delta", type=float, default=1e-5, help="default: %(default)s")
    promise.add_argument("--neighbors", choices=NEIGHBORS, default=NEIGHBORS[0], help="default: %(default)s")
    promise.add_argument("--ledger", type=Path, help="ledger file to charge (default: --out with .ledger)")
    promise.add_argument(
        "--ledger-budget",
        type=float,
        nargs=2,
        metavar=("EPSILON", "DELTA"),
        help="budget of a ledger that several runs share, each under its own --name (default: this run's)",
    )
    promise.add_argument("--name", default="dp-opt", help="name of the run in the ledger (default: %(default)s)")
    promise.add_argument("--seed-not-private", type=int, help="reproducible coins and noise: the result is NOT private")
    run = parser.add_argument_group("run (defaults: those of DPPromptOptimizer)")
    run.add_argument("--method", choices=("dp-opt", "opt", "dln-1"), default="dp-opt", help="the others: NOT private")
    run.add_argument("--shots", type=int, help="examples of one subset")
    run.add_argument("--subsets", type=int, help="expected number of subsets that vote on one token")
    run.add_argument("--partitions", type=int, help="number of all subsets (required for add-or-remove-one)")
    run.add_argument("--sampling-probability", type=float, help="rate of a subset (required for add-or-remove-one)")
    run.add_argument("--prompts", type=int, help="candidates")
    run.add_argument("--tokens", type=int, help="tokens of one candidate")
    run.add_argument("--steps", type=int, help="rounds of dln-1")
    run.add_argument("--temperature", type=float, help="of the votes; 0 is the most probable token")
    run.add_argument("--chat", action="store_true", help="use the model's chat template")
    run.add_argument("--validation", type=float, help="share of the rows that select")
    add_model_options(parser)
    parser.add_argument("--max-tokens", type=int, help="context of one subset, in tokens (default: the engine's)")
    parser.add_argument("--test", type=Path, help="JSONL to score the local model on, before and after")
    parser.add_argument("--plan", action="store_true", help="say what it would cost, and stop: nothing is spent")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from langchain_dp._local_score import check_test
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
    from langchain_dp.records import PrivateRecords, read_jsonl

    _check_out(options.out)
    task, budget = _task(options.task), _budget(options)
    if options.instruction is None and task is None:
        raise InvalidParameter("Expected --instruction to say what the task is: a plain sentence. It is public.")
    rows = read_jsonl(options.data)
    records = PrivateRecords(rows)
    labels = options.labels or (list(task.labels) if task else sorted({str(row["label"]) for row in rows}))
    if options.labels is None and task is None:
        print(f"langchain-dp: {read_off(labels)}", file=sys.stderr)
    test = read_jsonl(options.test) if options.test else []
    sizes = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}
    path = _ledger_path(options)
    with contextlib.ExitStack() as held:
        ledger = held.enter_context(_ledger(path, options)) if path is not None and path.exists() else None
        engine = held.enter_context(
            LlamaCppEnsemble(model_path=options.model, n_gpu_layers=options.gpu_layers, **sizes)
        )
        optimizer = _optimizer(options, engine, task, labels, budget)
        if options.test:
            check_test(test, optimizer.settings)
        if options.plan:
            report = optimizer.plan(records)
            print(json.dumps(_plain(report)) if options.json else report)
            return DONE
        if path is not None:
            if ledger is None:
                optimizer.plan(records)  # what cannot run is refused before there is a ledger that holds its budget
                ledger = held.enter_context(_ledger(path, options))
            optimizer = _optimizer(options, engine, task, labels, budget, ledger)
        try:
            with _explained():
                prompt = optimizer.optimize(records)
        except KeyboardInterrupt:
            print(f"langchain-dp: {_interrupted(optimizer, path)}", file=sys.stderr)
            return INTERRUPTED
        prompt.save(options.out)
        scores = _scores(engine, optimizer.settings, prompt, test)
    _show(prompt, scores, options)
    return DONE


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say in terms of the command what to do about a run that was started otherwise."""
    try:
        yield
    except (BudgetExceeded, LedgerMismatch, PlanError) as error:
        error.args = (
            f"{error} Here: the options it was started with go on with that run; another --out, or --ledger, starts a "
            "new one with a budget of its own.",
        )
        raise


def _check_out(out: Path) -> None:
    """The result must find its place, and nothing but an older result may be replaced: before anything is paid for."""
    from langchain_dp.opt import load_prompt

    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise InvalidParameter(
            f"Expected the folder of --out {out} to be there and writable. Make it, or name another."
        )
    if out.is_dir():
        raise InvalidParameter(f"Expected --out {out} to be a file, but it is a folder. Name a file in it.")
    if out.exists():
        try:
            load_prompt(out)
        except (InvalidParameter, ValueError, TypeError, KeyError, AttributeError):
            raise InvalidParameter(f"Expected --out {out} to be new, or a saved prompt. Name another file.") from None


def _task(name: str | None) -> OptTask | None:
    from langchain_dp import opt

    return None if name is None else getattr(opt, name.upper())


def _budget(options: argparse.Namespace) -> PrivacyBudget | None:
    from langchain_dp.accounting import PrivacyBudget

    if options.epsilon is not None:
        return PrivacyBudget(options.epsilon, options.delta, options.neighbors)
    if options.method == "dp-opt":
        raise InvalidParameter("Expected --epsilon to be given: it is the promise. Usual budgets are 1 to 10.")
    return None


def _ledger_path(options: argparse.Namespace) -> Path | None:
    """File to charge; None where nothing is: a plan, a seeded run, a method that promises nothing."""
    if options.plan or options.method != "dp-opt" or options.seed_not_private is not None:
        return None
    return Path(options.ledger or f"{options.out}.ledger")


def _ledger(path: Path, options: argparse.Namespace) -> PrivacyLedger:
    from langchain_dp.accounting import PrivacyBudget, PrivacyLedger

    epsilon, delta = options.ledger_budget or (options.epsilon, options.delta)
    with _explained():
        return PrivacyLedger(PrivacyBudget(epsilon, delta, options.neighbors), path)


def _optimizer(
    options: argparse.Namespace,
    engine: VotesNextToken,
    task: OptTask | None,
    labels: list[str],
    budget: PrivacyBudget | None,
    ledger: PrivacyLedger | None = None,
) -> DPPromptOptimizer:
    from langchain_dp.opt import DLNSettings, DPPromptOptimizer

    dln = _given(
        steps=options.steps,
        prompts_per_step=options.prompts,
        max_new_tokens=options.tokens,
        temperature=options.temperature,
    )
    return DPPromptOptimizer(
        model=engine,
        labels=labels,
        method=options.method,
        budget=budget,
        ledger=ledger,
        name=options.name,
        chat=options.chat,
        dln=DLNSettings(**dln),
        **_given(
            instruction=options.instruction if options.instruction is not None else task and task.instruction,
            shots=options.shots if options.shots is not None else task and task.shots,
            subsets=options.subsets if options.subsets is not None else task and task.subsets,
            prompts=task and task.prompts,
            partitions=options.partitions,
            sampling_probability=options.sampling_probability,
            num_prompts=options.prompts,
            max_new_tokens=options.tokens,
            temperature=options.temperature,
            validation=options.validation,
            not_private_seed=options.seed_not_private,
        ),
    )


def _given(**values: Any) -> dict[str, Any]:
    """What was given; the rest keeps the defaults of the library."""
    return {name: value for name, value in values.items() if value is not None}


def _interrupted(optimizer: DPPromptOptimizer, path: Path | None) -> str:
    """One line: what is kept, where, and how to go on. Released values only."""
    if path is None:
        return "interrupted; nothing is kept"
    try:
        released = optimizer.certificate().parameters
    except InvalidParameter:
        return "interrupted before anything was charged or released"
    return (
        f"interrupted; {released['tokens_released']} tokens of {released['prompts']} candidates are released, charged "
        f"and kept in {path} and the journal beside it. The same command again goes on from there."
    )


def _scores(
    engine: VotesNextToken, settings: Settings, prompt: OptimizedPrompt, test: list[dict[str, Any]]
) -> dict[str, PromptScore]:
    from tqdm import tqdm

    from langchain_dp._local_score import score_instruction

    if not test:
        return {}
    asked = {"before": settings.instruction, "after": prompt.instruction}
    with tqdm(total=len(asked) * len(test), desc="testing", unit="row", disable=None, file=sys.stderr) as bar:
        return {
            name: score_instruction(engine, settings, text, test, advance=bar.update) for name, text in asked.items()
        }


def _show(prompt: OptimizedPrompt, scores: dict[str, PromptScore], options: argparse.Namespace) -> None:
    if options.json:
        tested = {name: dataclasses.asdict(score) for name, score in scores.items()}
        print(json.dumps(prompt.to_dict() | ({"test": tested} if tested else {}), ensure_ascii=False))
        return
    print(f"{prompt.instruction}\n\n{prompt.certificate}\n")
    if prompt.instruction == options.instruction:
        print("The initial instruction was selected: no candidate did better by enough.\n")
    for name, score in scores.items():
        print(f"{name:<7} {score}, on the local model")
    print(f"Prompt and certificate: {options.out}")


def _plain(report: OptPlanReport) -> dict[str, Any]:
    """The plan as plain values for JSON."""
    fields = dataclasses.asdict(report)
    budget = fields.pop("budget")
    scheme = fields.pop("scheme")
    return {
        **{name: str(value.name).lower() if name == "neighbors" else value for name, value in budget.items()},
        **scheme,
        "epsilon0": report.token.epsilon0,
        "delta0": report.token.delta0,
        "epsilon_selection": report.selection.epsilon,
        "votes_needed": report.votes_needed,
        **{name: value for name, value in fields.items() if name not in ("token", "selection")},
    }
