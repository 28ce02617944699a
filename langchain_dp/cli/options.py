"""Options that mean the same in several commands: each is defined once, here.

Of a class with several bases the last base's options come first in the help.
"""
# Annotations are read when a class is made: names in them are known here, not where a command inherits them.

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from typer import Option

from langchain_dp.cli.parts import Options, WrongArguments, count, files, positive, rate, share, whole

Neighboring = Literal["replace-one", "add-or-remove-one", "replace-special"]
KnownTask = Literal["sst2", "trec", "mpqa", "disaster"]
KnownPrompt = Literal["plain", "sst2", "amazon", "agnews", "trec"]
NEIGHBORS, TASKS = get_args(Neighboring), get_args(KnownTask)
TABLES = ("glove", "minilm")
REPLACEMENT = 0.5

_OF_THE_CLASS = "that of DPPromptOptimizer"
_PROMISE, _ICL, _TASK, _RUN = "promise", "icl", "task", "run"


def _two_labels(labels: list[str] | None) -> list[str] | None:
    if labels and len(labels) < 2:
        raise typer.BadParameter(f"expected at least two labels, found {labels[0]!r} alone")
    return labels


def _tables(incomplete: str) -> list[str | tuple[str, str]]:
    return [*TABLES, *files(incomplete)]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class JsonOptions(Options):
    """Whether a program reads it."""

    json: Annotated[bool, Option("--json", help="print one JSON object on stdout and nothing else there")] = False


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ModelOptions(Options):
    """Which model runs on this machine, and where."""

    model: Annotated[
        str | None, Option(autocompletion=files, help="path of a GGUF (default: the embedded SmolLM2-135M-Instruct)")
    ] = None
    gpu_layers: Annotated[int, Option(parser=whole(-1), help="layers to put on a GPU")] = 0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LabelOptions(Options):
    """The labels."""

    labels: Annotated[
        list[str] | None, Option(callback=_two_labels, help="the public labels (default: those found in --data)")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RowOptions(LabelOptions):
    """What a plan is for: rows, or their number."""

    data: Annotated[
        Path | None, Option(autocompletion=files, help="JSONL of {text, label}: the private rows")
    ] = None  # fmt: skip
    records: Annotated[
        int | None, Option(parser=count, metavar="N", help="number of rows; their texts are taken to be short")
    ] = None

    def __post_init__(self) -> None:
        self.at_most_one("data", "records", required=True)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DeltaOptions(Options):
    """The small one."""

    delta: Annotated[float, Option(parser=share, rich_help_panel=_PROMISE)] = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ConstantOptions(DeltaOptions):
    """The relation, and what add/remove needs, where nothing may be derived from the number of rows."""

    neighbors: Annotated[
        Neighboring,
        Option(rich_help_panel=_PROMISE, help="what one record's change is; replace-special blanks it out"),
    ] = "replace-one"
    partitions: Annotated[
        int | None,
        Option(parser=count, rich_help_panel=_PROMISE, help="number of all subsets (required for add-or-remove-one)"),
    ] = None
    sampling_probability: Annotated[
        float | None,
        Option(
            parser=rate, metavar="Q", rich_help_panel=_PROMISE,
            help="chance that one votes (required for add-or-remove-one)",
        ),
    ] = None  # fmt: skip

    def check_constants(self, *, subsets_are_fixed: bool = True) -> None:
        """What ``--neighbors`` needs.

        Raises:
            WrongArguments: Add/remove without its constants.
        """
        missing = [] if self.sampling_probability is not None else ["--sampling-probability"]
        if subsets_are_fixed and self.partitions is None:
            missing.append("--partitions")
        if self.neighbors == "add-or-remove-one" and missing:
            raise WrongArguments(
                f"Expected {' and '.join(missing)} with --neighbors {self.neighbors}: the number of rows is private "
                "there, and nothing may be derived from it."
            )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BudgetOptions(ConstantOptions):
    """The promise of a ledger."""

    epsilon: Annotated[float, Option(parser=positive, rich_help_panel=_PROMISE, help="the budget")]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class VoteOptions(Options):
    """The template of DP-ICL, and how rows become votes."""

    prompt: Annotated[KnownPrompt, Option(rich_help_panel=_ICL, help="template")] = "plain"
    shots: Annotated[int, Option(parser=count, rich_help_panel=_ICL, help="examples of one subset")] = 4
    subsets: Annotated[int, Option(parser=count, rich_help_panel=_ICL, help="expected votes on one answer")] = 10


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class WriterOptions(LabelOptions, ConstantOptions):
    """What a prompt is to be written for, how much is written, and from how many votes."""

    task: Annotated[
        KnownTask | None,
        Option(rich_help_panel=_TASK, help="labels, instruction, templates, shots and subsets of a known task"),
    ] = None
    instruction: Annotated[
        str | None,
        Option(rich_help_panel=_TASK, help="what to start from, public (default: that of --task)"),
    ] = None  # fmt: skip
    labels: Annotated[
        list[str] | None,
        Option(
            callback=_two_labels, rich_help_panel=_TASK,
            help="the public labels (default: of --task, or those found in --data)",
        ),
    ] = None  # fmt: skip
    shots: Annotated[
        int | None,
        Option(parser=count, rich_help_panel=_RUN, help=f"examples of one subset (default: {_OF_THE_CLASS})"),
    ] = None
    subsets: Annotated[
        int | None,
        Option(parser=count, rich_help_panel=_RUN, help=f"expected votes on one answer (default: {_OF_THE_CLASS})"),
    ] = None
    prompts: Annotated[
        int | None, Option(parser=count, rich_help_panel=_RUN, help=f"candidates (default: {_OF_THE_CLASS})")
    ] = None
    tokens: Annotated[
        int | None,
        Option(parser=count, rich_help_panel=_RUN, help=f"tokens of one candidate (default: {_OF_THE_CLASS})"),
    ] = None
    validation: Annotated[
        float | None,
        Option(parser=share, rich_help_panel=_RUN, help=f"share of the rows that select (default: {_OF_THE_CLASS})"),
    ] = None
    max_tokens: Annotated[
        int | None, Option(parser=count, help="context of one subset, in tokens (default: the engine's)")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TableOptions(Options):
    """Which words, and how private: one target. The long names are those of the library."""

    embeddings: Annotated[
        str,
        Option(
            "--embeddings", "--table", autocompletion=_tables, metavar="TABLE", rich_help_panel=_PROMISE,
            help="glove, minilm or a path",
        ),
    ] = "glove"  # fmt: skip
    eta: Annotated[
        float | None, Option(parser=positive, rich_help_panel=_PROMISE, help="loss per unit of distance, in nats")
    ] = None
    replacement: Annotated[
        float | None,
        Option(
            "--replacement", "--target-replacement", parser=share, metavar="P", rich_help_panel=_PROMISE,
            help=f"share of words replaced (default: {REPLACEMENT})",
        ),
    ] = None  # fmt: skip
    deniability: Annotated[
        float | None,
        Option(
            parser=share, metavar="P", rich_help_panel=_PROMISE, help="95% of words stay with at most this chance"
        ),
    ] = None  # fmt: skip
    inversion: Annotated[
        float | None,
        Option(parser=share, metavar="P", rich_help_panel=_PROMISE, help="share of words that an attacker may guess"),
    ] = None
    max_loss: Annotated[
        float | None,
        Option(
            parser=positive, metavar="NATS", rich_help_panel=_PROMISE,
            help="mean loss between a word and its nearest neighbour",
        ),
    ] = None  # fmt: skip
    mechanism: Annotated[Literal["exponential", "laplace"], Option(rich_help_panel=_PROMISE)] = "exponential"

    def __post_init__(self) -> None:
        self.at_most_one("eta", "replacement", "deniability", "inversion", "max_loss")

    def targets(self) -> dict[str, Any]:
        """The one that was given, under the library's name, or the default."""
        asked = {
            "eta": self.eta,
            "target_replacement": self.replacement,
            "deniability": self.deniability,
            "inversion": self.inversion,
            "max_loss": self.max_loss,
        }
        return {name: value for name, value in asked.items() if value is not None} or {
            "target_replacement": REPLACEMENT
        }
