"""Shared options. Help lists the last base's first."""
# No postponed annotations: typer evaluates inherited ones in the command's module, without these names.

import functools
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import typer
from typer import Option

from langchain_dp.cli.parser import Options, WrongArguments, positive, rate, share, tiny
from langchain_dp.errors import InvalidParameter

Neighboring = Literal["replace-one", "add-or-remove-one", "replace-special"]
KnownTask = Literal["sst2", "trec", "mpqa", "disaster"]
KnownPrompt = Literal["plain", "sst2", "amazon", "agnews", "trec"]
NEIGHBORS = get_args(Neighboring)
TABLES = ("glove", "minilm")
TARGETS = ("eta", "target_replacement", "inversion")
REPLACEMENT = 0.5

_FITTING = "what fits"
ROWS = "JSONL of {text, label}, or CSV with a header"
ledger_at = functools.partial(Option, None, metavar="PLACE")
"""A str, since Path shortens the slashes of a URL."""


def split_labels(labels: list[str] | None) -> list[str] | None:
    """Take ``a,b,c`` for three labels."""
    if labels and len(labels) == 1 and "," in labels[0]:
        return [label.strip() for label in labels[0].split(",") if label.strip()]
    return labels


def _two_labels(labels: list[str] | None) -> list[str] | None:
    labels = split_labels(labels)
    if labels and len(labels) < 2:
        raise typer.BadParameter(f"expected at least two labels, found {labels[0]!r} alone")
    return labels


class JsonOptions(Options):
    """Output for programs."""

    json: bool = Option(False, "--json", help="print one JSON object on stdout and nothing else there")


class ModelOptions(Options):
    """A local model."""

    said: ClassVar = {"model_path": "--model"}

    model: str | None = Option(None, help="path of a GGUF (default: the embedded SmolLM2-135M-Instruct)")
    gpu_layers: int = Option(0, min=-1, help="layers to put on a GPU")

    def engine(self, **sizes: Any) -> Any:
        """Load the model. Sizes of None keep their defaults."""
        from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

        given = {name: size for name, size in sizes.items() if size is not None}
        return LlamaCppEnsemble(model_path=self.model, n_gpu_layers=self.gpu_layers, **given)


class WritingModelOptions(ModelOptions):
    """A model that writes."""

    allow_small_model: bool = Option(False, "--allow-small-model", help="write with the embedded model")

    def check_writer(self) -> None:
        """Refuse the embedded model unless allowed, before anything is read."""
        from langchain_dp.ensemble.text_writer import check_writer

        try:
            check_writer(self.model is None, self.allow_small_model)
        except InvalidParameter as error:
            raise WrongArguments(str(error)) from None


class LabelOptions(Options):
    """The labels."""

    labels: list[str] | None = Option(
        None, callback=_two_labels, metavar="A,B", help="the public labels (default: those found in --data)"
    )


class FileOptions(Options):
    """Columns of text and label."""

    text_key: str = Option("text", metavar="NAME", help="column of the text in --data")
    label_key: str = Option("label", metavar="NAME", help="column of the label in --data")

    def read(self, path: Path, *, label: str | None = None) -> list[dict[str, Any]]:
        """Read rows. ``label`` fills a missing column."""
        from langchain_dp.records import PrivateRecords, read_file

        made = _synthetic(path)
        rows = read_file(path) if made is None else made.rows()
        if not rows:
            raise InvalidParameter(f"Expected {path} to hold at least one row, but it holds none. Give more rows.")
        try:
            records = PrivateRecords(rows, text_key=self.text_key, label_key=self.label_key, label=label)
        except InvalidParameter as error:
            beside = " It needs the columns of --data." if path == getattr(self, "test", None) else ""
            raise InvalidParameter(f"{error} The file is {path}.{beside}") from None
        return [dict(records.get(name)) for name in records.ids()]


def _synthetic(path: Path) -> Any:
    """Return examples that ``langchain-dp synthesize`` wrote, or None."""
    with path.open("rb") as file:
        if not file.read(16).startswith(b'{"certificate"'):
            return None
    from langchain_dp.synth import SyntheticExamples

    return SyntheticExamples.load(path)


def made_with(path: Path | None) -> list[Any]:
    made = None if path is None else _synthetic(path)
    return [] if made is None else [made.certificate]


class RowOptions(FileOptions):
    """Rows, or their number."""

    data: Path | None = Option(None, help=f"{ROWS}: the private rows")
    records: int | None = Option(
        None, min=1, max=10**12, metavar="N", help="number of rows; their texts are taken to be short"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_most_one("data", "records", required=True)


class DeltaOptions(Options):
    """Delta."""

    delta: float = Option(1e-05, parser=tiny)


class ConstantOptions(Options):
    """Neighbors, and constants that add/remove needs, because the number of rows is private."""

    neighbors: Neighboring = Option(
        "replace-one", metavar="RELATION", help=f"change of one record: {', '.join(NEIGHBORS)} (blanks it out)"
    )
    partitions: int | None = Option(None, min=1, help="number of all subsets (required for add-or-remove-one)")
    sampling_probability: float | None = Option(
        None, parser=rate, metavar="Q", help="chance that one votes (required for add-or-remove-one)"
    )

    def check_constants(self, *, subsets_are_fixed: bool = True) -> None:
        missing = [] if self.sampling_probability is not None else ["--sampling-probability"]
        if subsets_are_fixed and self.partitions is None:
            missing.append("--partitions")
        if self.neighbors == "add-or-remove-one" and missing:
            raise WrongArguments(
                f"Expected {' and '.join(missing)} with --neighbors {self.neighbors}: the number of rows is private "
                "there, and nothing may be derived from it."
            )


class ExampleOptions(FileOptions):
    """Form of synthetic examples."""

    said: ClassVar = {"max_new_tokens": "--tokens"}
    labels: list[str] | None = Option(
        None,
        callback=split_labels,
        metavar="A,B",
        help="the public labels (default: those found in --data); one alone for texts without labels",
    )
    describe: list[str] | None = Option(
        None, metavar="LABEL=TEXT", help="public meaning of each label, or a file of `langchain-dp name`"
    )
    count: int = Option(64, min=1, help="examples of all labels together, rounded up to as many of each")
    tokens: int = Option(40, min=1, help="tokens of one example at most")
    members: int = Option(30, min=2, help="members that are expected to take part in one example")
    temperature: float = Option(1.0, parser=positive, help="of the words that are drawn")
    chat: bool = Option(False, "--chat", help="use the model's chat template")

    def in_options(self, message: str) -> str:
        return super().in_options(message.replace("for all with label=", "for all with --labels"))


class BudgetOptions(ConstantOptions, DeltaOptions):
    """A ledger's promise."""

    epsilon: float = Option(parser=positive, help="the budget")


class VoteOptions(Options):
    """Template and votes."""

    prompt: KnownPrompt = Option("plain", help="template")
    shots: int = Option(4, min=1, help="examples of one subset")
    subsets: int = Option(10, min=1, help="expected votes on one answer")


class WriterOptions(LabelOptions, ConstantOptions):
    """Task, method, sizes and votes of a prompt."""

    said: ClassVar = ModelOptions.said | {
        "num_prompts": "--prompts",
        "max_new_tokens": "--tokens",
        "examples_count": "--records",
    }
    writes_with: ClassVar[tuple[str, ...]] = (
        "shots", "subsets", "prompts", "tokens", "validation", "partitions", "sampling_probability",
    )  # fmt: skip
    """Refused with ``--method choose``."""

    task: KnownTask | None = Option(None, help="labels, instruction, templates, shots and subsets of a known task")
    instruction: str | None = Option(None, help="public initial instruction (default: that of --task)")
    labels: list[str] | None = Option(
        None,
        callback=_two_labels,
        metavar="A,B",
        help="the public labels (default: of --task, or those found in --data)",
    )
    method: Literal["dp-opt", "choose"] = Option("dp-opt", help="choose: write nothing, choose among --alternatives")
    alternatives: Path | None = Option(
        None,
        help="public prompts that may win, too: JSONL of {instruction, words by label}, or a result of this command",
    )
    shots: int | None = Option(None, min=1, help=f"examples of one subset (default: {_FITTING})")
    subsets: int | None = Option(None, min=1, help=f"expected votes on one answer (default: {_FITTING})")
    prompts: int | None = Option(None, min=1, help=f"candidates (default: {_FITTING})")
    tokens: int | None = Option(None, min=1, help=f"tokens of one candidate (default: {_FITTING})")
    effort: Literal["light", "full"] = Option(
        "light", help="how much is chosen to fit, where none of these five is given; full takes ten times as long"
    )
    validation: float | None = Option(None, parser=share, help=f"share of the rows that select (default: {_FITTING})")
    max_tokens: int | None = Option(None, min=1, help="context of one subset, in tokens (default: the engine's)")

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = self.given(self.writes_with)
        if self.method == "choose" and unused:
            raise typer.BadParameter(f"expected {unused[0]} to be left out with --method choose, which writes nothing")
        if self.method == "choose" and self.alternatives is None:
            raise typer.BadParameter("expected --alternatives with --method choose: public prompts to choose among")

    @property
    def fits(self) -> bool:
        """Return whether settings are chosen to fit rows and budget."""
        given = self.given(("shots", "subsets", "prompts", "tokens", "validation"))
        return (
            not given and self.neighbors != "add-or-remove-one" and self.partitions is self.sampling_probability is None
        )


class TableOptions(Options):
    """Word vectors and target."""

    embeddings: str = Option(
        "glove",
        "--embeddings",
        "--table",
        autocompletion=lambda: [*TABLES],
        metavar="TABLE",
        help="glove, minilm or a path",
    )  # fmt: skip
    eta: float | None = Option(None, parser=positive, help="loss per unit of distance, in nats")
    target_replacement: float | None = Option(
        None, "--replacement", "--target-replacement", parser=share, metavar="P",
        help=f"share of words replaced (default: {REPLACEMENT}); also --target-replacement",
    )  # fmt: skip
    inversion: float | None = Option(None, parser=share, metavar="P", help="share of words that an attacker may guess")
    mechanism: Literal["exponential", "laplace"] = Option("exponential", metavar="NAME", help="exponential or laplace")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_most_one(*TARGETS)

    def targets(self) -> dict[str, Any]:
        asked = {name: getattr(self, name) for name in TARGETS if getattr(self, name) is not None}
        return asked or {"target_replacement": REPLACEMENT}
