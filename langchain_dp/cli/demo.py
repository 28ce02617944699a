"""``langchain-dp demo``: what privacy costs, shown with a model that runs on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_dp.cli import options as shared
from langchain_dp.cli.parts import DONE, WrongArguments, count, new_command, note, positive, print_json, read_off
from langchain_dp.errors import InvalidParameter, MissingExtra

if TYPE_CHECKING:
    from langchain_dp.ports import ScoresLabels, VotesNextToken

EXAMPLES = """\
  langchain-dp demo
  langchain-dp demo --system opt
  langchain-dp demo --data tickets.jsonl --json
  langchain-dp demo --data train.jsonl --test test.jsonl --prompt sst2 --queries 10000 --limit 200
"""

_NOTES = """\
--system icl (DP-ICL): private answers, accuracy against epsilon. --system opt (DP-OPT): a private prompt beside one
that leaks. Without --system, both on the sample that comes with the package, and icl on --data.
--json: {"rows": [{"method", "epsilon", "accuracy", "n", ...}]}, one row a method; epsilon is null where there is none.
"""

_OF_ONE = {
    "icl": ("epsilon", "prompt", "queries", "shots", "subsets", "picture"),
    "opt": ("instruction", "opt_epsilon"),
}
"""Options that only one of the systems heeds."""

_PICTURES = (".png", ".svg", ".pdf")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser = new_command(
        commands, "demo", "what privacy costs, with a model that runs on this machine", EXAMPLES, _NOTES
    )
    parser.add_argument("--system", choices=("icl", "opt"), help="show only DP-ICL, or only DP-OPT")
    parser.add_argument("--data", type=Path, help="JSONL of {text, label}: the private rows (default: a sample)")
    parser.add_argument("--test", type=Path, help="JSONL of rows to score (default: a held-out fifth of --data)")
    shared.add_labels(parser)
    parser.add_argument("--limit", type=count, default=80, help="rows to score at most (default: %(default)s)")
    parser.add_argument("--rows", type=count, default=8000, help="private rows at most (default: %(default)s)")
    shared.add_delta(parser)
    shared.add_model(parser)
    shared.add_json(parser)
    icl = parser.add_argument_group("icl")
    icl.add_argument("--epsilon", type=positive, nargs="+", default=[1.0, 3.0, 8.0], help="default: 1 3 8")
    shared.add_icl(icl, "the rows scored")
    icl.add_argument("--picture", type=Path, default=Path("accuracy_vs_epsilon.png"), help="default: %(default)s")
    opt = parser.add_argument_group("opt")
    opt.add_argument("--instruction", help="what to start from (default: to classify the text as one of the labels)")
    opt.add_argument("--opt-epsilon", type=positive, default=8.0, help="default: %(default)s")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

    systems = [options.system] if options.system else ["icl", "opt"] if options.data is None else ["icl"]
    _check(options, systems)
    data = _data(options)
    rows: list[dict[str, Any]] = []
    with LlamaCppEnsemble(model_path=options.model, n_gpu_layers=options.gpu_layers) as engine:
        for system in systems:
            if rows and not options.json:
                print(f"\n{'-' * 100}\n")
            rows += _icl(options, data, engine) if system == "icl" else _opt(options, data, engine)
    if options.json:
        print_json({"rows": rows})
    if data.said is not None:
        note(data.said)
    return DONE


def _check(options: argparse.Namespace, systems: list[str]) -> None:
    """Nothing that was asked for is left out in silence, and the picture finds its place."""
    for system, names in _OF_ONE.items():
        given = [f"--{n.replace('_', '-')}" for n in names if getattr(options, n) != options.parser.get_default(n)]
        if given and system not in systems:
            raise WrongArguments(f"Expected {', '.join(given)} with --system {system} only, which is not shown here.")
    if options.data is None and options.prompt != shared.PROMPTS[0]:
        raise WrongArguments("Expected --prompt together with --data: the sample has its own template.")
    if "icl" in systems and not options.json:
        if options.picture.suffix.lower() not in _PICTURES:
            raise WrongArguments(f"Expected --picture {options.picture} to end in one of {', '.join(_PICTURES)}.")
        if not options.picture.parent.is_dir():
            raise InvalidParameter(
                f"Expected the folder of --picture {options.picture} to be there. Make it, or name another."
            )


@dataclasses.dataclass(frozen=True, repr=False)
class _Data:
    name: str
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    labels: list[str]
    said: str | None = None


def _data(options: argparse.Namespace) -> _Data:
    from langchain_dp import sample
    from langchain_dp.cli import demo_icl as demo
    from langchain_dp.records import PrivateRecords, read_jsonl

    if options.data is None:
        if options.test or options.labels:
            raise WrongArguments("Expected --test and --labels together with --data: the sample has its own.")
        train, test = sample.load()
        return _Data("Feedback to a clinic (invented)", train[: options.rows], test[: options.limit], [*sample.LABELS])
    train = read_jsonl(options.data)
    train, test = (train, read_jsonl(options.test)) if options.test else demo.split(train)
    PrivateRecords(train)  # names the row that lacks text or label
    PrivateRecords(test)
    labels = options.labels or sorted({str(row["label"]) for row in train})
    said = None if options.labels else read_off(labels, len(train))
    return _Data(options.data.stem, train[: options.rows], test[: options.limit], labels, said)


def _icl(options: argparse.Namespace, data: _Data, engine: ScoresLabels) -> list[dict[str, Any]]:
    from langchain_dp import sample
    from langchain_dp.cli import demo_icl as demo
    from langchain_dp.icl import prompts

    prompt = sample.PROMPT if options.data is None else getattr(prompts, options.prompt.upper(), None)
    result = demo.run(
        demo.Task(data.name, data.train, data.test, data.labels, prompt),
        engine,
        epsilons=sorted(options.epsilon),
        delta=options.delta,
        queries=options.queries or len(data.test),
        shots=options.shots,
        subsets=options.subsets,
        quiet=not sys.stderr.isatty(),
        # Rows of somebody's own file are not printed.
        first=_show_first if options.data is None and not options.json else None,
    )
    if not options.json:
        print(demo.table(result))
        try:
            demo.picture(result, options.picture)
            print(f"\nPicture of accuracy against epsilon: {options.picture}")
        except MissingExtra as missing:
            note(missing)
    return [score.to_dict() for score in result.scores]


def _show_first(answer: str) -> None:
    print(f"{answer}\n\nNow the same for every question and method: some minutes.\n", flush=True)


def _opt(options: argparse.Namespace, data: _Data, engine: VotesNextToken) -> list[dict[str, Any]]:
    from langchain_dp.cli import demo_opt, demo_opt_table

    if options.data is None:
        task = demo_opt.own_task(data.name, data.train, data.test, data.labels, options.instruction)
    else:
        task = demo_opt.plain_task(data.name, data.train, data.test, data.labels, options.instruction)
    result = demo_opt.run(task, engine, epsilon=options.opt_epsilon, delta=options.delta, quiet=not sys.stderr.isatty())
    if not options.json:
        print(demo_opt_table.table(result, color=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return [shown.to_dict() for shown in result.shown]
