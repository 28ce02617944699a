"""``langchain-dp demo``: what privacy costs, shown with a model that runs on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_dp._cli_parts import DONE, add_model_options, epilog, formatter, read_off
from langchain_dp.errors import MissingExtra

if TYPE_CHECKING:
    from langchain_dp import demo, demo_opt
    from langchain_dp.ports import VotesNextToken

EXAMPLES = """\
  langchain-dp demo
  langchain-dp demo --system opt
  langchain-dp demo --data tickets.jsonl --json
  langchain-dp demo --data train.jsonl --test test.jsonl --prompt sst2 --queries 10000 --limit 200
"""

_NOTES = """\
--system icl (DP-ICL): private answers, accuracy against epsilon. --system opt (DP-OPT): a private prompt beside one that
leaks. Without either, both on the own sample, and icl on --data.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="what privacy costs, with a model that runs on this machine",
        epilog=epilog(EXAMPLES, _NOTES),
        formatter_class=formatter,
    )
    parser.add_argument("--system", choices=("icl", "opt"), help="show one of them")
    parser.add_argument("--data", type=Path, help="JSONL of {text, label}: the private rows (default: the own sample)")
    parser.add_argument("--test", type=Path, help="JSONL of rows to score (default: a held-out fifth of --data)")
    parser.add_argument("--labels", nargs="+", help="the public labels (default: those found in --data)")
    parser.add_argument("--limit", type=int, default=80, help="rows to score at most (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8000, help="private rows at most (default: %(default)s)")
    parser.add_argument("--delta", type=float, default=1e-5, help="default: %(default)s")
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print rows {method, epsilon, accuracy, n} and nothing else")
    icl = parser.add_argument_group("icl")
    icl.add_argument("--prompt", choices=["plain", "sst2", "amazon", "agnews", "trec"], default="plain")
    icl.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0], help="default: 1 3 8")
    icl.add_argument("--queries", type=int, help="releases the noise is made for (default: the rows scored)")
    icl.add_argument("--shots", type=int, default=4, help="examples per subset (default: %(default)s)")
    icl.add_argument("--subsets", type=int, default=10, help="expected votes per question (default: %(default)s)")
    icl.add_argument("--picture", type=Path, default=Path("accuracy_vs_epsilon.png"), help="default: %(default)s")
    opt = parser.add_argument_group("opt")
    opt.add_argument("--instruction", help="what to start from (default: to classify the text as one of the labels)")
    opt.add_argument("--opt-epsilon", type=float, default=8.0, help="default: %(default)s")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

    data = _Data(options)
    systems = [options.system] if options.system else ["icl", "opt"] if options.data is None else ["icl"]
    rows: list[dict[str, Any]] = []
    with LlamaCppEnsemble(model_path=options.model, n_gpu_layers=options.gpu_layers) as engine:
        for system in systems:
            rows += (_icl if system == "icl" else _opt)(options, data, engine)
    if options.json:
        print(json.dumps(rows))
    elif data.read_off:
        print(f"\n{read_off(data.labels)}")
    return DONE
