"""``langchain-dp synthesize``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import typer
from typer import Option

from langchain_dp._util.rounding import took
from langchain_dp.cli.options import ROWS, ExampleOptions, WritingModelOptions, made_with
from langchain_dp.cli.parser import DONE, INTERRUPTED, WrongArguments, positive
from langchain_dp.cli.runs import ESTIMATED, check_out, read_off
from langchain_dp.cli.show import Advance, note, print_json, progress, show
from langchain_dp.cli.spending import DataLedger, SpendingOptions
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.synth import DPExampleSynthesizer, SynthesisPlan, SyntheticExample, SyntheticExamples


class Synthesize(SpendingOptions, WritingModelOptions, ExampleOptions):
    """Writes examples."""

    said: ClassVar = WritingModelOptions.said | ExampleOptions.said
    path = "synthesize"
    what = "Write synthetic examples from private rows."
    examples = """\
  langchain-dp synthesize --data train.jsonl --epsilon 3 --count 64 --out synthetic.jsonl --plan
  langchain-dp synthesize --data train.jsonl --epsilon 3 --budget 5 --count 64 --out synthetic.jsonl \\
      --model qwen2.5-1.5b.gguf
  langchain-dp synthesize --labels sports business --out public.jsonl --alone
  langchain-dp synthesize --data tickets.jsonl --epsilon 3 --budget 5 --out synthetic.jsonl \\
      --describe "praise=messages that praise a clinic" --describe "complaint=messages that complain of it" \\
      --model qwen2.5-1.5b.gguf
"""
    notes = """\
The first line of the file holds the certificate, every other one {"text", "label"}, with "dropped" and why where a
public filter left it out. The ledger keeps every release. A thief of the ledger and its key can test guesses at the
rows. After Ctrl-C the same command continues with the next token. Neighbors replace one row. Descriptions count as
public: do not take them from the rows. First try --alone, which shows no row to the model.
--json: {"examples", "dropped", "certificate", "left"}; with --plan {"clip", "members", "verdict", ...}.
"""
    out: Path = Option(help="JSONL file to write: certificate and examples")
    data: Path | None = Option(None, help=f"{ROWS}: the private rows (required without --alone)")
    epsilon: float | None = Option(None, parser=positive, help="share of this run (required without --alone)")
    name: str = Option("synthesis", help="name of the run in the ledger")
    max_tokens: int | None = Option(None, min=1, help="context of one row, in tokens (default: the engine's)")
    alone: bool = Option(False, "--alone", help="write with the model alone, at no cost, as a baseline")
    plan: bool = Option(False, "--plan", help="say what it would cost and if it is worth it: no ledger is opened")
    give_up_round: bool = Option(
        False, "--give-up-round", help="after a kill, continue with other rows and lose the rest of the round"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alone and (self.plan or self.ledger or self.budget):
            raise typer.BadParameter("expected --alone without --plan, --ledger and --budget: it spends nothing")
        if not self.alone and (self.data is None or self.epsilon is None):
            raise typer.BadParameter("expected --data and --epsilon to be given; --alone does without")
        if self.data is None and not (self.labels or self.describe):
            raise typer.BadParameter("expected --labels, --describe or --data: without them nobody knows the labels")

    def run(self) -> int:
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.records import PrivateRecords, check_records
        from langchain_dp.synth import SynthesisPrompts, SyntheticExamples

        if not (self.alone or self.plan):
            self.check_writer()
        saved = check_out(self.out, SyntheticExamples.load, "saved examples")
        rows, labels = read(self, self.data)
        records = PrivateRecords(rows)
        if not self.alone:
            check_records(records, list(labels), SynthesisPrompts().variables)
        account = None if self.alone or self.data is None else self.account(self.data, self.out)
        # Unused if the model writes alone.
        budget = PrivacyBudget(1.0)
        paid = None if self.plan or saved is None or not _was_paid_for(saved) else saved
        if paid is not None and (account is None or self.name not in account.plans):
            _refuse(self.out)
        if account is not None and self.epsilon is not None:
            budget = account.share(self.epsilon, self.name, plan=self.plan)
        with contextlib.ExitStack() as held:
            if not self.json:
                note("loading the model ...")
            engine = held.enter_context(self.engine(slots=min(self.members + 10, 250), max_tokens=self.max_tokens))
            if account is None:
                with progress("writing", -(-self.count // len(labels)) * len(labels), "texts") as advance:
                    on_text = _said(advance, quiet=self.json)
                    examples = synthesizer_for(self, engine, labels, budget=budget, progress=on_text).public_examples()
                self._save(examples, None)
                return DONE
            plan = synthesizer_for(self, engine, labels, budget=budget).plan(records)
            if self.plan:
                show(plan, self, counted_by=engine.name, after=account.after(budget, self.name))
                return DONE
            begun = self.name in account.plans
            if not begun and not self.json:
                note(_before(plan))
            ledger = held.enter_context(account.opened(records, quiet=self.json))
            charged = sum(entry.count for entry in ledger.entries())
            with progress("writing", plan.examples, "texts") as advance:
                on_text = _said(advance, quiet=self.json)
                chain = synthesizer_for(
                    self,
                    engine,
                    labels,
                    name=self.name,
                    ledger=ledger,
                    budget=budget,
                    progress=on_text,
                    made_with=made_with(self.data),
                )
                if paid is not None and not _texts(paid) <= _texts(chain.released()):
                    _refuse(self.out)
                if self.give_up_round:
                    chain.give_up_round()
                try:
                    examples = chain.invoke(records)
                except KeyboardInterrupt:
                    note(f"interrupted. Released text is kept in {account.name}. The same command continues.")
                    return INTERRUPTED
            if begun and not self.json and charged == sum(entry.count for entry in ledger.entries()):
                note(f"This run was complete: {account.name} gives its examples out again. Nothing was charged.")
        self._save(examples, account)
        return DONE

    def _save(self, examples: SyntheticExamples, account: DataLedger | None) -> None:
        examples.save(self.out)
        _show(examples, self, account)


def _was_paid_for(examples: SyntheticExamples) -> bool:
    return examples.certificate.private and examples.certificate.epsilon > 0


def _texts(examples: SyntheticExamples) -> set[tuple[str, str]]:
    return {(one.text, one.label) for one in (*examples, *examples.dropped)}


def _refuse(out: Path) -> NoReturn:
    raise InvalidParameter(
        f"Expected --out {out} to be new, or to hold examples of this run, but those in it are of another, which were "
        "paid for. Name another file, or move it away."
    )


def given(options: ExampleOptions) -> dict[str, str]:
    """Return the named labels with their descriptions."""
    said: dict[str, str] = {}
    for each in options.describe or ():
        if "=" not in each and Path(each).is_file():
            from langchain_dp.aggregate.names import LabelNames

            said |= LabelNames.load(each).descriptions
            continue
        label, found, text = each.partition("=")
        if not found or not label.strip() or not text.strip():
            raise WrongArguments('Expected --describe to be LABEL=TEXT, as in --describe "A=late parcels".')
        if label.strip() in said:
            raise WrongArguments(f"Expected --describe to say once what {label.strip()!r} means. Leave one out.")
        said[label.strip()] = text.strip()
    labels = list(options.labels or said)
    unknown = sorted(said.keys() - set(labels))
    if unknown:
        raise WrongArguments(f"Expected --describe for labels of --labels, but {unknown} are others.")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise WrongArguments(f"Expected {'--labels' if options.labels else '--describe'} to name {twice} once.")
    return {label: said.get(label, label) for label in labels}


def read(options: ExampleOptions, data: Path | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return rows and described labels."""
    labels = given(options)
    rows = [] if data is None else options.read(data, label=next(iter(labels)) if len(labels) == 1 else None)
    if not labels:
        found, told = read_off(rows)
        note(told)
        labels = {label: label for label in found}
    return rows, labels


def synthesizer_for(
    options: ExampleOptions, engine: Any, labels: dict[str, str], *, name: str = "synthesis", **promise: Any
) -> DPExampleSynthesizer:
    from langchain_dp.synth import DPExampleSynthesizer

    return DPExampleSynthesizer(
        model=engine,
        labels=labels,
        count=options.count,
        name=name,
        max_new_tokens=options.tokens,
        members=options.members,
        temperature=options.temperature,
        chat=options.chat,
        labels_from_data=not (options.labels or options.describe),
        allow_small_model=True,  # the command has its own option
        **promise,
    )


def _before(plan: SynthesisPlan) -> str:
    time = "" if plan.seconds is None else f"; about {took(plan.seconds)} on this machine ({ESTIMATED})"
    from langchain_dp.synth.report import yes_or_no

    weak = "".join(f"\nWARNING: {point}." for point in plan.weak)
    return f"Writes {plan.examples} examples{time}. Worth it? {yes_or_no(plan.verdict)}.{weak}"


def _said(advance: Advance, *, quiet: bool) -> Callable[[SyntheticExample], None]:
    """Show released texts, unless ``quiet``."""

    def told(one: SyntheticExample) -> None:
        lost = f"a text of {one.label} was given up when the run was stopped"
        advance(1, "" if quiet else lost if one.dropped == "given up" else f"{one.label}: {one.text}")

    return told


def _show(examples: SyntheticExamples, options: Synthesize, account: DataLedger | None) -> None:
    if options.json:
        dropped = [one.row() | {"dropped": one.dropped} for one in examples.dropped]
        certificate = examples.certificate.to_dict()
        shown = {"examples": examples.rows(), "dropped": dropped, "certificate": certificate}
        print_json(shown | ({} if account is None else account.in_json()))
        return
    print(f"{examples}: {options.out}" + ("" if account is None else f"\n{account}"))
