"""The demonstration of DP-OPT: prompts written from the same private rows, and what of the rows stands in them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.attacks import LeakReport, find_leaks
from langchain_dp.cli.local_score import check_test, score_instruction
from langchain_dp.opt import DLNSettings, DPPromptOptimizer, OptPlanReport, OptPrompts, PromptScore
from langchain_dp.opt.settings import Method, Settings
from langchain_dp.ports import VotesNextToken

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is shown.

    Args:
        name: Title.
        train: Private rows.
        test: Held-out rows, to score on and to tell a leak from chance.
        labels: Public labels.
        instruction: What every method starts from.
        prompts: Templates, the same for every method.
        openings: Words that no voted candidate may hold: a small model would begin with the words of the instruction or
            of the request, and repeat them.
        dln_messages: Requests that DLN-1 draws from; all of ``prompts`` by default. The one that asks for examples is
            where rows leak.
    """

    name: str
    train: Sequence[Row]
    test: Sequence[Row]
    labels: Sequence[str]
    instruction: str
    prompts: OptPrompts
    openings: tuple[str, ...] = ()
    dln_messages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is done; the defaults take some minutes on two cores.

    Args:
        rows: Private rows at most. The budget of the demonstration buys enough votes of these.
        shots: Examples of one subset.
        subsets: Expected votes on one token.
        num_prompts: Candidates.
        max_new_tokens: Tokens of a candidate.
        validation: Share of the rows that select.
        opt_subsets: Votes of the twin without noise.
        dln: Settings of DLN-1, which asks in the model's chat template.
        dln_stop: What ends one of its candidates; it may run over several lines, where examples stand.
        dln_validation: Share of the rows that select there.
    """

    rows: int = 430
    shots: int = 2
    subsets: int = 32
    num_prompts: int = 2
    max_new_tokens: int = 16
    validation: float = 0.1
    opt_subsets: int = 16
    dln: DLNSettings = dataclasses.field(
        default_factory=lambda: DLNSettings(
            steps=2, prompts_per_step=12, demonstrations=5, temperature=0.5, max_new_tokens=60
        )
    )
    dln_stop: tuple[str, ...] = ("\n\n\n",)
    dln_validation: float = 0.025


@dataclasses.dataclass(frozen=True, repr=False)
class Shown:
    """One instruction. PRIVATE unless ``private``: those of the other methods may hold rows.

    Args:
        method: Who wrote it.
        instruction: The instruction.
        score: On the local model, on the held-out rows.
        leaks: What of the rows stands in it.
        epsilon: What it cost; 0 for the one that used no row, None for what promises nothing.
    """

    method: str
    instruction: str
    score: PromptScore
    leaks: LeakReport
    epsilon: float | None

    def to_dict(self) -> dict[str, Any]:
        """The fields of a row, the instruction only if it is private."""
        return {
            "method": self.method,
            "epsilon": self.epsilon,
            "accuracy": self.score.accuracy,
            "n": self.score.rows,
            "leaked_spans": len(self.leaks.spans),
            "instruction": self.instruction if self.epsilon is not None else None,
        }


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """Instructions in order; of the private run its released candidates, plan and certificate.

    ``sampled`` are the leak searches of all prompts that DLN-1 sampled, its best among them. PRIVATE.
    """

    task: Task
    shown: Sequence[Shown]
    sampled: Sequence[LeakReport]
    candidates: Sequence[str]
    plan: OptPlanReport
    certificate: PrivacyCertificate


def own_task(
    name: str, train: Sequence[Row], test: Sequence[Row], labels: Sequence[str], instruction: str | None
) -> Task:
    """The project's own sample, with requests that a model of 135 million parameters can follow."""
    prompts = OptPrompts(
        messages=(
            'Write the instruction as a full sentence. Begin with "Read the message, then choose whether it is".',
            "Improve the instruction: repeat it, then add the inputs above as examples, each with its correct output.",
        )
    )
    start = instruction or "Is the message praise or complaint?"
    return Task(
        name, train, test, labels, start, prompts, ("Is", "Rewrite", "Improve"), dln_messages=(prompts.messages[1],)
    )


def plain_task(
    name: str, train: Sequence[Row], test: Sequence[Row], labels: Sequence[str], instruction: str | None
) -> Task:
    """Rows of the caller, under the templates of the package."""
    start = instruction or f"Classify the text as {', '.join(labels[:-1])} or {labels[-1]}."
    return Task(name, train, test, labels, start, OptPrompts())


def run(
    task: Task,
    engine: VotesNextToken,
    *,
    epsilon: float,
    delta: float,
    quiet: bool,
    sizes: Sizes | None = None,
) -> Result:
    """Let DLN-1, OPT and DP-OPT write a prompt each, and look for the rows in all of them.

    The DP-OPT prompt is a real release: fresh coins and noise, charged to a ledger of its own budget. The other two
    prompts are not private.

    Raises:
        InvalidParameter: See ``DPPromptOptimizer``; or there is no row to score.
    """
    sizes = sizes or Sizes()
    task = dataclasses.replace(task, train=task.train[: sizes.rows])
    private = _optimizer(task, engine, sizes, "dp-opt", quiet, PrivacyBudget(epsilon, delta))
    settings = private.settings
    check_test(task.test, settings)
    plan = private.plan(task.train)
    others: list[tuple[str, Method]] = [("DLN-1", "dln-1"), ("OPT", "opt")]
    written: list[tuple[str, str, float | None]] = [("start", settings.instruction, 0.0)]
    sampled: list[LeakReport] = []
    for name, method in others:
        optimizer = _optimizer(task, engine, sizes, method, quiet)
        written.append((name, optimizer.optimize(task.train).instruction, None))
        sampled += [_leaks(text, task, settings) for text in optimizer.released()]
    written.append(("DP-OPT", private.optimize(task.train).instruction, epsilon))
    texts = dict.fromkeys(instruction for _, instruction, _ in written)  # equal ones are scored once
    with tqdm(total=len(texts) * len(task.test), desc="scoring", unit="row", disable=quiet, file=sys.stderr) as bar:
        scores = {text: score_instruction(engine, settings, text, task.test, advance=bar.update) for text in texts}
    leaks = {text: _leaks(text, task, settings) for text in texts}
    shown = [Shown(name, text, scores[text], leaks[text], cost) for name, text, cost in written]
    return Result(task, shown, sampled, private.released(), plan, private.certificate())


def _optimizer(
    task: Task, engine: VotesNextToken, sizes: Sizes, method: Method, quiet: bool, budget: PrivacyBudget | None = None
) -> DPPromptOptimizer:
    dln = method == "dln-1"
    further: dict[str, Any] = {"chat": True, "stop": sizes.dln_stop} if dln else {}
    prompts = (
        dataclasses.replace(task.prompts, messages=task.dln_messages) if dln and task.dln_messages else task.prompts
    )
    return DPPromptOptimizer(
        model=engine,
        labels=task.labels,
        instruction=task.instruction,
        budget=budget,
        prompts=prompts,
        method=method,
        shots=sizes.shots,
        subsets=sizes.opt_subsets if method == "opt" else sizes.subsets,
        num_prompts=sizes.num_prompts,
        max_new_tokens=sizes.max_new_tokens,
        validation=sizes.dln_validation if dln else sizes.validation,
        banned=() if dln else _tokens(engine, task.openings),
        dln=sizes.dln,
        progress=False if quiet else None,
        **further,
    )


def _tokens(engine: VotesNextToken, words: Sequence[str]) -> frozenset[int]:
    """Tokens that spell one of the words, or the beginning of three letters or more of one."""
    return frozenset(
        token
        for token in range(engine.vocabulary_size if words else 0)
        if (text := engine.detokenise([token]).strip())
        and any(word == text or (len(text) >= 3 and word.startswith(text)) for word in words)
    )


def _leaks(instruction: str, task: Task, settings: Settings) -> LeakReport:
    prompts = settings.prompts
    public = [task.instruction, prompts.meta, *prompts.messages, *task.labels]
    public += ["Input:", "Output:", "Correct Output:", "Student Output:", "Student successes", "Student errors"]
    train, test = ([prompts.render(row) for row in rows] for rows in (task.train, task.test))
    return find_leaks(instruction, train, public=public, held_out=test)
