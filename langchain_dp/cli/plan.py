"""``langchain-dp plan``: what a private run would need, before anything is spent."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from langchain_dp.cli import optimize
from langchain_dp.cli import options as shared
from langchain_dp.cli.parts import DONE, FileName, WrongArguments, count, new_command, note, positive, read_off
from langchain_dp.cli.show import show_calibration, show_icl, show_opt

if TYPE_CHECKING:
    from langchain_dp.icl import ICLPlanReport, ICLPrompt
    from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token

_ICL = """\
  langchain-dp plan icl --records 8000 --labels praise complaint --epsilon 3 --queries 10000 --price 0.4
  langchain-dp plan icl --data tickets.jsonl --epsilon 1 --delta 1e-6 --queries 500 --shots 2 --json
"""

_OPT = """\
  langchain-dp plan opt --data train.jsonl --task sst2 --epsilon 8
  langchain-dp plan opt --records 600 --labels praise complaint --instruction "Praise or complaint?" \\
      --epsilon 8 --shots 3 --subsets 48 --prompts 3 --tokens 20
"""

_RAPT = """\
  langchain-dp plan rapt --target-replacement 0.5 --table glove
  langchain-dp plan rapt --eta 4 --mechanism laplace --releases 50 --json
"""

EXAMPLES = f"{_ICL}{_OPT}{_RAPT}"

_ICL_NOTES = """\
No model is asked or loaded. Tokens are estimated at four characters each; with --data they come from the private rows,
so keep the figures to yourself. In messages, max_queries= is --queries.
--json: {"epsilon", "delta", "neighbors", "queries", "sigma", "groups", "calls", "tokens", "price", "survival":
{share of a majority: chance that it wins}, "warning", "weak", ...}.
"""

_OPT_NOTES = """\
No model is loaded unless --model names one; tokens are then counted as it counts them, and time and memory are
estimated. Token counts of --data come from the private rows. In messages, num_prompts= is --prompts, max_new_tokens= is
--tokens, subsets= is --subsets.
--json: {"epsilon", "delta", "neighbors", "groups", "epsilon0", "votes_needed", "max_calls", "warm_tokens", ...}.
"""

_RAPT_NOTES = """\
Measured on public texts and the public table: it costs no privacy, and `langchain-dp sanitize` with the same options
uses the same eta.
--json: {"table", "mechanism", "eta", "replacement", "unchanged", "distinct", "inversion", "neighbor_loss", ...}.
"""

_COUNTED = "four characters a token: no model was loaded"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser = new_command(
        commands,
        "plan",
        "what a private run would need, before anything is spent",
        EXAMPLES,
        "Each system has its own --help. Nothing is charged, reserved or written.",
    )
    systems = parser.add_subparsers(dest="system", required=True)
    for add in (_add_icl, _add_opt, _add_rapt):
        made = add(systems)
        made.set_defaults(parser=made)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    {"icl": _icl, "opt": _opt, "rapt": _rapt}[options.system](options)
    return DONE


# ------------------------------------------------------------------------------------------------------- DP-ICL


def _add_icl(systems: Any) -> argparse.ArgumentParser:
    parser = new_command(
        systems,
        "icl",
        "private answers (DP-ICL): noise, calls, tokens, money, how often a majority survives",
        _ICL,
        _ICL_NOTES,
    )
    shared.add_rows(parser)
    shared.add_labels(parser)
    shared.add_budget(parser, required=True)
    shared.add_icl(parser, "%(default)s", 10_000)
    shared.add_constants(parser)
    parser.add_argument("--sampling", choices=("fixed", "resample"), default="fixed", help="default: %(default)s")
    parser.add_argument("--characters", type=count, default=100, help="of a text of --records (default: %(default)s)")
    parser.add_argument("--price", type=positive, help="of a million input tokens, in any currency")
    shared.add_json(parser)
    return parser


def _icl(options: argparse.Namespace) -> None:
    from langchain_dp.accounting import PrivacyBudget
    from langchain_dp.icl import Sampling

    shared.check_constants(options, subsets_are_fixed=options.sampling == "fixed")
    budget = PrivacyBudget(options.epsilon, options.delta, options.neighbors)
    settings = {
        "shots": options.shots,
        "subsets": options.subsets,
        "sampling": Sampling(options.sampling, options.partitions, options.sampling_probability),
        "budget": budget,
        "max_queries": options.queries,
    }
    found = _icl_of_rows(options, settings) if options.data else _icl_of_number(options, settings)
    show_icl(found, counted_by=_COUNTED, as_json=options.json)


def _icl_of_rows(options: argparse.Namespace, settings: dict[str, Any]) -> ICLPlanReport:
    from langchain_core.runnables import RunnableLambda

    from langchain_dp.icl import DPICLClassifier
    from langchain_dp.records import PrivateRecords, read_jsonl

    rows = read_jsonl(options.data)
    records = PrivateRecords(rows)
    labels = options.labels or sorted({str(row["label"]) for row in rows})
    if options.labels is None:
        note(read_off(labels, len(rows)))
    chain = DPICLClassifier(
        llm=RunnableLambda(_unasked), examples=records, labels=labels, prompt=_prompt(options, labels), **settings
    )
    return chain.plan(price_per_million_tokens=options.price)


def _icl_of_number(options: argparse.Namespace, settings: dict[str, Any]) -> ICLPlanReport:
    from langchain_dp.icl.checks import label_words
    from langchain_dp.icl.report import report
    from langchain_dp.icl.reservation import reserve
    from langchain_dp.icl.voters import companion_text
    from langchain_dp.records import check_labels

    if options.labels is None:
        raise WrongArguments("Expected --labels to name the labels, since no --data shows them.")
    labels = check_labels(options.labels)
    prompt = _prompt(options, labels)
    words = label_words(prompt, labels)
    fields = {name: "x" * options.characters if name == "text" else "" for name in prompt.variables}
    return report(
        reserve(**settings, ledger=None, name="plan", records=options.records),
        labels=len(labels),
        records=options.records,
        head=prompt.head(),
        shot=prompt.body([(prompt.ask(fields), words[0])]),
        count_tokens=_estimated,
        price_per_million_tokens=options.price,
        companions=[companion_text(prompt, words)],
    )


def _prompt(options: argparse.Namespace, labels: Sequence[str]) -> ICLPrompt:
    from langchain_dp.icl import prompts

    return getattr(prompts, options.prompt.upper(), None) or prompts.plain(labels)


def _unasked(_: object) -> NoReturn:
    raise AssertionError("a plan asks no model")


def _estimated(text: str) -> int:
    return -(-len(text) // 4)


# ------------------------------------------------------------------------------------------------------- DP-OPT


def _add_opt(systems: Any) -> argparse.ArgumentParser:
    parser = new_command(
        systems, "opt", "a private prompt (DP-OPT): calls, votes a token needs, tokens to evaluate", _OPT, _OPT_NOTES
    )
    shared.add_rows(parser)
    shared.add_task(parser)
    shared.add_budget(parser, required=True)
    shared.add_writing(parser)
    parser.add_argument("--model", type=FileName(), help="path of a GGUF that counts the tokens (default: none)")
    shared.add_context(parser)
    shared.add_json(parser)
    # What of `optimize` does not change a plan.
    parser.set_defaults(method="dp-opt", name="dp-opt", chat=False, steps=None, temperature=None, seed_not_private=None)
    return parser


def _opt(options: argparse.Namespace) -> None:
    from langchain_dp.accounting import PrivacyBudget
    from langchain_dp.records import PrivateRecords, read_jsonl

    task = optimize.known_task(options)
    shared.check_constants(options)
    budget = PrivacyBudget(options.epsilon, options.delta, options.neighbors)
    examples: PrivateRecords | int = options.records
    if options.data is not None:
        rows = read_jsonl(options.data)
        examples = PrivateRecords(rows)
        labels = optimize.labels_of(options, task, rows)
    elif options.labels is None and task is None:
        raise WrongArguments("Expected --labels to name the labels, or --task, since no --data shows them.")
    else:
        labels = optimize.labels_of(options, task, [])
    with contextlib.ExitStack() as held:
        engine: Any = _Counter(options.max_tokens)
        if options.model is not None:
            from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

            sizes = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}
            engine = held.enter_context(LlamaCppEnsemble(model_path=options.model, **sizes))
        found = optimize.optimizer_for(options, engine, task, labels, budget).plan(examples)
        show_opt(found, counted_by=engine.name, as_json=options.json)


class _Counter:
    """Stands where a plan needs an engine, and counts tokens by their usual length. It cannot be asked anything."""

    name = _COUNTED
    vocabulary_size = sys.maxsize
    end_tokens: frozenset[Token] = frozenset()

    def __init__(self, most: int | None) -> None:
        self.max_prompt_tokens = self.max_tail_tokens = sys.maxsize if most is None else most

    def count_tokens(self, text: str) -> int:
        return _estimated(text)

    def forget(self, *members: Hashable) -> None:
        """Nothing is kept."""

    def warm(self, prompts: Sequence[MemberPrompt]) -> NoReturn:
        _unasked(prompts)

    def detokenize(self, tokens: Sequence[Token]) -> NoReturn:
        _unasked(tokens)

    def next_tokens(self, asked: Sequence[Continuation], decoding: Decoding) -> NoReturn:
        _unasked(asked)

    def score_labels(
        self, prompts: Sequence[MemberPrompt], words: Sequence[str], *, content_free: Sequence[str] = ()
    ) -> NoReturn:
        _unasked(prompts)


# --------------------------------------------------------------------------------------------------------- RAPT


def _add_rapt(systems: Any) -> argparse.ArgumentParser:
    parser = new_command(systems, "rapt", "privatized text (RAPT): eta, and what it means", _RAPT, _RAPT_NOTES)
    shared.add_table(parser)
    parser.add_argument("--releases", type=count, help="texts of one user: what they need as --limit of an account")
    shared.add_json(parser)
    return parser


def _rapt(options: argparse.Namespace) -> None:
    from langchain_dp.rapt import calibrate, load

    calibration = calibrate(load(options.embeddings), **shared.targets(options), mechanism=options.mechanism)
    show_calibration(calibration, as_json=options.json, releases=options.releases)
