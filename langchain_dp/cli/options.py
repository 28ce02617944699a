"""Options that mean the same in several commands: each is defined once, here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from langchain_dp.cli.parts import FileName, WrongArguments, count, positive, rate, share, whole

NEIGHBORS = ("replace-one", "add-or-remove-one", "replace-special")
TASKS = ("sst2", "trec", "mpqa", "disaster")
PROMPTS = ("plain", "sst2", "amazon", "agnews", "trec")
TABLES = ("glove", "minilm")
REPLACEMENT = 0.5
_OF_THE_CLASS = "default: that of DPPromptOptimizer"

Options = Any
"""A parser, or a group of one."""


def add_json(parser: Options, shape: str = "print one JSON object on stdout and nothing else there") -> None:
    """Whether a program reads it."""
    parser.add_argument("--json", action="store_true", help=shape)


def add_model(parser: Options) -> None:
    """Which model runs on this machine, and where."""
    parser.add_argument("--model", type=FileName(), help="path of a GGUF (default: the embedded SmolLM2-135M-Instruct)")
    parser.add_argument("--gpu-layers", type=whole(-1), default=0, help="layers to put on a GPU (default: %(default)s)")


def add_rows(parser: Options) -> None:
    """What a plan is for: rows, or their number."""
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument("--data", type=Path, help="JSONL of {text, label}: the private rows")
    rows.add_argument("--records", type=count, metavar="N", help="number of rows; their texts are taken to be short")


class _Labels(argparse._StoreAction):
    """Two at least."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if len(values) < 2:
            raise argparse.ArgumentError(self, f"expected at least two labels, found {values[0]!r} alone")
        super().__call__(parser, namespace, values, option_string)


def add_labels(parser: Options, default: str = "those found in --data") -> None:
    """The labels."""
    parser.add_argument("--labels", nargs="+", action=_Labels, help=f"the public labels (default: {default})")


def add_delta(parser: Options) -> None:
    """The small one."""
    parser.add_argument("--delta", type=share, default=1e-5, help="default: %(default)s")


def add_neighbors(parser: Options) -> None:
    """The relation."""
    said = "what one record's change is; replace-special blanks it out (default: %(default)s)"
    parser.add_argument("--neighbors", choices=NEIGHBORS, default=NEIGHBORS[0], help=said)


def add_budget(parser: Options, *, required: bool) -> None:
    """The promise of a ledger."""
    said = "the budget" if required else "the budget; required for the private method"
    parser.add_argument("--epsilon", type=positive, required=required, help=said)
    add_delta(parser)
    add_neighbors(parser)


def add_subsets(parser: Options, *, shots: int | None = None, subsets: int | None = None) -> None:
    """How rows become votes; without values, those of the optimizer."""
    said = _OF_THE_CLASS if shots is None else "default: %(default)s"
    parser.add_argument("--shots", type=count, default=shots, help=f"examples of one subset ({said})")
    parser.add_argument("--subsets", type=count, default=subsets, help=f"expected votes on one answer ({said})")


def add_constants(parser: Options) -> None:
    """What add/remove needs, where nothing may be derived from the number of rows."""
    need = "required for add-or-remove-one"
    parser.add_argument("--partitions", type=count, help=f"number of all subsets ({need})")
    parser.add_argument("--sampling-probability", type=rate, metavar="Q", help=f"chance that one votes ({need})")


def check_constants(options: argparse.Namespace, *, subsets_are_fixed: bool = True) -> None:
    """What ``--neighbors`` needs.

    Raises:
        WrongArguments: Add/remove without its constants.
    """
    missing = [] if options.sampling_probability is not None else ["--sampling-probability"]
    if subsets_are_fixed and options.partitions is None:
        missing.append("--partitions")
    if options.neighbors == "add-or-remove-one" and missing:
        raise WrongArguments(
            f"Expected {' and '.join(missing)} with --neighbors {options.neighbors}: the number of rows is private "
            "there, and nothing may be derived from it."
        )


def add_icl(parser: Options, default: str, queries: int | None = None) -> None:
    """The template of DP-ICL, and how many answers the noise is made for."""
    parser.add_argument("--prompt", choices=PROMPTS, default=PROMPTS[0], help="template (default: %(default)s)")
    parser.add_argument(
        "--queries", type=count, default=queries, help=f"answers the noise is made for (default: {default})"
    )
    add_subsets(parser, shots=4, subsets=10)


def add_task(parser: Options) -> None:
    """What a prompt is to be written for."""
    parser.add_argument(
        "--task", choices=TASKS, help="labels, instruction, templates, shots and subsets of a known task"
    )
    parser.add_argument("--instruction", help="what to start from, public (default: that of --task)")
    add_labels(parser, "of --task, or those found in --data")


def add_writing(parser: Options) -> None:
    """How much is written, and from how many votes."""
    add_subsets(parser)
    add_constants(parser)
    parser.add_argument("--prompts", type=count, help=f"candidates ({_OF_THE_CLASS})")
    parser.add_argument("--tokens", type=count, help=f"tokens of one candidate ({_OF_THE_CLASS})")
    parser.add_argument("--validation", type=share, help=f"share of the rows that select ({_OF_THE_CLASS})")


def add_context(parser: Options) -> None:
    """Room for one subset."""
    parser.add_argument("--max-tokens", type=count, help="context of one subset, in tokens (default: the engine's)")


def add_table(parser: Options) -> None:
    """Which words, and how private: one target. The long names are those of the library."""
    parser.add_argument(
        "--embeddings", "--table", type=FileName(TABLES), default=TABLES[0], metavar="TABLE",
        help="glove, minilm or a path (default: %(default)s)",
    )  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--eta", type=positive, help="loss per unit of distance, in nats")
    how.add_argument(
        "--replacement", "--target-replacement", type=share, metavar="P",
        help=f"share of words replaced (default: {REPLACEMENT})",
    )  # fmt: skip
    how.add_argument("--deniability", type=share, metavar="P", help="95%% of words stay with at most this chance")
    how.add_argument("--inversion", type=share, metavar="P", help="share of words that an attacker may guess")
    how.add_argument(
        "--max-loss", type=positive, metavar="NATS", help="mean loss between a word and its nearest neighbour"
    )  # fmt: skip
    parser.add_argument("--mechanism", choices=("exponential", "laplace"), default="exponential")


def targets(options: argparse.Namespace) -> dict[str, Any]:
    """The one that was given, under the library's name, or the default."""
    asked = {
        "eta": options.eta,
        "target_replacement": options.replacement,
        "deniability": options.deniability,
        "inversion": options.inversion,
        "max_loss": options.max_loss,
    }
    return {name: value for name, value in asked.items() if value is not None} or {"target_replacement": REPLACEMENT}
