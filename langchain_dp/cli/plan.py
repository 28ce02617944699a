"""``langchain-dp plan``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from typer import Option

from langchain_dp.cli import optimize, synthesize
from langchain_dp.cli.options import (
    BudgetOptions,
    DeltaOptions,
    ExampleOptions,
    JsonOptions,
    LabelOptions,
    RowOptions,
    TableOptions,
    VoteOptions,
    WriterOptions,
)
from langchain_dp.cli.parser import DONE, WrongArguments, positive
from langchain_dp.cli.runs import read_off
from langchain_dp.cli.show import note, show, show_calibration

if TYPE_CHECKING:
    from langchain_dp.icl import ICLPlanReport, ICLPrompt
    from langchain_dp.ports import Token

WHAT = "Forecast a private run, before anything is spent."
NOTES = "Each system has its own --help. Nothing is charged, reserved or written."

_COUNTED = "four characters a token: no model was loaded"


# ------------------------------------------------------------------------------------------------------- DP-ICL


class PlanICL(JsonOptions, VoteOptions, BudgetOptions, RowOptions, LabelOptions):
    """Plans private answers."""

    path = "plan icl"
    what = "Labels by votes (DP-ICL): noise, calls, tokens and money."
    examples = """\
  langchain-dp plan icl --records 8000 --labels praise complaint --epsilon 3 --queries 10000 --price 0.4
  langchain-dp plan icl --data tickets.jsonl --epsilon 1 --delta 1e-6 --queries 500 --shots 2 --json
"""
    notes = """\
No model is loaded. Tokens are estimated at four characters each; with --data they come from the private rows,
so keep the figures to yourself.
--json: {"epsilon", "delta", "neighbors", "queries", "sigma", "groups", "calls", "tokens", "price", "survival":
{share of a majority: chance that it wins}, "warning", "weak", ...}.
"""
    said: ClassVar = {"max_queries": "--queries"}
    queries: int = Option(10000, min=1, max=10**7, help="answers the noise is made for")
    sampling: Literal["fixed", "resample"] = Option("fixed")
    characters: int = Option(100, min=1, help="of a text of --records")
    price: float | None = Option(None, parser=positive, help="of a million input tokens, in any currency")

    def run(self) -> int:
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.icl import SamplingOptions

        self.check_constants(subsets_are_fixed=self.sampling == "fixed")
        budget = PrivacyBudget(self.epsilon, self.delta, self.neighbors)
        settings = {
            "shots": self.shots,
            "subsets": self.subsets,
            "sampling": SamplingOptions(self.sampling, self.partitions, self.sampling_probability),
            "budget": budget,
            "max_queries": self.queries,
        }
        found = _icl_of_rows(self, self.data, settings) if self.data else _icl_of_number(self, settings)
        show(found, self, counted_by=_COUNTED, on_rows=self.data is not None)
        return DONE


def _icl_of_rows(options: PlanICL, data: Path, settings: dict[str, Any]) -> ICLPlanReport:
    from langchain_core.runnables import RunnableLambda

    from langchain_dp.icl import DPICLClassifier
    from langchain_dp.records import PrivateRecords

    rows = options.read(data)
    records = PrivateRecords(rows)
    labels = options.labels
    if labels is None:
        labels, said = read_off(rows)
        note(said)
    chain = DPICLClassifier(
        model=RunnableLambda(_unasked),
        trust_opaque_model=True,
        examples=records,
        labels=labels,
        prompt=_prompt(options, labels),
        **settings,
    )
    return chain.plan(price_per_million_tokens=options.price)


def _icl_of_number(options: PlanICL, settings: dict[str, Any]) -> ICLPlanReport:
    from langchain_dp.icl.prompts import companion_text
    from langchain_dp.icl.report import report
    from langchain_dp.icl.reservation import reserve
    from langchain_dp.records import check_labels, label_words

    if options.labels is None:
        raise WrongArguments("Expected --labels to name the labels, since no --data shows them.")
    labels = check_labels(options.labels)
    records = options.records or 0  # set, since --data is not
    prompt = _prompt(options, labels)
    words = label_words(prompt.words, labels)
    fields = {name: "x" * options.characters if name == "text" else "" for name in prompt.variables}
    return report(
        reserve(**settings, ledger=None, name="plan", about=lambda _: {}, records=records),
        labels=len(labels),
        records=records,
        head=prompt.head(),
        shot=prompt.body([(prompt.ask(fields), words[0])]),
        count_tokens=_estimated,
        price_per_million_tokens=options.price,
        companions=[companion_text(prompt, words)],
    )


def _prompt(options: PlanICL, labels: Sequence[str]) -> ICLPrompt:
    from langchain_dp.icl.prompts import TEMPLATES, plain

    return TEMPLATES.get(options.prompt) or plain(labels)


def _unasked(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a plan asks no model")


def _estimated(text: str) -> int:
    return -(-len(text) // 4)


# ------------------------------------------------------------------------------------------------------- DP-OPT


class PlanOpt(JsonOptions, WriterOptions, BudgetOptions, RowOptions):
    """Plans a private prompt."""

    path = "plan opt"
    what = "A prompt (DP-OPT): calls, votes that a token needs, tokens."
    examples = """\
  langchain-dp plan opt --data train.jsonl --task sst2 --epsilon 8
  langchain-dp plan opt --records 600 --labels praise complaint --instruction "Praise or complaint?" \\
      --epsilon 8 --shots 3 --subsets 48 --prompts 3 --tokens 20
  langchain-dp plan opt --records 200 --task trec --epsilon 1 --method choose --alternatives prompts.jsonl
"""
    notes = """\
With --model, tokens are counted as that model counts them, and time and memory are estimated. Token counts of --data
come from the private rows.
--json: {"epsilon", "delta", "neighbors", "groups", "epsilon0", "votes_needed", "max_calls", "verdict", ...}.
"""
    model: str | None = Option(None, help="path of a GGUF that counts the tokens (default: none)")

    def run(self) -> int:
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.records import PrivateRecords

        task = optimize.known_task(self)
        if self.method != "choose":
            self.check_constants()
        budget = PrivacyBudget(self.epsilon, self.delta, self.neighbors)
        examples: PrivateRecords | int = self.records or 0  # one of both is set
        rows: list[dict[str, Any]] = []
        if self.data is not None:
            rows = self.read(self.data)
            examples = PrivateRecords(rows)
        elif self.labels is None and task is None:
            raise WrongArguments("Expected --labels to name the labels, or --task, since no --data shows them.")
        labels = optimize.labels_of(self, task, rows)
        with contextlib.ExitStack() as held:
            engine: Any = _Counter(self.max_tokens)
            if self.model is not None:
                from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

                sizes = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
                engine = held.enter_context(LlamaCppEnsemble(model_path=self.model, **sizes))
            count = examples if isinstance(examples, int) else len(examples)
            found = optimize.optimizer_for(self, engine, task, labels, budget, count=count).plan(examples)
            show(found, self, counted_by=engine.name, on_rows=self.data is not None)
        return DONE


class _Counter:
    """Counts tokens instead of an engine."""

    name = _COUNTED
    vocabulary_size = sys.maxsize
    end_tokens: frozenset[Token] = frozenset()

    def __init__(self, most: int | None) -> None:
        self.max_prompt_tokens = self.max_tail_tokens = sys.maxsize if most is None else most

    def count_tokens(self, text: str) -> int:
        return _estimated(text)

    def forget(self, *members: Hashable) -> None:
        """Nothing is kept."""

    warm = detokenize = next_tokens = score_next_token = score_labels = staticmethod(_unasked)


# ------------------------------------------------------------------------------------------------------ examples


class PlanSynthesize(JsonOptions, ExampleOptions, DeltaOptions, RowOptions):
    """Plans synthetic examples."""

    path = "plan synthesize"
    what = "Synthetic examples: members, tokens, and their worth."
    examples = """\
  langchain-dp plan synthesize --records 2000 --labels praise complaint --epsilon 3
  langchain-dp plan synthesize --data tickets.jsonl --epsilon 1 --count 16 --tokens 30 --json
"""
    notes = """\
No model is loaded: tokens are estimated at four characters each; with --data they come from the private rows.
`langchain-dp synthesize --plan` loads the model, and estimates the time. Neighbors replace one row.
--json: {"epsilon", "delta", "examples", "clip", "members", "sampling_probability", "verdict", ...}.
"""
    epsilon: float = Option(parser=positive, help="the budget")

    def run(self) -> int:
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.records import PrivateRecords

        if self.data is None and not (self.labels or self.describe):
            raise WrongArguments("Expected --labels or --describe to name the labels, since no --data shows them.")
        rows, labels = synthesize.read(self, self.data)
        examples: PrivateRecords | int = self.records or 0 if self.data is None else PrivateRecords(rows)
        budget = PrivacyBudget(self.epsilon, self.delta)
        found = synthesize.synthesizer_for(self, _Counter(None), labels, budget=budget).plan(examples)
        show(found, self, counted_by=_COUNTED, on_rows=self.data is not None)
        return DONE


class PlanAnswers(JsonOptions, DeltaOptions, RowOptions):
    """Plans answers in text."""

    path = "plan answers"
    what = "Answers in text: members, tokens, and their worth."
    examples = """\
  langchain-dp plan answers --records 2000 --epsilon 3 --queries 100
  langchain-dp plan answers --data tickets.jsonl --epsilon 3 --queries 20 --tokens 60 --json
"""
    notes = """\
For DPAnswerGenerator, which reserves its budget when it is made. No model is loaded: tokens are estimated at four
characters each; with --data they come from the private rows. Neighbors replace one row.
--json: {"epsilon", "delta", "answers", "clip", "members", "sampling_probability", "verdict", ...}.
"""
    said: ClassVar = {"max_queries": "--queries", "max_new_tokens": "--tokens"}
    epsilon: float = Option(parser=positive, help="the budget")
    queries: int = Option(100, min=1, max=10_000, help="answers the noise is made for")
    members: int = Option(30, min=2, help="rows that are expected to take part in one answer")
    tokens: int = Option(50, min=1, help="tokens of one answer at most")

    def run(self) -> int:
        from langchain_dp.accounting import PrivacyBudget
        from langchain_dp.records import PrivateRecords
        from langchain_dp.synth import AnswerPrompts
        from langchain_dp.synth.report import planned_answers
        from langchain_dp.synth.settings import WritingSettings

        records = None if self.data is None else PrivateRecords(self.read(self.data))
        count = self.records or 0 if records is None else len(records)
        budget = PrivacyBudget(self.epsilon, self.delta)
        settings = WritingSettings(prompts=AnswerPrompts(), max_new_tokens=self.tokens, members=self.members)
        design = settings.design(budget, records=count, rounds=self.queries)
        found = planned_answers(_Counter(None), AnswerPrompts(), budget, design, records)
        show(found, self, counted_by=_COUNTED, on_rows=records is not None)
        return DONE


# --------------------------------------------------------------------------------------------------------- RAPT


class PlanRAPT(JsonOptions, TableOptions):
    """Plans privatized text."""

    path = "plan rapt"
    what = "Privatized text (RAPT): eta and its meaning."
    examples = """\
  langchain-dp plan rapt --target-replacement 0.5 --table glove
  langchain-dp plan rapt --eta 4 --mechanism laplace --releases 50 --json
"""
    notes = """\
It costs no privacy: public texts and the public table are measured. `langchain-dp sanitize` uses the same eta.
--json: {"table", "mechanism", "eta", "replacement", "unchanged", "distinct", "inversion", "neighbor_loss", ...}.
"""
    releases: int | None = Option(None, min=1, help="texts of one user, to find their --limit")

    def run(self) -> int:
        from langchain_dp.rapt import calibrate, load

        calibration = calibrate(load(self.embeddings), **self.targets(), mechanism=self.mechanism)
        show_calibration(calibration, as_json=self.json, releases=self.releases)
        return DONE


EXAMPLES = f"{PlanICL.examples}{PlanOpt.examples}{PlanSynthesize.examples}{PlanAnswers.examples}{PlanRAPT.examples}"
