"""The demonstration of DP-OPT: prompts written from the same private rows, and what of the rows stands in them."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.accounting import PrivacyBudget, PrivacyCertificate
from langchain_dp.attacks import LeakReport, find_leaks
from langchain_dp.cli.local_score import check_test, score_instruction
from langchain_dp.cli.show import progress, score_table
from langchain_dp.opt import (
    Decoding,
    DLNSettings,
    DPPromptOptimizer,
    OptPlanReport,
    OptPrompts,
    PromptScore,
    Writing,
)
from langchain_dp.opt.settings import Method, Settings
from langchain_dp.ports import VotesNextToken

RED, SIGNS = ("\x1b[1;31m", "\x1b[0m"), (">>", "<<")
_OPEN, _CLOSE = "\x01", "\x02"
_WIDTH = 96


@dataclasses.dataclass(frozen=True)
class Task:
    """What is shown.

    Args:
        name: Title.
        train: Private rows.
        test: Held-out rows, to score on and to tell a leak from chance.
        labels: Public labels.
        instruction: What every method starts from; by default, to classify the text as one of the labels.
        prompts: Templates, the same for every method.
        openings: Words that no voted candidate may hold: a small model would begin with the words of the instruction or
            of the request, and repeat them.
        dln_messages: Requests that DLN-1 draws from; all of ``prompts`` by default. The one that asks for examples is
            where rows leak.
    """

    name: str
    train: Sequence[Mapping[str, Any]]
    test: Sequence[Mapping[str, Any]]
    labels: Sequence[str]
    instruction: str = ""
    prompts: OptPrompts = dataclasses.field(default_factory=OptPrompts)
    openings: tuple[str, ...] = ()
    dln_messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = f"Classify the text as {', '.join(self.labels[:-1])} or {self.labels[-1]}."
        object.__setattr__(self, "instruction", self.instruction or plain)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is done; the defaults take some minutes on two cores.

    ``rows`` private rows at most: the budget buys enough votes of these. ``validation`` is the share of them that
    selects. DLN-1 asks in the model's chat template, and its candidates may run over several lines, where rows stand.
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
    dln_validation: float = 0.025


@dataclasses.dataclass(frozen=True, repr=False)
class Shown:
    """One instruction, its score on the held-out rows, and what of the private rows stands in it.

    PRIVATE where ``epsilon`` is None, which promises nothing; 0 used no row.
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
    name: str, train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> Task:
    """The project's own sample, with requests that a model of 135 million parameters can follow."""
    prompts = OptPrompts(
        messages=(
            'Write the instruction as a full sentence. Begin with "Read the message, then choose whether it is".',
            "Improve the instruction: repeat it, then add the inputs above as examples, each with its correct output.",
        )
    )
    start, openings = "Is the message praise or complaint?", ("Is", "Rewrite", "Improve")
    return Task(name, train, test, labels, start, prompts, openings, dln_messages=(prompts.messages[1],))


def run(
    task: Task, engine: VotesNextToken, *, epsilon: float, delta: float, quiet: bool, sizes: Sizes | None = None
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
    written: list[tuple[str, str, float | None]] = [("start", settings.instruction, 0.0)]
    sampled: list[LeakReport] = []
    others: list[tuple[str, Method]] = [("DLN-1", "dln-1"), ("OPT", "opt")]
    for name, method in others:
        optimizer = _optimizer(task, engine, sizes, method, quiet)
        written.append((name, optimizer.optimize(task.train).instruction, None))
        sampled += [_leaks(text, task, settings) for text in optimizer.released()]
    written.append(("DP-OPT", private.optimize(task.train).instruction, epsilon))
    texts = dict.fromkeys(instruction for _, instruction, _ in written)  # equal ones are scored once
    with progress("scoring", len(texts) * len(task.test), "rows", shown=not quiet) as advance:
        scores = {text: score_instruction(engine, settings, text, task.test, advance=advance) for text in texts}
    leaks = {text: _leaks(text, task, settings) for text in texts}
    shown = [Shown(name, text, scores[text], leaks[text], cost) for name, text, cost in written]
    return Result(task, shown, sampled, private.released(), plan, private.certificate())


def _optimizer(
    task: Task, engine: VotesNextToken, sizes: Sizes, method: Method, quiet: bool, budget: PrivacyBudget | None = None
) -> DPPromptOptimizer:
    dln = method == "dln-1"
    banned = frozenset() if dln else _tokens(engine, task.openings)
    messages = task.dln_messages if dln and task.dln_messages else task.prompts.messages
    return DPPromptOptimizer(
        model=engine,
        labels=task.labels,
        instruction=task.instruction,
        budget=budget,
        prompts=dataclasses.replace(task.prompts, messages=messages),
        method=method,
        shots=sizes.shots,
        subsets=sizes.opt_subsets if method == "opt" else sizes.subsets,
        num_prompts=sizes.num_prompts,
        max_new_tokens=sizes.max_new_tokens,
        validation=sizes.dln_validation if dln else sizes.validation,
        writing=Writing(stop=("\n\n\n",)) if dln else None,
        decoding=Decoding(chat=dln, banned=banned),
        dln=sizes.dln if dln else None,
        progress=False if quiet else None,
    )


def _tokens(engine: VotesNextToken, words: Sequence[str]) -> frozenset[int]:
    """Tokens that spell one of the words, or the beginning of three letters or more of one."""
    return frozenset(
        token
        for token in range(engine.vocabulary_size if words else 0)
        if (text := engine.detokenize([token]).strip())
        and any(word == text or (len(text) >= 3 and word.startswith(text)) for word in words)
    )


def _leaks(instruction: str, task: Task, settings: Settings) -> LeakReport:
    prompts = settings.prompts
    public = [task.instruction, prompts.meta, *prompts.messages, *task.labels]
    public += ["Input:", "Output:", "Correct Output:", "Student Output:", "Student successes", "Student errors"]
    train, test = ([prompts.render(row) for row in rows] for rows in (task.train, task.test))
    return find_leaks(instruction, train, public=public, held_out=test)


# ------------------------------------------------------------------------------------------------------ as text


def table(result: Result, *, color: bool) -> str:
    """The result as text, rows included: the demonstration is for whoever may see them.

    Args:
        result: What was run.
        color: Mark leaked words in red, instead of by ``>>`` and ``<<``.
    """
    task, marks = result.task, RED if color else SIGNS
    lines = [
        f"{task.name}: {len(task.train):,} private examples; four instructions for the same task",
        f"Words of private rows are {'red' if color else f'between {marks[0]} and {marks[1]}'}.",
    ]
    origins = {
        "start": "where all begin, public",
        "DLN-1": "the best of single prompts that show the model a few rows. NOT PRIVATE",
        "OPT": "votes of many subsets for every word, without noise. NOT PRIVATE",
    }
    for one in result.shown:
        said = origins.get(one.method, f"the same votes, counted with noise: epsilon {one.epsilon or 0:g}")
        lines += ["", f"{one.method}: {said}", *_found(one.leaks, marks)]
        if one.method == "DP-OPT":
            lines.append("    chosen, with noise, among the first and:")
            lines += [part for text in result.candidates for part in _wrapped(_printable(text), "      ")]
        if one.method == "DLN-1" and not one.leaks.spans:
            lines += _others(result.sampled, marks)
    error = 2 * max(math.hypot(one.score.standard_error, result.shown[0].score.standard_error) for one in result.shown)
    scores = score_table(
        "rows in the prompt",
        [(each.method, each.epsilon, each.score.accuracy, each.score.standard_error, _counted(each.leaks))
         for each in result.shown],
    )  # fmt: skip
    said = (
        f"  Accuracy of the local model on {result.shown[0].score.rows} held-out rows; ± is one standard error. "
        f"Differences below about {error:.0%}\n  are not resolved. A search that finds no row proves nothing; the "
        "certificate does."
    )
    return "\n".join([*lines, "", scores, said, "", str(result.plan), "", str(result.certificate)])


def _counted(leaks: LeakReport) -> str:
    spans, chance = len(leaks.spans), len(leaks.by_chance)
    counted = f"{spans} spans, {leaks.rate:.0%} of its words" if spans else "none found"
    return counted + (f" ({chance} of held-out rows, by chance)" if spans or chance else "")


def _others(sampled: Sequence[LeakReport], marks: tuple[str, str]) -> list[str]:
    """Where the best prompt repeats no row: the worst of those that could have been the best."""
    leaking = [leaks for leaks in sampled if leaks.spans]
    if not leaking:
        return [f"    None of the {len(sampled)} prompts it sampled repeats a row this time. Nothing promises that."]
    some = f"{len(leaking)} of the {len(sampled)} prompts it sampled"
    worst = max(leaking, key=lambda leaks: sum(span.bits for span in leaks.spans))
    return [f"    This one repeats no row, but {some} did. It could have been:", *_found(worst, marks)]


def _found(leaks: LeakReport, marks: tuple[str, str]) -> list[str]:
    """The prompt with its leaks marked, and the rows that they are of."""
    lines, inside = [], False
    for line in leaks.marked(_OPEN, _CLOSE).splitlines():
        for part in _wrapped(_printable(line), "  | "):
            # A mark that is open at the end of a line is closed there, and opened again behind the next margin.
            opened, inside = inside, part.rfind(_OPEN) > part.rfind(_CLOSE) or (inside and _CLOSE not in part)
            text = f"{part[:4]}{_OPEN if opened else ''}{part[4:]}{_CLOSE if inside else ''}"
            lines.append(text.replace(_OPEN, marks[0]).replace(_CLOSE, marks[1]))
    for span in leaks.spans:
        what = "all of it" if span.whole else f"{span.words} words"
        lines += _wrapped(f"{what} of row {span.rows[0]}: {_printable(span.row_text)}", "      ")
    return lines


def _wrapped(text: str, margin: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=margin, subsequent_indent=margin) or [margin.rstrip()]


def _printable(text: str) -> str:
    """Nothing that a model wrote may steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in (_OPEN, _CLOSE) else " " for letter in text)
