"""``langchain-dp optimize``: a prompt written from private rows by a model on this machine, as a file."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_dp.cli import options as shared
from langchain_dp.cli.parts import (
    DONE,
    INTERRUPTED,
    WrongArguments,
    count,
    new_command,
    not_negative,
    note,
    positive,
    print_json,
    read_off,
    whole,
)
from langchain_dp.cli.show import show_opt
from langchain_dp.errors import BudgetExceeded, InvalidParameter, LedgerMismatch, PlanError

if TYPE_CHECKING:
    from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
    from langchain_dp.opt import DPPromptOptimizer, OptimizedPrompt, OptTask, PromptScore
    from langchain_dp.opt.settings import Settings
    from langchain_dp.ports import VotesNextToken

EXAMPLES = """\
  langchain-dp optimize --data train.jsonl --task sst2 --epsilon 8 --out prompt.json --plan
  langchain-dp optimize --data train.jsonl --task sst2 --epsilon 8 --out prompt.json --test test.jsonl
  langchain-dp optimize --data tickets.jsonl --labels praise complaint --epsilon 8 --out prompt.json \\
      --instruction "Classify the message as praise or complaint." --shots 3 --subsets 48 --prompts 3 --tokens 20
"""

_NOTES = """\
The file holds "prompt", ready for any chat model, and its "certificate". Beside it lie a ledger, which holds what was
released, and the ledger's key: whoever has both can test guesses at the rows. After Ctrl-C the same command goes on,
but not from within the last step, "selecting"; a finished one gives the same prompt again, at no cost. In messages,
num_prompts= is --prompts, max_new_tokens= is --tokens, and name= is --name.
--json: what the file holds, {"instruction", "prompt", "certificate", "settings", ...}, with {"test": {"before",
"after"}} under --test. --plan is `langchain-dp plan opt` with the tokens counted by the model that would write.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser = new_command(
        commands, "optimize", "write a prompt from private rows with a model on this machine (DP-OPT)", EXAMPLES, _NOTES
    )
    parser.add_argument("--data", type=Path, required=True, help="JSONL of {text, label}: the private rows")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write: the prompt and its certificate")
    shared.add_task(parser.add_argument_group("task"))
    promise = parser.add_argument_group("promise")
    shared.add_budget(promise, required=False)
    promise.add_argument("--ledger", type=Path, help="ledger file to charge (default: --out with .ledger)")
    promise.add_argument(
        "--ledger-budget",
        type=positive,
        nargs=2,
        metavar=("EPSILON", "DELTA"),
        help="budget of a ledger that several runs share, each under its own --name (default: this run's)",
    )
    promise.add_argument("--name", default="dp-opt", help="name of the run in the ledger (default: %(default)s)")
    promise.add_argument(
        "--seed-not-private", type=whole(0), help="reproducible coins, noise: the result is NOT private"
    )
    run = parser.add_argument_group("run")
    run.add_argument("--method", choices=("dp-opt", "opt", "dln-1"), default="dp-opt", help="the others: NOT private")
    shared.add_writing(run)
    run.add_argument("--steps", type=count, help="rounds of dln-1")
    run.add_argument("--temperature", type=not_negative, help="of the votes; 0 is the most probable token")
    run.add_argument("--chat", action="store_true", help="use the model's chat template")
    shared.add_model(parser)
    shared.add_context(parser)
    parser.add_argument("--test", type=Path, help="JSONL to score the local model on, before and after")
    parser.add_argument("--plan", action="store_true", help="say what it would cost, and stop: nothing is spent")
    shared.add_json(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from langchain_dp.cli.local_score import check_test
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
    from langchain_dp.records import PrivateRecords, read_jsonl

    task, budget = known_task(options), _budget(options)
    _check_out(options.out)
    rows = read_jsonl(options.data)
    records = PrivateRecords(rows)
    labels = labels_of(options, task, rows)
    test = read_jsonl(options.test) if options.test else []
    sizes = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}
    path = _ledger_path(options)
    with contextlib.ExitStack() as held:
        ledger = held.enter_context(_ledger(path, options)) if path is not None and path.exists() else None
        engine = held.enter_context(
            LlamaCppEnsemble(model_path=options.model, n_gpu_layers=options.gpu_layers, **sizes)
        )
        optimizer = optimizer_for(options, engine, task, labels, budget)
        if options.test:
            check_test(test, optimizer.settings)
        if options.plan:
            show_opt(optimizer.plan(records), counted_by=engine.name, as_json=options.json)
            return DONE
        if path is not None:
            if ledger is None:
                optimizer.plan(records)  # what cannot run is refused before there is a ledger that holds its budget
                ledger = held.enter_context(_ledger(path, options))
            optimizer = optimizer_for(options, engine, task, labels, budget, ledger)
        try:
            with _explained():
                prompt = optimizer.optimize(records)
        except KeyboardInterrupt:
            note(_interrupted(optimizer, ledger, path))
            return INTERRUPTED
        except PlanError:
            if optimizer.released():  # of a run that can go no further, or it would not be known yet
                note(_candidates(optimizer))
            raise
        prompt.save(options.out)
        scores = _scores(engine, optimizer.settings, prompt, test)
    _show(prompt, scores, options, instruction=optimizer.settings.instruction)
    return DONE


def known_task(options: argparse.Namespace) -> OptTask | None:
    """The task that was named.

    Raises:
        WrongArguments: Neither a task nor an instruction says what to do.
    """
    from langchain_dp import opt

    if (options.instruction is None and options.task is None) or options.instruction == "":
        raise WrongArguments("Expected --instruction to say what the task is: a plain sentence. It is public.")
    return None if options.task is None else getattr(opt, options.task.upper())


def labels_of(options: argparse.Namespace, task: OptTask | None, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The labels that were given, or known, or else those of the rows, which is said."""
    if options.labels or task:
        return list(options.labels or task.labels)  # type: ignore[union-attr]  # one of them is there
    labels = sorted({str(row["label"]) for row in rows})
    note(read_off(labels, len(rows)))
    return labels


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


def _budget(options: argparse.Namespace) -> PrivacyBudget | None:
    from langchain_dp.accounting import PrivacyBudget

    if options.epsilon is not None:
        shared.check_constants(options)
        return PrivacyBudget(options.epsilon, options.delta, options.neighbors)
    if options.method == "dp-opt":
        raise WrongArguments("Expected --epsilon to be given: it is the promise. Usual budgets are 1 to 10.")
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


def optimizer_for(
    options: argparse.Namespace,
    engine: VotesNextToken,
    task: OptTask | None,
    labels: list[str],
    budget: PrivacyBudget | None,
    ledger: PrivacyLedger | None = None,
) -> DPPromptOptimizer:
    """The optimizer of these options, over an engine."""
    from langchain_dp.opt import Decoding, DLNSettings, DPPromptOptimizer, Sampling

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
        sampling=Sampling("fixed", options.partitions, options.sampling_probability),
        decoding=Decoding(chat=options.chat, **_given(temperature=options.temperature)),
        dln=DLNSettings(**dln),
        **_given(
            instruction=options.instruction if options.instruction is not None else task and task.instruction,
            shots=options.shots if options.shots is not None else task and task.shots,
            subsets=options.subsets if options.subsets is not None else task and task.subsets,
            prompts=task and task.prompts,
            num_prompts=options.prompts,
            max_new_tokens=options.tokens,
            validation=options.validation,
            not_private_seed=options.seed_not_private,
        ),
    )


def _given(**values: Any) -> dict[str, Any]:
    """What was given; the rest keeps the defaults of the library."""
    return {name: value for name, value in values.items() if value is not None}


def _interrupted(optimizer: DPPromptOptimizer, ledger: PrivacyLedger | None, path: Path | None) -> str:
    """One line: what is kept, where, and how to go on. Released values only."""
    from langchain_dp.opt.reservation import VALIDATION

    if ledger is None:
        return "interrupted; nothing is kept"
    try:
        released = optimizer.certificate().parameters
    except InvalidParameter:
        return "interrupted before anything was charged or released"
    plan = ledger.plan(str(optimizer.name))
    parts = [] if plan is None else [event for event, _ in plan.events if getattr(event, "part", "") == VALIDATION]
    if plan is not None and not all(plan.remaining(event) for event in parts):
        return (
            "interrupted while candidates were compared; the one choice among them is charged and cannot be made "
            f"again. Kept in {path}: {_candidates(optimizer)}"
        )
    return (
        f"interrupted; {released['tokens_released']} tokens of {released['prompts']} candidates are released, charged "
        f"and kept in {path}. The same command again goes on from there."
    )


def _candidates(optimizer: DPPromptOptimizer) -> str:
    return f"the candidates, which are released: {', '.join(map(repr, optimizer.released()))}"


def _scores(
    engine: VotesNextToken, settings: Settings, prompt: OptimizedPrompt, test: list[dict[str, Any]]
) -> dict[str, PromptScore]:
    from tqdm import tqdm

    from langchain_dp.cli.local_score import score_instruction

    if not test:
        return {}
    asked = {"before": settings.instruction, "after": prompt.instruction}
    with tqdm(total=len(asked) * len(test), desc="testing", unit="row", disable=None, file=sys.stderr) as bar:
        return {
            name: score_instruction(engine, settings, text, test, advance=bar.update) for name, text in asked.items()
        }


def _show(
    prompt: OptimizedPrompt, scores: dict[str, PromptScore], options: argparse.Namespace, *, instruction: str
) -> None:
    if options.json:
        tested = {name: dataclasses.asdict(score) for name, score in scores.items()}
        print_json(prompt.to_dict() | ({"test": tested} if tested else {}))
        return
    print(f"{prompt.instruction}\n\n{prompt.certificate}\n")
    if prompt.instruction == instruction:
        print("The initial instruction was selected: no candidate did better by enough.\n")
    for name, score in scores.items():
        print(f"{name:<7} {score}, on the local model")
    print(f"Prompt and certificate: {options.out}")
