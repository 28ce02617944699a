"""``langchain-dp synthesize``: private rows in, a file of examples out that may be shown to anybody and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import typer
from typer import Option

from langchain_dp._util.rounding import took
from langchain_dp.cli.options import (
    ROWS,
    DeltaOptions,
    ExampleOptions,
    JsonOptions,
    ModelOptions,
    ledger_budget,
    promised,
    run_ledger,
)
from langchain_dp.cli.parser import DONE, INTERRUPTED, WrongArguments, positive
from langchain_dp.cli.runs import (
    ESTIMATED,
    charging,
    check_apart,
    check_out,
    explained,
    opened,
    read_off,
    whole_budget,
)
from langchain_dp.cli.show import Advance, note, print_json, progress, show
from langchain_dp.errors import InvalidParameter

if TYPE_CHECKING:
    from langchain_dp.synth import DPExampleSynthesizer, SynthesisPlan, SyntheticExample, SyntheticExamples


class Synthesize(JsonOptions, ModelOptions, ExampleOptions, DeltaOptions):
    """Writes examples."""

    said: ClassVar = ModelOptions.said | ExampleOptions.said
    path = "synthesize"
    what = "Write examples from private rows with a model on this machine: for any use, for ever."
    examples = """\
  langchain-dp synthesize --data train.jsonl --epsilon 3 --count 64 --out synthetic.jsonl --plan
  langchain-dp synthesize --data train.jsonl --epsilon 3 --count 64 --out synthetic.jsonl
  langchain-dp synthesize --labels sports business --out public.jsonl --alone
  langchain-dp synthesize --data tickets.jsonl --epsilon 3 --out synthetic.jsonl \\
      --describe "praise=messages that praise a clinic" --describe "complaint=messages that complain of it"
"""
    notes = """\
The first line of the file holds the certificate, every other one {"text", "label"}, with "dropped" and why where a
public filter left it out. Beside it lie a ledger, which holds what was released, and the ledger's key: whoever has both
can test guesses at the rows. After Ctrl-C the same command goes on with the next token. Neighbours replace one row. A
description must not be taken from the rows: the model is told it, and it counts as public.
--alone shows no row to the model: where the names of the labels say what they mean, look first whether that will do.
--json: {"examples", "dropped", "certificate"}; with --plan {"clip", "members", "verdict", ...}.
"""
    out: Path = Option(help="JSONL file to write: certificate and examples")
    data: Path | None = Option(None, help=f"{ROWS}: the private rows (required without --alone)")
    epsilon: float | None = promised(None, parser=positive, help="the budget (required without --alone)")
    ledger: str | None = run_ledger()
    ledger_budget: tuple[float, float] | None = ledger_budget()
    name: str = promised("synthesis", help="name of the run in the ledger")
    max_tokens: int | None = Option(None, min=1, help="context of one row, in tokens (default: the engine's)")
    alone: bool = Option(
        False, "--alone", help="write with the model alone, for nothing: what private ones have to beat"
    )
    plan: bool = Option(False, "--plan", help="say what it would cost and if it is worth it: no ledger is opened")
    give_up_round: bool = Option(
        False, "--give-up-round", help="after a kill go on over other rows: what is missing of the round is lost"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alone and (self.plan or self.ledger or self.ledger_budget):
            raise typer.BadParameter("expected --alone without --plan, --ledger and --ledger-budget: it spends nothing")
        if not self.alone and (self.data is None or self.epsilon is None):
            raise typer.BadParameter("expected --data and --epsilon to be given; --alone does without")
        if self.data is None and not (self.labels or self.describe):
            raise typer.BadParameter("expected --labels, --describe or --data: without them nobody knows the labels")

    def run(self) -> int:
        """Run the command; returns the exit code."""
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.accounting.store.base import is_there
        from langchain_dp.records import PrivateRecords, check_records
        from langchain_dp.synth import SynthesisPrompts, SyntheticExamples

        saved = check_out(self.out, SyntheticExamples.load, "saved examples")
        check_apart(self.out, self.ledger)
        rows, labels = read(self, self.data)
        records = PrivateRecords(rows)
        if not self.alone:
            check_records(records, list(labels), SynthesisPrompts().variables)
        # The model alone spends nothing of it: any number will do.
        budget = PrivacyBudget(self.epsilon or 1.0, self.delta)
        path = None if self.alone or self.plan else self.ledger or f"{self.out}.ledger"
        whole = budget if path is None else whole_budget(path, budget, self.ledger_budget)
        with contextlib.ExitStack() as held:
            ledger = held.enter_context(opened(path, whole)) if path is not None and is_there(path) else None
            paid = None if self.plan or saved is None or not _was_paid_for(saved) else saved
            if paid is not None and (ledger is None or ledger.plan(self.name) is None):
                _refuse(self.out)
            if not self.json:
                note("loading the model ...")
            engine = held.enter_context(self.engine(slots=min(self.members + 10, 250), max_tokens=self.max_tokens))
            if self.alone:
                with progress("writing", -(-self.count // len(labels)) * len(labels), "texts") as advance:
                    on_text = _said(advance, quiet=self.json)
                    examples = synthesizer_for(self, engine, labels, budget=budget, progress=on_text).public_examples()
                self._save(examples)
                return DONE
            plan = synthesizer_for(self, engine, labels, budget=budget).plan(records)
            if path is None:
                show(plan, self, counted_by=engine.name)
                return DONE
            ledger = ledger or held.enter_context(opened(path, whole))
            begun = ledger.plan(self.name) is not None
            if not begun and not self.json:
                note(_before(plan))
                note(charging(ledger, path))
            charged = sum(entry.count for entry in ledger.entries())
            share = None if begun and self.ledger_budget is None else budget  # it keeps the share it took
            with explained(), progress("writing", plan.examples, "texts") as advance:
                on_text = _said(advance, quiet=self.json)
                chain = synthesizer_for(
                    self, engine, labels, name=self.name, ledger=ledger, budget=share, progress=on_text
                )
                if paid is not None and not _texts(paid) <= _texts(chain.released()):
                    _refuse(self.out)
                if self.give_up_round:
                    chain.give_up_round()
                try:
                    examples = chain.invoke(records)
                except KeyboardInterrupt:
                    note(f"interrupted; what is written is kept in {path}. The same command again goes on from there.")
                    return INTERRUPTED
            if begun and not self.json and charged == sum(entry.count for entry in ledger.entries()):
                note(f"This run was complete: its examples are given out again from {path}, and nothing was charged.")
            self._save(examples)
        return DONE

    def _save(self, examples: SyntheticExamples) -> None:
        examples.save(self.out)
        _show(examples, self)


def _was_paid_for(examples: SyntheticExamples) -> bool:
    """Whether a budget was spent on them: nobody writes them a second time."""
    return examples.certificate.private and examples.certificate.epsilon > 0


def _texts(examples: SyntheticExamples) -> set[tuple[str, str]]:
    return {(one.text, one.label) for one in (*examples, *examples.dropped)}


def _refuse(out: Path) -> NoReturn:
    raise InvalidParameter(
        f"Expected --out {out} to be new, or to hold examples of this run, but those in it are of another, which were "
        "paid for. Name another file, or move it away."
    )


def given(options: ExampleOptions) -> dict[str, str]:
    """The labels that were named, with what is said of them; none if none were."""
    said = {}
    for each in options.describe or ():
        label, found, text = each.partition("=")
        if not found or not label.strip() or not text.strip():
            raise WrongArguments('Expected --describe to be LABEL=TEXT, as in --describe "A=late parcels".')
        if label.strip() in said:
            raise WrongArguments(f"Expected --describe to say once what {label.strip()!r} means. Leave one out.")
        said[label.strip()] = text.strip()
    labels = list(options.labels or said)
    unknown = sorted(said.keys() - set(labels))
    if unknown:
        raise WrongArguments(f"Expected --describe for labels of --labels, but {unknown} are none of them.")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise WrongArguments(f"Expected {'--labels' if options.labels else '--describe'} to name {twice} once.")
    return {label: said.get(label, label) for label in labels}


def read(options: ExampleOptions, data: Path | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows, and the labels with what is said of them: one that was named alone is that of rows without."""
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
    """The synthesizer of these options."""
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
        **promise,
    )


def _before(plan: SynthesisPlan) -> str:
    time = "" if plan.seconds is None else f"; about {took(plan.seconds)} on this machine ({ESTIMATED})"
    from langchain_dp.synth.report import yes_or_no

    weak = "".join(f"\nWARNING: {point}." for point in plan.weak)
    return f"Writes {plan.examples} examples{time}. Worth it? {yes_or_no(plan.verdict)}.{weak}"


def _said(advance: Advance, *, quiet: bool) -> Callable[[SyntheticExample], None]:
    """Shows what is released, as it appears; ``quiet``, where a program reads, that one more is."""

    def told(one: SyntheticExample) -> None:
        lost = f"a text of {one.label} was given up when the run was stopped"
        advance(1, "" if quiet else lost if one.dropped == "given up" else f"{one.label}: {one.text}")

    return told


def _show(examples: SyntheticExamples, options: Synthesize) -> None:
    if options.json:
        dropped = [one.row() | {"dropped": one.dropped} for one in examples.dropped]
        certificate = examples.certificate.to_dict()
        print_json({"examples": examples.rows(), "dropped": dropped, "certificate": certificate})
        return
    print(f"{examples}: {options.out}")
