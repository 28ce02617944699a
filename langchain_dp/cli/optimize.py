"""``langchain-dp optimize``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typer import Option

from langchain_dp._util.rounding import took
from langchain_dp.cli.options import (
    ROWS,
    FileOptions,
    WriterOptions,
    WritingModelOptions,
    made_with,
)
from langchain_dp.cli.parser import DONE, INTERRUPTED, WrongArguments, not_negative, positive
from langchain_dp.cli.runs import ESTIMATED, check_out, read_off
from langchain_dp.cli.show import note, print_json, progress, show
from langchain_dp.cli.spending import DataLedger, SpendingOptions
from langchain_dp.errors import InvalidParameter, PlanError

if TYPE_CHECKING:
    from langchain_dp.accounting import PrivacyBudget, PrivacyLedger
    from langchain_dp.opt import (
        DPPromptOptimizer,
        DPPromptSelector,
        OptimizedPrompt,
        OptPlanReport,
        OptTask,
        PromptAlternative,
        PromptScore,
    )
    from langchain_dp.opt.base import PromptRunnable
    from langchain_dp.opt.settings import Settings
    from langchain_dp.ports import NextTokenVoter

_TOGETHER = 16
"""Rows between two steps of a progress bar."""


class Optimize(SpendingOptions, WritingModelOptions, FileOptions, WriterOptions):
    """Writes a prompt."""

    path = "optimize"
    what = "Write a prompt from private rows (DP-OPT)."
    examples = """\
  langchain-dp optimize --data train.jsonl --task sst2 --epsilon 8 --out prompt.json --plan
  langchain-dp optimize --data train.jsonl --task sst2 --epsilon 8 --budget 10 --out prompt.json --test test.jsonl \\
      --model qwen2.5-1.5b.gguf
  langchain-dp optimize --data train.jsonl --task trec --epsilon 1 --budget 10 --out prompt.json --method choose \\
      --alternatives prompts.jsonl
  langchain-dp optimize --data tickets.jsonl --labels praise complaint --epsilon 8 --budget 10 --out prompt.json \\
      --instruction "Classify the message as praise or complaint." --shots 3 --subsets 48 --prompts 3 --tokens 20 \\
      --model qwen2.5-1.5b.gguf
"""
    notes = """\
The file holds "prompt", ready for any chat model, and its "certificate". The ledger keeps every release. A thief of
the ledger and its key can test guesses at the rows. After Ctrl-C the same command continues, except within the last
step, "selecting". A finished run returns the same prompt at no cost.
Without --shots, --subsets, --prompts, --tokens and --validation they are chosen to fit the budget and a few minutes
(--effort). If nothing fits, it spends nothing and names what would fit. With one of them, the others are those of
--task, or of DPPromptOptimizer.
--method choose needs far fewer rows. Its one step is "selecting": Ctrl-C there loses the budget.
--json: the contents of the file, {"instruction", "prompt", "certificate", "settings", ...}, with {"test": {"before",
"after"}} under --test, and {"left"}. --plan is `langchain-dp plan opt` with the tokens of this model.
"""
    said: ClassVar = WriterOptions.said | {"examples_count": "the number of rows of --data,"}
    writes_with: ClassVar = (*WriterOptions.writes_with, "temperature", "chat")
    data: Path = Option(help=f"{ROWS}: the private rows")
    out: Path = Option(help="JSON file to write: the prompt and its certificate")
    epsilon: float = Option(parser=positive, help="share of this run")
    name: str = Option("dp-opt", help="name of the run in the ledger")
    seed_not_private: int | None = Option(None, min=0, help="reproducible coins, noise: the result is NOT private")
    temperature: float | None = Option(None, parser=not_negative, help="of the votes; 0 is the most probable token")
    chat: bool | None = Option(
        None, "--chat/--no-chat", help="use the model's chat template (default: where it carries one)"
    )
    test: Path | None = Option(None, help="rows that score the model before and after")
    plan: bool = Option(False, "--plan", help="say what it would cost, and stop: no ledger is opened")

    def run(self) -> int:
        from langchain_dp.opt import load_prompt
        from langchain_dp.records import PrivateRecords

        task = known_task(self)
        if self.method != "choose":
            self.check_constants()
            if not self.plan:
                self.check_writer()
        check_out(self.out, load_prompt, "a saved prompt")
        account = self.account(self.data, self.out, self.neighbors)
        rows = self.read(self.data)
        records = PrivateRecords(rows)
        labels = labels_of(self, task, rows)
        test = self.read(self.test) if self.test else []
        seeded = self.seed_not_private is not None
        budget = account.share(self.epsilon, self.name, plan=self.plan or seeded)
        ledger: PrivacyLedger | None = None
        with contextlib.ExitStack() as held:
            engine = held.enter_context(self.engine(cache_bytes=_half_of_memory(), max_tokens=self.max_tokens))
            optimizer = optimizer_for(self, engine, task, labels, budget, count=len(rows))
            if self.test:
                _check_test(test, optimizer.settings)
            if self.plan:
                show(optimizer.plan(records), self, counted_by=engine.name, after=account.after(budget, self.name))
                return DONE
            if not seeded:
                if self.name not in account.plans:
                    plan = optimizer.check(records)  # refuse before a ledger is made
                    if not self.json:
                        note(_before(plan))
                ledger = held.enter_context(account.opened(records, quiet=self.json))
                optimizer = optimizer_for(self, engine, task, labels, budget, ledger, count=len(rows))
            try:
                prompt = optimizer.optimize(records)
            except KeyboardInterrupt:
                note(_interrupted(optimizer, ledger, account.name))
                return INTERRUPTED
            except PlanError:
                if optimizer.released():  # of a run that cannot continue
                    note(_candidates(optimizer))
                raise
            prompt.save(self.out)
            scores = _scores(engine, optimizer.settings, prompt, test)
        _show(prompt, scores, self, optimizer.settings, None if seeded else account)
        return DONE


def known_task(options: WriterOptions) -> OptTask | None:
    from langchain_dp.opt.templates import TASKS

    if (options.instruction is None and options.task is None) or options.instruction == "":
        raise WrongArguments("Expected --instruction to say what the task is: a plain sentence. It is public.")
    return None if options.task is None else TASKS[options.task]


def labels_of(options: WriterOptions, task: OptTask | None, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the labels of the options, else of the task, else of the rows."""
    if options.labels or task:
        return list(options.labels or task.labels)  # type: ignore[union-attr]  # one of them is there
    labels, said = read_off(rows)
    note(said)
    return labels


def optimizer_for(
    options: WriterOptions,
    engine: NextTokenVoter,
    task: OptTask | None,
    labels: list[str],
    budget: PrivacyBudget,
    ledger: PrivacyLedger | None = None,
    *,
    count: int,
) -> DPPromptOptimizer | DPPromptSelector:
    """Return an optimizer for ``count`` rows."""
    from langchain_dp.opt import Decoding, DPPromptOptimizer, DPPromptSelector, SamplingOptions

    instruction = options.instruction if options.instruction is not None else task and task.instruction
    own: dict[str, Any] = {"model": engine, "labels": labels, "budget": budget, "ledger": ledger}
    own |= {"instruction": instruction, "alternatives": _alternatives(options.alternatives)}
    own |= {"labels_from_data": not (options.labels or task)} | _given(prompts=task and task.prompts)
    if isinstance(options, Optimize):
        own |= {"name": options.name, "made_with": made_with(options.data)}
        own |= _given(not_private_seed=options.seed_not_private)
    if options.method == "choose":
        return DPPromptSelector.auto(examples_count=count, effort=options.effort, **own)
    if isinstance(options, Optimize):
        own |= {"decoding": Decoding(chat=options.chat, **_given(temperature=options.temperature))}
    own["allow_small_model"] = True  # the command has its own option
    if options.fits:
        return DPPromptOptimizer.auto(examples_count=count, effort=options.effort, **own)
    return DPPromptOptimizer(
        sampling=SamplingOptions("fixed", options.partitions, options.sampling_probability),
        **own,
        **_given(
            shots=options.shots if options.shots is not None else task and task.shots,
            subsets=options.subsets if options.subsets is not None else task and task.subsets,
            num_prompts=options.prompts,
            max_new_tokens=options.tokens,
            validation=options.validation,
        ),
    )


def _alternatives(path: Path | None) -> list[PromptAlternative]:
    from langchain_dp.opt import PromptAlternative, load_prompt
    from langchain_dp.records import read_jsonl

    if path is not None and path.suffix.lower() == ".json":
        written = load_prompt(path)
        return [PromptAlternative(written.instruction, written.words)]
    found = []
    for number, row in enumerate([] if path is None else read_jsonl(path), start=1):
        if not row or row.keys() - {"instruction", "words"}:
            raise WrongArguments(
                f"Expected prompt {number} of --alternatives to hold instruction, words or both, not {sorted(row)}."
            )
        try:
            found.append(PromptAlternative(**row))
        except InvalidParameter as error:
            raise WrongArguments(f"Prompt {number} of --alternatives: {error}") from None
    if path is not None and not found:
        raise WrongArguments("Expected --alternatives to hold a prompt a line, but it is empty.")
    return found


def _before(plan: OptPlanReport) -> str:
    time, private = "", ""
    if plan.seconds is not None:
        time = f"about {took(plan.seconds)} on this machine: "
        private = f" ({ESTIMATED})"
    if plan.token is None:
        asked = f", asked about {plan.validation:,.0f} records each" if plan.scheme.even else ""
        return f"{time}{plan.choices:,} prompts{asked}{private}"
    records = f" of {plan.training:,.0f} records; {plan.validation:,.0f} more select" if plan.scheme.even else ""
    most = plan.max_calls * getattr(plan.token, "tokens", 1)
    return f"{time}up to {most:,} tokens, each by {plan.scheme.expected_subsets:,.0f} subsets{records}{private}"


def _half_of_memory() -> int:
    """Without all subsets' caches, each token evaluates their prompts again."""
    if not hasattr(os, "sysconf"):  # Windows
        return 2**30
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # a container's limit. "max" is no number
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return max(there // 2, 2**30)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _interrupted(optimizer: PromptRunnable, ledger: PrivacyLedger | None, path: str) -> str:
    """Say how to continue."""
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
        if not optimizer.settings.writes:
            return (
                "interrupted while prompts were compared; the one choice among them is charged and cannot be made again"
            )
        return (
            "interrupted while candidates were compared; the one choice among them is charged and cannot be made "
            f"again. Kept in {path}: {_candidates(optimizer)}"
        )
    return (
        f"interrupted; {released['tokens_released']} tokens of {released['prompts']} candidates are released and kept "
        f"in {path}, with all that was charged. The same command again goes on from there."
    )


def _candidates(optimizer: PromptRunnable) -> str:
    return f"the candidates, which are released: {', '.join(map(repr, optimizer.released()))}"


def _scores(
    engine: NextTokenVoter, settings: Settings, prompt: OptimizedPrompt, test: list[dict[str, Any]]
) -> dict[str, PromptScore]:
    if not test:
        return {}
    asked = {
        "before": (settings.instruction, settings.words),
        "after": (prompt.instruction, list(prompt.words.values())),
    }
    with progress("testing", len(asked) * len(test), "rows") as advance:
        return {
            name: _score_instruction(engine, settings, text, test, words=words, advance=advance)
            for name, (text, words) in asked.items()
        }


def _score_instruction(
    engine: NextTokenVoter,
    settings: Settings,
    instruction: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    words: Sequence[str] = (),
    advance: Callable[[int], object] = lambda _: None,
) -> PromptScore:
    """Score one instruction with a run's templates, label words and calibration."""
    from langchain_dp.opt import PromptScore
    from langchain_dp.opt.forward import Forward

    _check_test(rows, settings)
    forward = Forward.of(engine, settings)
    forward.check(instruction)
    texts = [settings.prompts.render(row) for row in rows]
    answers: list[int | None] = []
    for at in range(0, len(texts), _TOGETHER):
        answers += forward.predict(instruction, texts[at : at + _TOGETHER], words)
        advance(len(answers) - at)
    return PromptScore.of(answers, [row["label"] for row in rows], settings.labels)


def _check_test(rows: Sequence[Mapping[str, Any]], settings: Settings) -> None:
    """Refuse unusable rows before any charge."""
    if not rows:
        raise InvalidParameter("Expected at least one test row. Give more rows.")
    for position, row in enumerate(rows):
        keys = (*settings.prompts.variables, "label")
        if any(key not in row for key in keys) or row["label"] not in settings.labels:
            raise InvalidParameter(
                f"Expected test row {position} to have {list(keys)}, its label one of {list(settings.labels)}. Repair "
                "or drop it."
            )


def _show(
    prompt: OptimizedPrompt,
    scores: dict[str, PromptScore],
    options: Optimize,
    settings: Settings,
    account: DataLedger | None,
) -> None:
    if options.json:
        tested = {name: dataclasses.asdict(score) for name, score in scores.items()}
        print_json(
            prompt.to_dict() | ({"test": tested} if tested else {}) | ({} if account is None else account.in_json())
        )
        return
    print(f"{prompt}\n")
    if called := [f"{word} -> {label}" for label, word in prompt.words.items() if word != label]:
        print(f"Its answers are names: {', '.join(called)}. OptimizedPrompt.chain(model) puts the labels back.\n")
    if prompt.instruction == settings.instruction and list(prompt.words.values()) == settings.words:
        print("The initial instruction was selected: no other prompt did better by enough.\n")
    if prompt.candidates:
        print("written, and paid for:")
        print("\n".join(f"  {candidate}" for candidate in prompt.candidates) + "\n")
    for name, score in scores.items():
        print(f"{name:<7} {score}, on the local model")
    if scores:
        print("\nWhich label the local model says after it:\n" + scores["after"].table() + "\n")
        if scores["after"].accuracy < scores["before"].accuracy:
            print("On these rows the initial instruction answers more right: keep it. The choice is by noisy counts.\n")
    print("\n".join([f"Prompt and certificate: {options.out}", *([] if account is None else [str(account)])]))
